"""Show how far groups have consumed: one (208), all (317), in time (303), corrected (308)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.reply_body import ReplySize, reply_json
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.replies.sliced_reply import SlicedReplies, Work
from iotmq.broker.tables.subscription_groups import check_group_name, group_of
from iotmq.broker.tables.topics import RETRY_PREFIX, TopicConfig, known_topic
from iotmq.broker.topic_changes.group_progress import GroupProgress, TopicStats, encode_stats
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

# What Java means by "no correction is possible".
_INT64_MAX: Final = 2**63 - 1


class ConsumeStatsHandler(RequestProcessor):
    """Answers in slices: a group may consume thousands of queues."""

    def __init__(
        self,
        parts: BrokerParts,
        progress: GroupProgress,
        sliced_replies: SlicedReplies,
        *,
        address: Callable[[], str],
    ) -> None:
        """`address()` is the broker's own, as HOST:PORT."""
        self._store = parts.store
        self._topics = parts.topics
        self._offsets = parts.offsets
        self._progress = progress
        self._sliced_replies = sliced_replies
        self._address = address

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_CONSUME_STATS: self._one_group,
            RequestCode.GET_BROKER_CONSUME_STATS: self._all_groups,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self._time_span,
            RequestCode.QUERY_CORRECTION_OFFSET: self._correction,
        }

    def _one_group(self, connection: ServerConnection, request: Command) -> Command | None:
        group = group_of(request, "consumerGroup")
        topic = request.text("topic", "")
        configs = self._progress.consumed(group, [topic] if topic else self._topics_of(group))
        return self._sliced_replies.answer(connection, request, self._write_group(request, group, configs))

    def _all_groups(self, connection: ServerConnection, request: Command) -> Command | None:
        is_order = request.boolean("isOrder")
        work = self._write_groups(request, is_order=is_order)
        return self._sliced_replies.answer(connection, request, work)

    def _time_span(self, connection: ServerConnection, request: Command) -> Command | None:
        config = self._topic_of(request)
        group = group_of(request, "group")
        return self._sliced_replies.answer(connection, request, self._write_spans(request, group, config))

    def _correction(self, connection: ServerConnection, request: Command) -> Command | None:
        """Return where the group compared would have to stand for not missing what all others have consumed.

        Per queue the lowest offset any group has that still is in the queue, or the largest number there
        is when the group compared is behind that already.
        """
        topic = self._topic_of(request).topic_name
        compared = self._offsets.of_topic(group_of(request, "compareGroup"), topic)
        left_out = {name for name in request.text("filterGroups", "").split(",") if name}
        for group in left_out:
            check_group_name(group, "filterGroups")
        lowest: dict[int, int] = {}
        for group in self._offsets.groups_of(topic):
            if group in left_out:
                continue
            for queue_id, offset in self._offsets.of_topic(group, topic).items():
                queue = self._store.find_queue(topic, queue_id)
                if offset >= (0 if queue is None else queue.min_offset):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        corrections = {
            queue_id: _INT64_MAX if offset > compared.get(queue_id, _INT64_MAX) else offset
            for queue_id, offset in lowest.items()
        }
        return reply_json(request, {"correctionOffsets": corrections})

    def _write_group(self, request: Command, group: str, configs: list[TopicConfig]) -> Work:
        size = ReplySize("name one topic in the field topic")
        parts: list[TopicStats] = []
        for config in configs:
            part = yield from self._progress.of_topic(group, config)
            size.add(part.size)
            parts.append(part)
        return request.reply(ResponseCode.SUCCESS, body=encode_stats(parts))

    def _write_groups(self, request: Command, *, is_order: bool) -> Work:
        """Yield every group that has offsets, with one ConsumeStats for each of its topics."""
        size = ReplySize("ask for one group at a time (GET_CONSUME_STATS)")
        behind = 0
        texts: list[bytes] = []
        topics: dict[str, list[str]] = {}
        for topic, group in self._offsets.each_pair():
            topics.setdefault(group, []).append(topic)
            yield None
        for group, names in topics.items():
            self._add_retry_topic(group, names)
        for group, names in topics.items():
            parts: list[bytes] = []
            for config in self._progress.consumed(group, names):
                if is_order and not config.order:
                    continue
                part = yield from self._progress.of_topic(group, config)
                behind += part.behind
                parts.append(encode_stats([part]))
                size.add(len(parts[-1]) + 1)
            if parts:
                texts.append(b"{%s:[%s]}" % (msgspec.json.encode(group), b",".join(parts)))
                size.add(len(group) + 8)
        body = b'{"brokerAddr":%s,"consumeStatsList":[%s],"totalDiff":%d}' % (
            msgspec.json.encode(self._address()),
            b",".join(texts),
            behind,
        )
        return request.reply(ResponseCode.SUCCESS, body=body)

    def _write_spans(self, request: Command, group: str, config: TopicConfig) -> Work:
        spans = yield from self._progress.time_spans(group, config)
        return reply_json(request, {"consumeTimeSpanSet": spans})

    def _topics_of(self, group: str) -> list[str]:
        """The topics a group has offsets in, and its retry topic: messages wait there before any offset."""
        names = self._offsets.topics_of(group)
        self._add_retry_topic(group, names)
        return names

    def _add_retry_topic(self, group: str, names: list[str]) -> None:
        name = RETRY_PREFIX + group
        if name not in names and self._topics.find(name) is not None:
            names.append(name)

    def _topic_of(self, request: Command) -> TopicConfig:
        return known_topic(self._topics, request.text("topic"))
