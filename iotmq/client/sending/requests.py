"""Send requests as messages, and replies straight back to the requester.

The requester names itself and a number of the request's own in the message's properties; whoever consumes the
message sends the reply to the broker, which hands it to the requester's connection.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import uuid
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from iotmq.addresses import parse_address
from iotmq.client.sending.device_messages import DEVICE_TOPIC, device_message
from iotmq.client.sending.producer import Producer
from iotmq.client.sending.queue_choice import QueueChoice
from iotmq.client.transport.calls import ask, broker_address
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.lifetime import Lifetime
from iotmq.client.transport.measured import Measured
from iotmq.client.transport.message import Message, ReceivedMessage
from iotmq.client.transport.routes import MASTER_ID, MessageQueue
from iotmq.client.transport.settings import ProducerSettings
from iotmq.errors import (
    ClientClosedError,
    ClientError,
    ConnectionClosedError,
    ProducerBusyError,
    RequestTimeoutError,
)
from iotmq.message.errors import MessageFormatError
from iotmq.message.hosts import encode_host
from iotmq.message.message_ids import UniqueKeys
from iotmq.message.properties import (
    CLUSTER,
    CORRELATION_ID,
    MQTT_TOPIC,
    MSG_TYPE,
    REPLY_TO_CLIENT,
    REPLY_TTL,
    REPLY_TYPE,
)
from iotmq.message.records.record import decode_record, encode_record, property_value
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.supervised import end

_log = logging.getLogger(__name__)

REQUESTER_GROUP: Final = "DEFAULT_REQUESTER"
REPLIER_GROUP: Final = "DEFAULT_REPLIER"

# A request waits so long for connections to brokers that it may not need.
_MEET_S: Final = 0.2


class Requester(Lifetime):
    """A client that sends requests and waits for their replies; `async with` starts and stops it."""

    def __init__(
        self,
        client: ClientTransport,
        group: str = REQUESTER_GROUP,
        settings: ProducerSettings | None = None,
    ) -> None:
        self._client = client
        self._producer = Producer(client, group, settings)
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}
        """Correlation id -> the request whose reply has not come."""
        self._meeting: dict[str, tuple[asyncio.Task[None], float]] = {}
        """Address -> the task that connects to the broker there, and until when requests wait for it."""
        self._is_running = False
        self._asked_total = 0
        self._replied_total = 0

    async def start(self) -> None:
        """Take replies from now on; the client must be started."""
        if self._is_running:
            return
        await self._producer.start()
        self._is_running = True
        self._client.add_request_handler(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._replied)
        try:
            # Brokers that are connected already would otherwise hear of the group only later.
            await self._client.heartbeat()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Leave; requests that wait for a reply fail with ConnectionClosedError."""
        if self._is_running:
            self._is_running = False
            self._client.remove_request_handler(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._replied)
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionClosedError("the requester was stopped"))
            await end(task for task, _ in self._meeting.values())
        await self._producer.stop()

    async def request(
        self, message: Message, *, timeout_ms: int = 3_000, queue: QueueChoice | None = None
    ) -> ReceivedMessage:
        """Send a request and wait for its reply.

        RequestTimeoutError without one in time (the request may have been carried out), ProducerBusyError
        while `in_flight_max` requests wait, and whatever `Producer.send` raises.
        """
        if len(self._waiting) >= self._producer.settings.in_flight_max:
            raise ProducerBusyError(
                f"{len(self._waiting)} requests wait for their replies: ask less at a time, or raise "
                "in_flight_max"
            )
        # Hard to guess: whoever knows it can answer.
        correlation_id = uuid.uuid4().hex
        asking = copy.copy(message)
        asking.properties = {
            **(message.properties or {}),
            CORRELATION_ID: correlation_id,
            REPLY_TO_CLIENT: self._client.client_id,
            REPLY_TTL: str(timeout_ms),
        }
        future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._asked_total += 1
        self._waiting[correlation_id] = future
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._introduce(message.topic)
                await self._producer.send(asking, queue=queue, timeout_ms=timeout_ms)
                reply = await future
                self._replied_total += 1
                return reply
        except TimeoutError:
            device_topic = (message.properties or {}).get(MQTT_TOPIC)
            raise RequestTimeoutError(
                f"no reply to a request on topic {message.topic} within {timeout_ms} ms; it may have been "
                "carried out. Is there a "
                + (
                    f"device that subscribes {device_topic} and answers?"
                    if device_topic
                    else "consumer that replies?"
                )
            ) from None
        finally:
            del self._waiting[correlation_id]

    async def ask_device(
        self,
        mqtt_topic: str,
        payload: bytes,
        *,
        qos: int = 1,
        timeout_ms: int = 3_000,
        topic: str = DEVICE_TOPIC,
    ) -> ReceivedMessage:
        """Send a request to the devices that subscribe an MQTT topic, and wait for the first answer.

        A device that is absent until `timeout_ms` has passed does not get it. For devices without MQTT 5 the
        last level of the topic is `{reply}`. `properties["MQTT_CLIENT_ID"]` of the answer names who gave it.
        Raises what `request` raises.
        """
        message = device_message(mqtt_topic, payload, topic=topic, qos=qos, expiry_s=timeout_ms / 1000)
        return await self.request(message, timeout_ms=timeout_ms)

    def metrics(self) -> Iterable[Metric]:
        """Report the counters of this requester, and of the producer of its requests."""
        yield from self._producer.metrics()
        yield from samples(
            ("iotmq_client_requests_total", "Requests begun", self._asked_total),
            ("iotmq_client_requests_replied_total", "Requests that were replied to", self._replied_total),
            ("iotmq_client_requests_waiting", "Requests whose reply has not come", len(self._waiting)),
            labels=(("group", self._producer.group),),
        )

    async def _introduce(self, topic: str) -> None:
        """Connect to every broker of the topic: each of them may pass the reply on. A request does not wait
        for those that are not reached soon: it may not need them."""
        connections = self._client.connections
        route = self._client.routes.known(topic)
        if route is None:
            await self._producer.queues(topic)
            route = self._client.routes.known(topic)
        now_s = asyncio.get_running_loop().time()
        meetings = []
        for by_id in () if route is None else route.addresses.values():
            address = by_id.get(MASTER_ID)
            if address is None or connections.ready(address) is not None:
                continue
            if address not in self._meeting and not connections.rest_s(address):
                task = asyncio.ensure_future(self._meet(address))
                task.add_done_callback(partial(self._met, address))
                self._meeting[address] = task, now_s + _MEET_S
            if address in self._meeting:
                meetings.append(self._meeting[address])
        until_s = max((until_s for _, until_s in meetings), default=now_s)
        if until_s > now_s:
            await asyncio.wait([task for task, _ in meetings], timeout=until_s - now_s)

    async def _meet(self, address: str) -> None:
        try:
            await self._client.connections.get(address)
        except (ConnectionClosedError, ClientClosedError) as error:
            _log.debug("no reply can come from %s now: %s", address, error)

    def _met(self, address: str, _: asyncio.Task[None]) -> None:
        del self._meeting[address]

    def _replied(self, _connection: ClientConnection, command: Command) -> Command | None:
        properties = command.ext.get("properties", "").encode()
        correlation_id = (property_value(properties, CORRELATION_ID.encode()) or b"").decode()
        future = self._waiting.get(correlation_id)
        if future is None or future.done():
            return command.reply(
                ResponseCode.SYSTEM_ERROR, remark=f"no request {correlation_id} waits for a reply (any more)"
            )
        try:
            message = _read_reply(command, properties)
        except (ValueError, MessageFormatError) as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=f"the reply cannot be read: {error}")
        future.set_result(message)
        return command.reply(ResponseCode.SUCCESS)


class Replier(Measured):
    """Replies to requests that a consumer has received."""

    def __init__(self, client: ClientTransport, group: str = REPLIER_GROUP) -> None:
        self._client = client
        self._group = group
        self._ids = UniqueKeys(clock=client.clock)
        self._interceptors = client.interceptors.for_producer(group)
        self._replied_total = 0
        self._failed_total = 0

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tags: str = "",
        properties: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a reply; returns when the requester has it.

        ClientError for a message that is no request, BrokerError when the requester has gone or waits no
        more.
        """
        asked = request.properties
        cluster = asked.get(CLUSTER)
        if not is_request(request) or not cluster:
            raise ClientError(f"{request!r} is not a request: it does not name whom to reply to")
        message = Message(
            f"{cluster}_REPLY_TOPIC",
            body,
            tags=tags,
            properties={
                **(properties or {}),
                MSG_TYPE: REPLY_TYPE,
                CORRELATION_ID: asked[CORRELATION_ID],
                REPLY_TO_CLIENT: asked[REPLY_TO_CLIENT],
                REPLY_TTL: asked.get(REPLY_TTL, ""),
            },
        )
        try:
            if self._interceptors is None:
                await self._send(message, request, timeout_ms)
            else:
                await self._interceptors.send_unanswered(
                    message, lambda reply: self._send(reply, request, timeout_ms)
                )
        except BaseException:
            self._failed_total += 1
            raise
        self._replied_total += 1

    def metrics(self) -> Iterable[Metric]:
        """Report the counters of this replier."""
        yield from samples(
            ("iotmq_client_replies_total", "Replies that requesters have", self._replied_total),
            ("iotmq_client_replies_failed_total", "Replies that failed", self._failed_total),
            labels=(("group", self._group),),
        )

    async def _send(self, message: Message, request: ReceivedMessage, timeout_ms: int | None) -> str:
        """Return the message id."""
        message_id = self._ids.next()
        # Who asked is connected to the broker that took the request.
        address = await broker_address(self._client, request.queue)
        await ask(
            self._client,
            address,
            RequestCode.SEND_REPLY_MESSAGE_V2,
            {
                "a": self._group,
                "b": message.topic,
                "c": "TBW102",
                "d": "4",
                "e": "0",
                "f": "0",
                "g": str(self._client.clock.now_ms()),
                "h": "0",
                "i": message.encoded_properties(message_id).decode(),
                "j": "0",
                "k": "false",
                "m": "false",
                "n": request.queue.broker_name,
            },
            message.body,
            doing=f"reply to {request.properties[REPLY_TO_CLIENT]}",
            timeout_s=None if timeout_ms is None else timeout_ms / 1000,
        )
        return message_id


def is_request(message: ReceivedMessage) -> bool:
    """Return whether somebody waits for a reply to the message."""
    properties = message.properties
    return bool(properties.get(REPLY_TO_CLIENT)) and bool(properties.get(CORRELATION_ID))


def _read_reply(command: Command, properties: bytes) -> ReceivedMessage:
    """Read the message in a reply (326). ValueError or MessageFormatError when a field is wrong."""
    ext = command.ext
    topic = ext.get("topic", "")
    queue_id = int(ext.get("queueId", 0))
    record = encode_record(
        topic=topic,
        body=command.body_bytes(),
        properties=properties,
        queue_id=max(0, queue_id),
        flag=int(ext.get("flag", 0)),
        sys_flag=int(ext.get("sysFlag", 0)),
        born_timestamp_ms=int(ext.get("bornTimestamp", 0)),
        born_host=_read_host(ext.get("bornHost", "")),
        store_timestamp_ms=int(ext.get("storeTimestamp", 0)),
        store_host=_read_host(ext.get("storeHost", "")),
        reconsume_times=int(ext.get("reconsumeTimes") or 0),
    )
    return ReceivedMessage(MessageQueue(topic, "", queue_id), decode_record(record))


def _read_host(text: str) -> bytes:
    """Encode HOST:PORT as records do; brokers written in Java send /HOST:PORT."""
    return encode_host(*parse_address(text.rpartition("/")[2] or "0.0.0.0:0", port_min=0))
