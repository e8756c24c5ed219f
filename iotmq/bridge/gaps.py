"""Find what is missing in a column of offsets, at once for all of it."""

from __future__ import annotations

from typing import Any, Final

import numpy
import numpy.typing

from iotmq.bridge.offsets import QueueKey
from iotmq.bridge.plan import Loss, LossHandler
from iotmq.errors import IotmqError

# Gaps of one piece of an answer that are told one by one.
_GAPS_TOLD_MAX: Final = 100

Offsets = numpy.typing.NDArray[Any]


class RecordOrderError(IotmqError):
    """A pull answer whose offsets do not rise: the broker's queue is damaged, and nothing of it is used."""


def rows_between(offsets: Offsets, first: int, end: int, key: QueueKey) -> tuple[int, int]:
    """Return which rows have the offsets from `first` to before `end`.

    Raises RecordOrderError when the offsets do not rise.
    """
    if (numpy.diff(offsets) < 1).any():
        raise RecordOrderError(f"the broker sent records of {key} out of order from offset {first} on")
    low, high = numpy.searchsorted(offsets, (first, end))
    return int(low), int(high)


def gaps_of(offsets: Offsets, first: int, key: QueueKey) -> list[Loss]:
    """Return what is missing from `first` up to the last of the offsets; very many gaps become one."""
    if not len(offsets):
        return []
    ahead = numpy.concatenate(([first], offsets[:-1] + 1))
    places = numpy.flatnonzero(offsets != ahead)
    gaps = [left_out(key, int(ahead[at]), int(offsets[at])) for at in places[:_GAPS_TOLD_MAX]]
    if len(places) > _GAPS_TOLD_MAX:
        more = places[_GAPS_TOLD_MAX:]
        what = f"the broker left out offsets at {len(more)} places of these and does not say why"
        gaps.append(Loss(key, int(ahead[more[0]]), what, int(offsets[more[-1]])))
    return gaps


def left_out(key: QueueKey, first: int, end: int) -> Loss:
    """Return the loss of offsets that an answer should have had."""
    return Loss(key, first, "the broker left them out and does not say why", end)


def tell_all(gaps: list[Loss], lose: LossHandler) -> None:
    """Tell of gaps, once."""
    for gap in gaps:
        lose(gap)
    gaps.clear()
