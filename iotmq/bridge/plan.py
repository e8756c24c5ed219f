"""Plan the next micro-batch and spread it over tasks: pure functions of offsets and options."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from iotmq.bridge.offsets import QueueBounds, QueueKey, QueueRange, StreamOffset
from iotmq.errors import IotmqError

_LOSSES_NAMED_MAX = 5


class DataLossError(IotmqError):
    """Records that a checkpoint or an option asks for cannot be read any more (option failOnDataLoss)."""


class Loss(NamedTuple):
    """Records of a queue that were promised (by a checkpoint or an option) and cannot be read any more."""

    key: QueueKey
    wanted: int
    what: str

    def __str__(self) -> str:
        return f"{self.key} offset {self.wanted}: {self.what}"


#: Told about records that cannot be had; raises to stop there (failOnDataLoss), returns to go on.
LossHandler = Callable[[Loss], None]


class Advance(NamedTuple):
    """The end of the next batch, and what is known to be lost between its start and that end."""

    end: StreamOffset
    losses: tuple[Loss, ...]


def advance(
    start: StreamOffset,
    bounds: Mapping[QueueKey, QueueBounds],
    *,
    removed: Mapping[QueueKey, QueueBounds | None] = MappingProxyType({}),
    known_ends: Mapping[QueueKey, int] = MappingProxyType({}),
    rows_max: int | None = None,
) -> Advance:
    """Return the end of a batch that starts at `start` when brokers hold `bounds`.

    * A queue that `start` does not have begins at its smallest offset, with the batch after this one.
    * A queue whose records were deleted below its start goes on at what is left (a loss).
    * A queue that is shorter than its start was truncated or made anew: its end is its new length, so
      that everything written from now on is read, once (a loss). Elsewhere an end is never below a start.
    * A queue that is in no route keeps its offset: it goes on there if it ever comes back. When its broker
      says, in `removed`, that everything before its end was read, nothing is lost.
    * A queue that its broker knows nothing of any more (None in `removed`) leaves the offsets. Nothing is
      lost when the stream stood at the end that was last seen, in `known_ends`.
    * With `rows_max`, each queue gets its share in proportion to its lag.
    """
    losses: list[Loss] = []
    ends: dict[QueueKey, int] = {}
    lags: dict[QueueKey, int] = {}
    for key in sorted(start.offsets.keys() | bounds.keys()):
        wanted = start.offsets.get(key)
        held = bounds.get(key)
        if held is None:
            stays, what = _left(start.offsets[key], removed, key, known_ends)
            if stays:
                ends[key] = start.offsets[key]
            if what:
                losses.append(Loss(key, start.offsets[key], what))
        elif wanted is None:
            ends[key] = held.min_offset
        elif held.max_offset < wanted:
            ends[key] = held.max_offset
            losses.append(
                Loss(key, wanted, f"the queue ends at {held.max_offset}, so it was made anew or cut")
            )
        else:
            ends[key] = max(wanted, min(held.min_offset, held.max_offset))
            lags[key] = held.max_offset - ends[key]
            if ends[key] > wanted:
                losses.append(Loss(key, wanted, f"the queue begins at {held.min_offset} now"))
    for key, rows in share_rows(lags, rows_max).items():
        ends[key] += rows
    return Advance(StreamOffset(ends), tuple(losses))


def _left(
    offset: int,
    removed: Mapping[QueueKey, QueueBounds | None],
    key: QueueKey,
    known_ends: Mapping[QueueKey, int],
) -> tuple[bool, str]:
    """Return whether a queue that left the route keeps its offset, and what is lost with it."""
    if key not in removed:
        return True, "the queue's broker is not in the cluster any more"
    held = removed[key]
    if held is None:
        return False, "" if known_ends.get(key) == offset else "the queue is not there any more"
    if held.max_offset > offset:
        return True, f"the queue was removed with records up to offset {held.max_offset - 1}"
    return True, ""


def share_rows(lags: Mapping[QueueKey, int], rows_max: int | None) -> dict[QueueKey, int]:
    """Split at most `rows_max` rows over queues in proportion to their lag, none above its lag.

    Every lagging queue gets at least one row as long as there are that many rows; otherwise the queues
    that lag most get one each, so a queue left out grows until it is served.
    """
    lagging = {key: lag for key, lag in lags.items() if lag > 0}
    total = sum(lagging.values())
    if rows_max is None or total <= rows_max:
        return lagging
    order = sorted(lagging, key=lambda key: (-lagging[key], key))
    if rows_max <= len(order):
        return dict.fromkeys(sorted(order[:rows_max]), 1)
    exact = {key: divmod(rows_max * lagging[key], total) for key in order}
    shares = {key: max(1, rows) for key, (rows, _) in exact.items()}
    left = rows_max - sum(shares.values())
    # Rows lost to rounding down go to the largest fractions; rows given to the smallest queues beyond
    # their share come from the largest. Either is less than one row per queue.
    rounded = [key for key in order if exact[key][0]]
    for key in sorted(rounded, key=lambda key: (-exact[key][1], key))[: max(0, left)]:
        shares[key] += 1
    while left < 0:
        largest = max(order, key=lambda key: shares[key])
        shares[largest] -= 1
        left += 1
    return {key: shares[key] for key in sorted(shares)}


def within(
    bounds: Mapping[QueueKey, QueueBounds], target: Mapping[QueueKey, int]
) -> dict[QueueKey, QueueBounds]:
    """Limit `bounds` to the offsets and queues of `target`."""
    return {
        key: QueueBounds(min(held.min_offset, target[key]), min(held.max_offset, target[key]))
        for key, held in bounds.items()
        if key in target
    }


def split_tasks(
    ranges: Sequence[QueueRange], *, partitions_min: int | None = None, combine_rows: int = 0
) -> list[tuple[QueueRange, ...]]:
    """Split the ranges among Spark tasks: one task per queue unless told otherwise.

    A batch of at most `combine_rows` rows is one task, which saves the fixed cost of a task per queue.
    With fewer ranges than `partitions_min`, large ranges are cut into about that many pieces.
    The result depends on nothing else, so a replayed batch has the same tasks.
    """
    total = sum(part.rows for part in ranges)
    if len(ranges) > 1 and total <= combine_rows:
        return [tuple(ranges)]
    if partitions_min is None or len(ranges) >= partitions_min or not total:
        return [(part,) for part in ranges]
    return [
        (piece,)
        for part in ranges
        for piece in _cut(part, max(1, min(part.rows, round(partitions_min * part.rows / total))))
    ]


def describe_losses(losses: Iterable[Loss], *, consequence: str) -> str:
    """Describe lost records in a sentence, with the option that decides about them."""
    listed = list(losses)
    named = "; ".join(str(loss) for loss in listed[:_LOSSES_NAMED_MAX])
    more = len(listed) - _LOSSES_NAMED_MAX
    if more > 0:
        named += f"; and {more} more"
    return f"records are lost: {named}. {consequence}"


def _cut(part: QueueRange, pieces: int) -> list[QueueRange]:
    edges = [part.start + part.rows * n // pieces for n in range(pieces + 1)]
    return [QueueRange(part.key, a, b) for a, b in itertools.pairwise(edges)]
