"""Look at groups: their members, their progress, and the state of each member.

A group is spread over all brokers, so most questions go to every master and the answers are put together.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Iterable
from typing import Final

import msgspec

from iotmq.client.admin.asking import Asking
from iotmq.client.transport.calls import ask, master_addresses
from iotmq.client.transport.message import check_group, check_topic
from iotmq.client.transport.queue_tables import WireQueue, by_queue, decode_answer, queue_of
from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import BrokerError, ClientError, RouteNotFoundError
from iotmq.remoting.codes import RequestCode, ResponseCode

# Longer than brokers wait for clients.
_RELAY_TIMEOUT_S: Final = 15.0
_CLIENTS_PER_REQUEST: Final = 512
_OWN_GROUPS: Final = re.compile(
    r"(RESEND_|CID_ONSAPI|CID_RMQ_SYS|CID_ONS-HTTP|CID_SYS|TOOLS_CONSUMER|FILTERSRV_|SELF_TEST|iotmq_|__)"
)


def is_own_group(name: str) -> bool:
    """Return whether a group is one of brokers, of tools of RocketMQ or of iotmq itself."""
    return _OWN_GROUPS.match(name) is not None


class Connection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One member of a group as its broker sees it."""

    client_id: str
    client_addr: str = ""
    language: str = ""
    version: int = 0


class SubscriptionInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Describe the subscription of a group to one topic."""

    topic: str
    sub_string: str = "*"
    expression_type: str = "TAG"
    sub_version: int = 0
    tags_set: tuple[str, ...] = ()
    code_set: tuple[int, ...] = ()


class ConsumerConnections(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The live members of a consumer group, and what they have in common."""

    connection_set: tuple[Connection, ...] = ()
    subscription_table: dict[str, SubscriptionInfo] = {}
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


class ProducerInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One live producer; `last_update_timestamp` is its last heartbeat in milliseconds."""

    client_id: str
    remote_ip: str = msgspec.field(name="remoteIP", default="")
    language: str = ""
    version: int = 0
    last_update_timestamp: int = 0


class ConsumerMembership(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A client's part in one consumer group."""

    group: str
    consume_type: str = ""
    message_model: str = ""
    topics: tuple[str, ...] = ()


class ClientInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A client of one broker with all groups it is in."""

    client_id: str
    client_addr: str
    language: str
    version: int
    last_update_timestamp: int
    producer_groups: tuple[str, ...] = ()
    consumers: tuple[ConsumerMembership, ...] = ()


class QueueLag(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A group's progress in one queue. `last_timestamp`: store time of the last consumed message, or 0.

    `in_flight`: messages that were popped and are not done.
    """

    broker_offset: int
    consumer_offset: int
    last_timestamp: int = 0
    in_flight: int = 0

    @property
    def behind(self) -> int:
        """Return the number of messages not consumed yet."""
        return self.broker_offset - self.consumer_offset


class GroupProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A group's progress in several queues, and the messages a second it pulls."""

    queues: dict[MessageQueue, QueueLag]
    consume_tps: float

    @property
    def behind(self) -> int:
        """Return the number of messages not consumed yet in all queues."""
        return sum(lag.behind for lag in self.queues.values())


class QueueTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Store times of a queue's messages and a group's delay, in milliseconds; -1 for none."""

    min_time_ms: int
    max_time_ms: int
    consume_time_ms: int
    delay_ms: int


class RunningInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Hold a consumer's report about itself; the contents of its parts depend on its language."""

    properties: dict[str, str] = {}
    subscription_set: list[dict[str, object]] = []
    mq_table: dict[str, dict[str, object]] = {}
    status_table: dict[str, dict[str, object]] = {}
    jstack: str | None = None


class DirectResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of one consumer's attempt at a message; CR_SUCCESS is success."""

    consume_result: str | None = None
    remark: str | None = None
    order: bool = False
    auto_commit: bool = True
    spent_time_mills: int = 0


class GroupViews(Asking):
    """Asks about groups through a client that is started; changes nothing."""

    async def connections(self, group: str) -> ConsumerConnections | None:
        """Return the live consumers of a group, each once; None when there is none."""
        check_group(group)
        found = await self._of_masters(
            ConsumerConnections,
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            {"consumerGroup": group},
            doing=f"listing the consumers of {group}",
            none_codes=(ResponseCode.CONSUMER_NOT_ONLINE,),
        )
        if not found:
            return None
        first = next(iter(found.values()))
        return msgspec.structs.replace(first, connection_set=tuple(_members(found.values())))

    async def producers(self, group: str) -> list[Connection]:
        """Return the live producers of a group, each once."""
        check_group(group)
        found = await self._of_masters(
            ConsumerConnections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            {"producerGroup": group},
            doing=f"listing the producers of {group}",
            none_codes=(ResponseCode.SYSTEM_ERROR,),
        )
        return _members(found.values())

    async def producer_groups(self) -> dict[str, list[ProducerInfo]]:
        """Return every group that has live producers, with them."""
        tables = await self._of_masters(
            _ProducerTable, RequestCode.GET_ALL_PRODUCER_INFO, doing="listing all producers"
        )
        groups: dict[str, dict[str, ProducerInfo]] = {}
        for table in tables.values():
            for group, producers in table.data.items():
                groups.setdefault(group, {}).update({producer.client_id: producer for producer in producers})
        return {group: list(groups[group].values()) for group in sorted(groups)}

    async def clients(self, broker_name: str) -> AsyncIterator[ClientInfo]:
        """Return every client of an iotmq broker by client id; other brokers do not know this request."""
        address = (await master_addresses(self._client, (broker_name,)))[broker_name]
        doing = f"listing the clients of broker {broker_name}"
        async for page in self._pages(
            _ClientList, address, RequestCode.LIST_CLIENTS, {}, count=_CLIENTS_PER_REQUEST, doing=doing
        ):
            for client in page.clients:
                yield client

    async def of_topic(self, topic: str) -> list[str]:
        """List the groups that consume a topic: with live members, or with offsets in it.

        RouteNotFoundError when no broker has the topic.
        """
        check_topic(topic)
        lists = await self._of_masters(
            _GroupList,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
            {"topic": topic},
            doing=f"listing the groups of topic {topic}",
            none_codes=(ResponseCode.TOPIC_NOT_EXIST,),
        )
        if not lists:
            raise RouteNotFoundError(f"no broker has the topic {topic}")
        return sorted({group for found in lists.values() for group in found.group_list})

    async def progress(self, group: str, topic: str = "") -> GroupProgress:
        """Return a group's progress in every queue it consumes, or in those of one topic.

        RouteNotFoundError when no broker has it.
        """
        check_group(group)
        ext = {"consumerGroup": group}
        if topic:
            check_topic(topic)
            ext["topic"] = topic
        found = await self._of_masters(
            ConsumeStatsAnswer,
            RequestCode.GET_CONSUME_STATS,
            ext,
            doing=f"asking how far {group} is",
            none_codes=(ResponseCode.TOPIC_NOT_EXIST,),
        )
        if not found:
            raise RouteNotFoundError(f"no broker has the topic {topic}")
        tables = found.values()
        return GroupProgress(
            queues=by_queue({key: lag for table in tables for key, lag in table.offset_table.items()}),
            consume_tps=sum(table.consume_tps for table in tables),
        )

    async def times(self, group: str, topic: str) -> dict[MessageQueue, QueueTimes]:
        """Return the store times of each queue of a topic, and a group's delay."""
        check_group(group)
        check_topic(topic)
        tables = await self._of_masters(
            _TimeSpans,
            RequestCode.QUERY_CONSUME_TIME_SPAN,
            {"topic": topic, "group": group},
            doing=f"asking how late {group} is",
            none_codes=(ResponseCode.TOPIC_NOT_EXIST,),
        )
        rows: dict[MessageQueue, QueueTimes] = {}
        for table in tables.values():
            for span in table.consume_time_span_set:
                rows[queue_of(span.message_queue)] = QueueTimes(
                    min_time_ms=span.min_time_stamp,
                    max_time_ms=span.max_time_stamp,
                    consume_time_ms=span.consume_time_stamp,
                    delay_ms=span.delay_time,
                )
        return {queue: rows[queue] for queue in sorted(rows)}

    async def corrections(
        self, group: str, topic: str, *, broker_name: str, without_groups: Collection[str] = ()
    ) -> dict[int, int]:
        """Return the lowest offset of any group by queue id, for a topic of one broker.

        2^63 - 1 where `group` is behind that already; `without_groups` are not looked at.
        """
        found = await self._of_master(
            _Corrections,
            broker_name,
            RequestCode.QUERY_CORRECTION_OFFSET,
            {"topic": topic, "compareGroup": group, "filterGroups": ",".join(without_groups)},
            doing=f"comparing {group} with the other groups of {topic}",
        )
        return found.correction_offsets

    async def running_info(self, group: str, client_id: str, *, with_stack: bool = False) -> RunningInfo:
        """Ask a consumer for its running info. BrokerError: 206 not connected, 207 no answer."""
        ext = {
            "consumerGroup": group,
            "clientId": client_id,
            "jstackEnable": "true" if with_stack else "false",
        }
        doing = f"asking {client_id} of {group} for its running info"
        answer = await self._first_of(RequestCode.GET_CONSUMER_RUNNING_INFO, ext, doing=doing)
        return decode_answer(answer, RunningInfo, doing=doing)

    async def consume_directly(
        self, group: str, client_id: str, message_id: str, *, broker_name: str
    ) -> DirectResult:
        """Have one consumer consume one stored message now; nothing of its offsets changes.

        `message_id` is the one with the message's place; the broker is the one that stores it.
        """
        return await self._of_master(
            DirectResult,
            broker_name,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            {"consumerGroup": group, "clientId": client_id, "msgId": message_id, "brokerName": broker_name},
            doing=f"giving message {message_id} to {client_id}",
            timeout_s=_RELAY_TIMEOUT_S,
        )

    async def status(
        self, group: str, topic: str, *, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, int]]:
        """Return the progress of all clients, or of one, in their queues of a topic, by client id."""
        ext = {"topic": topic, "group": group}
        if client_id:
            ext["clientAddr"] = client_id
        doing = f"asking the clients of {group}"
        answer = await self._first_of(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext, doing=doing)
        table = decode_answer(answer, _StatusAnswer, doing=doing).consumer_table
        return {client: by_queue(rows) for client, rows in sorted(table.items())}

    async def _first_of(self, code: int, ext: dict[str, str], *, doing: str) -> bytes:
        """Ask one broker after the other until one has the client connected."""
        refusal: BrokerError | None = None
        for name, address in sorted((await master_addresses(self._client)).items()):
            try:
                answer = await ask(
                    self._client,
                    address,
                    code,
                    ext,
                    doing=f"{doing} through broker {name}",
                    timeout_s=_RELAY_TIMEOUT_S,
                )
            except BrokerError as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                refusal = error
            else:
                return answer.body_bytes()
        if refusal is None:
            raise ClientError("there is no broker")
        raise refusal


def _members(found: Iterable[ConsumerConnections]) -> list[Connection]:
    """Return the members that brokers have, each once, sorted by client id."""
    members = {member.client_id: member for part in found for member in part.connection_set}
    return [members[name] for name in sorted(members)]


class ConsumeStatsAnswer(msgspec.Struct, kw_only=True, rename="camel"):
    """ConsumeStats of the protocol; the keys are queues as texts."""

    consume_tps: float = 0.0
    offset_table: dict[str, QueueLag] = {}


class _ProducerTable(msgspec.Struct):
    data: dict[str, list[ProducerInfo]] = {}


class _ClientList(msgspec.Struct, kw_only=True, rename="camel"):
    clients: list[ClientInfo]
    next_after: str | None = None


class _GroupList(msgspec.Struct, kw_only=True, rename="camel"):
    group_list: list[str] = []


class _TimeSpan(msgspec.Struct, kw_only=True, rename="camel"):
    message_queue: WireQueue
    min_time_stamp: int = -1
    max_time_stamp: int = -1
    consume_time_stamp: int = -1
    delay_time: int = 0


class _TimeSpans(msgspec.Struct, kw_only=True, rename="camel"):
    consume_time_span_set: list[_TimeSpan] = []


class _Corrections(msgspec.Struct, kw_only=True, rename="camel"):
    correction_offsets: dict[int, int] = {}


class _StatusAnswer(msgspec.Struct, kw_only=True, rename="camel"):
    consumer_table: dict[str, dict[str, int]] = {}
