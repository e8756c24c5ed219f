"""An alarm: a condition that is met somewhere, from the first time it was seen until it has ended."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.alarms.condition import Labels, Level


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    """Says who looks after an alarm."""

    by: Annotated[str, Meta(max_length=1024)]
    at_ms: Annotated[int, Meta(ge=0, le=1 << 53)]
    note: Annotated[str, Meta(max_length=limits.ALARM_TEXT_CHARACTERS_MAX)] = ""


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """An alarm. `id` follows from name and labels, so it is the same wherever the alarm is seen."""

    id: str
    name: str
    labels: Labels
    level: Level
    owner: str
    says: str
    what_to_do: str
    state: Literal["pending", "firing", "ended"]
    value: float
    since_ms: int
    """When it was first met."""
    fired_ms: int = 0
    """When it had been met for long enough; 0: not yet."""
    clear_since_ms: int = 0
    """Since when it is not met any more, and may end; 0: it is met."""
    ended_ms: int = 0
    ended_by: str = ""
    """The one who ended it by hand; empty: it ended by itself."""
    acknowledged: Acknowledgement | None = None
    is_flapping: bool = False
    """Whether it has come and gone so often that it ends only after a longer rest."""
    is_of_cluster: bool = False


class Reading(NamedTuple):
    """A number of a condition."""

    condition: str
    labels: Labels
    value: float


class Event(NamedTuple):
    """A change that people are told of."""

    kind: Literal["fired", "ended"]
    alarm: Alarm


def alarm_id(name: str, labels: Labels) -> str:
    """Return the fingerprint of a name and labels, whose order means nothing."""
    text = msgspec.json.encode((name, sorted(labels)))
    return hashlib.sha256(text).hexdigest()[:16]
