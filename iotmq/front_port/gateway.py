"""Send and receive a front end's messages at brokers in other processes (ports.gateway.GatewayPort)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec
from typing_extensions import Buffer

from iotmq import limits
from iotmq.backoff import Backoff
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.master_watch import OnBack
from iotmq.client.transport.message import SendResult, SendStatus
from iotmq.client.transport.routes import MASTER_ID, MessageQueue
from iotmq.client.transport.settings import ClientSettings, ProducerSettings
from iotmq.errors import (
    BrokerError,
    ConnectionClosedError,
    IotmqError,
    MessageRefusedError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from iotmq.event_loop import LoopSlice
from iotmq.front_port.delivery_channel import ChannelFilters, DeliveryChannel
from iotmq.front_port.filter_homes import FilterHomes, PlacedFilter
from iotmq.metrics import Metric, samples
from iotmq.mqtt.topics.topics import wildcard_shape
from iotmq.ports.gateway import AppendDone, DeliveryReceiver, RouteOf, dropped_replies_metric
from iotmq.remoting.codes import PACKET_IDS_FIELD, REPEAT_FIELD, RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.supervised import end, supervise, surviving

_log = logging.getLogger("iotmq.mqtt")

_GROUP = "iotmq_mqtt_front"
_REFRESH_S = 10.0
# A batch that a broker may have waits for it so long at least, also when it is in no route any more; then it
# goes elsewhere, or a broker that is gone for good would hold its devices up for ever.
_BACK_S = 60.0
# A broker that nobody names any more is forgotten after so long: it may be restarting, and what it stores
# before its channel is back is to be delivered, as its sessions are to go on (session_brokers).
FORGET_S = 600.0
# Of a filter whose home there was no time for yet: marks are enough everywhere.
_NO_HOME: Final = ""


class RemoteGateway:
    """Sends batches through a native producer, and keeps a delivery channel to every broker of its topics.

    A queue id of this port is a place among the topic's writable queues over all brokers, sorted.
    """

    may_lose_answers = True

    def __init__(self, registries: Collection[str], *, settings: ClientSettings | None = None) -> None:
        """`settings` say how to connect: account and TLS. Their registries do not count."""
        settings = settings or ClientSettings()
        self.settings = msgspec.structs.replace(settings, registries=tuple(registries))
        """The settings for connecting to a broker."""
        self._tls = self.settings.tls_context()
        self._client = ClientTransport(self.settings)
        self._producer = Producer(
            self._client,
            _GROUP,
            # A topic that a first message makes gets all the queues its template allows.
            ProducerSettings(
                new_topic_queues=limits.QUEUES_PER_TOPIC_MAX, body_bytes_max=limits.RECORD_BYTES_MAX
            ),
        )
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        # Topic, queue id of this port, whether delayed -> where the batch under way went first, and when.
        self._places: dict[tuple[str, int, bool], tuple[MessageQueue, float]] = {}
        self._filters: dict[int, str] = {}
        # Set by `start`.
        self._homes: FilterHomes | None = None
        self._receiver: DeliveryReceiver | None = None
        # Names of brokers whose filters are where the queues of before had their homes.
        self._unplaced: set[str] = set()
        self._placing_due = asyncio.Event()
        # By broker name; and since when nobody names the brokers of some of them.
        self._channels: dict[str, DeliveryChannel] = {}
        self._unnamed_since_s: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._not_ready: str | None = "not connected to the brokers yet"
        # What the brokers met so far take; the format's limit until then.
        self.record_bytes_max = limits.RECORD_BYTES_MAX
        self._limits_changed: Callable[[], None] | None = None
        self._masters: dict[str, str] = {}
        self._replies_in_flight = 0
        self._dropped_replies = 0
        self._masters_changed: list[Callable[[], None]] = []
        self._back_listeners: list[OnBack] = []

    @property
    def masters(self) -> dict[str, str]:
        """Return the masters that hold queues of the topics: broker name -> HOST:PORT."""
        return dict(self._masters)

    def on_masters_changed(self, call: Callable[[], None]) -> None:
        """Call `action` whenever `masters` changes."""
        self._masters_changed.append(call)

    def on_master_back(self, call: OnBack) -> None:
        """Call with a broker's name when its master is back where it was, and whether its epoch is later."""
        self._back_listeners.append(call)

    @property
    def not_ready_reason(self) -> str | None:
        if self._not_ready is not None:
            return self._not_ready
        down = sorted(channel.address for channel in self._channels.values() if not channel.is_ready)
        return f"no delivery channel to {', '.join(down)}" if down else None

    async def start(
        self,
        topics: Collection[str],
        receiver: DeliveryReceiver,
        queues_changed: Callable[[], None],
        *,
        route_of: RouteOf,
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
        self._homes = FilterHomes(route_of, self._queues)
        self._receiver = receiver
        await self._follow_brokers(receiver)
        self._client.on_master_moved(self._master_moved)
        self._client.on_master_back(self._master_back)
        self._not_ready = None
        self._tasks = [
            supervise("following of brokers", partial(self._refresh_forever, receiver, queues_changed)),
            supervise("placing of filters", self._place_forever),
        ]

    async def add_topics(self, topics: Collection[str]) -> None:
        found = {topic: await self._producer.queues(topic) for topic in topics if topic not in self._queues}
        if found:
            assert self._receiver is not None, "start() was not called"
            self._queues.update(found)
            await self._follow_brokers(self._receiver)

    async def stop(self) -> None:
        await end(self._tasks)
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
        self,
        topic: str,
        queue_id: int,
        elements: Buffer,
        *,
        count: int,
        is_stored: bool,
        has_packet_ids: bool,
        is_repeat: bool,
        done: AppendDone,
    ) -> None:
        queue = self._place((topic, queue_id, False), is_repeat=is_repeat)
        body = memoryview(elements)
        if not is_stored:
            publish = self._publish(RequestCode.PUBLISH_TRANSIENT, queue, {}, body, done)
            asyncio.ensure_future(publish)  # noqa: RUF006 - `done` ends it
            return
        try:
            sending = self._producer.send_encoded_batch_nowait(
                topic, queue, body, count, is_repeat=is_repeat, has_packet_ids=has_packet_ids
            )
        except MessageRefusedError as error:
            done(ResponseCode.MESSAGE_ILLEGAL, str(error))
            return
        except IotmqError as error:
            done(ResponseCode.SYSTEM_ERROR, str(error))
            return
        sending.add_done_callback(lambda result: _report(result, done))

    def append_delayed(
        self,
        topic: str,
        queue_id: int,
        elements: Buffer,
        *,
        count: int,
        has_packet_ids: bool,
        is_repeat: bool,
        done: AppendDone,
    ) -> None:
        queue = self._place((topic, queue_id, True), is_repeat=is_repeat)
        asked = {REPEAT_FIELD: is_repeat, PACKET_IDS_FIELD: has_packet_ids}
        ext = {name: "true" for name, is_asked in asked.items() if is_asked}
        publish = self._publish(RequestCode.PUBLISH_DELAYED, queue, ext, memoryview(elements), done)
        asyncio.ensure_future(publish)  # noqa: RUF006 - `done` ends it

    def append_own(
        self, topic: str, elements: Buffer, *, count: int, is_repeat: bool, done: AppendDone
    ) -> None:
        try:
            sending = self._producer.send_encoded_batch_nowait(
                topic, None, memoryview(elements), count, is_repeat=is_repeat
            )
        except MessageRefusedError as error:
            done(ResponseCode.MESSAGE_ILLEGAL, str(error))
        except IotmqError as error:
            done(ResponseCode.SYSTEM_ERROR, str(error))
        else:
            sending.add_done_callback(lambda result: _report(result, done))

    def broker_of(self, topic: str, queue_id: int, *, is_delayed: bool) -> str:
        return self._places[topic, queue_id, is_delayed][0].broker_name

    def release(self, broker: str | None, body: bytes, done: AppendDone) -> None:
        asyncio.ensure_future(self._release(broker, body, done))  # noqa: RUF006 - `done` ends it

    async def _release(self, broker: str | None, body: bytes, done: AppendDone) -> None:
        names = list(self._masters) if broker is None else [broker]
        try:
            if not names or not all(name in self._masters for name in names):
                raise ConnectionClosedError(f"broker {broker or ''} has no master now")
            responses = await asyncio.gather(
                *(
                    self._client.request(
                        self._masters[name], Command.request(RequestCode.RELEASE_PACKET_IDS, {}, body)
                    )
                    for name in names
                )
            )
        except IotmqError as error:
            done(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
            return
        refused = [response for response in responses if response.code != ResponseCode.SUCCESS]
        done(refused[0].code, refused[0].remark or "") if refused else done(ResponseCode.SUCCESS, "")

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
        ready = [(name, channel) for name, channel in self._channels.items() if channel.is_ready]
        homes = []
        loop_slice = LoopSlice()
        for number, topic_filter in filters:
            is_looked_up = loop_slice.take() or wildcard_shape(topic_filter) is not None
            homes.append((number, topic_filter, self._home_of(topic_filter) if is_looked_up else _NO_HOME))
        if any(home == _NO_HOME for _, _, home in homes):
            self._unplaced = set(self._channels)
        requests = [channel.attach(_placed_at(name, homes)) for name, channel in ready]
        if not requests:
            done(True)  # every channel attaches all filters as soon as it opens
            return

        def answered(result: asyncio.Future[list[bool]]) -> None:
            is_attached = False
            with surviving("attaching of filters"):
                is_attached = not result.cancelled() and all(result.result())
            done(is_attached)

        asyncio.gather(*requests).add_done_callback(answered)

    def detach(self, filter_ids: Sequence[int]) -> None:
        filters = [(number, self._filters.pop(number)) for number in filter_ids if number in self._filters]
        for channel in self._channels.values():
            channel.detach(filters)

    def _home_of(self, topic_filter: str) -> str | None:
        assert self._homes is not None, "start() was not called"
        return self._homes.home_of(topic_filter)

    def metrics(self) -> Iterable[Metric]:
        yield from self._producer.metrics()
        yield from dropped_replies_metric(self._dropped_replies)
        for channel in self._channels.values():
            labels = (("broker", channel.address),)
            yield from samples(
                (
                    "iotmq_mqtt_delivery_channel_up",
                    "1 while the delivery channel to a broker is open.",
                    channel.is_ready,
                ),
                (
                    "iotmq_mqtt_delivery_channel_opened_total",
                    "Times the delivery channel to a broker was opened.",
                    channel.opened_total,
                ),
                (
                    "iotmq_mqtt_delivery_malformed_total",
                    "Pushes whose parts do not add up.",
                    channel.malformed_total,
                ),
                labels=labels,
            )

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        queues = self._queues[topic]
        # When a broker left with its queues, its messages go on in the order they came, to one other queue.
        return queues[queue_id % len(queues)]

    def _place(self, lane: tuple[str, int, bool], *, is_repeat: bool) -> MessageQueue:
        """Choose the queue of a batch; one that a broker may have stored keeps its queue for a while."""
        topic, queue_id, _ = lane
        now_s = asyncio.get_running_loop().time()
        if is_repeat and lane in self._places:
            queue, first_s = self._places[lane]
            queues = self._queues[topic]
            if queue in queues:
                return queue
            # A broker that is there without this queue knows the batch by its key, in whichever queue it is.
            of_broker = [other for other in queues if other.broker_name == queue.broker_name]
            if of_broker:
                queue = of_broker[queue_id % len(of_broker)]
                self._places[lane] = (queue, first_s)
                return queue
            if now_s < first_s + _BACK_S:
                return queue
        queue = self._queue(topic, queue_id)
        self._places[lane] = (queue, now_s)
        return queue

    async def _publish(
        self, code: int, queue: MessageQueue, ext: dict[str, str], body: memoryview, done: AppendDone
    ) -> None:
        """Send a batch that is not stored in the log as it is."""
        address = self._master_of(queue)
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id), **ext}
        try:
            if address is None:
                raise ConnectionClosedError(f"broker {queue.broker_name} has no master now")
            response = await self._client.request(address, Command.request(code, ext, body))
        except ConnectionClosedError as error:
            if address is not None and self._master_of(queue) not in (None, address):
                # The former master may have taken it.
                ext[REPEAT_FIELD] = "true"
                await self._publish(code, queue, ext, body, done)
            else:
                done(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
            return
        except RequestTimeoutError as error:
            done(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
            return
        done(response.code, response.remark or "")

    def _master_of(self, queue: MessageQueue) -> str | None:
        route = self._client.routes.known(queue.topic)
        return None if route is None else route.master(queue.broker_name)

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
                self._unplaced = set(self._channels)
            if self._unplaced:
                self._placing_due.set()
            await self._follow_brokers(receiver)

    async def _follow_brokers(self, receiver: DeliveryReceiver) -> None:
        """Have one delivery channel per master that holds a queue of ours, or did a while ago."""
        masters: dict[str, str] = {}
        for topic in self._queues:
            route = self._client.routes.known(topic)
            if route is not None:
                masters.update(
                    (name, by_id[MASTER_ID]) for name, by_id in route.addresses.items() if MASTER_ID in by_id
                )
        for name, address in masters.items():
            if name in self._channels:
                self._channels[name].move(address)
                continue
            self._channels[name] = DeliveryChannel(
                address,
                ChannelFilters(self._filters, partial(self._is_whole_at, name)),
                receiver,
                opened=self._channel_opened,
                credentials=self.settings.credentials,
                tls=self._tls,
            )
        now_s = asyncio.get_running_loop().time()
        self._unnamed_since_s = {
            name: self._unnamed_since_s.get(name, now_s) for name in self._channels if name not in masters
        }
        forgotten = [name for name, since_s in self._unnamed_since_s.items() if now_s - since_s >= FORGET_S]
        for name in forgotten:
            del self._unnamed_since_s[name]
        stopping = [self._channels.pop(name).stop() for name in forgotten]
        # Before anything is waited for: a master may move meanwhile.
        if masters != self._masters:
            self._masters = masters
            for call in self._masters_changed:
                call()
        await asyncio.gather(*stopping)

    def _is_whole_at(self, broker_name: str, topic_filter: str) -> bool:
        return self._home_of(topic_filter) in (None, broker_name)

    async def _place_forever(self) -> None:
        while True:
            await self._placing_due.wait()
            self._placing_due.clear()
            await self._place_filters()

    async def _place_filters(self) -> None:
        """Bring filters without wildcards to their homes of now; where that fails, it is done again later."""
        names, self._unplaced = self._unplaced, set()
        left = names
        try:
            left = await self._place_filters_at(names)
        finally:
            self._unplaced |= left

    async def _place_filters_at(self, names: set[str]) -> set[str]:
        """Return the brokers at which it failed."""
        failed: set[str] = set()
        numbers = deque(self._filters)
        while numbers:
            homes = []
            loop_slice = LoopSlice()
            while numbers and loop_slice.take():
                number = numbers.popleft()
                topic_filter = self._filters.get(number)
                if topic_filter is not None:
                    homes.append((number, topic_filter, self._home_of(topic_filter)))
            channels = [(name, self._channels[name]) for name in names - failed if name in self._channels]
            answers = await asyncio.gather(*(each.place(_placed_at(name, homes)) for name, each in channels))
            failed.update(name for (name, _), is_done in zip(channels, answers, strict=True) if not is_done)
            # Also where nothing had to be asked.
            await asyncio.sleep(0)
        return failed

    def _master_moved(self, name: str, former: str, address: str) -> None:
        if name in self._channels:
            self._channels[name].move(address)
        if self._masters.get(name) == former:
            self._masters = {**self._masters, name: address}
            for call in self._masters_changed:
                call()

    def _master_back(self, name: str, is_renewed: bool) -> None:
        if name in self._channels:
            self._channels[name].retry(is_renewed=is_renewed)
        for call in self._back_listeners:
            call(name, is_renewed)

    def _channel_opened(self) -> None:
        """A broker has said how large a record it takes: a message that is too large for any is nobody's."""
        smallest = min(channel.record_bytes_max for channel in self._channels.values())
        if smallest != self.record_bytes_max:
            self.record_bytes_max = smallest
            if self._limits_changed is not None:
                self._limits_changed()


def _placed_at(broker_name: str, homes: Sequence[tuple[int, str, str | None]]) -> list[PlacedFilter]:
    """Return filters, given with their homes, as one broker is to have them."""
    return [
        PlacedFilter(number, topic_filter, home is None or home == broker_name)
        for number, topic_filter, home in homes
    ]


# MQTT has no word for a message that is stored, and at no slave. Sent again, it would only be the same again.
# One that slaves or members are late with is sent again: it is not acknowledged before they have it.
_STORED: Final = (SendStatus.SEND_OK, SendStatus.SLAVE_NOT_AVAILABLE)


def _report(result: asyncio.Future[SendResult], done: AppendDone) -> None:
    """Turn a producer's result into the port's: only a message as durable as promised is a success.

    A master that goes on alone promises no more than that: to ask again would change nothing.
    """
    if result.cancelled():
        done(ResponseCode.SERVICE_NOT_AVAILABLE, "the producer was stopped")
        return
    error = result.exception()
    if error is None:
        status = result.result().status
        if status in _STORED:
            done(ResponseCode.SUCCESS, "")
        else:
            done(status.value, "stored, but not as durably as promised")
    elif isinstance(error, BrokerError):
        done(error.code, error.remark)
    else:
        done(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
