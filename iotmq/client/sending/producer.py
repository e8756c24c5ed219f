"""Send messages singly or in batches, to a queue chosen by key, by turn or by the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from iotmq.client.sending.device_messages import DEVICE_TOPIC, device_message
from iotmq.client.sending.pending_send import PREPARED_FLAG, PendingSend
from iotmq.client.sending.queue_choice import QueueChoice, check_queue, chosen_queue
from iotmq.client.sending.recall import recall_message
from iotmq.client.sending.send_batches import batch_bodies, by_topic
from iotmq.client.sending.send_deadlines import SendDeadlines
from iotmq.client.sending.send_lanes import SendLanes
from iotmq.client.sending.send_numbers import check_room_for_mark
from iotmq.client.sending.send_room import SendRoom
from iotmq.client.sending.send_tries import SendTries
from iotmq.client.transport.calls import asking
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.lifetime import Ending, Lifetime
from iotmq.client.transport.message import Message, SendResult, check_group, check_topic
from iotmq.client.transport.routes import MessageQueue, TopicRoute, queue_of_key
from iotmq.client.transport.settings import ProducerSettings, check_settings
from iotmq.errors import (
    ClientClosedError,
    ConfigError,
    MessageRefusedError,
    RouteNotFoundError,
)
from iotmq.limits import BATCH_RECORDS_MAX
from iotmq.message.bodies import compress_body
from iotmq.message.compression import check_method
from iotmq.message.errors import CompressionMissingError
from iotmq.message.message_ids import UniqueKeys
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import RequestCode

DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"


class Producer(Lifetime):
    """A producer for any topic; `async with` starts and stops it.

    `send` and `send_nowait` try up to `tries_max` times within `send_timeout_ms`: after a lost
    connection, and after answers that another try may cure. A try whose answer is overdue is not
    repeated (the message may be stored): RequestTimeoutError. After a lost connection the same broker
    stores it once (with its key index); another one may store it, too. Tries of a keyed message stay on
    its queue.
    """

    def __init__(
        self, client: ClientTransport, group: str = DEFAULT_GROUP, settings: ProducerSettings | None = None
    ) -> None:
        check_group(group)
        self._client = client
        self.group = group
        check_settings(settings, ProducerSettings)
        self.settings = settings or ProducerSettings()
        if self.settings.linger_ms >= self.settings.send_timeout_ms:
            raise ConfigError(
                f"linger_ms is {self.settings.linger_ms}: it must be less than send_timeout_ms "
                f"({self.settings.send_timeout_ms})"
            )
        try:
            check_method(self.settings.compression)
        except CompressionMissingError as error:
            raise ConfigError(f"compression: {error}") from error
        self._send_timeout_s = self.settings.send_timeout_ms / 1000
        self._tries = SendTries(client, group, self.settings)
        self._room = SendRoom(
            count_max=self.settings.in_flight_max, bytes_max=self.settings.in_flight_bytes_max
        )
        self._deadlines = SendDeadlines(usual_s=self._send_timeout_s, time_out=self._tries.time_out)
        self._unique_keys = UniqueKeys()
        self._lanes = SendLanes(
            self._tries,
            self.settings,
            self._room,
            self._unique_keys,
            start=self._begin,
            alone=self._send_alone,
        )
        self._interceptors = client.interceptors.for_producer(group)
        self._encoded_interceptors = client.interceptors.for_encoded(group)
        self._send = self._lanes.send if self._interceptors is None else self._send_seen
        self._is_running = False
        self._ending = Ending()
        self._sent_total = 0
        self._failed_total = 0

    async def start(self) -> None:
        """Take part in the client's heartbeats; the client must be started."""
        await self._ending.over()
        if not self._is_running:
            self._client.add_producer(self.group)
            self._lanes.begin()
            self._is_running = True

    async def stop(self) -> None:
        """Wait for the sends in flight (each ends by its own timeout), then leave.

        It goes on when nobody waits for it any more, and all who call it wait for the same end.
        """
        work = None
        if self._is_running:
            self._is_running = False
            self._lanes.close()
            work = self._finish()
        await self._ending.reached(work)

    async def _finish(self) -> None:
        await self.drain()
        self._lanes.stop()
        self._tries.stop()
        self._deadlines.stop()
        await self._client.remove_producer(self.group)

    async def send(
        self, message: Message, *, queue: QueueChoice | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send one message and wait until it is stored; waits first while too many are in flight.

        MessageRefusedError for a message that no broker would take, RouteNotFoundError without a broker
        for the topic, RequestTimeoutError without an answer, BrokerError when it is refused,
        SendFailedError when all tries failed.
        """
        if self._room.is_full:
            await self.room()
            if not self._is_running:
                raise ClientClosedError("the producer was stopped before this was sent")
        return await self._send(message, queue, timeout_ms)

    def send_nowait(
        self, message: Message, *, queue: QueueChoice | None = None, timeout_ms: int | None = None
    ) -> asyncio.Future[SendResult]:
        """Send one message; the future ends as `send` would. ProducerBusyError past `in_flight_max`."""
        self._room.refuse_when_full()
        return self._send(message, queue, timeout_ms)

    async def send_to_device(
        self,
        mqtt_topic: str,
        payload: bytes,
        *,
        qos: int = 1,
        retain: bool = False,
        expiry_s: float = 0,
        topic: str = DEVICE_TOPIC,
    ) -> SendResult:
        """Send a message to every device that subscribes an MQTT topic.

        `topic` is the broker topic that has it. Devices do not get it `expiry_s` after it was stored, unless
        that is 0; with `retain` later subscribers get it, too. Messages of one MQTT topic keep their order.
        Raises what `send` raises.
        """
        return await self.send(
            device_message(mqtt_topic, payload, topic=topic, qos=qos, retain=retain, expiry_s=expiry_s)
        )

    async def send_oneway(self, message: Message, *, queue: QueueChoice | None = None) -> None:
        """Send one message without asking for an answer: it may get lost without anybody noticing.

        Returns when it is on its way; RouteNotFoundError or ConnectionClosedError when there is none.
        """
        if self._interceptors is None:
            await self._send_oneway(message, queue)
            return
        await self._interceptors.send_unanswered(message, lambda sent: self._send_oneway(sent, queue))

    async def _send_oneway(self, message: Message, queue: QueueChoice | None) -> str:
        """Return the message id."""
        send = self._prepare(message, queue, None)
        send.future.cancel()
        route = await self._tries.route(send.topic)
        chosen = self._tries.choose(send, route)
        address = route.master(chosen.broker_name)
        if address is None:
            raise RouteNotFoundError(f"broker {chosen.broker_name} of topic {send.topic} has no master now")
        with asking(f"sending to topic {send.topic} at broker {chosen.broker_name}"):
            connection = await self._client.connections.get(address)
        if send.is_timed:
            await self._client.check_timers(chosen.broker_name, address)
        connection.send_oneway(self._tries.command(send, chosen, oneway=True))
        if connection.is_congested:
            # What nobody answers must be held back here, or a fast sender fills the memory.
            await connection.drain()
        self._sent_total += 1
        return send.message_id

    async def recall(self, recall_handle: str) -> bool:
        """Take back a message that waits for a time of its own, by the `recall_handle` of its send's result.

        False when it does not wait any more. MessageRefusedError for a text that is no handle,
        RouteNotFoundError when its broker is not there, BrokerError when that refuses.
        """
        self._client.check_running()
        return await recall_message(self._client, recall_handle, group=self.group)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: QueueChoice | None = None, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send messages with one request per queue; the results are per request, in no fixed order.

        Messages with keys go to their keys' queues, those without share one queue. Groups past
        `body_bytes_max` are split. All requests are waited for; then the first failure, if any, is
        raised, with a note of how many messages are stored. MessageRefusedError, with nothing sent,
        for delayed messages, which a batch cannot carry.
        """
        if self._interceptors is None:
            return await self._send_batch(messages, queue, timeout_ms)
        sending = self._interceptors.begin(messages)
        sent: list[tuple[Message, str]] = []
        try:
            results = await self._send_batch(sending.messages, queue, timeout_ms, sent)
        except BaseException as error:
            self._interceptors.end(sending, error=error)
            raise
        # As they were sent: topic by topic, queue by queue.
        sending.messages = [message for message, _ in sent]
        self._interceptors.end(sending, results, message_ids=[unique_key for _, unique_key in sent])
        return results

    async def _send_batch(
        self,
        messages: Sequence[Message],
        queue: QueueChoice | None,
        timeout_ms: int | None,
        sent: list[tuple[Message, str]] | None = None,
    ) -> list[SendResult]:
        """Add the messages and their unique keys to `sent`, in the order in which they are sent."""
        sends: list[tuple[PendingSend, bool]] = []
        for topic, of_topic in by_topic(messages).items():
            route = await self._tries.route(topic)
            for target, of_queue in self._by_queue(of_topic, route, queue).items():
                unique_keys = self._unique_keys.next_batch(len(of_queue))
                if sent is not None:
                    sent += zip(of_queue, unique_keys, strict=True)
                bodies = batch_bodies(of_queue, unique_keys, body_bytes_max=self.settings.body_bytes_max)
                parts = [self._encoded(topic, target, *body, timeout_ms=timeout_ms) for body in bodies]
                # Those of one queue keep their order over all tries.
                sends += [(part, len(parts) > 1) for part in parts]
        futures = []
        for send, is_ordered in sends:
            await self.room()
            futures.append(self._start(send, is_ordered=is_ordered))
        self._lanes.flush()
        results = await asyncio.gather(*futures, return_exceptions=True)
        stored = [result for result in results if isinstance(result, SendResult)]
        for failure in results:
            if isinstance(failure, BaseException):
                failure.add_note(
                    f"{sum(result.count for result in stored)} of {len(messages)} messages of this call are "
                    "stored"
                )
                raise failure
        return stored

    async def send_encoded_batch(
        self, topic: str, queue: MessageQueue | None, elements: bytes | memoryview, count: int
    ) -> SendResult:
        """Send `count` messages encoded by `encode_batch`, as one request.

        `queue` None takes the next by turn. The elements are sent as they are, without a copy; do not
        change them before the result.
        """
        send = self._encoded(topic, queue, elements, count, "")
        await self.room()
        return await self._start_encoded(send)

    def send_encoded_batch_nowait(
        self,
        topic: str,
        queue: MessageQueue | None,
        elements: bytes | memoryview,
        count: int,
        *,
        is_repeat: bool = False,
        has_packet_ids: bool = False,
        sys_flag: int = 0,
    ) -> asyncio.Future[SendResult]:
        """Like `send_encoded_batch`, without waiting. ProducerBusyError when too many are in flight.

        `is_repeat`: the broker may have stored it before, and looks for it by the unique key of its first
        message that has one. `has_packet_ids`: messages have MQTT_PACKET_ID. `sys_flag` says how their bodies
        are compressed.
        """
        send = self._encoded(topic, queue, elements, count, "")
        send.is_repeat = is_repeat
        send.has_packet_ids = has_packet_ids
        send.sys_flag = sys_flag
        self._room.refuse_when_full()
        return self._start_encoded(send)

    def send_elements_nowait(
        self, queue: MessageQueue, elements: bytes, count: int
    ) -> asyncio.Future[SendResult]:
        """Like `send_encoded_batch_nowait`, in one request with others that wait for the queue.

        The ids that name places in the log are not told of more than one message.
        """
        if self._encoded_interceptors is not None or self.settings.idempotent:
            return self.send_encoded_batch_nowait(queue.topic, queue, elements, count)
        self._check_running()
        self._check_elements(len(elements), count)
        self._room.refuse_when_full()
        return self._lanes.send_elements(queue, elements, count)

    @property
    def joins_sends(self) -> bool:
        """Return whether `send_elements_nowait` may be used for single messages now: there is room, and no
        interceptor wants to see each of them."""
        return self._interceptors is None and not self._room.is_full

    def known_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return what `queues` would, if that is known already; empty otherwise."""
        route = self._tries.known_route(topic)
        return () if route is None else route.writable

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """List the queues that take messages of `topic` (for a new topic: those it will have), sorted."""
        return (await self._tries.route(topic)).writable

    async def room(self) -> None:
        """Wait until `send_nowait` would not refuse."""
        if self._room.is_full:
            # What lingers would keep its room for nothing.
            self._lanes.flush()
        await self._room.wait()

    async def drain(self) -> None:
        """Wait until nothing is in flight; messages that linger go at once."""
        while self._room.count:
            # Once more when messages of a refused request have come back meanwhile.
            self._lanes.flush()
            await self._room.drain()

    @property
    def in_flight(self) -> int:
        """Return the number of sends without a result yet."""
        return self._room.count

    def metrics(self) -> Iterable[Metric]:
        """Report the counters of this producer."""
        yield from samples(
            ("iotmq_client_sent_total", "Messages stored", self._sent_total),
            (
                "iotmq_client_send_failed_total",
                "Messages not sent",
                self._failed_total + self._lanes.failed_total,
            ),
            ("iotmq_client_send_retried_total", "Tries after the first", self._tries.retried_total),
            ("iotmq_client_sends_in_flight", "Unanswered sends", self._room.count),
            labels=(("group", self.group),),
        )

    # --- one send -----------------------------------------------------------------------------------

    def _send_seen(
        self, message: Message, queue: QueueChoice | None, timeout_ms: int | None
    ) -> asyncio.Future[SendResult]:
        """Send one message with the calls of interceptors around it."""
        assert self._interceptors is not None
        return self._interceptors.send(message, lambda sent: self._lanes.send(sent, queue, timeout_ms))

    def _send_alone(
        self, message: Message, queue: QueueChoice | None, timeout_ms: int | None
    ) -> asyncio.Future[SendResult]:
        send = self._prepare(message, queue, timeout_ms)
        return self._start(send, is_ordered=not message.is_delayed)

    def _prepare(self, message: Message, queue: QueueChoice | None, timeout_ms: int | None) -> PendingSend:
        self._check_target(message.topic, queue)
        body = message.body
        if len(body) > self.settings.body_bytes_max:
            raise MessageRefusedError(
                f"the body has {len(body)} bytes, allowed are {self.settings.body_bytes_max} (body_bytes_max)"
            )
        sys_flag = 0
        if 0 < self.settings.compress_bytes_min <= len(body):
            settings = self.settings
            body, sys_flag = compress_body(body, settings.compression, level=settings.compress_level)
        unique_key = self._unique_keys.next()
        properties = message.encoded_properties(unique_key)
        if self.settings.idempotent:
            check_room_for_mark(len(properties))
        return PendingSend(
            topic=message.topic,
            code=RequestCode.SEND_MESSAGE_V2,
            body=body,
            size=len(body),
            key=message.key,
            fixed_queue=queue,
            properties=properties.decode(),
            sys_flag=sys_flag,
            user_flag=message.flag,
            message_id=unique_key,
            is_timed=message.is_timed,
            timeout_s=self._timeout_s(timeout_ms),
            future=asyncio.get_running_loop().create_future(),
        )

    def _encoded(
        self,
        topic: str,
        queue: MessageQueue | None,
        elements: bytes | memoryview,
        count: int,
        message_id: str,
        *,
        timeout_ms: int | None = None,
    ) -> PendingSend:
        self._check_target(topic, queue)
        size = elements.nbytes if isinstance(elements, memoryview) else len(elements)
        self._check_elements(size, count)
        return PendingSend(
            topic=topic,
            code=RequestCode.SEND_BATCH_MESSAGE,
            body=elements,
            size=size,
            count=count,
            fixed_queue=queue,
            message_id=message_id,
            timeout_s=self._timeout_s(timeout_ms),
            future=asyncio.get_running_loop().create_future(),
        )

    def _check_elements(self, size: int, count: int) -> None:
        if not 0 < size <= self.settings.body_bytes_max or not 0 < count <= BATCH_RECORDS_MAX:
            raise MessageRefusedError(
                f"a batch of {count} messages and {size} bytes: allowed are 1 to {BATCH_RECORDS_MAX} "
                f"messages and {self.settings.body_bytes_max} bytes (body_bytes_max); split it"
            )

    def _check_target(self, topic: str, queue: QueueChoice | None) -> None:
        check_topic(topic)
        self._check_running()
        if queue is not None:
            check_queue(queue, topic)

    def _check_running(self) -> None:
        if not self._is_running:
            raise ClientClosedError(
                "the producer is not started, or was stopped: use `async with client.producer(...)`"
            )

    def _timeout_s(self, timeout_ms: int | None) -> float:
        return self._send_timeout_s if timeout_ms is None else timeout_ms / 1000

    def _start(self, send: PendingSend, *, is_ordered: bool = False) -> asyncio.Future[SendResult]:
        """Start a request of one call, `is_ordered` behind those that wait for its queue."""
        self._watch(send)
        if not self._is_running:
            # It waited for room, and nothing would end it any more, neither its timeout nor `stop`.
            send.future.set_exception(ClientClosedError("the producer was stopped before this was sent"))
            return send.future
        queue = send.fixed_queue
        is_chosen = queue is None or isinstance(queue, MessageQueue)
        is_numbered = self.settings.idempotent and not send.sys_flag & PREPARED_FLAG
        if is_numbered or not is_chosen or (is_ordered and (send.key or queue is not None)):
            self._lanes.add_alone(send)
        else:
            self._tries.begin(send)
        return send.future

    def _start_encoded(self, send: PendingSend) -> asyncio.Future[SendResult]:
        calls = self._encoded_interceptors
        if calls is None:
            return self._start(send)
        assert not isinstance(send.body, list)
        return calls.send(send.topic, send.body, send.count, lambda: self._start(send))

    def _watch(self, send: PendingSend) -> None:
        """Count a send of one call, and start its timeout."""
        self._room.add(send.size)
        send.future.add_done_callback(lambda _: self._ended(send))
        if self._is_running:
            self._deadlines.watch(send)

    def _begin(self, send: PendingSend, since_s: float) -> None:
        """Start a request of messages that are counted already, and wait since then."""
        send.future.add_done_callback(lambda _: self._ended(send))
        self._deadlines.watch(send, since_s)
        self._tries.begin(send)

    def _ended(self, send: PendingSend) -> None:
        # It may stay in `_deadlines` for a while behind a slower one.
        send.body = b""
        if send.future.cancelled() or send.future.exception() is not None:
            self._failed_total += send.count
            if send.reply is not None:
                send.reply.cancel()
        else:
            self._sent_total += send.count
        self._deadlines.tidy()
        self._room.remove(send.size, send.sends)

    def _by_queue(
        self, messages: list[Message], route: TopicRoute, queue: QueueChoice | None
    ) -> dict[MessageQueue, list[Message]]:
        groups: dict[MessageQueue, list[Message]] = {}
        by_turn: MessageQueue | None = None
        for message in messages:
            if queue is not None:
                target = chosen_queue(queue, route.topic, route.writable)
            elif message.key:
                target = route.writable[queue_of_key(message.key, len(route.writable))]
            else:
                target = by_turn = by_turn or self._tries.next_by_turn(route)
            groups.setdefault(target, []).append(message)
        return groups
