"""Sends messages: alone, in batches, waiting or not, to a queue chosen by key, by turn or by hand."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final

from iotmq.client.backoff import Backoff
from iotmq.client.broker_health import BrokerHealth
from iotmq.client.client import IotmqClient
from iotmq.client.message import Message, SendResult, SendStatus, check_group, check_topic
from iotmq.client.routes import MessageQueue, TopicRoute, queue_of_key
from iotmq.client.settings import ProducerSettings
from iotmq.errors import (
    BrokerError,
    ClientClosedError,
    ConnectionClosedError,
    IotmqError,
    MessageRefusedError,
    ProducerBusyError,
    RequestTimeoutError,
    RouteNotFoundError,
    SendFailedError,
)
from iotmq.limits import BATCH_RECORDS_MAX
from iotmq.message.bodies import compress_body
from iotmq.message.message_ids import UniqueKeys
from iotmq.message.record import encode_batch
from iotmq.metrics import Metric
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Body, Command
from iotmq.remoting.connection import ClientConnection

_log = logging.getLogger(__name__)

DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"

_STORED: Final = {status.value: status for status in SendStatus}

# Another broker, or the same one a moment later, may take what these refuse. A busy broker (2) asks
# for less load, and an illegal message (13) stays illegal.
_TRY_AGAIN: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
_ROUTE_IS_STALE: Final = frozenset({ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST})

_REST_S_MIN: Final = 0.05
_REST_S_MAX: Final = 1.0


class _Send:
    """One request from the call to its result, over all its tries."""

    __slots__ = (
        "body",
        "code",
        "count",
        "deadline_s",
        "fixed_queue",
        "future",
        "key",
        "message_id",
        "properties",
        "queue",
        "reply",
        "sent_s",
        "size",
        "sys_flag",
        "timeout_s",
        "topic",
        "tries",
        "user_flag",
    )

    def __init__(
        self,
        topic: str,
        *,
        code: int,
        body: Body,
        size: int,
        count: int,
        key: str,
        fixed_queue: MessageQueue | None,
        properties: str,
        sys_flag: int,
        user_flag: int,
        message_id: str,
        timeout_s: float,
        future: asyncio.Future[SendResult],
    ) -> None:
        self.topic = topic
        self.code = code
        self.body = body
        self.size = size
        self.count = count
        self.key = key
        self.fixed_queue = fixed_queue
        self.properties = properties
        self.sys_flag = sys_flag
        self.user_flag = user_flag
        self.message_id = message_id
        self.timeout_s = timeout_s
        self.deadline_s = 0.0
        """Set when it starts: waiting for room does not count."""
        self.future = future
        self.tries = 0
        self.queue: MessageQueue | None = None
        """The queue of the last try."""
        self.sent_s = 0.0
        """When the last try was written, in loop time."""
        self.reply: asyncio.Future[Command] | None = None
        """The answer being waited for; None between tries."""


class Producer:
    """Sends to any topic; `async with` starts and stops it.

    `send` and `send_nowait` try up to `tries_max` times within `send_timeout_ms`: after a lost
    connection, and after answers that another try may cure. A try whose answer is overdue is not
    repeated (the message may be stored): RequestTimeoutError. After a lost connection a message may
    be stored twice. Tries of a keyed message stay on its queue.
    """

    def __init__(
        self, client: IotmqClient, group: str = DEFAULT_GROUP, settings: ProducerSettings | None = None
    ) -> None:
        check_group(group)
        self._client = client
        self.group = group
        self.settings = settings or ProducerSettings()
        self._send_timeout_s = self.settings.send_timeout_ms / 1000
        self._health = BrokerHealth(
            slow_s=self.settings.slow_answer_ms / 1000, avoided_s_max=self.settings.avoid_failed_ms_max / 1000
        )
        self._unique_keys = UniqueKeys()
        self._turn = itertools.count()
        self._is_running = False
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._waiting_for_room: deque[asyncio.Future[None]] = deque()
        self._waiting_for_drain: list[asyncio.Future[None]] = []
        self._deadlines: deque[_Send] = deque()
        """Sends with the usual timeout, so the first ends first; done ones are dropped from the left."""
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._retries: set[asyncio.Task[None]] = set()
        self._sent_total = 0
        self._failed_total = 0
        self._retried_total = 0

    async def start(self) -> None:
        """Take part in the client's heartbeats; the client must be started."""
        if not self._is_running:
            self._client.add_producer(self.group)
            self._is_running = True

    async def stop(self) -> None:
        """Wait for the sends in flight (each ends by its own timeout), then leave."""
        if not self._is_running:
            return
        self._is_running = False
        await self.drain()
        for task in self._retries:
            task.cancel()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        await self._client.remove_producer(self.group)

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send one message and wait until it is stored; waits first while too many are in flight.

        MessageRefusedError for what no broker would take, RouteNotFoundError without a broker for the
        topic, RequestTimeoutError without an answer, BrokerError when it is refused, SendFailedError
        when all tries failed.
        """
        send = self._prepare(message, queue, timeout_ms)
        await self._room()
        return await self._start(send)

    def send_nowait(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> asyncio.Future[SendResult]:
        """Send one message; the future ends as `send` would. ProducerBusyError past `in_flight_max`."""
        send = self._prepare(message, queue, timeout_ms)
        self._refuse_when_busy()
        return self._start(send)

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send one message without asking for an answer: it may get lost without anybody noticing.

        Returns when it is on its way; RouteNotFoundError or ConnectionClosedError when there is none.
        """
        send = self._prepare(message, queue, None)
        send.future.cancel()
        route = await self._route(send.topic)
        chosen = self._choose(send, route)
        address = route.master(chosen.broker_name)
        if address is None:
            raise RouteNotFoundError(f"broker {chosen.broker_name} of topic {send.topic} has no master now")
        connection = await self._client.connections.get(address)
        connection.send_oneway(self._command(send, chosen, oneway=True))
        if connection.is_congested:
            # What nobody answers must be held back here, or a fast sender fills the memory.
            await connection.drain()
        self._sent_total += 1

    async def recall(self, recall_handle: str) -> bool:
        """Take back a message that waits for a time of its own, by the `recall_handle` of its send's result.

        False when it does not wait any more. MessageRefusedError for a text that is no handle,
        RouteNotFoundError when its broker is not there, BrokerError when that refuses.
        """
        # Few producers need it.
        from iotmq.client.waiting_messages import WaitingMessages

        self._client.check_running()
        return await WaitingMessages(self._client).recall(recall_handle, group=self.group)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send messages with one request per queue; the results are per request, in no fixed order.

        Messages with keys go to their keys' queues, those without share one queue. Groups past
        `body_bytes_max` are split. All requests are waited for; then the first failure, if any, is
        raised, with a note of how many messages are stored. MessageRefusedError, with nothing sent,
        for delayed messages, which a batch cannot carry.
        """
        sends: list[_Send] = []
        for topic, of_topic in _by_topic(messages).items():
            route = await self._route(topic)
            for target, of_queue in self._by_queue(topic, of_topic, route, queue).items():
                sends += [
                    self._encoded(topic, target, *part, timeout_ms=timeout_ms)
                    for part in self._encode(of_queue)
                ]
        futures = []
        for send in sends:
            await self._room()
            futures.append(self._start(send))
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
        """Send `count` messages encoded by `iotmq.message.record.encode_batch`, as one request.

        `queue` None takes the next by turn. The elements are sent as they are, without a copy; do not
        change them before the result.
        """
        send = self._encoded(topic, queue, elements, count, "")
        await self._room()
        return await self._start(send)

    def send_encoded_batch_nowait(
        self, topic: str, queue: MessageQueue | None, elements: bytes | memoryview, count: int
    ) -> asyncio.Future[SendResult]:
        """Like `send_encoded_batch`, without waiting. ProducerBusyError when too many are in flight."""
        send = self._encoded(topic, queue, elements, count, "")
        self._refuse_when_busy()
        return self._start(send)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that take messages of `topic` (for a new topic: those it will have), sorted."""
        return (await self._route(topic)).writable

    async def room(self) -> None:
        """Wait until `send_nowait` would not refuse."""
        await self._room()

    async def drain(self) -> None:
        """Wait until nothing is in flight."""
        if self._in_flight:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_for_drain.append(future)
            await future

    @property
    def in_flight(self) -> int:
        """Sends without a result yet."""
        return self._in_flight

    def metrics(self) -> Iterable[Metric]:
        """Counters of this producer."""
        labels = (("group", self.group),)
        yield Metric("iotmq_client_sent_total", "counter", "Messages stored", self._sent_total, labels)
        yield Metric(
            "iotmq_client_send_failed_total", "counter", "Messages not sent", self._failed_total, labels
        )
        yield Metric(
            "iotmq_client_send_retried_total", "counter", "Tries after the first", self._retried_total, labels
        )
        yield Metric("iotmq_client_sends_in_flight", "gauge", "Unanswered sends", self._in_flight, labels)

    # --- one send -----------------------------------------------------------------------------------

    def _prepare(self, message: Message, queue: MessageQueue | None, timeout_ms: int | None) -> _Send:
        check_topic(message.topic)
        body = message.body
        if len(body) > self.settings.body_bytes_max:
            raise MessageRefusedError(
                f"the body has {len(body)} bytes, allowed are {self.settings.body_bytes_max} (body_bytes_max)"
            )
        sys_flag = 0
        if 0 < self.settings.compress_bytes_min <= len(body):
            body, sys_flag = compress_body(body, level=self.settings.compress_level)
        unique_key = self._unique_keys.next()
        return self._new_send(
            message.topic,
            code=RequestCode.SEND_MESSAGE_V2,
            body=body,
            size=len(body),
            count=1,
            key=message.key,
            queue=queue,
            properties=message.encoded_properties(unique_key).decode(),
            sys_flag=sys_flag,
            user_flag=message.flag,
            message_id=unique_key,
            timeout_ms=timeout_ms,
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
    ) -> _Send:
        check_topic(topic)
        size = elements.nbytes if isinstance(elements, memoryview) else len(elements)
        if not 0 < size <= self.settings.body_bytes_max or not 0 < count <= BATCH_RECORDS_MAX:
            raise MessageRefusedError(
                f"a batch of {count} messages and {size} bytes: allowed are 1 to {BATCH_RECORDS_MAX} "
                f"messages and {self.settings.body_bytes_max} bytes (body_bytes_max); split it"
            )
        return self._new_send(
            topic,
            code=RequestCode.SEND_BATCH_MESSAGE,
            body=elements,
            size=size,
            count=count,
            key="",
            queue=queue,
            properties="",
            sys_flag=0,
            user_flag=0,
            message_id=message_id,
            timeout_ms=timeout_ms,
        )

    def _new_send(
        self,
        topic: str,
        *,
        code: int,
        body: Body,
        size: int,
        count: int,
        key: str,
        queue: MessageQueue | None,
        properties: str,
        sys_flag: int,
        user_flag: int,
        message_id: str,
        timeout_ms: int | None,
    ) -> _Send:
        if not self._is_running:
            raise ClientClosedError("the producer is not started: use `async with Producer(...)`, or start()")
        if queue is not None and queue.topic != topic:
            raise MessageRefusedError(f"queue {queue} is not one of topic {topic}")
        return _Send(
            topic,
            code=code,
            body=body,
            size=size,
            count=count,
            key=key,
            fixed_queue=queue,
            properties=properties,
            sys_flag=sys_flag,
            user_flag=user_flag,
            message_id=message_id,
            timeout_s=self._send_timeout_s if timeout_ms is None else timeout_ms / 1000,
            future=asyncio.get_running_loop().create_future(),
        )

    def _start(self, send: _Send) -> asyncio.Future[SendResult]:
        self._in_flight += 1
        self._in_flight_bytes += send.size
        send.future.add_done_callback(lambda _: self._ended(send))
        self._watch_deadline(send)
        # The usual case needs no task: the route is known and the connection open.
        route = self._client.routes.known(send.topic)
        if route is not None and route.writable:
            queue = self._choose(send, route)
            address = route.master(queue.broker_name)
            connection = None if address is None else self._client.connections.ready(address)
            if connection is not None:
                self._write(send, connection, queue)
                return send.future
        self._start_retries(send, None)
        return send.future

    def _write(self, send: _Send, connection: ClientConnection, queue: MessageQueue) -> None:
        send.queue = queue
        send.tries += 1
        send.sent_s = asyncio.get_running_loop().time()
        try:
            reply = connection.request_nowait(self._command(send, queue))
        except IotmqError as error:
            self._start_retries(send, error)
            return
        send.reply = reply
        reply.add_done_callback(lambda done: self._answered(send, done))

    def _answered(self, send: _Send, reply: asyncio.Future[Command]) -> None:
        send.reply = None
        if send.future.done():
            return
        failure = self._judge(send, reply)
        if failure is not None:
            self._start_retries(send, failure)

    def _judge(self, send: _Send, reply: asyncio.Future[Command]) -> IotmqError | None:
        """End the send with the answer, or return why another try is due."""
        queue = send.queue
        assert queue is not None
        now_s = asyncio.get_running_loop().time()
        error = ConnectionClosedError("the request was given up") if reply.cancelled() else reply.exception()
        if isinstance(error, IotmqError) and not isinstance(error, RequestTimeoutError):
            self._health.failed(queue.broker_name, now_s=now_s)
            return error
        if error is not None:
            send.future.set_exception(error)
            return None
        response = reply.result()
        status = _STORED.get(response.code)
        if status is not None:
            self._health.answered(queue.broker_name, took_s=now_s - send.sent_s, now_s=now_s)
            send.future.set_result(
                SendResult(
                    status=status,
                    queue=MessageQueue(
                        send.topic, queue.broker_name, int(response.ext.get("queueId", queue.queue_id))
                    ),
                    queue_offset=int(response.ext.get("queueOffset", -1)),
                    count=send.count,
                    message_id=send.message_id,
                    offset_message_ids=response.ext.get("msgId", ""),
                    recall_handle=response.ext.get("recallHandle", ""),
                )
            )
            return None
        refusal = BrokerError(response.code, _refusal_text(send.topic, queue, response))
        if response.code in _TRY_AGAIN:
            self._health.failed(queue.broker_name, now_s=now_s)
            return refusal
        send.future.set_exception(refusal)
        return None

    def _start_retries(self, send: _Send, failure: IotmqError | None) -> None:
        task = asyncio.ensure_future(self._retry(send, failure))
        self._retries.add(task)
        task.add_done_callback(self._retries.discard)

    async def _retry(self, send: _Send, failure: IotmqError | None) -> None:
        """Everything but the usual case: find a route, make a connection, wait, try again."""
        try:
            await self._retry_until_done(send, failure)
        except IotmqError as error:
            if not send.future.done():
                send.future.set_exception(error)

    async def _retry_until_done(self, send: _Send, failure: IotmqError | None) -> None:
        rest = Backoff(min_s=_REST_S_MIN, max_s=_REST_S_MAX)
        while not send.future.done():
            refused_by = send.queue.broker_name if isinstance(failure, BrokerError) and send.queue else None
            if send.tries >= self.settings.tries_max:
                raise _all_tries_failed(send, failure)
            if isinstance(failure, BrokerError) and failure.code in _ROUTE_IS_STALE:
                await self._refresh(send.topic)
            route = await self._route(send.topic)
            queue = self._choose(send, route)
            if queue.broker_name == refused_by:
                if isinstance(failure, BrokerError) and failure.code in _ROUTE_IS_STALE:
                    # The only broker there is has just said that it will not take it.
                    raise failure
                await asyncio.sleep(rest.next_s())
            if send.future.done():
                return
            connection = await self._connection(send, route, queue, rest)
            if connection is None or send.future.done():
                continue
            if send.tries:
                self._retried_total += 1
            # Its answer comes back to `_answered`, which starts the next round if one is due.
            self._write(send, connection, queue)
            return

    async def _connection(
        self, send: _Send, route: TopicRoute, queue: MessageQueue, rest: Backoff
    ) -> ClientConnection | None:
        """The connection to the queue's broker, or None after a pause when it has none now.

        Nothing was sent, so this is not one of the tries; the send's own timeout ends it.
        """
        address = route.master(queue.broker_name)
        try:
            if address is None:
                raise ConnectionClosedError(f"broker {queue.broker_name} has no master now")
            return await self._client.connections.get(address)
        except ClientClosedError:
            raise
        except ConnectionClosedError as error:
            now_s = asyncio.get_running_loop().time()
            self._health.failed(queue.broker_name, now_s=now_s)
            others = {other.broker_name for other in route.writable} - {queue.broker_name}
            is_pinned = bool(send.key) or send.fixed_queue is not None
            if is_pinned or all(self._health.is_avoided(name, now_s) for name in others):
                _log.debug("waiting for a broker of topic %s: %s", send.topic, error)
                await asyncio.sleep(max(rest.next_s(), self._client.connections.rest_s(address or "")))
                # The broker may have come back at another address.
                await self._refresh(send.topic)
            return None

    async def _refresh(self, topic: str) -> None:
        """Ask for the route again; the known one does as long as no registry answers."""
        try:
            await self._client.routes.refresh(topic)
        except (RouteNotFoundError, BrokerError) as error:
            _log.debug("route of topic %s: %s", topic, error)

    def _choose(self, send: _Send, route: TopicRoute) -> MessageQueue:
        if send.fixed_queue is not None:
            return send.fixed_queue
        if send.key:
            return route.writable[queue_of_key(send.key, len(route.writable))]
        return self._next_by_turn(route)

    def _next_by_turn(self, route: TopicRoute) -> MessageQueue:
        queues = route.writable
        queue = queues[next(self._turn) % len(queues)]
        if not self._health.has_avoided:
            return queue
        now_s = asyncio.get_running_loop().time()
        for _ in range(len(queues)):
            if not self._health.is_avoided(queue.broker_name, now_s):
                break
            queue = queues[next(self._turn) % len(queues)]
        return queue

    def _command(self, send: _Send, queue: MessageQueue, *, oneway: bool = False) -> Command:
        is_batch = send.code == RequestCode.SEND_BATCH_MESSAGE
        return Command.request(
            send.code,
            {
                "a": self.group,
                "b": send.topic,
                "c": self.settings.template_topic,
                "d": str(self.settings.new_topic_queues),
                "e": str(queue.queue_id),
                "f": str(send.sys_flag),
                "g": str(self._client.clock.now_ms()),
                "h": str(send.user_flag),
                "i": send.properties,
                "j": "0",
                "k": "false",
                "m": "true" if is_batch else "false",
                "n": queue.broker_name,
            },
            send.body,
            oneway,
        )

    async def _route(self, topic: str) -> TopicRoute:
        check_topic(topic)
        self._client.check_running()
        return await self._client.routes.find_for_sending(
            topic, template_topic=self.settings.template_topic, queues_max=self.settings.new_topic_queues
        )

    # --- room and deadlines -------------------------------------------------------------------------

    @property
    def _is_full(self) -> bool:
        return (
            self._in_flight >= self.settings.in_flight_max
            or self._in_flight_bytes >= self.settings.in_flight_bytes_max
        )

    def _refuse_when_busy(self) -> None:
        if self._is_full:
            raise ProducerBusyError(
                f"{self._in_flight} sends with {self._in_flight_bytes} bytes wait for their answers: await "
                "room() first, or raise in_flight_max / in_flight_bytes_max"
            )

    async def _room(self) -> None:
        while self._is_full:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_for_room.append(future)
            try:
                await future
            except asyncio.CancelledError:
                # The room it was given while being cancelled is for the next one.
                self._wake_waiting()
                raise

    def _wake_waiting(self) -> None:
        """Let as many waiting senders go on as there is room for."""
        waiting = self._waiting_for_room
        free = 0 if self._is_full else self.settings.in_flight_max - self._in_flight
        while waiting and free > 0:
            waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1

    def _ended(self, send: _Send) -> None:
        self._in_flight -= 1
        self._in_flight_bytes -= send.size
        # It may stay in `_deadlines` for a while behind a slower one.
        send.body = b""
        if send.future.cancelled() or send.future.exception() is not None:
            self._failed_total += send.count
            if send.reply is not None:
                send.reply.cancel()
        else:
            self._sent_total += send.count
        deadlines = self._deadlines
        while deadlines and deadlines[0].future.done():
            deadlines.popleft()
        if self._waiting_for_room:
            self._wake_waiting()
        if not self._in_flight and self._waiting_for_drain:
            for waiter in self._waiting_for_drain:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiting_for_drain.clear()

    def _watch_deadline(self, send: _Send) -> None:
        loop = asyncio.get_running_loop()
        send.deadline_s = loop.time() + send.timeout_s
        if send.timeout_s != self._send_timeout_s:
            loop.call_at(send.deadline_s, self._time_out, send)
            return
        self._deadlines.append(send)
        if self._deadline_timer is None:
            self._deadline_timer = loop.call_at(send.deadline_s, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._deadline_timer = None
        now_s = asyncio.get_running_loop().time()
        deadlines = self._deadlines
        while deadlines and (deadlines[0].future.done() or deadlines[0].deadline_s <= now_s):
            self._time_out(deadlines.popleft())
        if deadlines:
            self._deadline_timer = asyncio.get_running_loop().call_at(
                deadlines[0].deadline_s, self._check_deadlines
            )

    def _time_out(self, send: _Send) -> None:
        if send.future.done():
            return
        if send.reply is not None and send.queue is not None:
            self._health.failed(send.queue.broker_name, now_s=asyncio.get_running_loop().time())
            text = (
                f"broker {send.queue.broker_name} did not answer the send to {send.topic} in time; the "
                "message may be stored. Send it again if a duplicate does no harm, or raise send_timeout_ms"
            )
        else:
            text = (
                f"no broker of topic {send.topic} was reachable in time; try {send.tries} of "
                f"{self.settings.tries_max}. Is the broker running, and does its advertised address "
                "(broker.advertised_host) lead to it from here?"
            )
        send.future.set_exception(RequestTimeoutError(text))

    # --- batches ------------------------------------------------------------------------------------

    def _by_queue(
        self, topic: str, messages: list[Message], route: TopicRoute, queue: MessageQueue | None
    ) -> dict[MessageQueue, list[Message]]:
        if queue is not None:
            if queue.topic != topic:
                raise MessageRefusedError(f"queue {queue} is not one of topic {topic}")
            return {queue: messages}
        groups: dict[MessageQueue, list[Message]] = {}
        by_turn: MessageQueue | None = None
        for message in messages:
            if message.key:
                target = route.writable[queue_of_key(message.key, len(route.writable))]
            else:
                target = by_turn = by_turn or self._next_by_turn(route)
            groups.setdefault(target, []).append(message)
        return groups

    def _encode(self, messages: list[Message]) -> Iterable[tuple[bytes, int, str]]:
        """Batch bodies of at most `body_bytes_max`, with their counts and first unique keys."""
        elements: list[tuple[bytes, bytes, int]] = []
        size = 0
        first_key = ""
        for message, unique_key in zip(messages, self._unique_keys.next_batch(len(messages)), strict=True):
            if message.is_delayed:
                raise MessageRefusedError("a batch cannot carry delayed messages: send them singly")
            properties = message.encoded_properties(unique_key)
            element_size = 22 + len(message.body) + len(properties)
            if element_size > self.settings.body_bytes_max:
                raise MessageRefusedError(
                    f"a message of {element_size} bytes in a batch, allowed are "
                    f"{self.settings.body_bytes_max} (body_bytes_max)"
                )
            if elements and (
                size + element_size > self.settings.body_bytes_max or len(elements) == BATCH_RECORDS_MAX
            ):
                yield encode_batch(elements), len(elements), first_key
                elements, size = [], 0
            if not elements:
                first_key = unique_key
            elements.append((message.body, properties, message.flag))
            size += element_size
        if elements:
            yield encode_batch(elements), len(elements), first_key


def _by_topic(messages: Iterable[Message]) -> dict[str, list[Message]]:
    groups: dict[str, list[Message]] = {}
    for message in messages:
        groups.setdefault(message.topic, []).append(message)
    return groups


def _refusal_text(topic: str, queue: MessageQueue, response: Command) -> str:
    reason = response.remark or "no reason given"
    text = f"broker {queue.broker_name} refused a message for topic {topic}: {reason}"
    if response.code == ResponseCode.TOPIC_NOT_EXIST:
        text += ". Create the topic (Admin.create_topic) or enable broker.auto_create_topics"
    elif response.code == ResponseCode.NO_PERMISSION:
        text += ". The topic or the broker is not writable"
    elif response.code == ResponseCode.SYSTEM_BUSY:
        text += ". The broker is overloaded: send less, or later"
    return text


def _all_tries_failed(send: _Send, failure: IotmqError | None) -> IotmqError:
    if send.tries <= 1 and failure is not None:
        return failure
    error = SendFailedError(
        f"sending to topic {send.topic} failed {send.tries} times; the last time: {failure}"
    )
    error.__cause__ = failure
    return error
