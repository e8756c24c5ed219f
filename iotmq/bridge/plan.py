"""Plan the next micro-batch and spread it over tasks: pure functions of offsets and options."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from iotmq.bridge.offsets import Generations, QueueBounds, QueueKey, QueueRange, StreamOffset
from iotmq.errors import IotmqError

_LOSSES_NAMED_MAX = 5


class DataLossError(IotmqError):
    """Records that a checkpoint or an option asks for cannot be read any more (option failOnDataLoss)."""


class Loss(NamedTuple):
    """Records of a queue that were promised (by a checkpoint or an option) and cannot be read any more.

    They are those from `wanted` up to, not including, `end`; None when nobody knows how many there were.
    """

    key: QueueKey
    wanted: int
    what: str
    end: int | None = None

    def __str__(self) -> str:
        if self.end is None or self.end - self.wanted == 1:
            return f"{self.key} offset {self.wanted}: {self.what}"
        return f"{self.key} offset {self.wanted} to {self.end - 1}: {self.what}"


#: Told about records that cannot be had; raises to stop there (failOnDataLoss), returns to go on.
LossHandler = Callable[[Loss], None]

_CHANGES: Final = {
    "cut": "the broker has lost them after they were read (power cut, or an older copy of its disk), and "
    "other records have these offsets now",
    "anew": "the topic was deleted and made anew",
}


class Change(NamedTuple):
    """Tell that a queue has other records from `offset` on than in the generation a stream has read.

    `kind` is "cut" or "anew".
    """

    offset: int
    kind: str

    @property
    def reason(self) -> str:
        return _CHANGES.get(self.kind, f"the broker says {self.kind!r}")


class Held(NamedTuple):
    """All that brokers say of some topics: bounds of queues, in order, and what has become of them.

    `removed` has the queues that are in no route: with their bounds, or None when their broker knows nothing
    of them. `time_ms` is the earliest of the brokers' clocks, 0 when they do not tell.
    """

    bounds: Mapping[QueueKey, QueueBounds]
    removed: Mapping[QueueKey, QueueBounds | None] = MappingProxyType({})
    changes: Mapping[QueueKey, Change] = MappingProxyType({})
    generations: Generations = MappingProxyType({})
    time_ms: int = 0

    def and_also(self, other: Held) -> Held:
        """Return what both say."""
        return Held(
            {**self.bounds, **other.bounds},
            {**self.removed, **other.removed},
            {**self.changes, **other.changes},
            {**self.generations, **other.generations},
            min(self.time_ms or other.time_ms, other.time_ms or self.time_ms),
        )

    def within(self, target: Mapping[QueueKey, int]) -> Held:
        """Limit it to the offsets and queues of `target`."""
        return self._replace(
            bounds={
                key: QueueBounds(min(held.min_offset, target[key]), min(held.max_offset, target[key]))
                for key, held in self.bounds.items()
                if key in target
            }
        )


class Advance(NamedTuple):
    """The end of the next batch, and what is known to be lost between its start and that end."""

    end: StreamOffset
    losses: tuple[Loss, ...]


def advance(
    start: StreamOffset,
    held: Held,
    *,
    first_offset: Callable[[QueueKey, QueueBounds], int] = lambda key, bounds: bounds.min_offset,
    is_subscribed: Callable[[QueueKey], bool] = lambda key: True,
    rows_max: int | None = None,
) -> Advance:
    """Return the end of a batch that starts at `start` when brokers have what `held` says.

    * A queue that `start` does not have begins at its `first_offset`, with the batch after this one.
    * A queue whose records were deleted below its start goes on at what is left (a loss).
    * A queue that has other records since (`held.changes`) goes on where they begin, with the batch after
      this one: its end is below its start, and what had been read beyond is reported as lost by the broker.
    * A queue that is shorter than its start although its broker knows of no change goes on at its end (a
      loss). Elsewhere an end is never below a start.
    * A removed queue leaves the offsets; as long as its broker has records of it, its place is kept in
      `left`. What was not read of it is lost. So does a queue of a deleted topic.
    * A queue that is not subscribed any more leaves as well, and nothing of it is lost: nobody wants it. Its
      place is kept until it is subscribed again.
    * A queue whose broker does not answer keeps its offset (a loss, unless it had left already).
    * With `rows_max`, each queue gets its share in proportion to its lag.
    """
    losses: list[Loss] = []
    ends: dict[QueueKey, int] = {}
    left: dict[QueueKey, int] = {}
    lags: dict[QueueKey, int] = {}
    for key in sorted(start.offsets.keys() | start.left.keys() | held.bounds.keys()):
        wanted = start.offset(key)
        bounds = held.bounds.get(key)
        change = held.changes.get(key)
        if bounds is None:
            assert wanted is not None
            if not is_subscribed(key):
                left[key] = wanted
                continue
            _leave(key, wanted, start, held, ends=ends, left=left, losses=losses)
        elif wanted is None:
            ends[key] = first_offset(key, bounds)
        elif change is not None and change.offset < wanted:
            ends[key] = change.offset
            losses.append(_changed(key, wanted, change))
        elif bounds.max_offset < wanted:
            ends[key] = bounds.max_offset
            what = f"the queue ends at {bounds.max_offset}, so it was made anew or cut"
            losses.append(Loss(key, bounds.max_offset, what, wanted))
        else:
            ends[key] = max(wanted, min(bounds.min_offset, bounds.max_offset))
            lags[key] = bounds.max_offset - ends[key]
            if ends[key] > wanted:
                is_anew = change is not None and change.kind == "anew"
                what = _CHANGES["anew"] if is_anew else "retention has deleted them"
                what = f"{what} (the queue begins at {bounds.min_offset} now)"
                losses.append(Loss(key, wanted, what, ends[key]))
    for key, rows in share_rows(lags, rows_max).items():
        ends[key] += rows
    places = {(key.topic, key.broker) for key in (*ends, *left)}
    known = {
        place: generation
        for place in sorted(places)
        if (generation := held.generations.get(place) or start.generations.get(place))
    }
    has_moved = ends != start.offsets
    return Advance(
        start._replace(
            offsets=ends,
            is_initial=False,
            generations=known,
            left=left,
            time_ms=held.time_ms if has_moved and held.time_ms else start.time_ms,
        ),
        tuple(losses),
    )


def is_settled(key: QueueKey, offset: int, held: Held) -> bool:
    """Return whether waiting would change nothing for a queue that was read up to `offset`.

    It is there, or its broker says what has become of it.
    """
    if key in held.bounds:
        change = held.changes.get(key)
        return held.bounds[key].max_offset >= offset or (change is not None and change.offset < offset)
    if key not in held.removed:
        return False
    bounds = held.removed[key]
    return bounds is None or bounds.max_offset <= offset


def shorter_than(target: Mapping[QueueKey, int], held: Held) -> list[Loss]:
    """Return what is missing of queues that had reached the offsets of `target`, and are there."""
    return [
        Loss(key, bounds.max_offset, f"the queue ends at {bounds.max_offset}, and was longer", end)
        for key, end in target.items()
        if (bounds := held.bounds.get(key)) is not None and bounds.max_offset < end
    ]


def _leave(
    key: QueueKey,
    wanted: int,
    start: StreamOffset,
    held: Held,
    *,
    ends: dict[QueueKey, int],
    left: dict[QueueKey, int],
    losses: list[Loss],
) -> None:
    """Decide what becomes of a queue that is in no route."""
    is_known = key in held.removed
    bounds = held.removed.get(key)
    if key in start.left:
        # Said when it left.
        if not is_known or (bounds is not None and bounds.min_offset < bounds.max_offset):
            left[key] = wanted
    elif not is_known:
        ends[key] = wanted
        losses.append(Loss(key, wanted, "the queue's broker is not in the cluster any more"))
    elif bounds is None:
        if wanted:
            what = "the topic or queue is not there any more, and its broker does not remember it"
            losses.append(Loss(key, wanted, what))
    else:
        if bounds.max_offset > wanted:
            what = "the queue was removed, or its topic deleted, with records that had not been read"
            losses.append(Loss(key, wanted, what, bounds.max_offset))
        if bounds.min_offset < bounds.max_offset:
            left[key] = wanted


def _changed(key: QueueKey, wanted: int, change: Change) -> Loss:
    if change.kind == "anew":
        # What the former topic had behind it, nobody knows any more.
        what = f"{change.reason}; the new one is read from offset {change.offset} on"
        return Loss(key, wanted, what)
    return Loss(key, change.offset, change.reason, wanted)


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


def split_tasks(
    ranges: Sequence[QueueRange],
    *,
    partitions_min: int | None = None,
    combine_rows: int = 0,
    records_max: int | None = None,
) -> list[tuple[QueueRange, ...]]:
    """Split the ranges among Spark tasks: one task per queue unless told otherwise.

    A batch of at most `combine_rows` rows is one task, which saves the fixed cost of a task per queue.
    With fewer ranges than `partitions_min`, large ranges are cut into about that many pieces, and those of
    more than `records_max` rows into pieces that have no more.
    The result depends on nothing else, so a replayed batch has the same tasks.
    """
    total = sum(part.rows for part in ranges)
    if len(ranges) > 1 and total <= min(combine_rows, records_max or total):
        return [tuple(ranges)]
    if records_max is not None:
        ranges = [piece for part in ranges for piece in _cut(part, -(-part.rows // records_max))]
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
    return [part._replace(start=a, end=b) for a, b in itertools.pairwise(edges)]
