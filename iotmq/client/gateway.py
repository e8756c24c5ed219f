"""The way of an MQTT front end to brokers in other processes (client.ports.GatewayPort)."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec
from typing_extensions import Buffer

from iotmq import limits
from iotmq.client.backoff import Backoff
from iotmq.client.client import IotmqClient
from iotmq.client.connections import split_address
from iotmq.client.message import SendResult, SendStatus
from iotmq.client.ports import AppendDone, DeliveryReceiver, dropped_replies_metric
from iotmq.client.producer import Producer
from iotmq.client.routes import MASTER_ID, MessageQueue
from iotmq.client.settings import ClientSettings, ProducerSettings
from iotmq.errors import (
    BrokerError,
    ConnectionClosedError,
    IotmqError,
    MessageRefusedError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from iotmq.metrics import Metric
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.signature import Credentials

_log = logging.getLogger("iotmq.mqtt")

_GROUP = "iotmq_mqtt_front"
_REFRESH_S = 10.0
_FILTERS_PER_REQUEST = 1_000
_ATTACH_TIMEOUT_S = 5.0
# Well within the time after which a broker closes a connection that is idle.
_PING_INTERVAL_S = 20.0


class RemoteGateway:
    """Sends batches through a native producer, and keeps a delivery channel to every broker of its topics.

    A queue id of this port is a place among the topic's writable queues over all brokers, sorted.
    """

    def __init__(self, registries: Collection[str], *, settings: ClientSettings | None = None) -> None:
        """`settings` say how to connect: account and TLS. Their registries do not count."""
        settings = settings or ClientSettings()
        self._settings = msgspec.structs.replace(settings, registries=tuple(registries))
        self._tls = self._settings.tls_context()
        self._client = IotmqClient(self._settings)
        self._producer = Producer(
            self._client,
            _GROUP,
            # A topic that a first message makes gets all the queues its template allows.
            ProducerSettings(
                new_topic_queues=limits.QUEUES_PER_TOPIC_MAX, body_bytes_max=limits.RECORD_BYTES_MAX
            ),
        )
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._filters: dict[int, str] = {}
        self._channels: dict[str, _DeliveryChannel] = {}
        self._refresher: asyncio.Task[None] | None = None
        self._not_ready: str | None = "not connected to the brokers yet"
        # What the brokers met so far take; the format's limit until then.
        self._record_bytes_max = limits.RECORD_BYTES_MAX
        self._limits_changed: Callable[[], None] | None = None
        self._masters: dict[str, str] = {}
        self._replies_in_flight = 0
        self._dropped_replies = 0
        self._masters_changed: list[Callable[[], None]] = []

    @property
    def client_settings(self) -> ClientSettings:
        """How to connect to a broker."""
        return self._settings

    @property
    def masters(self) -> dict[str, str]:
        """Broker name -> HOST:PORT of the masters that hold queues of the topics."""
        return dict(self._masters)

    def on_masters_changed(self, call: Callable[[], None]) -> None:
        """Call whenever `masters` answers differently than before."""
        self._masters_changed.append(call)

    @property
    def record_bytes_max(self) -> int:
        return self._record_bytes_max

    @property
    def not_ready_reason(self) -> str | None:
        if self._not_ready is not None:
            return self._not_ready
        down = sorted(address for address, channel in self._channels.items() if not channel.is_open)
        return f"no delivery channel to {', '.join(down)}" if down else None

    async def start(
        self, topics: Collection[str], receiver: DeliveryReceiver, queues_changed: Callable[[], None]
    ) -> None:
        """Wait until every topic has a broker; says why it waits in the log and in `not_ready_reason`."""
        await self._client.start()
        await self._producer.start()
        backoff = Backoff(min_s=0.1, max_s=5.0)
        for topic in topics:
            while True:
                try:
                    self._queues[topic] = await self._producer.queues(topic)
                    break
                except (
                    RouteNotFoundError,
                    BrokerError,
                    ConnectionClosedError,
                    RequestTimeoutError,
                ) as error:
                    if self._not_ready != str(error):
                        self._not_ready = str(error)
                        _log.warning("waiting for a broker", extra={"topic": topic, "detail": str(error)})
                    await asyncio.sleep(backoff.next_s())
        self._limits_changed = queues_changed
        await self._follow_brokers(receiver)
        self._not_ready = None
        self._refresher = asyncio.ensure_future(self._refresh_forever(receiver, queues_changed))

    async def stop(self) -> None:
        if self._refresher is not None:
            self._refresher.cancel()
            await asyncio.gather(self._refresher, return_exceptions=True)
        await asyncio.gather(*(channel.stop() for channel in self._channels.values()))
        try:
            # What is under way has had its time: the front end drained before it came here.
            async with asyncio.timeout(0.2):
                await self._producer.stop()
        except TimeoutError:
            _log.warning("stopped with batches under way; devices were not told that they are stored")
        await self._client.stop()

    def queue_count(self, topic: str) -> int:
        return len(self._queues[topic])

    def append(
        self, topic: str, queue_id: int, elements: Buffer, *, count: int, is_stored: bool, done: AppendDone
    ) -> None:
        queue = self._queue(topic, queue_id)
        body = memoryview(elements)
        if not is_stored:
            self._publish(RequestCode.PUBLISH_TRANSIENT, queue, body, done)
            return
        try:
            sending = self._producer.send_encoded_batch_nowait(topic, queue, body, count)
        except MessageRefusedError as error:
            done(ResponseCode.MESSAGE_ILLEGAL, str(error))
            return
        except IotmqError as error:
            done(ResponseCode.SYSTEM_ERROR, str(error))
            return
        sending.add_done_callback(lambda result: _report(result, done))

    def append_delayed(
        self, topic: str, queue_id: int, elements: Buffer, *, count: int, done: AppendDone
    ) -> None:
        self._publish(RequestCode.PUBLISH_DELAYED, self._queue(topic, queue_id), memoryview(elements), done)

    def reply(self, broker: str, topic: str, client_id: str, body: bytes) -> None:
        address = self._masters.get(broker)
        if address is None or self._replies_in_flight >= limits.REPLIES_IN_FLIGHT_MAX:
            self._dropped_replies += 1
            return
        self._replies_in_flight += 1
        request = Command.request(RequestCode.PUBLISH_REPLY, {"topic": topic, "clientId": client_id}, body)
        asyncio.ensure_future(self._client.request(address, request)).add_done_callback(self._replied)

    def _replied(self, result: asyncio.Future[Command]) -> None:
        self._replies_in_flight -= 1
        if result.cancelled() or result.exception() or result.result().code != ResponseCode.SUCCESS:
            self._dropped_replies += 1

    def attach(self, filters: Sequence[tuple[int, str]], done: Callable[[bool], None]) -> None:
        self._filters.update(filters)
        requests = [channel.attach(filters) for channel in self._channels.values() if channel.is_open]
        if not requests:
            done(True)  # every channel attaches all filters as soon as it opens
            return
        answered = asyncio.gather(*requests)
        answered.add_done_callback(lambda result: done(not result.cancelled() and all(result.result())))

    def detach(self, filter_ids: Sequence[int]) -> None:
        for filter_id in filter_ids:
            self._filters.pop(filter_id, None)
        for channel in self._channels.values():
            channel.detach(filter_ids)

    def metrics(self) -> Iterable[Metric]:
        yield from self._producer.metrics()
        yield dropped_replies_metric(self._dropped_replies)
        for address, channel in self._channels.items():
            labels = (("broker", address),)
            yield Metric(
                "iotmq_mqtt_delivery_channel_up",
                "gauge",
                "1 while the channel is open.",
                channel.is_open,
                labels,
            )
            yield Metric(
                "iotmq_mqtt_delivery_channel_opened_total",
                "counter",
                "Times the channel was opened.",
                channel.opened_total,
                labels,
            )
            yield Metric(
                "iotmq_mqtt_delivery_malformed_total",
                "counter",
                "Pushes whose parts do not add up.",
                channel.malformed_total,
                labels,
            )

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        queues = self._queues[topic]
        # When a broker left with its queues, its messages go on in the order they came, to one other queue.
        return queues[queue_id % len(queues)]

    def _publish(self, code: int, queue: MessageQueue, body: memoryview, done: AppendDone) -> None:
        """Send a batch that is not for the log as it is."""
        asyncio.ensure_future(self._request_publish(code, queue, body, done))  # noqa: RUF006 - `done` ends it

    async def _request_publish(
        self, code: int, queue: MessageQueue, body: memoryview, done: AppendDone
    ) -> None:
        route = self._client.routes.known(queue.topic)
        address = None if route is None else route.master(queue.broker_name)
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id)}
        try:
            if address is None:
                raise ConnectionClosedError(f"broker {queue.broker_name} has no master now")
            response = await self._client.request(address, Command.request(code, ext, body))
        except (ConnectionClosedError, RequestTimeoutError) as error:
            done(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
            return
        done(response.code, response.remark or "")

    # Following the brokers

    async def _refresh_forever(self, receiver: DeliveryReceiver, queues_changed: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            has_changed = False
            for topic, known in list(self._queues.items()):
                try:
                    queues = await self._producer.queues(topic)
                except IotmqError as error:
                    _log.debug("route of topic %s: %s", topic, error)
                    continue
                if queues != known:
                    self._queues[topic] = queues
                    has_changed = True
            if has_changed:
                queues_changed()
            await self._follow_brokers(receiver)

    async def _follow_brokers(self, receiver: DeliveryReceiver) -> None:
        """Have one delivery channel per master that holds a queue of ours."""
        masters: dict[str, str] = {}
        for topic in self._queues:
            route = self._client.routes.known(topic)
            if route is not None:
                masters.update(
                    (name, by_id[MASTER_ID]) for name, by_id in route.addresses.items() if MASTER_ID in by_id
                )
        wanted = set(masters.values())
        for address in wanted - self._channels.keys():
            self._channels[address] = _DeliveryChannel(
                address,
                self._filters,
                receiver,
                opened=self._channel_opened,
                credentials=self._settings.credentials,
                tls=self._tls,
            )
        gone = [self._channels.pop(address) for address in self._channels.keys() - wanted]
        await asyncio.gather(*(channel.stop() for channel in gone))
        if masters != self._masters:
            self._masters = masters
            for call in self._masters_changed:
                call()

    def _channel_opened(self) -> None:
        """A broker has said how large a record it takes: a message that is too large for any is nobody's."""
        smallest = min(channel.record_bytes_max for channel in self._channels.values())
        if smallest != self._record_bytes_max:
            self._record_bytes_max = smallest
            if self._limits_changed is not None:
                self._limits_changed()


class _DeliveryChannel:
    """The delivery channel to one broker: made again, with all filters, whenever it ends."""

    def __init__(
        self,
        address: str,
        filters: dict[int, str],
        receiver: DeliveryReceiver,
        *,
        opened: Callable[[], None],
        credentials: Credentials | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._tls = tls
        self._opened = opened
        self.record_bytes_max = limits.RECORD_BYTES_MAX
        self._filters = filters
        self._receiver = receiver
        self._connection: ClientConnection | None = None
        self._lost = asyncio.Event()
        self.opened_total = 0
        self.malformed_total = 0
        self._task = asyncio.ensure_future(self._keep_open())

    @property
    def is_open(self) -> bool:
        """True while the broker knows all filters."""
        return self._connection is not None

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def attach(self, filters: Sequence[tuple[int, str]]) -> asyncio.Future[bool]:
        assert self._connection is not None, "attach only an open channel"
        return asyncio.ensure_future(self._attach(self._connection, filters))

    def detach(self, filter_ids: Sequence[int]) -> None:
        if self._connection is not None:
            self._detach(self._connection, filter_ids)

    def _detach(self, connection: ClientConnection, filter_ids: Sequence[int]) -> None:
        connection.send_oneway(
            Command.request(RequestCode.DETACH_FILTERS, body=msgspec.json.encode({"ids": filter_ids}))
        )

    async def _keep_open(self) -> None:
        backoff = Backoff(min_s=0.1, max_s=5.0)
        host, port = split_address(self._address)
        while True:
            self._lost.clear()
            connection: ClientConnection | None = None
            try:
                connection = await ClientConnection.connect(
                    host,
                    port,
                    on_request=self._requested,
                    on_lost=lambda _: self._lost.set(),
                    credentials=self._credentials,
                    tls=self._tls,
                )
                await self._attach_all(connection)
                self._connection = connection
                self.opened_total += 1
                self._opened()
                backoff.reset()
                await self._stay(connection)
                _log.warning("delivery channel lost", extra={"broker": self._address})
            except ConnectionClosedError as error:
                if not backoff.failures:
                    _log.warning("no delivery channel", extra={"broker": self._address, "detail": str(error)})
            finally:
                self._connection = None
                if connection is not None and not connection.is_closed:
                    await connection.close()
            await asyncio.sleep(backoff.next_s())

    async def _stay(self, connection: ClientConnection) -> None:
        """Until the connection ends. Brokers close those on which nothing moves, and some just hang."""
        while not self._lost.is_set():
            try:
                async with asyncio.timeout(_PING_INTERVAL_S):
                    await self._lost.wait()
            except TimeoutError:
                if not await self._attach(connection, ()):
                    return

    async def _attach_all(self, connection: ClientConnection) -> None:
        """Bring the broker to what `_filters` holds, which may change meanwhile.

        Raises ConnectionClosedError when the broker refuses.
        """
        attached: set[int] = set()
        # The first request goes out without any filter, too: it makes the channel.
        missing = list(self._filters.items())
        while True:
            if not await self._attach(connection, missing):
                raise ConnectionClosedError(f"{self._address} refuses the delivery channel")
            attached.update(number for number, _ in missing)
            missing = [(number, name) for number, name in self._filters.items() if number not in attached]
            if not missing:
                break
        unwanted = sorted(attached - self._filters.keys())
        if unwanted:
            self._detach(connection, unwanted)

    async def _attach(self, connection: ClientConnection, filters: Sequence[tuple[int, str]]) -> bool:
        """True when the broker took all of them."""
        # A channel without filters is one, too: the broker counts its front ends.
        starts = range(0, max(1, len(filters)), _FILTERS_PER_REQUEST)
        pages = [filters[start : start + _FILTERS_PER_REQUEST] for start in starts]
        requests = [
            connection.request(
                Command.request(RequestCode.ATTACH_FILTERS, body=msgspec.json.encode({"filters": page})),
                _ATTACH_TIMEOUT_S,
            )
            for page in pages
        ]
        try:
            responses = await asyncio.gather(*requests)
        except (ConnectionClosedError, RequestTimeoutError) as error:
            _log.debug("attaching filters at %s: %s", self._address, error)
            return False
        self.record_bytes_max = responses[-1].integer("recordBytesMax", limits.RECORD_BYTES_MAX, minimum=1)
        return all(response.code == ResponseCode.SUCCESS for response in responses)

    def _requested(self, connection: ClientConnection, request: Command) -> Command | None:
        if request.code != RequestCode.DELIVER_RECORDS:
            return request.not_supported()
        body = memoryview(request.body_bytes())
        matches_size = request.integer("matchesBytes")
        if not 0 <= matches_size <= len(body):
            self.malformed_total += 1
            return None
        self._receiver.deliver(body[matches_size:], body[:matches_size])
        return None


def _report(result: asyncio.Future[SendResult], done: AppendDone) -> None:
    """Turn a producer's result into the port's: only what is as durable as promised is a success."""
    if result.cancelled():
        done(ResponseCode.SERVICE_NOT_AVAILABLE, "the producer was stopped")
        return
    error = result.exception()
    if error is None:
        status = result.result().status
        done(status.value, "" if status is SendStatus.SEND_OK else "stored, but not as durably as promised")
    elif isinstance(error, BrokerError):
        done(error.code, error.remark)
    else:
        done(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
