"""What statistics cost a broker: counting a batch and a pull, and copying everything every ten seconds.

    .venv/bin/python -m benchmarks.broker_statistics [--quick] [--rounds 5]

Processor time of the thread that does it. Once with one topic, once with as many topics as keys are kept for,
and once with five times as many, where each new one takes the place of another.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Final

from benchmarks import machine
from iotmq import limits
from iotmq.broker.statistics.statistics import Statistics
from iotmq.clock import SystemClock
from iotmq.telemetry.latencies import now_us

CALLS: Final = 200_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each kind of work."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker_statistics", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short round")
    options = parser.parse_args(arguments)
    calls = CALLS // 10 if options.quick else CALLS
    rounds = 1 if options.quick else options.rounds
    print(json.dumps(machine.description()))
    for text, topics in (
        ("one topic", 1),
        ("as many topics as keys", limits.STATISTICS_KEYS_MAX),
        ("five times as many", 5 * limits.STATISTICS_KEYS_MAX),
    ):
        names = [f"topic-{number}" for number in range(topics)]
        puts = median(_ns_each(partial(_put, names, calls), calls) for _ in range(rounds))
        gets = median(_ns_each(partial(_get, names, calls), calls) for _ in range(rounds))
        print(f"{text}: a batch {puts:.0f} ns, a pull {gets:.0f} ns")
    statistics = Statistics(SystemClock())
    for number in range(limits.STATISTICS_KEYS_MAX):
        statistics.counters.count_put(f"topic-{number}", 0, 1, 100)
        statistics.counters.count_get(f"topic-{number}", 0, "group", 1, 100, 1, False)
    copies = [_ns_each(partial(_copy, statistics), 1) / 1e6 for _ in range(rounds)]
    print(f"copying all tables, full: {median(copies):.2f} ms")
    return 0


def _put(names: list[str], calls: int) -> None:
    statistics = Statistics(SystemClock())
    count, end = statistics.counters.count_put, statistics.put_latencies.end
    topics = len(names)
    for number in range(calls):
        begun_us = now_us()
        count(names[number % topics], 3, 1, 100)
        end(begun_us)


def _get(names: list[str], calls: int) -> None:
    statistics = Statistics(SystemClock())
    count, end = statistics.counters.count_get, statistics.get_latencies.end
    topics = len(names)
    for number in range(calls):
        begun_us = now_us()
        count(names[number % topics], 3, "group", 32, 3_200, end(begun_us), False)


def _copy(statistics: Statistics) -> None:
    counters = statistics.counters
    for table in (
        counters.topic_puts,
        counters.queue_puts,
        counters.group_gets,
        counters.queue_gets,
        counters.send_backs,
        counters.broker,
    ):
        table.copy()


def _ns_each(work: Callable[[], None], calls: int) -> float:
    begun_ns = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - begun_ns) / calls


if __name__ == "__main__":
    sys.exit(main())
