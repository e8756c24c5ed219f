"""Show what a topic holds (202): the offsets of each queue, and when its last message was stored."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from iotmq.broker.members.queue_locks import MessageQueue
from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.replies.sliced_reply import SlicedReplies, Work
from iotmq.broker.tables.topics import TopicConfig, known_topic
from iotmq.broker.topic_changes.group_progress import stored_ms
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection


class TopicStatusHandler(RequestProcessor):
    """Answers in slices: a topic may have many queues, and each time is read from the log."""

    def __init__(self, parts: BrokerParts, sliced_replies: SlicedReplies) -> None:
        self._store = parts.store
        self._topics = parts.topics
        self._broker_name = parts.settings.name
        self._sliced_replies = sliced_replies

    def handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.GET_TOPIC_STATS_INFO: self._topic}

    def _topic(self, connection: ServerConnection, request: Command) -> Command | None:
        config = known_topic(self._topics, request.text("topic"))
        return self._sliced_replies.answer(connection, request, self._write_topic(request, config))

    def _write_topic(self, request: Command, config: TopicConfig) -> Work:
        rows: list[tuple[bytes, bytes]] = []
        name = config.topic_name
        for queue_id in range(config.queue_count):
            queue = self._store.find_queue(name, queue_id)
            end = 0 if queue is None else queue.max_offset
            updated_ms = yield from stored_ms(self._store, queue, end - 1)
            key = MessageQueue(broker_name=self._broker_name, queue_id=queue_id, topic=name)
            row = {
                # 0: it never had a message, or the last is gone.
                "lastUpdateTimestamp": max(0, updated_ms),
                "maxOffset": end,
                "minOffset": 0 if queue is None else queue.min_offset,
            }
            rows.append((msgspec.json.encode(key), msgspec.json.encode(row)))
        body = b'{"offsetTable":%s}' % lenient_json.encode_object_map(rows)
        return request.reply(ResponseCode.SUCCESS, body=body)
