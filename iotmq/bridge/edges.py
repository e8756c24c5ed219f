"""Resolve an option (earliest, latest, an offset, a time) to an offset per queue."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from iotmq.bridge.offsets import QueueBounds, QueueKey
from iotmq.bridge.options.reading import EARLIEST, LATEST, Edge, QueueNumbers
from iotmq.bridge.plan import Loss
from iotmq.errors import ConfigError

#: The smallest offset of a queue whose record was stored at or after a time in ms; the queue's end if none.
TimeSearch = Callable[[QueueKey, QueueBounds, int], int]


class Resolved(NamedTuple):
    """An offset for each queue, always within its bounds, and what the option wanted beyond them."""

    offsets: dict[QueueKey, int]
    losses: tuple[Loss, ...]


def resolve_edge(
    edge: Edge,
    bounds: Mapping[QueueKey, QueueBounds],
    *,
    search: TimeSearch,
    late_timestamp: Literal["error", "latest"],
) -> Resolved:
    """Resolve `edge` to an offset for every queue of `bounds`.

    A time later than all records of a queue means its end, or with ``late_timestamp="error"`` a
    ConfigError that names the queue. An option with a number per queue must have one for each queue
    and for no other; otherwise ConfigError.
    """
    if edge.timestamp_ms is not None or edge.timestamps is not None:
        offsets = {}
        for key, held in bounds.items():
            wanted_ms = edge.timestamp_ms
            if wanted_ms is None and edge.timestamps is not None:
                wanted_ms = _number(edge.timestamps, key, bounds)
            offsets[key] = search(key, held, wanted_ms or 0)
            if offsets[key] >= held.max_offset and late_timestamp == "error":
                raise ConfigError(
                    f"option {edge.option}: {key} has no record stored at or after {wanted_ms}; "
                    "choose an earlier time or set startingOffsetsByTimestampStrategy to latest"
                )
        return Resolved(offsets, ())
    if edge.offsets is None:
        return Resolved({key: _special(edge.everywhere, held) for key, held in bounds.items()}, ())
    found: dict[QueueKey, int] = {}
    losses: list[Loss] = []
    for key, held in bounds.items():
        wanted = _number(edge.offsets, key, bounds)
        found[key] = (
            _special(wanted, held) if wanted < 0 else min(max(wanted, held.min_offset), held.max_offset)
        )
        if wanted >= 0 and wanted != found[key]:
            reach = f"option {edge.option} is outside of {held.min_offset} to {held.max_offset}"
            losses.append(Loss(key, wanted, reach))
    return Resolved(found, tuple(losses))


def first_at_or_after(
    timestamp_ms: int, bounds: QueueBounds, stored_at_ms: Callable[[int], int | None]
) -> int:
    """The smallest offset whose record was stored at `timestamp_ms` or later; the end if there is none.

    Asks `stored_at_ms` about log2 of the queue's length offsets; None (deleted) counts as earlier.
    Store times of one queue do not run backwards, which makes halving possible.
    """

    def is_late(offset: int) -> bool:
        stored_ms = stored_at_ms(offset)
        return stored_ms is not None and stored_ms >= timestamp_ms

    return bounds.min_offset + bisect_left(range(*bounds), True, key=is_late)


def _number(numbers: QueueNumbers, key: QueueKey, bounds: Mapping[QueueKey, QueueBounds]) -> int:
    unmatched = numbers.unmatched(bounds)
    if unmatched:
        raise ConfigError(f"option {numbers.option} names queues that are not read: {', '.join(unmatched)}")
    number = numbers.find(key)
    if number is None:
        raise ConfigError(
            f"option {numbers.option} has no number for {key}: name every queue"
            " (-2 stands for earliest, -1 for latest)"
        )
    return number


def _special(number: int, held: QueueBounds) -> int:
    if number == EARLIEST:
        return held.min_offset
    assert number == LATEST, number
    return held.max_offset
