"""Count the broker's traffic under the names tools of the RocketMQ family ask for.

Hot paths call `counters.count_put` and the like, once per batch stored and once per pull answered;
everything else happens when somebody asks, or every ten seconds in `sample`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from iotmq import limits
from iotmq.broker.statistics.counters import CounterTable, TrafficCounters
from iotmq.broker.statistics.latency_window import LatencyWindow
from iotmq.broker.statistics.windows import StatisticsWindows
from iotmq.clock import Clock
from iotmq.metrics import Metric, samples, samples_by
from iotmq.telemetry.histograms import Histogram
from iotmq.telemetry.latencies import Latencies

WINDOWS: Final = ("minute", "hour", "day")

# Columns of the tables of TrafficCounters.
_TIMES, _RECORDS, _BYTES, _MICROSECONDS, _DISK_RECORDS, _DISK_BYTES = range(6)


class Statistic(NamedTuple):
    """One name over one window: what was counted, per second, and on average each time."""

    sum: int
    tps: float
    average: float


class _Name(NamedTuple):
    table: str
    column: int
    # The table's key for what a tool writes; None when it cannot be one.
    key_of: Callable[[str], Hashable | None]
    divisor: int = 1


def _drop(table: CounterTable, is_meant: Callable[[tuple[object, ...]], bool]) -> None:
    for key in table.all_keys():
        if isinstance(key, tuple) and is_meant(key):
            table.drop(key)


def _chosen(table: CounterTable, topic_of: Callable[[Any], str], pattern: str) -> list[tuple[Any, list[int]]]:
    """Return the keys of topics that match, in order, with what was counted under each."""
    chosen = []
    for key in table.all_keys():
        totals = table.totals(key) if fnmatchcase(topic_of(key), pattern) else None
        if totals is not None:
            _, now, origin, _ = totals
            chosen.append((key, [total - former for total, former in zip(now, origin, strict=True)]))
    return sorted(chosen)


def _topic(key: str) -> Hashable | None:
    return key


def _topic_and_group(key: str) -> Hashable | None:
    topic, separator, group = key.partition("@")
    return (topic, group) if separator else None


def _topic_and_queue(key: str) -> Hashable | None:
    topic, separator, queue_id = key.partition("@")
    return (topic, int(queue_id)) if separator and is_queue_id(queue_id) else None


def topic_queue_and_group(key: str) -> tuple[str, int, str] | None:
    """The parts of `topic@queueId@group`, `queueId@topic@group` or `topic@group@queueId`; None without."""
    parts = key.split("@")
    if len(parts) != 3:
        return None
    for queue, topic, group in ((1, 0, 2), (0, 1, 2), (2, 0, 1)):
        if is_queue_id(parts[queue]):
            return parts[topic], int(parts[queue]), parts[group]
    return None


def is_queue_id(text: str) -> bool:
    """Return True for digits that can be the number of a queue."""
    return text.isascii() and text.isdecimal() and len(text) <= 9


def _broker(side: str) -> Callable[[str], Hashable | None]:
    return lambda key: side


_NAMES: Final = {
    "TOPIC_PUT_NUMS": _Name("topic_puts", _RECORDS, _topic),
    "TOPIC_PUT_SIZE": _Name("topic_puts", _BYTES, _topic),
    "QUEUE_PUT_NUMS": _Name("queue_puts", _RECORDS, _topic_and_queue),
    "QUEUE_PUT_SIZE": _Name("queue_puts", _BYTES, _topic_and_queue),
    "GROUP_GET_NUMS": _Name("group_gets", _RECORDS, _topic_and_group),
    "GROUP_GET_SIZE": _Name("group_gets", _BYTES, _topic_and_group),
    "GROUP_GET_FROM_DISK_NUMS": _Name("group_gets", _DISK_RECORDS, _topic_and_group),
    "GROUP_GET_FROM_DISK_SIZE": _Name("group_gets", _DISK_BYTES, _topic_and_group),
    "QUEUE_GET_NUMS": _Name("queue_gets", _RECORDS, topic_queue_and_group),
    "QUEUE_GET_SIZE": _Name("queue_gets", _BYTES, topic_queue_and_group),
    # Milliseconds.
    "GROUP_GET_LATENCY": _Name("queue_gets", _MICROSECONDS, topic_queue_and_group, 1_000),
    "SNDBCK_PUT_NUMS": _Name("send_backs", _TIMES, _topic_and_group),
    "BROKER_PUT_NUMS": _Name("broker", _RECORDS, _broker("put")),
    "BROKER_GET_NUMS": _Name("broker", _RECORDS, _broker("get")),
    "BROKER_GET_FROM_DISK_NUMS": _Name("broker", _DISK_RECORDS, _broker("get")),
    "BROKER_GET_FROM_DISK_SIZE": _Name("broker", _DISK_BYTES, _broker("get")),
}
STATISTIC_NAMES: Final = frozenset(_NAMES)
# Those whose key is the name of the cluster.
BROKER_STATISTIC_NAMES: Final = frozenset(name for name in _NAMES if name.startswith("BROKER_"))


class Statistics:
    """Counts, and answers for the last minute, hour and day."""

    def __init__(self, clock: Clock) -> None:
        self.counters = TrafficCounters(keys_max=limits.STATISTICS_KEYS_MAX, monotonic_s=clock.monotonic_s)
        self.put_latencies = Latencies()
        self.get_latencies = Latencies()
        self.put_window = LatencyWindow(self.put_latencies)
        self.get_window = LatencyWindow(self.get_latencies)
        self.put_histogram = Histogram(
            "iotmq_broker_put_seconds",
            "How long batches took, until they were as durable as promised.",
            self.put_latencies,
            clock,
        )
        self._get_histogram = Histogram(
            "iotmq_broker_get_seconds",
            "How long pulls with records took.",
            self.get_latencies,
            clock,
        )
        counters = self.counters
        self._tables: dict[str, CounterTable] = {
            "topic_puts": counters.topic_puts,
            "queue_puts": counters.queue_puts,
            "group_gets": counters.group_gets,
            "queue_gets": counters.queue_gets,
            "send_backs": counters.send_backs,
            "broker": counters.broker,
        }
        self._windows = {name: StatisticsWindows(table, clock) for name, table in self._tables.items()}

    def sample(self) -> None:
        """Take the copies that are due; to be called every ten seconds."""
        for windows in self._windows.values():
            windows.sample()
        self.put_window.sample()
        self.get_window.sample()

    def find(self, name: str, key: str, window: str) -> Statistic | None:
        """One of STATISTIC_NAMES over one of WINDOWS; None when nothing was ever counted under the key."""
        meaning = _NAMES[name]
        parts = meaning.key_of(key)
        growth = None if parts is None else self._windows[meaning.table].growth(parts, window)
        if growth is None:
            return None
        total = growth.sums[meaning.column] / meaning.divisor
        times = growth.sums[_TIMES]
        return Statistic(
            sum=round(total),
            tps=total / growth.seconds if growth.seconds > 0 else 0.0,
            average=total / times if times else 0.0,
        )

    def forget_topic(self, topic: str) -> None:
        """The topic is deleted: one made again under its name begins at nothing."""
        self.counters.topic_puts.drop(topic)
        for table in self._tables.values():
            _drop(table, lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        """The consumer group is deleted."""
        counters = self.counters
        for table in (counters.group_gets, counters.queue_gets, counters.send_backs):
            _drop(table, lambda key: key[-1] == group)

    def get_tps(self, topic: str, group: str) -> float:
        """Records a second that a group pulled of a topic, over the last minute."""
        found = self.find("GROUP_GET_NUMS", f"{topic}@{group}", "minute")
        return 0.0 if found is None else found.tps

    def topic_metrics(self, pattern: str) -> Iterator[Metric]:
        """Yield what was put into the topics that match, and what groups have pulled of them.

        ValueError when they are more than TOPIC_METRICS_MAX pairs.
        """
        puts = _chosen(self.counters.topic_puts, lambda key: key, pattern)
        gets = _chosen(self.counters.group_gets, lambda key: key[0], pattern)
        if len(puts) > limits.TOPIC_METRICS_MAX or len(gets) > limits.TOPIC_METRICS_MAX:
            raise ValueError(
                f"{len(puts):,} topics and {len(gets):,} pairs of topic and group match; at most "
                f"{limits.TOPIC_METRICS_MAX:,} of each are shown"
            )
        for topic, row in puts:
            yield from samples(
                ("iotmq_topic_records_total", "Records stored in the topic.", row[_RECORDS]),
                ("iotmq_topic_bytes_total", "Bytes of records stored in the topic.", row[_BYTES]),
                labels=(("topic", topic),),
            )
        for (topic, group), row in gets:
            yield from samples(
                (
                    "iotmq_topic_pulled_records_total",
                    "Records of the topic pulled by the group.",
                    row[_RECORDS],
                ),
                ("iotmq_topic_pulled_bytes_total", "Bytes of them.", row[_BYTES]),
                labels=(("topic", topic), ("group", group)),
            )

    def metrics(self) -> Iterable[Metric]:
        for name, table in self._tables.items():
            labels = (("table", name),)
            yield from samples(
                ("iotmq_broker_statistics_keys", "Keys that statistics are kept for.", len(table)),
                (
                    "iotmq_broker_dropped_statistics_keys_total",
                    "Keys dropped because there were too many; those unused for long.",
                    table.dropped_count,
                ),
                labels=labels,
            )
        text = "What this share of the last minute's batches (put) or pulls with records (get) took."
        for side, window in (("put", self.put_window), ("get", self.get_window)):
            latencies_s = {str(share): window.percentile_ms(share) / 1_000 for share in (0.5, 0.99, 0.999)}
            yield from samples_by("quantile", f"iotmq_broker_{side}_latency_seconds", text, latencies_s)
        yield from self.put_histogram.metrics()
        yield from self._get_histogram.metrics()
