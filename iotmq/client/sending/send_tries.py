"""Try sends at brokers: choose the queue, judge the answer, and try again elsewhere."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from typing import Final

from iotmq.backoff import Backoff
from iotmq.client.sending.pending_send import PendingSend
from iotmq.client.sending.queue_choice import chosen_queue
from iotmq.client.sending.send_numbers import marked_batch, marked_properties
from iotmq.client.transport.broker_health import BrokerHealth
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import SendResult, SendStatus, check_topic
from iotmq.client.transport.routes import MessageQueue, TopicRoute, queue_of_key
from iotmq.client.transport.settings import ProducerSettings
from iotmq.errors import (
    BrokerError,
    ClientClosedError,
    ClientError,
    ConnectionClosedError,
    IotmqError,
    NotMasterError,
    RequestError,
    RequestTimeoutError,
    RouteNotFoundError,
    SendFailedError,
)
from iotmq.message.bodies import compress_body
from iotmq.remoting.codes import (
    IS_MASTER_FIELD,
    NUMBERED_FIELD,
    PACKET_IDS_FIELD,
    REPEAT_FIELD,
    RequestCode,
    ResponseCode,
)
from iotmq.remoting.command import Body, Command
from iotmq.remoting.connection import ClientConnection

_log = logging.getLogger(__name__)

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
# A member that is not master is not asked again for so long, unless a registry tells of a master.
_NOT_MASTER_S: Final = 0.5


class QueueGoneError(ClientError):
    """The queue of a request is not one of the topic's any more, and its messages may go to another one."""


class SendTries:
    """Carries out the sends of one producer; the future of each ends with its result or failure."""

    def __init__(self, client: ClientTransport, group: str, settings: ProducerSettings) -> None:
        self._client = client
        self._group = group
        self._settings = settings
        self._health = BrokerHealth(
            slow_s=settings.slow_answer_ms / 1000, avoided_s_max=settings.avoid_failed_ms_max / 1000
        )
        self._slow_s = settings.slow_answer_ms / 1000
        # Of as many bytes and messages as shared requests have at most.
        self._requests_max = min(
            settings.in_flight_max // settings.batch_records_max,
            settings.in_flight_bytes_max // settings.batch_bytes_max,
        )
        self._turn = itertools.count()
        self._by_turn: dict[str, dict[PendingSend, float]] = {}
        """Broker -> the requests that turns have given it -> since when, the oldest first."""
        self._retries: set[asyncio.Task[None]] = set()
        self._knowing: set[str] = set()
        """Brokers that know numbered batches."""
        self.retried_total = 0
        """Tries after the first."""

    def begin(self, send: PendingSend) -> None:
        """Try a send for the first time."""
        send.future.add_done_callback(lambda _: self._release(send))
        # The usual case needs no task: the route is known and the connection open.
        route = self.known_route(send.topic)
        if route is not None:
            queue = self.choose(send, route)
            address = route.master(queue.broker_name) or ""
            connection = self._client.connections.ready(address)
            if connection is not None and not self._has_to_ask(send, queue, address):
                self._write(send, connection, queue, address)
                return
        self._start_retries(send, None)

    def stop(self) -> None:
        """Cancel all further tries."""
        for task in self._retries:
            task.cancel()

    def known_route(self, topic: str) -> TopicRoute | None:
        """Return the route to send by that is known already, if it has queues."""
        route = self._client.routes.known(topic)
        return route if route is not None and route.writable else None

    async def route(self, topic: str) -> TopicRoute:
        """Find the route for sending to a topic; for a new topic, the route it will have."""
        check_topic(topic)
        self._client.check_running()
        return await self._client.routes.find_for_sending(
            topic, template_topic=self._settings.template_topic, queues_max=self._settings.new_topic_queues
        )

    def choose(self, send: PendingSend, route: TopicRoute) -> MessageQueue:
        """Choose the queue of the next try: the one asked for, the key's, or the next by turn.

        What a turn gives to a broker counts there until it is done.
        """
        if send.fixed_queue is not None:
            return chosen_queue(send.fixed_queue, send.topic, route.writable)
        if send.key:
            return route.writable[queue_of_key(send.key, len(route.writable))]
        self._release(send)
        queue = self.next_by_turn(route)
        if not send.future.done():
            send.broker_by_turn = queue.broker_name
            self._by_turn.setdefault(queue.broker_name, {})[send] = asyncio.get_running_loop().time()
        return queue

    def _release(self, send: PendingSend) -> None:
        """Take a request from the broker that a turn has given it to, if one has."""
        name, send.broker_by_turn = send.broker_by_turn, ""
        if name:
            given = self._by_turn[name]
            del given[send]
            if not given:
                del self._by_turn[name]

    def next_by_turn(self, route: TopicRoute) -> MessageQueue:
        """Choose the next queue by turn, if possible of a broker that neither fails nor is slow, and that may
        have one more request."""
        queues = route.writable
        queue = queues[next(self._turn) % len(queues)]
        if len(route.addresses) == 1 or not (self._health.has_avoided or self._by_turn):
            return queue
        now_s = asyncio.get_running_loop().time()
        parts = self._parts(route)
        busy = None
        for _ in range(len(queues)):
            name = queue.broker_name
            given = self._by_turn.get(name)
            is_slow = given is not None and now_s - next(iter(given.values())) > self._slow_s
            if not is_slow and not self._health.is_avoided(name, now_s):
                if given is None or len(given) < parts[name]:
                    return queue
                busy = busy or queue
            queue = queues[next(self._turn) % len(queues)]
        return busy or queue

    def requests_max(self, route: TopicRoute) -> int:
        """Return how many shared requests by turn may be under way to the queues of a topic."""
        if len(route.addresses) == 1:
            return len(route.writable)
        return sum(self._parts(route).values())

    def _parts(self, route: TopicRoute) -> Counter[str]:
        """Return how many of them each broker may have: at most one for each of its queues.

        Where there are several brokers, each has its part of what the producer may have in flight: one that
        takes requests and never answers must not keep messages from the others.
        """
        parts = Counter(queue.broker_name for queue in route.writable)
        if len(parts) > 1:
            part_max = max(1, self._requests_max // len(parts))
            parts = Counter({name: min(count, part_max) for name, count in parts.items()})
        return parts

    def command(
        self, send: PendingSend, queue: MessageQueue, address: str = "", *, oneway: bool = False
    ) -> Command:
        """Build the request of a send to the broker at HOST:PORT."""
        is_batch = send.code == RequestCode.SEND_BATCH_MESSAGE
        ext = {
            "a": self._group,
            "b": send.topic,
            "c": self._settings.template_topic,
            "d": str(self._settings.new_topic_queues),
            "e": str(queue.queue_id),
            "f": str(send.sys_flag),
            "g": str(self._client.clock.now_ms()),
            "h": str(send.user_flag),
            "i": send.properties,
            "j": "0",
            "k": "false",
            "m": "true" if is_batch else "false",
            "n": queue.broker_name,
        }
        body = send.body
        if send.mark:
            ext[NUMBERED_FIELD] = "true"
            if is_batch:
                assert not isinstance(body, list)
                body = marked_batch(body, send.mark)
            else:
                ext["i"] = marked_properties(send.properties, send.mark)
        elif send.is_repeat:
            ext[REPEAT_FIELD] = "true"
        if send.has_packet_ids:
            ext[PACKET_IDS_FIELD] = "true"
        if is_batch and self._settings.compress_batches and not send.sys_flag:
            body, sys_flag = self._compressed(body, address)
            ext["f"] = str(sys_flag)
        return Command.request(send.code, ext, body, oneway)

    def _compressed(self, elements: Body, address: str) -> tuple[Body, int]:
        """Compress a batch as a whole, for a broker that has said that it opens it."""
        settings = self._settings
        method = settings.compression
        if not settings.compress_bytes_min or not self._client.opens_batches(address, method):
            return elements, 0
        data = b"".join(elements) if isinstance(elements, list) else bytes(elements)
        if len(data) < settings.compress_bytes_min:
            return data, 0
        return compress_body(data, method, level=settings.compress_level)

    def time_out(self, send: PendingSend) -> None:
        """Fail a send that has no result in time."""
        if send.reply is not None and send.queue is not None:
            self._health.failed(send.queue.broker_name, now_s=asyncio.get_running_loop().time())
            text = (
                f"broker {send.queue.broker_name} did not answer a send to topic {send.topic} in time; the "
                "message may be stored. Send it again if a duplicate does no harm, or raise send_timeout_ms"
            )
        else:
            route = self._client.routes.known(send.topic)
            names = "none is known" if route is None else ", ".join(sorted(route.addresses))
            text = (
                f"no broker of topic {send.topic} was reachable in time ({names}); try {send.tries} of "
                f"{self._settings.tries_max}. Is the broker running, and does its advertised address "
                "(broker.advertised_host) lead to it from here?"
            )
        send.future.set_exception(RequestTimeoutError(text))

    def _write(
        self, send: PendingSend, connection: ClientConnection, queue: MessageQueue, address: str
    ) -> None:
        send.queue, send.address = queue, address
        # A try that was not answered may have been stored.
        send.is_repeat = send.is_repeat or send.tries > 0
        send.tries += 1
        send.sent_s = asyncio.get_running_loop().time()
        try:
            reply = connection.request_nowait(self.command(send, queue, address))
        except IotmqError as error:
            self._start_retries(send, error)
            return
        send.reply = reply
        reply.add_done_callback(lambda done: self._answered(send, done))

    def _answered(self, send: PendingSend, reply: asyncio.Future[Command]) -> None:
        send.reply = None
        if send.future.done():
            return
        failure = self._judge(send, reply)
        if failure is not None:
            self._start_retries(send, failure)

    def _judge(self, send: PendingSend, reply: asyncio.Future[Command]) -> IotmqError | None:
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
            ids = response.ext.get("msgId", "")
            try:
                queue_id = response.integer("queueId", queue.queue_id)
                queue_offset = response.integer("queueOffset", -1)
            except RequestError as unreadable:
                # It may be stored: nothing that another try would be right after.
                text = (
                    f"broker {queue.broker_name} took a message for {queue}, but its answer cannot be read: "
                    f"{unreadable}"
                )
                send.future.set_exception(BrokerError(ResponseCode.SYSTEM_ERROR, text))
                return None
            # Of a numbered request that was stored before only that is told.
            is_found = bool(send.mark) and not ids
            self._health.answered(queue.broker_name, took_s=now_s - send.sent_s, now_s=now_s)
            send.future.set_result(
                SendResult(
                    status,
                    queue if is_found else MessageQueue(send.topic, queue.broker_name, queue_id),
                    queue_offset=-1 if is_found else queue_offset,
                    count=send.count,
                    message_id=send.message_id,
                    joined_message_ids=ids,
                    recall_handle=response.ext.get("recallHandle", ""),
                )
            )
            return None
        text = _refusal_text(send.topic, queue, response)
        if response.ext.get(IS_MASTER_FIELD) == "false":
            # Nothing was stored, and who is master will tell itself: this is not one of the tries.
            send.tries -= 1
            self._health.failed(queue.broker_name, now_s=now_s)
            return NotMasterError(response.code, text)
        refusal = BrokerError(response.code, text)
        if response.code == ResponseCode.BATCH_OUT_OF_ORDER and send.numbers and send.numbers.restart():
            # The broker has lost or forgotten what came before; nothing of this is stored. Of a new batch it
            # cannot say so again, so this is not one of the tries.
            send.mark = send.numbers.mark(send.count)
            send.tries -= 1
            return refusal
        if response.code in _TRY_AGAIN:
            self._health.failed(queue.broker_name, now_s=now_s)
            return refusal
        send.future.set_exception(refusal)
        return None

    def _start_retries(self, send: PendingSend, failure: IotmqError | None) -> None:
        task = asyncio.ensure_future(self._retry(send, failure))
        self._retries.add(task)
        task.add_done_callback(self._retries.discard)

    async def _retry(self, send: PendingSend, failure: IotmqError | None) -> None:
        """Try a send again: find a route, make a connection, wait where needed."""
        try:
            await self._retry_until_done(send, failure)
        except IotmqError as error:
            if not send.future.done():
                send.future.set_exception(error)

    async def _retry_until_done(self, send: PendingSend, failure: IotmqError | None) -> None:
        rest = Backoff(min_s=_REST_S_MIN, max_s=_REST_S_MAX)
        while not send.future.done():
            refused_by = send.queue.broker_name if isinstance(failure, BrokerError) and send.queue else None
            if send.tries >= self._settings.tries_max:
                raise _all_tries_failed(send, failure)
            if isinstance(failure, BrokerError) and failure.code in _ROUTE_IS_STALE:
                await self._refresh(send.topic)
            route = await self.route(send.topic)
            queue = self.choose(send, route)
            if send.is_movable and not send.mark and queue not in route.writable:
                raise QueueGoneError(f"queue {queue} takes no messages any more")
            if queue.broker_name == refused_by:
                if isinstance(failure, BrokerError) and failure.code in _ROUTE_IS_STALE:
                    # The only broker there is has just said that it will not take it.
                    raise failure
                if not isinstance(failure, NotMasterError):
                    await self._client.masters.moved_within(rest.next_s())
                elif route.master(queue.broker_name) == send.address:
                    await self._client.masters.moved_within(_NOT_MASTER_S)
                    # The route may be another one now.
                    failure = None
                    continue
            if send.future.done():
                return
            address = route.master(queue.broker_name)
            connection = await self._connection(send, route, queue, rest)
            if connection is None or send.future.done():
                continue
            if send.is_timed and self._client.may_lack_timers(address or ""):
                try:
                    await self._client.check_timers(queue.broker_name, address or "")
                except ConnectionClosedError:
                    continue
                if send.future.done() or connection.is_closed:
                    continue
            if send.mark and queue.broker_name not in self._knowing:
                await self._check_knowing(connection, queue, send)
                continue
            if send.tries:
                self.retried_total += 1
            # Its answer comes back to `_answered`, which starts the next round if one is due.
            self._write(send, connection, queue, address or "")
            return

    def _has_to_ask(self, send: PendingSend, queue: MessageQueue, address: str) -> bool:
        """Return whether the broker may not know what this send needs."""
        if send.mark and queue.broker_name not in self._knowing:
            return True
        return send.is_timed and self._client.may_lack_timers(address)

    async def _check_knowing(
        self, connection: ClientConnection, queue: MessageQueue, send: PendingSend
    ) -> None:
        """Raise BrokerError when a broker does not know numbered batches: it would store repeats twice."""
        asked = Command.request(RequestCode.LAST_BATCH_NUMBER, {"topic": send.topic, "producer": self._group})
        try:
            answer = await connection.request(asked, self._settings.send_timeout_ms / 1000)
        except ConnectionClosedError as error:
            _log.debug("whether broker %s knows numbered batches: %s", queue.broker_name, error)
            return
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise BrokerError(
                answer.code,
                f"broker {queue.broker_name} does not know numbered batches: it is no iotmq, or an older "
                "one. Send to it without `idempotent`",
            )
        self._knowing.add(queue.broker_name)

    async def _connection(
        self, send: PendingSend, route: TopicRoute, queue: MessageQueue, rest: Backoff
    ) -> ClientConnection | None:
        """Connect to the queue's broker; None, after a pause, when that is not possible now.

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
            present = self._client.routes.known(send.topic)
            if present is not None and present.master(queue.broker_name) not in (None, address):
                # The master moved meanwhile.
                return None
            others = {other.broker_name for other in route.writable} - {queue.broker_name}
            is_pinned = bool(send.key) or send.fixed_queue is not None
            if is_pinned or all(self._health.is_avoided(name, now_s) for name in others):
                _log.debug("waiting for a broker of topic %s: %s", send.topic, error)
                pause_s = max(rest.next_s(), self._client.connections.rest_s(address or ""))
                if not await self._client.masters.moved_within(pause_s):
                    # The broker may have come back at another address.
                    await self._refresh(send.topic)
            return None

    async def _refresh(self, topic: str) -> None:
        """Refresh the route; the known one stays while no registry answers."""
        try:
            await self._client.routes.refresh(topic)
        except (RouteNotFoundError, BrokerError) as error:
            _log.debug("route of topic %s: %s", topic, error)


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


def _all_tries_failed(send: PendingSend, failure: IotmqError | None) -> IotmqError:
    if send.tries <= 1 and failure is not None:
        return failure
    error = SendFailedError(
        f"sending to topic {send.topic} failed {send.tries} times; the last time at broker "
        f"{send.queue.broker_name if send.queue else 'none'}: {failure}"
    )
    error.__cause__ = failure
    return error
