"""Collect single messages into batches, so that many sends share one request.

Messages with a key, and those for a queue that was asked for, wait in the lane of their queue, which has one
request under way at a time: so their order holds over all tries. Those without a key share a lane of the
topic, with as many requests under way as there are queues; each batch takes the next queue by turn.

Messages wait until the turn of the event loop ends, or for `linger_ms`; longer while their lane has requests
under way, and shorter when there are enough of them for a request.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable
from functools import partial
from typing import Final

from iotmq.client.sending.message_elements import split_element
from iotmq.client.sending.pending_send import PREPARED_FLAG, PendingSend
from iotmq.client.sending.queue_choice import QueueChoice, chosen_queue
from iotmq.client.sending.send_numbers import SendNumbers
from iotmq.client.sending.send_room import SendRoom
from iotmq.client.sending.send_tries import QueueGoneError, SendTries
from iotmq.client.sending.waiting_sends import (
    Lane,
    SendIntake,
    TopicLanes,
    WaitingSend,
    joined_elements,
    living,
    tell_failed,
    tell_stored,
)
from iotmq.client.transport.message import Message, SendResult
from iotmq.client.transport.routes import MessageQueue, TopicRoute
from iotmq.client.transport.settings import ProducerSettings
from iotmq.errors import BrokerError, IotmqError, RequestTimeoutError
from iotmq.message.message_ids import UniqueKeys
from iotmq.remoting.codes import RequestCode, ResponseCode

_ILLEGAL: Final = ResponseCode.MESSAGE_ILLEGAL


class SendLanes:
    """Starts requests for the messages that are sent.

    Unique keys are given to the messages, and `room` counts them until they have a request, or have failed
    without one. `start` gets a request, and since when its first message waits; `alone` the calls of `send`
    for messages that share none.
    """

    def __init__(
        self,
        tries: SendTries,
        settings: ProducerSettings,
        room: SendRoom,
        unique_keys: UniqueKeys,
        *,
        start: Callable[[PendingSend, float], None],
        alone: Callable[[Message, QueueChoice | None, int | None], asyncio.Future[SendResult]],
    ) -> None:
        self._tries = tries
        self._room = room
        self._start = start
        self._intake = SendIntake(
            room, unique_keys, settings, alone=alone, fresh=self._refresh, full=self._flush_topic
        )
        self.send: Final = self._intake.send
        """Let a message wait for its request, and return its future: (message, queue asked for, timeout)."""
        self.send_elements: Final = self._intake.send_elements
        """Let messages in batch encoding wait, and return one future: (queue, elements, count)."""
        self.failed_total = 0
        """Messages that have failed without a request, or have been cancelled before it."""
        self._count_max = settings.batch_records_max
        self._bytes_max = min(settings.batch_bytes_max, settings.body_bytes_max)
        self._linger_s = settings.linger_ms / 1000
        self._timeout_s = settings.send_timeout_ms / 1000
        self._fresh: list[TopicLanes] = []
        """Topics that got something since the last flush."""
        self._next_flush: asyncio.Handle | None = None
        # Each lane is a producer of its own to brokers, also those of one queue that come after each other.
        self._numbered_lanes = itertools.count() if settings.idempotent else None
        self._id = uuid.uuid4().hex
        self._finding: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Take messages from the running loop."""
        self._intake.start(asyncio.get_running_loop())

    def close(self) -> None:
        """Take no more messages that share requests: `alone` gets them."""
        self._intake.stop()

    def add_alone(self, send: PendingSend) -> None:
        """Let a message that goes alone wait for its turn at its queue, by its key or as it was asked for."""
        self._intake.add_alone(send)

    def flush(self) -> None:
        """End the lingering of everything that waits."""
        if self._next_flush is not None:
            self._next_flush.cancel()
            self._next_flush = None
        fresh, self._fresh = self._fresh, []
        for lanes in fresh:
            lanes.is_fresh = False
            self._flush_topic(lanes)
        self._intake.forget_keys()

    def stop(self) -> None:
        """Find no more routes; nothing waits any more."""
        for task in self._finding:
            task.cancel()

    # --- waiting ------------------------------------------------------------------------------------

    def _refresh(self, lanes: TopicLanes) -> None:
        """Note the first message of a topic since the last flush."""
        self._fresh.append(lanes)
        if self._next_flush is None:
            loop = asyncio.get_running_loop()
            self._intake.now_s = loop.time()
            if self._linger_s:
                self._next_flush = loop.call_later(self._linger_s, self.flush)
            else:
                self._next_flush = loop.call_soon(self.flush)

    def _flush_topic(self, lanes: TopicLanes) -> None:
        lanes.begin_flush()
        route = self._tries.known_route(lanes.topic)
        if lanes.any_queue.waiting:
            lanes.any_queue.is_due = True
            self._pump(lanes.topic, lanes.any_queue)
        if lanes.unsorted and not lanes.is_finding_route:
            if route is not None:
                self._sort(lanes, route)
            else:
                lanes.is_finding_route = True
                task = asyncio.ensure_future(self._find_route(lanes))
                self._finding.add(task)
                task.add_done_callback(self._finding.discard)

    async def _find_route(self, lanes: TopicLanes) -> None:
        """Sort the waiting messages once the route is known; they fail where there is none."""
        failure: IotmqError
        try:
            async with asyncio.timeout(self._timeout_s):
                route = await self._tries.route(lanes.topic)
            self._sort(lanes, route)
            return
        except TimeoutError:
            failure = RequestTimeoutError(f"no registry told the route of topic {lanes.topic} in time")
        except IotmqError as error:
            failure = error
        finally:
            lanes.is_finding_route = False
        for send in lanes.take_unsorted():
            self._give_up(send, failure)

    def _sort(self, lanes: TopicLanes, route: TopicRoute) -> None:
        """Put messages into the lanes of their queues."""
        writable = route.writable
        by_queue = lanes.by_queue
        if len(by_queue) > 2 * len(writable):
            # Queues come and go.
            for queue in [each for each, lane in by_queue.items() if not lane.waiting and not lane.in_flight]:
                del by_queue[queue]

        def lane_of_choice(send: WaitingSend) -> Lane | None:
            if send.choice is None:
                return self._lane(lanes, self._tries.next_by_turn(route))
            try:
                return self._lane(lanes, chosen_queue(send.choice, lanes.topic, writable))
            except Exception as error:
                # A function of the application may raise anything.
                self._give_up(send, error)
                return None

        filled = lanes.sort(len(writable), lambda number: self._lane(lanes, writable[number]), lane_of_choice)
        for lane in filled:
            lane.is_due = True
            self._pump(lanes.topic, lane)

    def _lane(self, lanes: TopicLanes, queue: MessageQueue) -> Lane:
        lane = lanes.by_queue.get(queue)
        if lane is None:
            numbers = None
            if self._numbered_lanes is not None:
                numbers = SendNumbers(f"{self._id}-{next(self._numbered_lanes)}")
            lane = lanes.by_queue[queue] = Lane(queue, numbers)
        return lane

    # --- under way ----------------------------------------------------------------------------------

    def _pump(self, topic: str, lane: Lane) -> None:
        """Start as many requests of a lane as may be under way."""
        in_flight_max = 1
        if lane.queue is None:
            route = self._tries.known_route(topic)
            in_flight_max = 1 if route is None else self._tries.requests_max(route)
        while lane.waiting and lane.in_flight < in_flight_max:
            is_whole = len(lane.waiting) >= self._count_max or lane.size >= self._bytes_max
            if not lane.is_due and not is_whole:
                break
            self._launch(topic, lane, lane.take(count_max=self._count_max, bytes_max=self._bytes_max))
        if not lane.waiting:
            lane.is_due = False

    def _launch(self, topic: str, lane: Lane, taken: list[WaitingSend]) -> None:
        """Start the request of some messages, without those that were given up meanwhile."""
        alone = taken[0].alone
        if alone is not None:
            if not alone.future.done():
                lane.in_flight += 1
                _number(alone, lane)
                alone.future.add_done_callback(partial(self._ended, topic, lane, alone))
                self._tries.begin(alone)
            return
        waiting, given_up = living(taken)
        for each in given_up:
            self._give_up(each, None)
        if not waiting:
            return
        send = self._request(topic, lane, waiting)
        _number(send, lane)
        lane.in_flight += 1
        # In this order: whoever awaits a message finds it counted.
        self._start(send, waiting[0].since_s)
        send.future.add_done_callback(partial(self._tell, topic, lane, waiting))
        send.future.add_done_callback(partial(self._ended, topic, lane, send))
        if len(waiting) == 1:
            waiting[0].future.add_done_callback(partial(_cancel_with, send.future))

    def _request(self, topic: str, lane: Lane, waiting: list[WaitingSend]) -> PendingSend:
        first = waiting[0]
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        if len(waiting) == 1 and first.count == 1:
            body, properties = split_element(first.element)
            return PendingSend(
                topic=topic,
                code=RequestCode.SEND_MESSAGE_V2,
                body=body,
                size=len(first.element),
                key=first.key,
                fixed_queue=None if first.choice is None else lane.queue,
                properties=properties.decode(),
                user_flag=int.from_bytes(first.element[12:16], signed=True),
                message_id=first.unique_key,
                timeout_s=self._timeout_s,
                future=future,
            )
        elements = first.element if len(waiting) == 1 else joined_elements(waiting)
        return PendingSend(
            topic=topic,
            code=RequestCode.SEND_BATCH_MESSAGE,
            body=elements,
            size=len(elements),
            count=sum(send.count for send in waiting),
            sends=len(waiting),
            fixed_queue=lane.queue,
            is_movable=any(send.choice is None for send in waiting),
            message_id=first.unique_key,
            timeout_s=self._timeout_s,
            future=future,
        )

    def _tell(
        self, topic: str, lane: Lane, waiting: list[WaitingSend], shared: asyncio.Future[SendResult]
    ) -> None:
        """End the futures of the messages of a request as that has ended."""
        if shared.cancelled():
            return
        error = shared.exception()
        if error is None:
            if len(waiting) > 1:
                tell_stored(waiting, shared.result())
            elif not waiting[0].future.done():
                waiting[0].future.set_result(shared.result())
        elif len(waiting) > 1 and isinstance(error, BrokerError) and error.code == _ILLEGAL:
            # Nothing is stored, and it may be one of them, or only that together they are too large.
            self._took_back(waiting)
            lane.put_back(waiting)
        elif isinstance(error, QueueGoneError):
            self._took_back(waiting)
            lanes = self._intake.topics[topic]
            # With all that wait behind them, so that they stay in order.
            lanes.put_back(waiting + lane.take_all())
            self._flush_topic(lanes)
        else:
            tell_failed(waiting, error)

    def _took_back(self, waiting: list[WaitingSend]) -> None:
        """Count messages whose request has failed as waiting again."""
        self._room.add(sum(len(send.element) for send in waiting), len(waiting))
        self.failed_total -= sum(send.count for send in waiting)

    def _ended(self, topic: str, lane: Lane, send: PendingSend, future: asyncio.Future[SendResult]) -> None:
        lane.in_flight -= 1
        if send.numbers is not None:
            if future.cancelled() or future.exception() is not None:
                send.numbers.begin_anew()
            else:
                send.numbers.stored()
        self._pump(topic, lane)

    def _give_up(self, send: WaitingSend, failure: Exception | None) -> None:
        """End a message that has no request: its future is cancelled already, or fails now."""
        if failure is not None and not send.future.done():
            send.future.set_exception(failure)
        if send.alone is None:
            self.failed_total += send.count
            self._room.remove(len(send.element))


def _number(send: PendingSend, lane: Lane) -> None:
    """Give a request the next number of its queue. Brokers do not look at those of prepared messages."""
    if lane.numbers is not None and not send.sys_flag & PREPARED_FLAG:
        # Another queue may have another broker, which counts for itself.
        send.fixed_queue = lane.queue
        send.numbers = lane.numbers
        send.mark = lane.numbers.mark(send.count)


def _cancel_with(shared: asyncio.Future[SendResult], future: asyncio.Future[SendResult]) -> None:
    """Give up a request whose only message was given up."""
    if future.cancelled():
        shared.cancel()
