"""Find messages by id, key or offset, and track one through the groups that consume it."""

from __future__ import annotations

import asyncio
import enum
import socket
from typing import Final, NamedTuple

import msgspec

from iotmq.addresses import address_text
from iotmq.client.admin.groups import ConsumerConnections, GroupViews, SubscriptionInfo
from iotmq.client.consuming.pulls import PullStatus, pull_command, read_pulled
from iotmq.client.transport.calls import ask, asking, broker_address
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import ReceivedMessage, check_topic
from iotmq.client.transport.queue_tables import decode_answer
from iotmq.client.transport.routes import MASTER_ID, MessageQueue
from iotmq.client.transport.subscriptions import parse_subscription
from iotmq.errors import BrokerError, ClientError, RouteNotFoundError
from iotmq.limits import INDEX_QUERY_RECORDS_MAX
from iotmq.message.errors import MessageFormatError
from iotmq.message.message_ids import parse_offset_message_id
from iotmq.message.records.record import decode_record, iter_records
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command

_TOOLS_GROUP: Final = "TOOLS_CONSUMER"
_TIME_MS_MAX: Final = 2**63 - 1
_ACTIVE: Final = "CONSUME_ACTIVELY"
_BROADCASTING: Final = "BROADCASTING"


class TrackState(enum.Enum):
    """The state of a message in one group."""

    CONSUMED = "consumed"
    FILTERED = "filtered"
    """The group is past it, and its subscription does not want it."""
    WAITING = "waiting"
    """The group has not come to it yet."""
    OFFLINE = "offline"
    """The group is not past it and has no live consumer."""
    BROADCASTING = "broadcasting"
    """Each member keeps its own offsets; brokers do not know them."""
    PULLED = "pulled"
    """The group pulls by itself and may keep its offsets elsewhere."""


class Track(NamedTuple):
    """The state of a message in a group that consumes its topic."""

    group: str
    state: TrackState


class QueueEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An entry of a queue; `eval` is true if the group asked about would get the message."""

    physic_offset: int
    physic_size: int
    tags_code: int
    eval: bool = False


class QueueEntries(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a queue as it is stored."""

    min_queue_index: int
    max_queue_index: int
    queue_data: tuple[QueueEntry, ...] | None = ()
    subscription_data: SubscriptionInfo | None = None
    filter_data: str | None = None


class MessageViews:
    """Reads stored messages through a client that is started; consumes and commits nothing."""

    def __init__(self, client: ClientTransport, groups: GroupViews) -> None:
        self._client = client
        self._groups = groups

    async def by_id(self, message_id: str) -> ReceivedMessage:
        """Read the message that an offset message id names, from the broker whose address is in the id.

        BrokerError when that has no such message, ClientError for an id without a place, RouteNotFoundError
        when no registry knows a broker there: ids come from anybody, and nobody else is connected to.
        """
        try:
            host, port, position = parse_offset_message_id(message_id)
        except MessageFormatError as error:
            raise ClientError(f"{error}: look for it by_unique_key") from error
        address = address_text(host, port)
        name = await self._broker_name(host, port)
        if not name:
            raise RouteNotFoundError(
                f"message {message_id} is of a broker at {address}, of which no registry knows"
            )
        answer = await ask(
            self._client,
            address,
            RequestCode.VIEW_MESSAGE_BY_ID,
            {"offset": str(position)},
            doing=f"looking for message {message_id}",
        )
        record = decode_record(answer.body_bytes())
        return ReceivedMessage(MessageQueue(record.topic, name, record.queue_id), record)

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = _TIME_MS_MAX,
        messages_max: int = INDEX_QUERY_RECORDS_MAX,
    ) -> list[ReceivedMessage]:
        """Find messages of a topic by one of their keys, stored in [begin_ms, end_ms], newest first."""
        return await self._query(
            topic, key, begin_ms=begin_ms, end_ms=end_ms, messages_max=messages_max, is_unique=False
        )

    async def by_unique_key(self, topic: str, key: str) -> list[ReceivedMessage]:
        """Find messages of a topic by their sender's id; several when it was sent more than once."""
        return await self._query(
            topic,
            key,
            begin_ms=0,
            end_ms=_TIME_MS_MAX,
            messages_max=INDEX_QUERY_RECORDS_MAX,
            is_unique=True,
        )

    async def at_offset(self, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
        """Read the message with this offset; None when the queue does not have it (any more, or yet)."""
        messages, _ = await self.from_offset(queue, offset, messages_max=1, bytes_max=1)
        return messages[0] if messages and messages[0].queue_offset == offset else None

    async def from_offset(
        self, queue: MessageQueue, offset: int, *, messages_max: int, bytes_max: int
    ) -> tuple[list[ReceivedMessage], int]:
        """Read messages of a queue from an offset on, and return the offset to go on from.

        They end before `bytes_max` of records, but for the first. Nothing is returned at the queue's end, and
        from an offset outside of the queue, for which the offset to go on from is the nearest inside.
        """
        address = await broker_address(self._client, queue)
        command = pull_command(
            _TOOLS_GROUP,
            queue,
            offset,
            records_max=messages_max,
            bytes_max=bytes_max,
            hold_ms=0,
            subscription=parse_subscription(queue.topic, "*", self._client.clock.now_ms()),
        )
        with asking(f"reading a message of {queue}"):
            answer = await self._client.request(address, command)
        pulled = read_pulled(answer, queue)
        if pulled.status is not PullStatus.FOUND:
            return [], pulled.next_offset
        messages = [ReceivedMessage(queue, record) for record in iter_records(pulled.records)]
        return messages, pulled.next_offset

    async def queue_entries(
        self, queue: MessageQueue, offset: int = 0, *, count: int = 32, group: str = ""
    ) -> QueueEntries:
        """Read the entries of a queue from `offset` on; with `group`, matched with its subscription."""
        ext = {
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "index": str(offset),
            "count": str(count),
        }
        if group:
            ext["consumerGroup"] = group
        answer = await ask(
            self._client,
            await broker_address(self._client, queue),
            RequestCode.QUERY_CONSUME_QUEUE,
            ext,
            doing=f"reading the entries of {queue}",
        )
        return decode_answer(answer.body, QueueEntries, doing=f"reading the entries of {queue}")

    async def track(self, message: ReceivedMessage) -> list[Track]:
        """Track a message in every group that consumes its topic."""
        topic = message.record.topic
        groups = await self._groups.of_topic(topic)
        states = await asyncio.gather(*(self._state_in(group, topic, message) for group in groups))
        return [Track(group, state) for group, state in zip(groups, states, strict=True)]

    async def _state_in(self, group: str, topic: str, message: ReceivedMessage) -> TrackState:
        connections, progress = await asyncio.gather(
            self._groups.connections(group), self._groups.progress(group, topic)
        )
        if connections is not None and connections.message_model == _BROADCASTING:
            return TrackState.BROADCASTING
        lag = progress.queues.get(message.queue._replace(topic=topic))
        if lag is None or lag.consumer_offset <= message.queue_offset:
            if connections is None:
                return TrackState.OFFLINE
            return TrackState.PULLED if connections.consume_type == _ACTIVE else TrackState.WAITING
        return TrackState.FILTERED if _is_filtered(connections, topic, message) else TrackState.CONSUMED

    async def _query(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, messages_max: int, is_unique: bool
    ) -> list[ReceivedMessage]:
        check_topic(topic)
        route = await self._client.routes.find_for_reading(topic, timeout_s=1.0)
        ext = {
            "topic": topic,
            "key": key,
            "maxNum": str(messages_max),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
            "_UNIQUE_KEY_QUERY": "true" if is_unique else "false",
        }
        names = [name for name, by_id in route.addresses.items() if MASTER_ID in by_id]

        async def one(name: str) -> Command:
            with asking(f"looking for {key} at broker {name}"):
                command = Command.request(RequestCode.QUERY_MESSAGE, ext)
                return await self._client.request(route.addresses[name][MASTER_ID], command)

        answers = await asyncio.gather(*map(one, names))
        found: list[ReceivedMessage] = []
        for name, answer in zip(names, answers, strict=True):
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            if answer.code != ResponseCode.SUCCESS:
                raise BrokerError(answer.code, f"looking for {key} at broker {name}: {answer.remark}")
            found += [
                ReceivedMessage(MessageQueue(topic, name, record.queue_id), record)
                for record in iter_records(answer.body_bytes())
            ]
        found.sort(key=lambda message: message.record.store_timestamp_ms, reverse=True)
        return found[:messages_max]

    async def _broker_name(self, host: str, port: int) -> str:
        """Find the name of the broker with this address; empty when no registry knows it."""
        cluster = await self._client.registries.cluster()
        named = [(address, name) for name, by_id in cluster.items() for address in by_id.values()]
        for address, name in named:
            if address == address_text(host, port):
                return name
        # Brokers may be known by names, while ids have numbers.
        for address, name in named:
            known_host, _, known_port = address.rpartition(":")
            if known_port == str(port) and host in await _resolved(known_host.strip("[]")):
                return name
        return ""


async def _resolved(host: str) -> set[str]:
    """Return the numbers of a host; none where its name is not known."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {str(address[0]) for *_, address in found}


def _is_filtered(connections: ConsumerConnections | None, topic: str, message: ReceivedMessage) -> bool:
    if connections is None:
        return False
    subscription = connections.subscription_table.get(topic)
    return (
        subscription is not None and bool(subscription.tags_set) and message.tags not in subscription.tags_set
    )
