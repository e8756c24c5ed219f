"""Offsets: of groups (14, 15) and of queues (29, 30, 31, 32, 30045)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from iotmq import limits
from iotmq.broker.broker_role import NOT_CURRENT
from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.reply_body import reply_json
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.replies.sliced_reply import SlicedReplies, Work
from iotmq.broker.tables.subscription_groups import group_of
from iotmq.broker.tables.topics import TopicConfig, is_ephemeral, known_topic
from iotmq.errors import RequestError
from iotmq.message.records.record import decode_record
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.store.log.queue import Queue

# A queue whose first record is within this share of the memory counts as young (wire document 9.3).
_YOUNG_MEMORY_SHARE: Final = 0.4


class QueueBoundsView(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """Where a queue begins and ends, and from where on it has other records than in the asked generation."""

    queue_id: int
    min_offset: int
    max_offset: int
    # A removed one, whose messages are still there.
    is_removed: bool = False
    changed_offset: int | None = None
    # "cut" or "anew"
    change: str = ""


class TopicBoundsView(msgspec.Struct, kw_only=True, rename="camel"):
    """The answer to code 30045."""

    topic: str
    generation: str
    time_ms: int
    is_deleted: bool
    queues: list[QueueBoundsView]


class OffsetHandler(RequestProcessor):
    """Answers where groups are, and where queues begin and end."""

    def __init__(self, parts: BrokerParts, sliced_replies: SlicedReplies) -> None:
        self._store = parts.store
        self._topics = parts.topics
        self._offsets = parts.offsets
        self._clock = parts.clock
        self._generations = parts.generations
        self._is_current = parts.role.is_current
        self._sliced_replies = sliced_replies
        # A queue is young while its first record is within so many last bytes of the log.
        self._young_bytes_max = _young_bytes_max()

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self._query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.GET_MIN_OFFSET: self._min_offset,
            RequestCode.GET_EARLIEST_MESSAGE_STORE_TIME: self._earliest_time,
            RequestCode.GET_QUEUE_BOUNDS: self._bounds,
        }

    def _query(self, connection: ServerConnection, request: Command) -> Command | None:
        group = group_of(request, "consumerGroup")
        topic, queue_id, queue = self._queue_of(request)
        if not self._is_current():
            # Java clients take any refusal for the word that the group has none, and begin somewhere else.
            connection.close(NOT_CURRENT)
            return None
        offset = self._offsets.find(group, topic, queue_id)
        if offset is None and not is_ephemeral(group) and self._is_young(queue):
            # Wire document 9.5: a new group starts at the beginning of a queue that is all there still. An
            # ephemeral one would read everything again whenever somebody comes.
            offset = 0 if queue is None else queue.first_offset
        if offset is None:
            return request.reply(
                ResponseCode.QUERY_NOT_FOUND,
                remark=f"group {group} has no offset for queue {queue_id} of topic {topic}",
            )
        return request.reply(ResponseCode.SUCCESS, ext={"offset": str(offset)})

    def _update(self, connection: ServerConnection, request: Command) -> Command | None:
        group = group_of(request, "consumerGroup")
        topic, queue_id, queue = self._queue_of(request)
        offset = request.integer("commitOffset", minimum=0)
        # A group past the end would skip what is appended there later.
        end = 0 if queue is None else queue.max_offset
        self._offsets.commit(group, topic, queue_id, min(offset, end))
        return request.reply(ResponseCode.SUCCESS)

    def _search(self, connection: ServerConnection, request: Command) -> Command | None:
        _, _, queue = self._queue_of(request)
        timestamp_ms = request.integer("timestamp")
        if queue is None:
            return request.reply(ResponseCode.SUCCESS, ext={"offset": "0"})
        return self._sliced_replies.answer(connection, request, self._find_time(request, queue, timestamp_ms))

    def _find_time(self, request: Command, queue: Queue, timestamp_ms: int) -> Work:
        offset = yield from self._store.offset_at_time_steps(queue, timestamp_ms)
        return request.reply(ResponseCode.SUCCESS, ext={"offset": str(offset)})

    def _max_offset(self, connection: ServerConnection, request: Command) -> Command | None:
        queue = self._held_queue_of(request)
        return request.reply(
            ResponseCode.SUCCESS, ext={"offset": str(0 if queue is None else queue.max_offset)}
        )

    def _min_offset(self, connection: ServerConnection, request: Command) -> Command | None:
        queue = self._held_queue_of(request)
        return request.reply(
            ResponseCode.SUCCESS, ext={"offset": str(0 if queue is None else queue.min_offset)}
        )

    def _bounds(self, connection: ServerConnection, request: Command) -> Command | None:
        """Answer with all queues of a topic, also of a deleted one while the log has records of it."""
        name = request.text("topic")
        since = request.text("generation", "")
        if not self._is_current():
            # Readers would take a former master's log for one that was cut.
            connection.close(NOT_CURRENT)
            return None
        topic = self._topics.find(name)
        held = {
            queue.queue_id: queue
            for queue_id in range(limits.QUEUES_PER_TOPIC_MAX)
            if (queue := self._store.find_queue(name, queue_id)) is not None
        }
        if topic is None and (not held or name not in self._topics.deleted):
            known_topic(self._topics, name)
        queues = []
        for queue_id in sorted(held.keys() | set(range(0 if topic is None else topic.queue_count))):
            queue = held.get(queue_id)
            change = None if topic is None else self._generations.change(topic, queue, since)
            queues.append(
                QueueBoundsView(
                    queue_id=queue_id,
                    min_offset=0 if queue is None else queue.min_offset,
                    max_offset=0 if queue is None else queue.max_offset,
                    is_removed=topic is not None and queue_id >= topic.read_queue_nums,
                    changed_offset=None if change is None else change.offset,
                    change="" if change is None else change.reason,
                )
            )
        view = TopicBoundsView(
            topic=name,
            generation="" if topic is None else self._generations.current(topic),
            time_ms=self._clock.now_ms(),
            is_deleted=topic is None,
            queues=queues,
        )
        return reply_json(request, view)

    def _earliest_time(self, connection: ServerConnection, request: Command) -> Command | None:
        _, _, queue = self._queue_of(request)
        return self._sliced_replies.answer(connection, request, self._first_time(request, queue))

    def _first_time(self, request: Command, queue: Queue | None) -> Work:
        timestamp_ms = -1
        position = None if queue is None else _first_position(queue)
        if position is not None:
            view = yield from self._store.record_steps(position)
            if view is not None:
                timestamp_ms = decode_record(view).store_timestamp_ms
        return request.reply(ResponseCode.SUCCESS, ext={"timestamp": str(timestamp_ms)})

    def _queue_of(self, request: Command) -> tuple[str, int, Queue | None]:
        """Return the queue a request names; None while nothing was ever written to it."""
        topic, queue_id = self._named(request)
        if not 0 <= queue_id < topic.queue_count:
            raise _no_such_queue(ResponseCode.SYSTEM_ERROR, topic, queue_id)
        return topic.topic_name, queue_id, self._store.find_queue(topic.topic_name, queue_id)

    def _held_queue_of(self, request: Command) -> Queue | None:
        """Find a queue as `_queue_of`, or a removed one while messages of it are here.

        Readers that keep their own offsets see by it whether they had read all. QUERY_NOT_FOUND for a queue
        that is not there.
        """
        topic, queue_id = self._named(request)
        queue = self._store.find_queue(topic.topic_name, queue_id)
        if queue is None and not 0 <= queue_id < topic.queue_count:
            raise _no_such_queue(ResponseCode.QUERY_NOT_FOUND, topic, queue_id)
        return queue

    def _named(self, request: Command) -> tuple[TopicConfig, int]:
        """Return the topic and the number of a queue that a request names; the topic exists."""
        name = request.text("topic")
        queue_id = request.integer("queueId", minimum=-(2**31), maximum=2**31 - 1)
        return known_topic(self._topics, name), queue_id

    def _is_young(self, queue: Queue | None) -> bool:
        if queue is None:
            return True
        if queue.min_offset > queue.first_offset:
            return False
        position = _first_position(queue)
        return position is None or self._store.appended_position - position <= self._young_bytes_max


def _no_such_queue(code: int, topic: TopicConfig, queue_id: int) -> RequestError:
    return RequestError(
        code,
        f"the field queueId is {queue_id}, but topic {topic.topic_name} has {topic.queue_count} queues",
    )


def _first_position(queue: Queue) -> int | None:
    """Return where the queue's first record stands in the log; None for an empty queue."""
    if queue.min_offset >= queue.max_offset:
        return None
    entry = queue.entry(queue.min_offset)
    return None if entry is None else entry[0]


def _young_bytes_max() -> int:
    return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _YOUNG_MEMORY_SHARE)
