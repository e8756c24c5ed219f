"""Looking things up in the log: messages by key (12) and by position (33), the entries of a queue (321)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, cast

import msgspec

from iotmq import limits
from iotmq.broker.filters.subscription import SubscriptionData
from iotmq.broker.filters.tags import parse_tags
from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.client_views import SubscriptionView, subscription_view
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.replies.sliced_reply import SlicedReplies, Work
from iotmq.broker.tables.topics import known_topic
from iotmq.errors import RefusedError, StoreError
from iotmq.message.properties import UNIQ_KEY
from iotmq.message.records.record import decode_record, property_value
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Body, Command
from iotmq.remoting.server import ServerConnection
from iotmq.store.projections.key_index.key_query import is_match

_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_UNIQUE_RECORDS_MAX: Final = 32
_TIME_MS_MAX: Final = 2**62
_INT32_MAX: Final = 2**31 - 1
_QUEUE_ENTRIES_DEFAULT: Final = 32
# Records brought into memory at a time, and where their size stands: in the first bytes.
_LOOKED_AT: Final = 16
_SIZE_BYTES: Final = 4
_POSITION_MAX: Final = 2**62


class QueueEntryView(msgspec.Struct, kw_only=True, rename="camel"):
    """One entry of a queue; `eval` says whether the group asked about would get the message."""

    physic_offset: int
    physic_size: int
    tags_code: int
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueueEntriesView(msgspec.Struct, kw_only=True, rename="camel"):
    """The answer to code 321."""

    subscription_data: SubscriptionView | None = None
    filter_data: str | None = None
    max_queue_index: int
    min_queue_index: int
    queue_data: list[QueueEntryView]


class _Query(NamedTuple):
    """Describe a query with code 12."""

    topic: str
    key: str
    begin_ms: int
    end_ms: int
    records_max: int
    is_unique: bool

    def wants(self, view: memoryview) -> bool:
        if not is_match(view, self.topic, self.key, self.begin_ms, self.end_ms):
            return False
        if not self.is_unique:
            return True
        unique_key = property_value(decode_record(view).properties, UNIQ_KEY.encode())
        return unique_key == self.key.encode("utf-8", "replace")


class QueryHandler(RequestProcessor):
    """Reads the log for people who look for something."""

    def __init__(self, parts: BrokerParts, sliced_replies: SlicedReplies) -> None:
        self._store = parts.store
        self._topics = parts.topics
        self._groups = parts.groups
        self._sliced_replies = sliced_replies

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.QUERY_MESSAGE: self._by_key,
            RequestCode.QUERY_CONSUME_QUEUE: self._entries,
            RequestCode.VIEW_MESSAGE_BY_ID: self._by_position,
        }

    def _by_key(self, connection: ServerConnection, request: Command) -> Command | None:
        topic = request.text("topic")
        key = request.text("key")
        records_max = request.integer("maxNum", minimum=1, maximum=_INT32_MAX)
        begin_ms = min(max(request.integer("beginTimestamp"), 0), _TIME_MS_MAX)
        end_ms = min(max(request.integer("endTimestamp"), 0), _TIME_MS_MAX)
        is_unique = request.boolean(_UNIQUE_KEY_QUERY)
        query = _Query(
            topic,
            key,
            begin_ms,
            end_ms,
            min(records_max, _UNIQUE_RECORDS_MAX if is_unique else limits.INDEX_QUERY_RECORDS_MAX),
            is_unique,
        )
        return self._sliced_replies.answer(connection, request, self._look_for(request, query))

    def _by_position(self, connection: ServerConnection, request: Command) -> Command | None:
        position = request.integer("offset", minimum=0, maximum=_POSITION_MAX)
        return self._sliced_replies.answer(connection, request, self._view(request, position))

    def _view(self, request: Command, position: int) -> Work:
        yield self._store.plan_records([(position, _SIZE_BYTES)])
        yield self._store.plan_records([(position, self._store.size_at(position))])
        view = self._store.read_record(position)
        if view is None:
            raise RefusedError(f"the field offset is {position}, where no record starts")
        return request.reply(ResponseCode.SUCCESS, body=view)

    def _look_for(self, request: Command, query: _Query) -> Work:
        """Look at what the index proposes, some records at a time, once they are in memory."""
        try:
            positions = yield from self._store.candidate_steps(
                query.topic, query.key, begin_ms=query.begin_ms, end_ms=query.end_ms
            )
            indexed_ms, indexed_position = self._store.indexed_until
        except StoreError as error:
            raise RefusedError(str(error)) from error
        found: list[memoryview] = []
        size = 0
        for at in range(0, len(positions), _LOOKED_AT):
            some = positions[at : at + _LOOKED_AT]
            # First where their sizes stand, then all of them.
            yield self._store.plan_records((position, _SIZE_BYTES) for position in some)
            yield self._store.plan_records((position, self._store.size_at(position)) for position in some)
            for position in some:
                view = self._store.read_record(position)
                if view is None or not query.wants(view):
                    continue
                size += view.nbytes
                if len(found) >= query.records_max or (found and size > limits.QUERY_BYTES_MAX):
                    return _found(request, query, found, indexed_ms, indexed_position)
                found.append(view)
        return _found(request, query, found, indexed_ms, indexed_position)

    def _entries(self, connection: ServerConnection, request: Command) -> Command | None:
        topic = request.text("topic")
        queue_id = request.integer("queueId", minimum=0, maximum=_INT32_MAX)
        index = request.integer("index", minimum=0)
        count = request.integer(
            "count", _QUEUE_ENTRIES_DEFAULT, minimum=1, maximum=limits.QUEUE_ENTRIES_LISTED_MAX
        )
        group = request.text("consumerGroup", "")
        known_topic(self._topics, topic)
        queue = self._store.find_queue(topic, queue_id)
        if queue is None:
            raise RefusedError(
                f"the field queueId names the queue {queue_id} of topic {topic}, which has no messages"
            )
        subscription = self._subscription(group, topic)
        view = QueueEntriesView(
            subscription_data=None if subscription is None else subscription_view(subscription),
            filter_data=f"{group}@{topic} is not online" if group and subscription is None else None,
            max_queue_index=queue.max_offset,
            min_queue_index=queue.min_offset,
            queue_data=[],
        )
        tags = None
        if subscription is not None and subscription.is_by_tag:
            tags = parse_tags(subscription.expression)
        for offset in range(max(index, queue.min_offset), min(index + count, queue.max_offset)):
            entry = queue.entry(offset)
            if entry is None:
                break
            position, size, tags_code = entry
            view.queue_data.append(
                QueueEntryView(
                    physic_offset=position,
                    physic_size=size,
                    tags_code=tags_code,
                    eval=subscription is not None and (tags is None or tags_code in tags),
                )
            )
        remark = None
        if not view.queue_data:
            remark = f"the field index is {index}; queue {queue_id} of topic {topic} has no entries there"
        return request.reply(ResponseCode.SUCCESS, remark=remark, body=msgspec.json.encode(view))

    def _subscription(self, group: str, topic: str) -> SubscriptionData | None:
        live = self._groups.consumer_group(group) if group else None
        return None if live is None else live.subscriptions.get(topic)


def _found(
    request: Command, query: _Query, views: list[memoryview], indexed_ms: int, indexed_position: int
) -> Command:
    ext = {
        "indexLastUpdateTimestamp": str(indexed_ms),
        "indexLastUpdatePhyoffset": str(indexed_position),
    }
    if not views:
        return request.reply(
            ResponseCode.QUERY_NOT_FOUND,
            remark=f"no message of topic {query.topic} has the key {query.key[:80]!r} and was stored in that "
            "time",
            ext=ext,
        )
    return request.reply(ResponseCode.SUCCESS, ext=ext, body=cast(Body, views))
