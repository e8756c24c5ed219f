"""Track the progress of a group in one queue: the smallest offset that is not done."""

from __future__ import annotations

from collections import OrderedDict


class QueueProgress:
    """Ranges of offsets that were fetched and are not done yet, and the offset to commit.

    Operations: `taken` once per fetched range (ascending), `done` once per finished range (any
    order), `committable` every few seconds. Ranges lie in fetch order, so the first one left is the
    smallest: all three are O(1). Gaps between ranges (filtered or expired records) count as done.
    """

    __slots__ = ("_next_offset", "_open")

    def __init__(self, start_offset: int) -> None:
        self._next_offset = start_offset
        self._open: OrderedDict[int, int] = OrderedDict()

    def taken(self, first_offset: int, end_offset: int) -> None:
        """Add the range [first_offset, end_offset), behind all ranges before, as being worked on."""
        if not self._next_offset <= first_offset < end_offset:
            raise ValueError(
                f"range {first_offset}..{end_offset} does not follow offset {self._next_offset} of its queue"
            )
        self._open[first_offset] = end_offset
        self._next_offset = end_offset

    def skipped_to(self, offset: int) -> None:
        """Move on to `offset`: the messages before it were filtered out or are gone."""
        if offset > self._next_offset:
            self._next_offset = offset

    def done(self, first_offset: int) -> None:
        """Finish the range that begins at `first_offset`: it is consumed or safely back at the broker."""
        del self._open[first_offset]

    @property
    def committable(self) -> int:
        """Return the offset to commit: everything below it is consumed."""
        return next(iter(self._open)) if self._open else self._next_offset

    @property
    def next_offset(self) -> int:
        """Return the offset of the next pull, behind everything fetched."""
        return self._next_offset
