"""Silences: alarms that nobody is told of until a time, for a reason."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.alarms.alarm import Alarm

LabelText = Annotated[str, Meta(max_length=limits.ALARM_TEXT_CHARACTERS_MAX)]
_Operator = Annotated[str, Meta(max_length=1024)]


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """A silence."""

    name: Annotated[str, Meta(max_length=64)]
    alarm: Annotated[str, Meta(max_length=64)]
    """The name of the alarms; `*` in it stands for anything."""
    labels: Annotated[tuple[tuple[LabelText, LabelText], ...], Meta(max_length=16)] = ()
    """Labels that the alarms must have."""
    until_ms: Annotated[int, Meta(ge=0, le=1 << 53)]
    reason: LabelText
    by: _Operator
    made_ms: int

    def covers(self, alarm: Alarm, now_ms: int) -> bool:
        """Return whether nobody is told of an alarm now."""
        return (
            now_ms < self.until_ms
            and fnmatchcase(alarm.name, self.alarm)
            and set(self.labels) <= set(alarm.labels)
        )
