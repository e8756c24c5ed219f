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

from iotmq.client.sending.message_elements import split_element, tell_results
from iotmq.client.sending.pending_send import PREPARED_FLAG, PendingSend, Waiting
from iotmq.client.sending.queue_choice import QueueChoice, chosen_queue
from iotmq.client.sending.send_numbers import SendNumbers
from iotmq.client.sending.send_tries import SendTries
from iotmq.client.transport.message import SendResult, check_topic
from iotmq.client.transport.routes import MessageQueue, TopicRoute, queue_of_key
from iotmq.client.transport.settings import ProducerSettings
from iotmq.errors import BrokerError, IotmqError, RequestTimeoutError
from iotmq.remoting.codes import RequestCode, ResponseCode

_ILLEGAL: Final = ResponseCode.MESSAGE_ILLEGAL
# Topics past this number are forgotten while nothing of them is under way.
_IDLE_TOPICS_MAX: Final = 1_024


class _Lane:
    """Messages that wait for one queue, or for any queue of a topic."""

    __slots__ = ("alone_count", "in_flight", "is_due", "numbers", "queue", "singly_count", "size", "waiting")

    def __init__(self, queue: MessageQueue | None, numbers: SendNumbers | None = None) -> None:
        self.queue = queue
        self.numbers = numbers
        self.waiting: list[Waiting] = []
        self.size = 0
        """Bytes of the elements in `waiting`."""
        self.alone_count = 0
        """Messages in `waiting` that go alone."""
        self.singly_count = 0
        """Messages at the front of `waiting` whose shared request was refused: they go one by one."""
        self.in_flight = 0
        """Requests under way."""
        self.is_due = False
        """Those that wait have lingered long enough; until all of it is under way."""

    def put(self, entry: Waiting) -> None:
        """Add a message at the end."""
        self.waiting.append(entry)
        if isinstance(entry[0], PendingSend):
            self.alone_count += 1
        else:
            self.size += len(entry[0])

    def put_back(self, taken: list[Waiting]) -> None:
        """Put messages in front again, to go one by one."""
        self.waiting = taken + self.waiting
        self.size += sum(len(entry[0]) for entry in taken if isinstance(entry[0], bytes))
        self.singly_count += len(taken)
        self.is_due = True

    def take(self, *, count_max: int, bytes_max: int) -> list[Waiting]:
        """Take what the next request has: some messages from the front, or one that goes alone."""
        waiting = self.waiting
        if self.singly_count:
            self.singly_count -= 1
            count_max = 1
        elif not self.alone_count and self.size <= bytes_max and len(waiting) <= count_max:
            self.waiting, self.size = [], 0
            return waiting
        count = size = 0
        for entry in waiting:
            element = entry[0]
            if isinstance(element, PendingSend):
                if not count:
                    self.alone_count -= 1
                    count = 1
                break
            if count and (size + len(element) > bytes_max or count == count_max):
                break
            count += 1
            size += len(element)
        self.size -= size
        self.waiting = waiting[count:]
        return waiting[:count]


class _TopicLanes:
    """All lanes of one topic."""

    __slots__ = ("any_queue", "by_queue", "count", "is_finding_route", "is_fresh", "size", "unsorted")

    def __init__(self) -> None:
        self.any_queue = _Lane(None)
        self.by_queue: dict[MessageQueue, _Lane] = {}
        self.unsorted: list[Waiting] = []
        """Messages for a queue of their own that have no lane yet."""
        self.count = 0
        """Messages since the last flush, `size` their bytes."""
        self.size = 0
        self.is_fresh = False
        """Something came since the last flush."""
        self.is_finding_route = False

    @property
    def is_idle(self) -> bool:
        return not (
            self.is_fresh
            or self.unsorted
            or any(lane.waiting or lane.in_flight for lane in (self.any_queue, *self.by_queue.values()))
        )


class SendLanes:
    """Starts requests for the messages that are added.

    `start` gets a request, and since when its first message waits; `gave_up` the bytes of a message that has
    ended without one; `took_back` how many messages of a request that has failed wait again, and their bytes.
    """

    def __init__(
        self,
        tries: SendTries,
        settings: ProducerSettings,
        *,
        start: Callable[[PendingSend, float], None],
        gave_up: Callable[[int], None],
        took_back: Callable[[int, int], None],
        flushed: Callable[[], None],
    ) -> None:
        self._tries = tries
        self._start = start
        self._gave_up = gave_up
        self._took_back = took_back
        self._flushed = flushed
        self._count_max = settings.batch_records_max
        self._bytes_max = min(settings.batch_bytes_max, settings.body_bytes_max)
        self._linger_s = settings.linger_ms / 1000
        self._timeout_s = settings.send_timeout_ms / 1000
        self._topics: dict[str, _TopicLanes] = {}
        self._fresh: list[tuple[str, _TopicLanes]] = []
        """Topics that got something since the last flush."""
        self._next_flush: asyncio.Handle | None = None
        self._now_s = 0.0
        """Loop time, read once between two flushes."""
        # Each lane is a producer of its own to brokers, also those of one queue that come after each other.
        self._numbered_lanes = itertools.count() if settings.idempotent else None
        self._id = uuid.uuid4().hex
        self._finding: set[asyncio.Task[None]] = set()

    def add(
        self,
        topic: str,
        queue: QueueChoice | None,
        key: str,
        element: bytes,
        future: asyncio.Future[SendResult],
        unique_key: str,
    ) -> None:
        """Let a message wait for its request. MessageRefusedError for a topic that has no valid name."""
        lanes = self._topics.get(topic)
        if lanes is None:
            lanes = self._new_topic(topic)
        if not lanes.is_fresh:
            self._refresh(topic, lanes)
        since_s = asyncio.get_running_loop().time() if self._linger_s else self._now_s
        size = len(element)
        if key or queue is not None or self._numbered_lanes is not None:
            lanes.unsorted.append((element, future, unique_key, key, queue, since_s))
        else:
            lane = lanes.any_queue
            lane.waiting.append((element, future, unique_key, key, queue, since_s))
            lane.size += size
        lanes.count += 1
        lanes.size += size
        if lanes.count >= self._count_max or lanes.size >= self._bytes_max:
            self._flush_topic(topic, lanes)

    def add_alone(self, send: PendingSend) -> None:
        """Let a message that goes alone wait for its turn at its queue, by its key or as it was asked for."""
        lanes = self._topics.get(send.topic) or self._new_topic(send.topic)
        if not lanes.is_fresh:
            self._refresh(send.topic, lanes)
        lanes.unsorted.append((send, send.future, send.message_id, send.key, send.fixed_queue, self._now_s))

    def flush(self) -> None:
        """End the lingering of everything that waits."""
        if self._next_flush is not None:
            self._next_flush.cancel()
            self._next_flush = None
        fresh, self._fresh = self._fresh, []
        for topic, lanes in fresh:
            lanes.is_fresh = False
            self._flush_topic(topic, lanes)
        self._flushed()

    def stop(self) -> None:
        """Find no more routes; nothing waits any more."""
        for task in self._finding:
            task.cancel()

    # --- waiting ------------------------------------------------------------------------------------

    def _new_topic(self, topic: str) -> _TopicLanes:
        check_topic(topic)
        if len(self._topics) >= _IDLE_TOPICS_MAX:
            self._topics = {name: lanes for name, lanes in self._topics.items() if not lanes.is_idle}
        lanes = self._topics[topic] = _TopicLanes()
        return lanes

    def _refresh(self, topic: str, lanes: _TopicLanes) -> None:
        """Note the first message since the last flush."""
        lanes.is_fresh = True
        self._fresh.append((topic, lanes))
        if self._next_flush is None:
            loop = asyncio.get_running_loop()
            self._now_s = loop.time()
            if self._linger_s:
                self._next_flush = loop.call_later(self._linger_s, self.flush)
            else:
                self._next_flush = loop.call_soon(self.flush)

    def _flush_topic(self, topic: str, lanes: _TopicLanes) -> None:
        lanes.count = lanes.size = 0
        route = self._tries.known_route(topic)
        if lanes.any_queue.waiting:
            lanes.any_queue.is_due = True
            self._pump(topic, lanes.any_queue)
        if lanes.unsorted and not lanes.is_finding_route:
            if route is not None:
                self._sort(topic, lanes, route)
            else:
                lanes.is_finding_route = True
                task = asyncio.ensure_future(self._find_route(topic, lanes))
                self._finding.add(task)
                task.add_done_callback(self._finding.discard)

    async def _find_route(self, topic: str, lanes: _TopicLanes) -> None:
        """Sort the waiting messages once the route is known; they fail where there is none."""
        failure: IotmqError
        try:
            async with asyncio.timeout(self._timeout_s):
                route = await self._tries.route(topic)
            self._sort(topic, lanes, route)
            return
        except TimeoutError:
            failure = RequestTimeoutError(f"no registry told the route of topic {topic} in time")
        except IotmqError as error:
            failure = error
        finally:
            lanes.is_finding_route = False
        unsorted, lanes.unsorted = lanes.unsorted, []
        for entry in unsorted:
            self._give_up(entry, failure)

    def _sort(self, topic: str, lanes: _TopicLanes, route: TopicRoute) -> None:
        """Put messages into the lanes of their queues."""
        unsorted, lanes.unsorted = lanes.unsorted, []
        writable = route.writable
        by_queue = lanes.by_queue
        if len(by_queue) > 2 * len(writable):
            # Queues come and go.
            for queue in [each for each, lane in by_queue.items() if not lane.waiting and not lane.in_flight]:
                del by_queue[queue]
        filled: dict[MessageQueue, _Lane] = {}
        by_turn: MessageQueue | None = None
        by_number: list[_Lane | None] = [None] * len(writable)
        for entry in unsorted:
            lane: _Lane | None
            choice = entry[4]
            if choice is not None:
                try:
                    queue = chosen_queue(choice, topic, writable)
                except Exception as error:
                    # A function of the application may raise anything.
                    self._give_up(entry, error)
                    continue
                if isinstance(entry[0], PendingSend):
                    entry[0].fixed_queue = queue
                lane = filled[queue] = self._lane(lanes, queue)
            elif not entry[3]:
                by_turn = by_turn or self._tries.next_by_turn(route)
                if isinstance(entry[0], PendingSend):
                    entry[0].fixed_queue = by_turn
                lane = filled[by_turn] = self._lane(lanes, by_turn)
            else:
                number = queue_of_key(entry[3], len(writable))
                lane = by_number[number]
                if lane is None:
                    lane = by_number[number] = self._lane(lanes, writable[number])
                    filled[writable[number]] = lane
            lane.put(entry)
        for lane in filled.values():
            lane.is_due = True
            self._pump(topic, lane)

    def _lane(self, lanes: _TopicLanes, queue: MessageQueue) -> _Lane:
        lane = lanes.by_queue.get(queue)
        if lane is None:
            numbers = None
            if self._numbered_lanes is not None:
                numbers = SendNumbers(f"{self._id}-{next(self._numbered_lanes)}")
            lane = lanes.by_queue[queue] = _Lane(queue, numbers)
        return lane

    # --- under way ----------------------------------------------------------------------------------

    def _pump(self, topic: str, lane: _Lane) -> None:
        """Start as many requests of a lane as may be under way."""
        in_flight_max = 1
        if lane.queue is None:
            route = self._tries.known_route(topic)
            in_flight_max = 1 if route is None else len(route.writable)
        while lane.waiting and lane.in_flight < in_flight_max:
            is_whole = len(lane.waiting) >= self._count_max or lane.size >= self._bytes_max
            if not lane.is_due and not is_whole:
                break
            self._launch(topic, lane, lane.take(count_max=self._count_max, bytes_max=self._bytes_max))
        if not lane.waiting:
            lane.is_due = False

    def _launch(self, topic: str, lane: _Lane, taken: list[Waiting]) -> None:
        """Start the request of some messages, without those that were given up meanwhile."""
        alone = taken[0][0]
        if isinstance(alone, PendingSend):
            if not alone.future.done():
                lane.in_flight += 1
                _number(alone, lane)
                alone.future.add_done_callback(partial(self._ended, topic, lane, alone))
                self._tries.begin(alone)
            return
        waiting = []
        for entry in taken:
            if entry[1].done():
                self._give_up(entry, None)
            else:
                waiting.append(entry)
        if not waiting:
            return
        send = self._request(topic, lane, waiting)
        _number(send, lane)
        lane.in_flight += 1
        # In this order: whoever awaits a message finds it counted.
        self._start(send, waiting[0][5])
        send.future.add_done_callback(partial(self._tell, lane, waiting))
        send.future.add_done_callback(partial(self._ended, topic, lane, send))
        if len(waiting) == 1:
            waiting[0][1].add_done_callback(partial(_cancel_with, send.future))

    def _request(self, topic: str, lane: _Lane, waiting: list[Waiting]) -> PendingSend:
        element, _, unique_key, key, choice, _ = waiting[0]
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        if len(waiting) == 1:
            assert isinstance(element, bytes)
            body, properties = split_element(element)
            return PendingSend(
                topic=topic,
                code=RequestCode.SEND_MESSAGE_V2,
                body=body,
                size=len(element),
                key=key,
                fixed_queue=None if choice is None else lane.queue,
                properties=properties.decode(),
                user_flag=int.from_bytes(element[12:16], signed=True),
                message_id=unique_key,
                timeout_s=self._timeout_s,
                future=future,
            )
        elements = b"".join([entry[0] for entry in waiting])  # type: ignore[misc]  # none goes alone
        return PendingSend(
            topic=topic,
            code=RequestCode.SEND_BATCH_MESSAGE,
            body=elements,
            size=len(elements),
            count=len(waiting),
            sends=len(waiting),
            fixed_queue=lane.queue,
            message_id=unique_key,
            timeout_s=self._timeout_s,
            future=future,
        )

    def _tell(self, lane: _Lane, waiting: list[Waiting], shared: asyncio.Future[SendResult]) -> None:
        """End the futures of the messages of a request as that has ended."""
        if shared.cancelled():
            return
        error = shared.exception()
        if error is None:
            if len(waiting) > 1:
                tell_results(waiting, shared.result())
            elif not waiting[0][1].done():
                waiting[0][1].set_result(shared.result())
        elif len(waiting) > 1 and isinstance(error, BrokerError) and error.code == _ILLEGAL:
            # Nothing is stored, and it may be one of them, or only that together they are too large.
            lane.put_back(waiting)
            self._took_back(len(waiting), sum(len(e[0]) for e in waiting if isinstance(e[0], bytes)))
        else:
            for _, future, *_ in waiting:
                if not future.done():
                    future.set_exception(error)

    def _ended(self, topic: str, lane: _Lane, send: PendingSend, future: asyncio.Future[SendResult]) -> None:
        lane.in_flight -= 1
        if send.numbers is not None:
            if future.cancelled() or future.exception() is not None:
                send.numbers.begin_anew()
            else:
                send.numbers.stored()
        self._pump(topic, lane)

    def _give_up(self, entry: Waiting, failure: Exception | None) -> None:
        """End a message that has no request: its future is cancelled already, or fails now."""
        element, future = entry[:2]
        if failure is not None and not future.done():
            future.set_exception(failure)
        if not isinstance(element, PendingSend):
            self._gave_up(len(element))


def _number(send: PendingSend, lane: _Lane) -> None:
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
