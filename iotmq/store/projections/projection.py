"""Define what the store asks of a structure that is derived from the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable


class Projection(Protocol):
    """A structure that can be deleted and is rebuilt from the log.

    It remembers how far it got: `applied_position` is the position up to which it has seen every record,
    0 when it has seen none. A projection that lasts stores it in one step with its data.
    """

    @property
    def name(self) -> str:
        """A word for logs and metrics."""

    @property
    def applied_position(self) -> int:
        """Return the position up to which every record has been applied."""

    def apply(self, view: memoryview, start_position: int, end_position: int) -> None:
        """Take in the whole records of `view`, the log's bytes of [start_position, end_position).

        Called on the store's thread, in the order of the log, once per appended batch and in larger
        pieces when catching up. Blanks are never part of it, so `start_position` may be further on than
        the last `end_position`, and the range may be empty. Must set `applied_position` to
        `end_position`; when it raises, the same range comes again later. Keep `view` only as long as
        needed: it pins the segment.
        """


@runtime_checkable
class RewindableProjection(Projection, Protocol):
    """A projection that can go back, for a start after the log lost records it had applied already."""

    def rewind(self, position: int, min_position: int) -> None:
        """Forget every record at or past `position`; the log holds [min_position, position)."""


@runtime_checkable
class DurableProjection(Projection, Protocol):
    """A projection that reaches the disk later than it is applied."""

    @property
    def durable_position(self) -> int:
        """A crash takes it back to here at most: the log must keep what comes after."""

    def sync(self) -> None:
        """Bring everything applied to the disk, so that `durable_position` is `applied_position`."""

    def begin_sync(self) -> None:
        """Have everything applied so far brought to the disk, without waiting for it; may be called again."""


@runtime_checkable
class TrimmableProjection(Projection, Protocol):
    """A projection that holds something for every record, and can forget the ones the log has deleted."""

    def trim(self, min_position: int) -> Leaving | None:
        """The log begins at `min_position` now: nothing before it needs to be kept.

        Returns the files it has let go of, to be deleted in a thread; None when there are none.
        """


class Leaving(NamedTuple):
    """Files that a projection has let go of. What is to be done with them takes as long as a disk does."""

    paths: list[str]
    # To be called before the first of them is deleted, in any thread; again when it raised OSError.
    prepare: Callable[[], None]
