"""How a group consumes a topic, by queue or by message, and what a consumer is to have: codes 401 and 400."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeVar

import msgspec

from iotmq.broker.members.groups import BROADCASTING
from iotmq.broker.members.queue_locks import MessageQueue
from iotmq.broker.parts import BrokerParts
from iotmq.broker.pop.pops import Pops
from iotmq.broker.registration.registration import QueueName, QueuesFound
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

Shared = TypeVar("Shared")


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

    def __init__(
        self,
        parts: BrokerParts,
        pops: Pops,
        *,
        find_queues: Callable[[str, QueuesFound], None],
        tell: Callable[[str], None],
    ) -> None:
        """`find_queues` tells the queues of a topic at all brokers, `tell` a group's members to ask again."""
        self._find_queues = find_queues
        self._tell = tell
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
                self._tell(body.consumer_group)
                answer.succeed()
            else:
                answer.refuse(RequestError(refusal.code, refusal.remark))

        self._pops.set_mode(body.consumer_group, body.topic, stored_or_not, is_popped=body.mode == "POP")
        return answer.now_or_later()

    def _assign(self, connection: ServerConnection, request: Command) -> Command | None:
        """Answer with queues of all brokers: who asks does so at one of them, whichever it is."""
        body = lenient_json.decode_request(request.body, _AssignmentRequest)
        known_topic(self._topics, body.topic)
        answer = DeferredReply(connection, request)

        def found(queues: list[QueueName] | RequestError) -> None:
            if isinstance(queues, RequestError):
                answer.refuse(queues)
                return
            try:
                answer.answer(reply_json(request, self._assignments(body, queues)))
            except RequestError as refusal:
                answer.refuse(refusal)

        self._find_queues(body.topic, found)
        return answer.now_or_later()

    def _assignments(self, body: _AssignmentRequest, known: list[QueueName]) -> _Assignments:
        own = self._parts.settings.name
        # What registries know of this broker may be late.
        count = known_topic(self._topics, body.topic).read_queue_nums
        queues = sorted([each for each in known if each[0] != own] + [(own, each) for each in range(count)])
        mode: Mode = "PULL"
        if body.message_model != BROADCASTING:
            if self._pops.is_popped(body.consumer_group, body.topic):
                mode = "POP"
                queues = [(name, _ANY_QUEUE) for name in sorted({name for name, _ in queues})]
            else:
                group = self._groups.consumer_group(body.consumer_group)
                members = [] if group is None else sorted(group.members)
                queues = share_of(queues, members, body.client_id, body.strategy_name)
        return _Assignments(
            message_queue_assignments=[
                _Assignment(
                    message_queue=MessageQueue(broker_name=name, queue_id=queue_id, topic=body.topic),
                    mode=mode,
                )
                for name, queue_id in queues
            ]
        )


def share_of(queues: list[Shared], members: list[str], client_id: str, strategy: str) -> list[Shared]:
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
        return queues[index :: len(members)]
    count, more = divmod(len(queues), len(members))
    start = index * count + min(index, more)
    return queues[start : start + count + (index < more)]
