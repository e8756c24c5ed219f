"""Compute how far groups have consumed the queues of topics, with times, as JSON of wire document 5.3.

Finding out when a record was stored means reading it, so everything here is a generator for SlicedReplies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from iotmq.broker.members.queue_locks import MessageQueue
from iotmq.broker.parts import BrokerParts
from iotmq.broker.pop.pops import Pops
from iotmq.broker.pop.states import Place
from iotmq.broker.tables.topics import TopicConfig
from iotmq.message.records.record import decode_record
from iotmq.remoting import lenient_json
from iotmq.store.log.queue import Queue
from iotmq.store.queues.cold_steps import Steps
from iotmq.store.store import Store


class QueueStats(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """How far a group is in one queue. `last_timestamp` is when what it consumed last was stored, or 0.

    `in_flight` is ours: messages that were popped and are not done.
    """

    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    in_flight: int = 0


class TopicStats(NamedTuple):
    """A group's queues of one topic, encoded: keys and values of an offset table."""

    rows: list[tuple[bytes, bytes]]
    consume_tps: float
    # Messages not consumed yet.
    behind: int

    @property
    def size(self) -> int:
        """Bytes of the rows."""
        return sum(len(key) + len(value) + 2 for key, value in self.rows)


def encode_stats(parts: Sequence[TopicStats]) -> bytes:
    """Several topics of one group as one ConsumeStats."""
    return b'{"consumeTps":%s,"offsetTable":%s}' % (
        msgspec.json.encode(float(sum(part.consume_tps for part in parts))),
        lenient_json.encode_object_map(row for part in parts for row in part.rows),
    )


class QueueTimeSpan(msgspec.Struct, kw_only=True):
    """When a queue's messages were stored, and how far behind that a group is; all in milliseconds."""

    message_queue: MessageQueue = msgspec.field(name="messageQueue")
    min_time: int = msgspec.field(name="minTimeStamp")
    max_time: int = msgspec.field(name="maxTimeStamp")
    consume_time: int = msgspec.field(name="consumeTimeStamp")
    delay_time: int = msgspec.field(name="delayTime")


class GroupProgress:
    """Reads what it tells from the store, the offsets and the live groups."""

    def __init__(self, parts: BrokerParts, pops: Pops) -> None:
        self._pops = pops
        self._store = parts.store
        self._topics = parts.topics
        self._groups = parts.groups
        self._offsets = parts.offsets
        self._clock = parts.clock
        self._broker_name = parts.settings.name
        self._get_tps = parts.statistics.get_tps

    def consumed(self, group: str, topics: Iterable[str]) -> list[TopicConfig]:
        """Return which of these topics a group consumes.

        Not those that are gone, and not those a live group is not subscribed to any more.
        """
        live = self._groups.consumer_group(group)
        subscribed = None if live is None or not live.subscriptions else live.subscriptions
        return [
            config
            for name in topics
            if (config := self._topics.find(name)) is not None and (subscribed is None or name in subscribed)
        ]

    def of_topic(self, group: str, config: TopicConfig) -> Steps[TopicStats]:
        """Return how far a group is in every queue of a topic."""
        rows: list[tuple[bytes, bytes]] = []
        behind = 0
        name = config.topic_name
        for queue_id in range(config.queue_count):
            stats = yield from self._of_queue(group, name, queue_id)
            behind += stats.broker_offset - stats.consumer_offset
            rows.append(
                (msgspec.json.encode(self._message_queue(name, queue_id)), msgspec.json.encode(stats))
            )
        return TopicStats(rows, self._get_tps(name, group), behind)

    def time_spans(self, group: str, config: TopicConfig) -> Steps[list[QueueTimeSpan]]:
        """Times of every queue of a topic that can be read."""
        spans: list[QueueTimeSpan] = []
        name = config.topic_name
        for queue_id in range(config.read_queue_nums):
            queue = self._store.find_queue(name, queue_id)
            offset = self._offsets.find(group, name, queue_id) or 0
            begin, end = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
            min_ms = yield from stored_ms(self._store, queue, begin)
            max_ms = yield from stored_ms(self._store, queue, end - 1)
            consume_ms = min_ms
            if offset > 0:
                consume_ms = yield from stored_ms(self._store, queue, offset - 1)
            delay_ms = 0
            if offset < end:
                next_ms = yield from stored_ms(self._store, queue, max(offset, begin))
                delay_ms = max(0, self._clock.now_ms() - next_ms) if next_ms >= 0 else 0
            spans.append(
                QueueTimeSpan(
                    message_queue=self._message_queue(name, queue_id),
                    min_time=min_ms,
                    max_time=max_ms,
                    consume_time=consume_ms,
                    delay_time=delay_ms,
                )
            )
        return spans

    def behind(self, topic: str, queue_id: int, group: str) -> Steps[tuple[int, int] | None]:
        """Return how far behind the end of the log, in bytes and in milliseconds, a group is in one queue.

        (0, 0) when it has consumed the queue; None when it has no offset there.
        """
        queue = self._store.find_queue(topic, queue_id)
        offset = self._offsets.find(group, topic, queue_id)
        if queue is None or offset is None:
            return None
        plan = self._store.plan_read(queue, offset, records_max=1, bytes_max=1)
        if plan is not None:
            yield plan
        position = self._store.position_of(queue, offset)
        view = None if position is None else self._store.read_record(position)
        if position is None or view is None:
            return 0, 0
        age_ms = self._clock.now_ms() - decode_record(view).store_timestamp_ms
        return self._store.confirmed_position - position, max(0, age_ms)

    def _message_queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(broker_name=self._broker_name, queue_id=queue_id, topic=topic)

    def _of_queue(self, group: str, topic: str, queue_id: int) -> Steps[QueueStats]:
        queue = self._store.find_queue(topic, queue_id)
        offset = self._offsets.find(group, topic, queue_id) or 0
        timestamp_ms = 0
        if offset > 0:
            timestamp_ms = yield from stored_ms(self._store, queue, offset - 1)
        else:
            yield None
        return QueueStats(
            broker_offset=0 if queue is None else queue.max_offset,
            consumer_offset=offset,
            last_timestamp=max(0, timestamp_ms),
            in_flight=self._pops.in_flight(Place(group, topic, queue_id)),
        )


def stored_ms(store: Store, queue: Queue | None, offset: int) -> Steps[int]:
    """Yield when the record at an offset was stored; -1 when there is none."""
    yield None
    if queue is None or not queue.min_offset <= offset < queue.max_offset:
        return -1
    plan = store.plan_read(queue, offset, records_max=1, bytes_max=1)
    if plan is not None:
        yield plan
    entry = queue.entry(offset) if queue.min_offset <= offset < queue.max_offset else None
    view = None if entry is None else store.read_record(entry[0])
    return -1 if view is None else decode_record(view).store_timestamp_ms
