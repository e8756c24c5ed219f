"""Epochs of a log: where each began, and up to where two logs are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class EpochStart(NamedTuple):
    """The position of the record that is the first of its epoch."""

    epoch: int
    position: int


def common_point(
    ours: Sequence[EpochStart], our_end: int, theirs: Sequence[EpochStart], their_end: int
) -> int | None:
    """Find the position up to which two logs hold the same; None when they share no epoch.

    Both lists are sorted by epoch. An epoch begins with a record that only its master has written, so two
    logs with the same epoch at the same position are the same up to where the first of them leaves it.
    """
    other = dict(theirs)
    for number in range(len(ours) - 1, -1, -1):
        epoch, position = ours[number]
        if other.get(epoch) == position:
            return min(_end_of(ours, epoch, our_end), _end_of(theirs, epoch, their_end))
    return None


def _end_of(epochs: Sequence[EpochStart], epoch: int, end: int) -> int:
    """Return where an epoch of a log ends: at the next one, or at the log's end."""
    return next((start.position for start in epochs if start.epoch > epoch), end)
