"""The broker's topics: their configuration, the names allowed, the ones made at start, and topics.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from iotmq import limits
from iotmq.broker.tables.config_files import ConfigFile, DataVersion
from iotmq.broker.tables.copied_table import ChangedKeys, apply_named
from iotmq.broker.tables.deleted_topics import DeletedTopics
from iotmq.clock import Clock
from iotmq.errors import RefusedError, RequestError
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import ResponseCode
from iotmq.replicated.member_log import EPOCH_TOPIC

PERMISSION_READ = 4
PERMISSION_WRITE = 2
PERMISSION_INHERIT = 1
PERMISSION_READ_WRITE = PERMISSION_READ | PERMISSION_WRITE

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
# Groups whose names end so go with their last member. Every client may use these characters.
EPHEMERAL_SUFFIX = "%ephemeral"
TEMPLATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
SESSION_TOPIC = "rmq_sys_mqtt_session"
# Packet ids of QoS 2 that devices have released.
RECEIVED_TOPIC = "rmq_sys_mqtt_received"
# What groups that consume by message have popped.
POP_TOPIC = "rmq_sys_pop"
TRANSACTION_CHECKS_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC = "BenchmarkTest"
# Clients that trace themselves send what they did there; tools look it up by the message's id.
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"

# Topics only the broker itself writes to.
UNSENDABLE_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANSACTION_CHECKS_MAX_TOPIC,
        SESSION_TOPIC,
        RECEIVED_TOPIC,
        POP_TOPIC,
        EPOCH_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)

# Topics that are encoded at a time.
_CHUNK = 256
_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One topic as topics.json and the registries know it (wire document 5.4)."""

    order: bool = False
    perm: int = PERMISSION_READ_WRITE
    read_queue_nums: int = 8
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str
    topic_sys_flag: int = 0
    write_queue_nums: int = 8
    # Ours: queues that take no more messages and are still read. Not written while there are none, so that
    # other software finds the topic as it knows it.
    frozen_queues: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    # Ours: the log's end when the topic was made, by which readers see that it was made anew. Not written for
    # topics of an empty log, nor known of those that are older than this field.
    made_at_position: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def made_at(self) -> int:
        """The log's end when the topic was made; 0 when it was empty, or nobody knows."""
        return 0 if self.made_at_position is msgspec.UNSET else self.made_at_position

    @property
    def frozen(self) -> tuple[int, ...]:
        """Queues that take no more messages, sorted."""
        return () if self.frozen_queues is msgspec.UNSET else self.frozen_queues

    def frozen_below(self, queue_count: int) -> tuple[int, ...] | msgspec.UnsetType:
        """`frozen_queues` of the same topic with so many queues."""
        return tuple(queue_id for queue_id in self.frozen if queue_id < queue_count) or msgspec.UNSET

    @property
    def open_queues(self) -> list[int]:
        """Queues that take messages."""
        frozen = self.frozen
        return [queue_id for queue_id in range(self.write_queue_nums) if queue_id not in frozen]

    def taking_queue(self, queue_id: int) -> int:
        """The queue that takes a message meant for `queue_id`: another one when that is frozen or gone.

        Always the same one while the topic does not change, so that what was in one queue stays in order.
        """
        if queue_id < self.queue_count and queue_id not in self.frozen:
            return queue_id
        others = self.open_queues
        return others[queue_id % len(others)] if others else queue_id

    @property
    def queue_count(self) -> int:
        """Queues that exist, for reading or for writing."""
        return max(self.read_queue_nums, self.write_queue_nums)

    @property
    def is_readable(self) -> bool:
        return bool(self.perm & PERMISSION_READ)

    @property
    def is_writable(self) -> bool:
        return bool(self.perm & PERMISSION_WRITE)


class TopicConfigTable(msgspec.Struct, kw_only=True, rename="camel"):
    """The shape of topics.json, of the answer to code 21 and inside a registration."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}


class CopiedTopic(NamedTuple):
    """A topic of a master, None when there is none of that name any more."""

    name: str
    config: TopicConfig | None


class TopicTable:
    """All topics of this broker.

    A change counts up `version` and is told to every listener with the topic's name, in the order the
    listeners were added; saving and registering are listeners' work.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        topics_max: int = limits.TOPICS_MAX,
        end_position: Callable[[], int] = lambda: 0,
    ) -> None:
        """`end_position` is that of the log whose topics these are."""
        self._file = ConfigFile(path)
        self._end_position = end_position
        # Deletions the log still has records from.
        self.deleted = DeletedTopics(
            path.with_name("deletedTopics.json"), is_configured=lambda name: name in self._topics
        )
        self._clock = clock
        self._topics_max = topics_max
        self._listeners: list[Callable[[str], None]] = []
        # Topics that were changed, and deleted.
        self.changed: ChangedKeys[str] = ChangedKeys(2 * topics_max)
        stored = self._file.read(TopicConfigTable) or TopicConfigTable()
        self._topics = stored.topic_config_table
        self.version = stored.data_version

    def __len__(self) -> int:
        return len(self._topics)

    def find(self, name: str) -> TopicConfig | None:
        return self._topics.get(name)

    def made_at(self, name: str) -> int:
        """Return where the log ended when a topic was made; 0 for one that is not there."""
        config = self._topics.get(name)
        return 0 if config is None else config.made_at

    def names(self) -> list[str]:
        return list(self._topics)

    def configs(self) -> list[TopicConfig]:
        """Return all topics as they are now, for who writes them down elsewhere."""
        return list(self._topics.values())

    def add_listener(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    def put(self, config: TopicConfig) -> TopicConfig:
        """Add or replace a topic. Raises RequestError (1) for a bad name, queue count, or too many topics."""
        name = config.topic_name
        current = self._topics.get(name)
        made_at = self._end_position() or msgspec.UNSET if current is None else current.made_at_position
        if config.made_at_position != made_at:
            config = msgspec.structs.replace(config, made_at_position=made_at)
        if current == config:
            return config
        if current is None:
            check_topic_name(name)
            if len(self._topics) >= self._topics_max:
                raise RefusedError(
                    f"topic {name} cannot be made: this broker has its maximum of {self._topics_max} topics"
                )
        self._topics[name] = config
        self._changed(name)
        return config

    def adopt(self, table: TopicConfigTable) -> None:
        """Have a master's topics in place of those here, with its data version."""
        former, self._topics = self._topics, table.topic_config_table
        self.version = table.data_version
        for name in [*former, *(self._topics.keys() - former.keys())]:
            if former.get(name) != self._topics.get(name):
                for listener in self._listeners:
                    listener(name)

    def delete(self, name: str) -> bool:
        """Forget a topic; what else there is of it is for TopicRemoval. False when there was none."""
        if self._topics.pop(name, None) is None:
            return False
        self._changed(name)
        return True

    def taking_queue(self, name: str, queue_id: int) -> int | None:
        """Return the queue that takes a message of the broker's own making, such as one whose delay is over.

        None for a topic that was deleted meanwhile; the queue itself for one nobody has configured.
        """
        config = self._topics.get(name)
        if config is not None:
            return queue_id if name in UNSENDABLE_TOPICS else config.taking_queue(queue_id)
        # The retry topic of an ephemeral group may never have had a message.
        return None if name in self.deleted or ephemeral_group_of(name) else queue_id

    def count_up(self) -> None:
        """Have another data version and tell of every topic: what the broker allows in all has changed."""
        self.version = self.version.next(self._clock.now_ms())
        for name in self._topics:
            for listener in self._listeners:
                listener(name)

    def count_up_to(self, counter: int) -> None:
        """Have a data version of at least that counter: versions must not come twice."""
        if self.version.counter < counter:
            self.version = DataVersion(counter=counter, timestamp=self._clock.now_ms())

    def ensure(self, name: str, *, queues: int) -> TopicConfig:
        """Return the topic, made with `queues` queues when there is none."""
        return self._topics.get(name) or self.put(
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        )

    def create_from_template(self, name: str, template_name: str, queues_wanted: int) -> TopicConfig | None:
        """A new topic after the template's pattern, with the smaller queue count (wire document 4.1).

        None when the template does not exist or may not be inherited from.
        """
        template = self._topics.get(template_name)
        if template is None or not template.perm & PERMISSION_INHERIT:
            return None
        queues = max(1, min(queues_wanted, template.write_queue_nums))
        return self.put(
            TopicConfig(
                topic_name=name,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=template.perm & ~PERMISSION_INHERIT,
                topic_sys_flag=template.topic_sys_flag,
                topic_filter_type=template.topic_filter_type,
            )
        )

    # What followers are sent, and take (copied_table.KeyedTable)

    def copied_entries(self) -> Iterator[CopiedTopic]:
        """Yield the topics of this moment that are still there, as they are when they are asked for."""
        for name in self.names():
            config = self._topics.get(name)
            if config is not None:
                yield CopiedTopic(name, config)

    def entries_of(self, keys: set[str]) -> Iterator[CopiedTopic]:
        """Yield what the topics are now, and take them out of `keys`."""
        while keys:
            name = keys.pop()
            yield CopiedTopic(name, self._topics.get(name))

    def new_copy(self) -> dict[str, TopicConfig]:
        return {}

    def apply(self, entries: Sequence[CopiedTopic], copy: dict[str, TopicConfig] | None) -> None:
        """Change a copy, or the table. Listeners are told nothing.

        RequestError (1) for what `put` would refuse, and then nothing has changed.
        """
        for name, config in entries:
            check_topic_name(name)
            if config is not None and config.topic_name != name:
                raise RefusedError(f"topic {name} has the name {config.topic_name!r}")
            if config is not None and config.queue_count > limits.QUEUES_PER_TOPIC_MAX:
                raise RefusedError(
                    f"topic {name} has {config.queue_count} queues, more than {limits.QUEUES_PER_TOPIC_MAX}"
                )
        apply_named(self._topics if copy is None else copy, entries, self._topics_max, "topics")

    def replace(self, copy: dict[str, TopicConfig]) -> None:
        """Hold what a copy has."""
        self._topics = copy

    def encode(self) -> bytes:
        """Return the table as topics.json holds it."""
        return encode_topics(self.version, self.configs())

    def encoder(self) -> Callable[[], bytes]:
        """`encode` of the table as it is now, to be called in any thread."""
        return partial(encode_topics, self.version, self.configs())

    def write(self, data: bytes) -> None:
        """Write the file and wait for the disk; touches nothing else, so that a thread may do it."""
        self._file.write(data, is_synced=True)

    def check_invariants(self) -> None:
        """Assert what must always be true; for tests."""
        for name, config in self._topics.items():
            assert config.topic_name == name
            assert is_legal_name(name)
            assert config.queue_count <= limits.QUEUES_PER_TOPIC_MAX
            assert list(config.frozen) == sorted(set(config.frozen)), "frozen queues are sorted, each once"
            assert all(0 <= queue_id < config.queue_count for queue_id in config.frozen)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_topics", "Topics this broker has.", len(self._topics)),
            (
                "iotmq_broker_frozen_queues",
                "Queues that take no more messages.",
                sum(len(topic.frozen) for topic in self._topics.values()),
            ),
            (
                "iotmq_broker_deleted_topics",
                "Deleted topics the log still has records of.",
                len(self.deleted),
            ),
        )

    def _changed(self, name: str) -> None:
        self.changed.note(name)
        self.version = self.version.next(self._clock.now_ms())
        for listener in self._listeners:
            listener(name)


def encode_topics(version: DataVersion, topics: list[TopicConfig], *, perm_mask: int = -1) -> bytes:
    """Return the shape of TopicConfigTable; `perm_mask` takes permissions from every topic.

    Made in pieces, because a thread that makes it at once would hold all others up.
    """
    pieces = []
    for some in in_chunks(topics):
        table = {
            topic.topic_name: topic
            if perm_mask == -1
            else msgspec.structs.replace(topic, perm=topic.perm & perm_mask)
            for topic in some
        }
        pieces.append(msgspec.json.encode(table)[1:-1])
    return b'{"dataVersion":%s,"topicConfigTable":{%s}}' % (msgspec.json.encode(version), b",".join(pieces))


def in_chunks(topics: list[TopicConfig]) -> Iterator[list[TopicConfig]]:
    """Yield chunks of the topics: other threads have their turn between two of them."""
    return (topics[at : at + _CHUNK] for at in range(0, len(topics), _CHUNK))


def check_topic_name(name: str) -> None:
    """Raise RequestError (1) unless `name` may be a topic."""
    if not name:
        raise RefusedError("the topic is empty")
    if len(name.encode()) > limits.TOPIC_BYTES_MAX:
        raise RefusedError(f"the topic has {len(name.encode())} bytes, more than {limits.TOPIC_BYTES_MAX}")
    if not is_legal_name(name):
        raise RefusedError(f"the topic {name!r} has characters other than letters, digits, %, |, _ and -")


def known_topic(topics: TopicTable, name: str) -> TopicConfig:
    """Return the topic that a field `topic` names. Raises RequestError (17) when there is none."""
    config = topics.find(name)
    if config is None:
        raise RequestError(
            ResponseCode.TOPIC_NOT_EXIST, f"the field topic names the topic {name}, which does not exist"
        )
    return config


def reply_topic(cluster: str) -> str:
    """Return where the answers of request-reply go."""
    return f"{cluster}_REPLY_TOPIC"


def is_ephemeral(group: str) -> bool:
    """Return whether a group is to go with its last member."""
    return group.endswith(EPHEMERAL_SUFFIX)


def ephemeral_group_of(topic: str) -> str | None:
    """Return the ephemeral group that has a topic as its retry or dead letter topic; None of any other."""
    if topic.endswith(EPHEMERAL_SUFFIX):
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            if topic.startswith(prefix):
                return topic.removeprefix(prefix)
    return None


def is_legal_name(name: str) -> bool:
    """Return whether `name` has only the characters that topics and groups may have."""
    return _LEGAL_NAME.fullmatch(name) is not None
