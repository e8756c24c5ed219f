"""How a group consumes a topic, by queue or by message, and what a consumer is to have: codes 401 and 400."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from iotmq.broker.members.groups import BROADCASTING
from iotmq.broker.members.queue_locks import MessageQueue
from iotmq.broker.parts import BrokerParts
from iotmq.broker.pop.pops import Pops
from iotmq.broker.replies.deferred_reply import DeferredReply
from iotmq.broker.replies.reply_body import reply_json
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.tables.subscription_groups import known_group
from iotmq.broker.tables.topics import RETRY_PREFIX, known_topic
from iotmq.broker.writing.message_writer import RefusedBatch
from iotmq.errors import RequestError
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

_ANY_QUEUE: Final = -1
_AVERAGE: Final = "AVG"
_CIRCLE: Final = "AVG_BY_CIRCLE"

Mode = Literal["PULL", "POP"]


class _ModeRequest(msgspec.Struct, kw_only=True, rename="camel"):
    topic: str
    consumer_group: str
    mode: Mode = "PULL"


class _AssignmentRequest(msgspec.Struct, kw_only=True, rename="camel"):
    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = _AVERAGE
    message_model: str = ""


class _Assignment(msgspec.Struct, kw_only=True, rename="camel"):
    message_queue: MessageQueue
    mode: Mode


class _Assignments(msgspec.Struct, kw_only=True, rename="camel"):
    message_queue_assignments: list[_Assignment]


class RequestModeHandler(RequestProcessor):
    """Says what the consumers of a group are to do that leave it to the broker."""

    def __init__(self, parts: BrokerParts, pops: Pops) -> None:
        self._parts = parts
        self._topics = parts.topics
        self._subscription_groups = parts.subscription_groups
        self._groups = parts.groups
        self._pops = pops

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.SET_MESSAGE_REQUEST_MODE: self._set_mode,
            RequestCode.QUERY_ASSIGNMENT: self._assign,
        }

    def _set_mode(self, connection: ServerConnection, request: Command) -> Command | None:
        body = lenient_json.decode_request(request.body, _ModeRequest)
        known_group(self._subscription_groups, body.consumer_group, "consumerGroup")
        known_topic(self._topics, body.topic)
        if body.topic.startswith(RETRY_PREFIX):
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the field topic names {body.topic}: retry topics are pulled"
            )
        answer = DeferredReply(connection, request)

        def stored_or_not(refusal: RefusedBatch | None) -> None:
            if refusal is None:
                answer.succeed()
            else:
                answer.refuse(RequestError(refusal.code, refusal.remark))

        self._pops.set_mode(body.consumer_group, body.topic, stored_or_not, is_popped=body.mode == "POP")
        return answer.now_or_later()

    def _assign(self, connection: ServerConnection, request: Command) -> Command:
        body = lenient_json.decode_request(request.body, _AssignmentRequest)
        topic = known_topic(self._topics, body.topic)
        is_popped = self._pops.is_popped(body.consumer_group, body.topic)
        if is_popped and body.message_model != BROADCASTING:
            queue_ids = [_ANY_QUEUE]
        else:
            queue_ids = list(range(topic.read_queue_nums))
            is_popped = False
            if body.message_model != BROADCASTING:
                group = self._groups.consumer_group(body.consumer_group)
                members = [] if group is None else sorted(group.members)
                queue_ids = share_of(queue_ids, members, body.client_id, body.strategy_name)
        assignments = [
            _Assignment(
                message_queue=MessageQueue(
                    broker_name=self._parts.settings.name, queue_id=queue_id, topic=body.topic
                ),
                mode="POP" if is_popped else "PULL",
            )
            for queue_id in queue_ids
        ]
        return reply_json(request, _Assignments(message_queue_assignments=assignments))


def share_of(queue_ids: list[int], members: list[str], client_id: str, strategy: str) -> list[int]:
    """Return the queues of one member, as clients share them. RequestError (29) for another strategy."""
    if strategy not in (_AVERAGE, _CIRCLE):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"the field strategyName is {strategy!r}, which brokers do not know: they share by {_AVERAGE} or "
            f"{_CIRCLE}",
        )
    if client_id not in members:
        return []
    index = members.index(client_id)
    if strategy == _CIRCLE:
        return queue_ids[index :: len(members)]
    count, more = divmod(len(queue_ids), len(members))
    start = index * count + min(index, more)
    return queue_ids[start : start + count + (index < more)]
