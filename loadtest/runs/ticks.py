"""What happened in each second of a test: so many seconds at most that a result stays readable."""

from itertools import zip_longest
from typing import Any, Final

# With a tick a second this is more than an hour; a result of so many is 10 MB.
TICKS_MAX: Final = 4_000


def within_limit(ticks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """These ticks, or half as many where they are too many, each of twice the time."""
    if len(ticks) <= TICKS_MAX:
        return ticks
    return [
        first if second is None else _joined(first, second)
        for first, second in zip_longest(ticks[::2], ticks[1::2])
    ]


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two ticks as one: counters go on, and of percentiles the longer one is kept, never a shorter one."""
    latencies = dict(first["latencies"])
    for kind, times in second["latencies"].items():
        latencies[kind] = _joined_times(latencies[kind], times) if kind in latencies else times
    return second | {"latencies": latencies}


def _joined_times(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    count = first["count"] + second["count"]
    mean_ns = (first["mean_ns"] * first["count"] + second["mean_ns"] * second["count"]) / count
    longest = {name: max(time, second[name]) for name, time in first.items()}
    return longest | {"count": count, "mean_ns": mean_ns}
