"""Check the options of a reader of the source; their names follow Spark's Kafka connector.

Spark hands options over with lower-case names; they are accepted in any case and named in errors as
documented. Unknown names are refused, because a misspelt ``failOnDataloss`` must not become a silent default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from iotmq import limits
from iotmq.bridge.offsets import OffsetFormatError, QueueKey, parse_queue
from iotmq.bridge.options.connection import CONNECTION_NAMES, ConnectionOptions, read_connection
from iotmq.bridge.options.values import count, duration_s, flag, optional_count
from iotmq.bridge.options.wanted import EVERYTHING, Wanted, parse_wanted
from iotmq.errors import ConfigError
from iotmq.spelling import did_you_mean

EARLIEST: Final = -2
LATEST: Final = -1

PULL_BYTES_MIN: Final = 64 * 1024
PULL_BYTES_DEFAULT: Final = 2 * 1024 * 1024

_NAMES: Final = (
    *CONNECTION_NAMES,
    "path",
    "subscribe",
    "subscribePattern",
    "assign",
    "mqttTopicFilter",
    "tags",
    "sql",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "combineRows",
    "failOnDataLoss",
    "includeHeaders",
    "pushFilters",
    "groupIdPrefix",
    "groupId",
    "includeExpired",
    "pullBytes",
)
_SPELLING: Final = {name.lower(): name for name in _NAMES}
# Those that mean something where no broker is asked.
_NAMES_WITH_PATH: Final = frozenset(
    {"path", "subscribe", "subscribePattern", "assign", "minPartitions", "failOnDataLoss", "includeHeaders"}
    | {"includeExpired"}
    | {"startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"}
    | {"endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"}
)

_TRIGGER_DELAY_S: Final = 15 * 60.0


@dataclass(frozen=True)
class QueueNumbers:
    """A number per queue of a topic, as written in an option: ``{"T": {"0": 23, "broker-b:1": -1}}``."""

    option: str
    numbers: Mapping[str, Mapping[tuple[str | None, int], int]]

    def find(self, key: QueueKey) -> int | None:
        """Return the number given for `key`, by its full name or by its queue number alone."""
        queues = self.numbers.get(key.topic, {})
        exact = queues.get((key.broker, key.queue_id))
        return queues.get((None, key.queue_id)) if exact is None else exact

    def unmatched(self, keys: Iterable[QueueKey]) -> list[str]:
        """Names written in the option that no queue of `keys` answers to."""
        known: set[tuple[str, str | None, int]] = set()
        for key in keys:
            known |= {(key.topic, key.broker, key.queue_id), (key.topic, None, key.queue_id)}
        return [
            f"{topic} {queue_id if broker is None else f'{broker}:{queue_id}'}"
            for topic, queues in self.numbers.items()
            for broker, queue_id in queues
            if (topic, broker, queue_id) not in known
        ]


@dataclass(frozen=True)
class Edge:
    """One end of what to read; exactly one of the four is meant, checked in the order of the fields.

    `timestamp_ms` for all queues, `timestamps` or `offsets` per queue, otherwise `everywhere`
    (EARLIEST or LATEST).
    """

    option: str
    everywhere: int
    timestamp_ms: int | None = None
    timestamps: QueueNumbers | None = None
    offsets: QueueNumbers | None = None

    @property
    def is_stable(self) -> bool:
        """Return whether asking again later gives the same answer, as long as retention deletes nothing."""
        if self.timestamp_ms is not None or self.timestamps is not None:
            return False
        if self.offsets is not None:
            return all(n != LATEST for queues in self.offsets.numbers.values() for n in queues.values())
        return self.everywhere == EARLIEST


@dataclass(frozen=True)
class Subscription:
    """Which queues to read: named topics, topics whose whole name matches, or single queues."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[tuple[str | None, int], ...]] = field(default_factory=dict)

    def covers(self, key: QueueKey) -> bool:
        """Return whether a queue is read where it is there, by the options as they are now."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, key.topic) is not None
        return key.topic in self.topics and self.wants(key)

    def wants(self, key: QueueKey) -> bool:
        """Return whether a queue of a subscribed topic is read (all are, unless queues were assigned)."""
        if not self.assigned:
            return True
        queues = self.assigned.get(key.topic, ())
        return (None, key.queue_id) in queues or (key.broker, key.queue_id) in queues


@dataclass(frozen=True)
class SourceOptions:
    """All options of one read, checked and complete; docs/reference/spark.md describes each."""

    connection: ConnectionOptions
    subscription: Subscription
    starting: Edge
    ending: Edge
    late_timestamp: Literal["error", "latest"]
    offsets_per_trigger_max: int | None
    partitions_min: int | None
    combine_rows: int
    fail_on_data_loss: bool
    include_headers: bool
    group_prefix: str
    # The group that a stream's progress is published as; "" for one of its own.
    group_id: str
    include_expired: bool
    pull_bytes: int
    # A stream waits for so many rows, for at most so long after its last batch.
    offsets_per_trigger_min: int | None = None
    trigger_delay_max_s: float = 0.0
    records_per_partition_max: int | None = None
    pushes_filters: bool = False
    wanted: Wanted = EVERYTHING
    # A directory of CommitLog files to read in place of brokers; empty for brokers.
    path: str = ""


def parse_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check `options` as Spark gives them; raises ConfigError that names the option and what it takes."""
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(given)
    path = given.get("path", "").strip()
    if "path" in given:
        _refuse_beside_path(given, path, streaming=streaming)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name.lower() in given:
                raise ConfigError(f"option {name} is for batch reads: a stream has no end")
    starting = _edge(given, "starting", LATEST if streaming else EARLIEST)
    ending = _edge(given, "ending", LATEST)
    if not streaming:
        _refuse_for_batch(starting, LATEST, "a batch cannot start at the end")
    _refuse_for_batch(ending, EARLIEST, "a batch cannot end at the beginning")
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise ConfigError(f"option startingOffsetsByTimestampStrategy is error or latest, not {strategy!r}")
    pull_bytes = count(given, "pullBytes", PULL_BYTES_DEFAULT, least=PULL_BYTES_MIN)
    if pull_bytes > limits.PULL_BYTES_MAX:
        raise ConfigError(f"option pullBytes is at most {limits.PULL_BYTES_MAX}, not {pull_bytes}")
    return SourceOptions(
        connection=read_connection(given, asks_brokers=not path),
        subscription=_subscription(given),
        starting=starting,
        ending=ending,
        late_timestamp="latest" if strategy == "latest" else "error",
        offsets_per_trigger_max=optional_count(given, "maxOffsetsPerTrigger"),
        partitions_min=optional_count(given, "minPartitions"),
        combine_rows=count(given, "combineRows", 0, least=0),
        fail_on_data_loss=flag(given, "failOnDataLoss", True),
        include_headers=flag(given, "includeHeaders", False),
        group_prefix=_group(given, "groupIdPrefix", "iotmq-spark"),
        group_id=_group(given, "groupId", ""),
        include_expired=flag(given, "includeExpired", False),
        pull_bytes=pull_bytes,
        offsets_per_trigger_min=_offsets_per_trigger_min(given, streaming=streaming),
        trigger_delay_max_s=duration_s(given, "maxTriggerDelay", _TRIGGER_DELAY_S),
        records_per_partition_max=optional_count(given, "maxRecordsPerPartition"),
        pushes_filters=flag(given, "pushFilters", False),
        wanted=parse_wanted(
            tags=given.get("tags"), sql=given.get("sql"), mqtt_topic_filter=given.get("mqtttopicfilter")
        ),
        path=path,
    )


def wants_headers(options: Mapping[str, str]) -> bool:
    """Return the option includeHeaders alone, which decides about the schema before anything else is read."""
    return flag({name.lower(): value for name, value in options.items()}, "includeHeaders", False)


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for name in given:
        if name not in _SPELLING:
            hint = did_you_mean(name, _SPELLING) or f"; known: {', '.join(_NAMES)}"
            raise ConfigError(f"unknown option {name!r} of format iotmq{hint}")


def _refuse_beside_path(given: Mapping[str, str], path: str, *, streaming: bool) -> None:
    if streaming:
        raise ConfigError("option path is for batch reads: files are read up to where they end now")
    if not path:
        raise ConfigError("option path is empty: name a data directory, or one with files of a CommitLog")
    for name in given:
        if _SPELLING[name] not in _NAMES_WITH_PATH:
            raise ConfigError(f"option {_SPELLING[name]} is for reading from brokers, not from a path")


def _refuse_for_batch(edge: Edge, refused: int, why: str) -> None:
    numbers: list[int] = []
    if edge.timestamp_ms is None and edge.timestamps is None:
        if edge.offsets is None:
            numbers = [edge.everywhere]
        else:
            numbers = [n for queues in edge.offsets.numbers.values() for n in queues.values()]
    if refused in numbers:
        word = "earliest (-2)" if refused == EARLIEST else "latest (-1)"
        raise ConfigError(f"option {edge.option} must not be {word}: {why}")


def _subscription(given: Mapping[str, str]) -> Subscription:
    names = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in given]
    if len(names) != 1:
        raise ConfigError(
            "give exactly one of the options subscribe, subscribePattern and assign"
            + (f", not {' and '.join(names)}" if names else "")
        )
    text = given[names[0].lower()]
    if names[0] == "subscribe":
        topics = tuple(dict.fromkeys(piece.strip() for piece in text.split(",") if piece.strip()))
        if not topics:
            raise ConfigError("option subscribe names no topic: write TOPIC[,TOPIC...]")
        return Subscription(topics=topics)
    if names[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"option subscribePattern is not a regular expression: {error}") from None
        return Subscription(pattern=text)
    return _assigned(text)


def _assigned(text: str) -> Subscription:
    shape = 'option assign is JSON such as {"TOPIC": [0, 1]} or {"TOPIC": ["broker-a:0"]}'
    assigned: dict[str, tuple[tuple[str | None, int], ...]] = {}
    for topic, queues in _json_object(text, shape).items():
        if not isinstance(queues, list) or not queues:
            raise ConfigError(shape)
        assigned[topic] = tuple(_queue(str(queue), shape) for queue in queues)
    return Subscription(topics=tuple(sorted(assigned)), assigned=assigned)


def _edge(given: Mapping[str, str], prefix: str, default: int) -> Edge:
    """Return the first of PREFIXTimestamp, PREFIXOffsetsByTimestamp and PREFIXOffsets that is given."""
    by_time, by_queue_time, by_offset = (
        f"{prefix}Timestamp",
        f"{prefix}OffsetsByTimestamp",
        f"{prefix}Offsets",
    )
    if by_time.lower() in given:
        return Edge(by_time, default, timestamp_ms=count(given, by_time, 0, least=0))
    if by_queue_time.lower() in given:
        numbers = _queue_numbers(given[by_queue_time.lower()], by_queue_time, least=0)
        return Edge(by_queue_time, default, timestamps=numbers)
    text = given.get(by_offset.lower(), "").strip()
    words = {"": default, "earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return Edge(by_offset, words[text.lower()])
    return Edge(by_offset, default, offsets=_queue_numbers(text, by_offset, least=EARLIEST))


def _queue_numbers(text: str, option: str, *, least: int) -> QueueNumbers:
    shape = f'option {option} is JSON such as {{"TOPIC": {{"0": 23, "broker-b:1": 42}}}}'
    if least == EARLIEST:
        shape += " (-2 earliest, -1 latest), or one of the words earliest and latest"
    numbers: dict[str, dict[tuple[str | None, int], int]] = {}
    for topic, queues in _json_object(text, shape).items():
        if not isinstance(queues, dict):
            raise ConfigError(shape)
        per_queue = numbers.setdefault(topic, {})
        for queue, number in queues.items():
            if not isinstance(number, int) or isinstance(number, bool) or number < least:
                raise ConfigError(f"{shape}; {number!r} was given for {topic} {queue}")
            per_queue[_queue(queue, shape)] = number
    return QueueNumbers(option, numbers)


def _json_object(text: str, shape: str) -> dict[str, object]:
    try:
        document = json.loads(text)
    except ValueError:
        raise ConfigError(shape) from None
    if not isinstance(document, dict) or not document:
        raise ConfigError(shape)
    return document


def _queue(text: str, shape: str) -> tuple[str | None, int]:
    try:
        return parse_queue(text)
    except OffsetFormatError as error:
        raise ConfigError(f"{shape}; {error}") from None


def _offsets_per_trigger_min(given: Mapping[str, str], *, streaming: bool) -> int | None:
    least = optional_count(given, "minOffsetsPerTrigger")
    if not streaming and (least is not None or "maxtriggerdelay" in given):
        raise ConfigError("options minOffsetsPerTrigger and maxTriggerDelay are for streams")
    most = optional_count(given, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"option minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger lets through: {most}"
        )
    return least


def _group(given: Mapping[str, str], option: str, default: str) -> str:
    name = given.get(option.lower(), default)
    if name != default and not re.fullmatch(r"[%|a-zA-Z0-9_-]{1,200}", name):
        raise ConfigError(f"option {option} is 1 to 200 letters, digits and any of %|_-, not {name!r}")
    return name
