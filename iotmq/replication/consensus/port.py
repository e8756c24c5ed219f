"""The consensus store as replication needs it: a value per broker name, and signs of life of the members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from iotmq import limits


class Versioned(NamedTuple):
    """The state, with the number it is replaced by."""

    version: int
    """Grows with each change."""
    value: bytes


class SignOfLife(NamedTuple):
    """The last beat of a member."""

    age_s: float
    """The least time since that beat, as far as this observer can tell; the true age may be larger."""
    value: bytes


class ConsensusStore(Protocol):
    """Holds the state of one broker name, and what its members say of themselves.

    Values are text in UTF-8. ValueError when a state has more than CONSENSUS_STATE_BYTES_MAX bytes, or a beat
    more than CONSENSUS_BEAT_BYTES_MAX. Every method but `watch` and `close` raises ConsensusUnavailableError
    when nobody answers in time, or the answer is no use. Whether a change was made is not known then: it may
    be made later, even after a read that did not show it.
    """

    async def read(self) -> Versioned | None:
        """Read the state, linearizably; None when there is none yet."""

    async def create(self, value: bytes) -> int | None:
        """Create the state and return its version; None when there is one already."""

    async def replace(self, version: int, value: bytes) -> int | None:
        """Replace the state if it still has that version, and return the new version; None for a refusal.

        A refusal says that the version is gone for good. After a request without an answer the reason may be
        that very request.
        """

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the state may have changed, until cancelled.

        It may be called without a reason. A connection that breaks is made again, and one that is silent for
        half a minute; but changes in between are seen late, so callers read the state now and then as well.
        """

    async def beat(self, member: int, value: bytes) -> None:
        """Give a sign of life of a member of this process; to be called at least once a second."""

    async def beats(self) -> Mapping[int, SignOfLife]:
        """Return the signs of life that members have given and not withdrawn."""

    async def withdraw(self, member: int) -> None:
        """Remove the sign of life of a member that stops, so that nobody waits for it."""

    async def label_pod(self, *, is_master: bool) -> None:
        """Let a service of the cluster find the master, where that goes by a label; else do nothing."""

    async def close(self) -> None:
        """Close the connections. Signs of life stay until they are too old."""


def check_state(value: bytes) -> None:
    """Refuse a state that is too long."""
    if len(value) > limits.CONSENSUS_STATE_BYTES_MAX:
        raise ValueError(f"a state of {len(value):,} bytes")


def check_beat(member: int, value: bytes) -> None:
    """Refuse a number that no member has, and a sign of life that is too long."""
    if not 1 <= member <= limits.REPLICATION_MEMBER_MAX:
        raise ValueError(f"member {member}")
    if len(value) > limits.CONSENSUS_BEAT_BYTES_MAX:
        raise ValueError(f"a sign of life of {len(value):,} bytes")
