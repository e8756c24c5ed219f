"""More queues or fewer for a topic in use: codes 30040 to 30044 (docs/reference/wire-protocol.md)."""

from __future__ import annotations

from collections.abc import Mapping

from iotmq import limits
from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.reply_body import reply_json
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.tables.system_topics import check_not_own
from iotmq.broker.tables.topics import TopicConfig, known_topic
from iotmq.broker.topic_changes import queue_scaling
from iotmq.broker.topic_changes.queue_scaling import QueueState, TopicState
from iotmq.errors import RefusedError
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

# What lists of as many queues as a topic may have take as text.
_QUEUE_IDS_TEXT_MAX = 5 * limits.QUEUES_PER_TOPIC_MAX


class QueueScalingHandler(RequestProcessor):
    """Every answer has the topic's state after the change."""

    def __init__(self, parts: BrokerParts) -> None:
        self._store = parts.store
        self._topics = parts.topics
        self._groups = parts.groups
        self._offsets = parts.offsets
        # Their queues are not a client's to change.
        self._own_topics = parts.system_topics

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_QUEUE_STATES: self._states,
            RequestCode.ADD_QUEUES: self._add,
            RequestCode.FREEZE_QUEUES: self._freeze,
            RequestCode.THAW_QUEUES: self._thaw,
            RequestCode.REMOVE_QUEUES: self._remove,
        }

    def _states(self, connection: ServerConnection, request: Command) -> Command | None:
        return self._answer(request, self._topic(request))

    def _add(self, connection: ServerConnection, request: Command) -> Command | None:
        topic = self._changeable_topic(request)
        return self._change(request, queue_scaling.grown(topic, request.integer("queueNums")))

    def _freeze(self, connection: ServerConnection, request: Command) -> Command | None:
        topic = self._changeable_topic(request)
        return self._change(request, queue_scaling.frozen(topic, _queue_ids(request)))

    def _thaw(self, connection: ServerConnection, request: Command) -> Command | None:
        topic = self._changeable_topic(request)
        return self._change(request, queue_scaling.thawed(topic, _queue_ids(request)))

    def _remove(self, connection: ServerConnection, request: Command) -> Command | None:
        topic = self._changeable_topic(request)
        queue_count = request.integer("queueNums")
        is_forced = request.boolean("isForce")
        states = self._queue_states(topic)
        return self._change(request, queue_scaling.shrunk(topic, queue_count, states, is_forced=is_forced))

    def _change(self, request: Command, topic: TopicConfig) -> Command:
        """Change the topic; the table tells the registries at once."""
        return self._answer(request, self._topics.put(topic))

    def _answer(self, request: Command, topic: TopicConfig) -> Command:
        state = TopicState(
            topic=topic.topic_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            queues=self._queue_states(topic),
        )
        return reply_json(request, state)

    def _queue_states(self, topic: TopicConfig) -> list[QueueState]:
        return queue_scaling.queue_states(
            topic, store=self._store, offsets=self._offsets, groups=self._groups
        )

    def _topic(self, request: Command) -> TopicConfig:
        return known_topic(self._topics, request.text("topic"))

    def _changeable_topic(self, request: Command) -> TopicConfig:
        topic = self._topic(request)
        check_not_own(topic.topic_name, self._own_topics, "topic")
        return topic


def _queue_ids(request: Command) -> set[int]:
    """Return the field queueIds: numbers with commas between them."""
    text = request.text("queueIds")
    parts = text.split(",") if len(text) <= _QUEUE_IDS_TEXT_MAX else [""]
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        raise RefusedError(f"the field queueIds is not like 3 or 4,5,6: {text[:40]!r}")
    return {int(part) for part in parts}
