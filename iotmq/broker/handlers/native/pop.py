"""Consumption by message: popping and peeking, waiting for something to pop (wire document 14.1).

A message that was popped is nobody else's until its time is over. It comes again from its own queue, with the
number of times in its record, so there are no retry topics. Answers leave when the log has what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, cast

import msgspec

from iotmq import limits
from iotmq.broker.filters.consumer_filters import ConsumerFilters
from iotmq.broker.filters.subscription import TAG_EXPRESSION
from iotmq.broker.filters.tags import parse_tags
from iotmq.broker.handlers.native.loaded import answer_loaded
from iotmq.broker.handlers.native.parked_pulls import ParkedPulls, tick_of
from iotmq.broker.parts import BrokerParts
from iotmq.broker.pop.attempts import Attempt, PopAttempts
from iotmq.broker.pop.pop_queue import BY_KEY, BY_QUEUE, NO_ORDER, PopQueue
from iotmq.broker.pop.pops import Pops
from iotmq.broker.pop.states import Place
from iotmq.broker.replies.request_table import Handler
from iotmq.broker.tables.subscription_groups import known_group
from iotmq.broker.tables.topics import RETRY_PREFIX, TopicConfig, known_topic
from iotmq.broker.writing.message_writer import RefusedBatch
from iotmq.errors import RequestError
from iotmq.event_loop import DeadlineTimer, LoopSlice, NextTurn
from iotmq.message.records.record_filter import RecordFilter
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.store.log.queue import Queue
from iotmq.store.queues.residency import ColdRead
from iotmq.telemetry.latencies import now_us

_ANY_QUEUE: Final = -1
# A pop waits for the disk so often before it reads whatever is there, as pulls do.
_COLD_LOADS_MAX: Final = 4
# Reads of one queue for one pop: a filter may pass over hundreds of messages in each.
_READS_MAX: Final = 8
# In the order of keys, messages of keys that somebody has are read and left out.
_KEYED_READ_RECORDS: Final = 256
_FROM_END: Final = 1


class PopWait:
    """Some queues of a topic that pops of a group wait for."""

    __slots__ = ("_on_idle", "_watched", "key", "queues")

    def __init__(
        self, key: tuple[str, str, int], queues: list[Queue], on_idle: Callable[[PopWait], None]
    ) -> None:
        """`on_idle` is called when none waits any more."""
        self.key = key
        self.queues = queues
        self._on_idle = on_idle
        self._watched = 0

    @property
    def watched(self) -> int:
        return self._watched

    @watched.setter
    def watched(self, count: int) -> None:
        for queue in self.queues:
            queue.watched += count - self._watched
        self._watched = count
        if not count:
            self._on_idle(self)


class Pop(msgspec.Struct, eq=False):
    """One pop, or a question whether there is something to pop, that may wait."""

    connection: ServerConnection
    request: Command
    queue: PopWait
    records_max: int
    """0: only a question."""
    invisible_ms: int
    tags: frozenset[int] | RecordFilter | None
    order: int
    from_end: bool
    deadline_s: float | None
    """Until when it would wait; None: not at all."""
    attempt: Attempt | None
    """Set when it may be made again."""
    again: set[Place] = set()
    """Queues that this attempt was given messages of before."""

    @property
    def group(self) -> str:
        return self.queue.key[0]

    @property
    def tick(self) -> int:
        """Return the tick of the deadline's table at which it is answered at the latest."""
        assert self.deadline_s is not None
        return tick_of(self.deadline_s)


class _Taken(msgspec.Struct):
    """All that one pop has got so far."""

    pop_ms: int
    due_ms: int
    states: list[tuple[Place, PopQueue, bytes]] = []
    """Queues with the offsets that are held of each, as `hand_out` returns them."""
    views: list[memoryview] = []
    starts: list[str] = []
    offsets: list[str] = []
    count: int = 0
    size_bytes: int = 0
    cold: ColdRead | None = None
    """A read of the disk that has to come first."""
    has_more: bool = False
    """A filter has passed over all that was read, and there is more."""


class PopHandler:
    """Answers pops, and parks those that find nothing."""

    def __init__(self, parts: BrokerParts, pops: Pops, filters: ConsumerFilters) -> None:
        self._parts = parts
        self._store = parts.store
        self._topics = parts.topics
        self._clock = pops.clock
        self._statistics = parts.statistics
        self._cold_reads = parts.cold_reads
        self._pops = pops
        self._filters = filters
        self._attempts = PopAttempts(pops)
        self._parked: ParkedPulls[Pop] = ParkedPulls(lambda: parts.settings.held_pulls_max)
        self._waits: dict[tuple[str, str, int], PopWait] = {}
        # Those of a topic, to be woken.
        self._by_topic: dict[str, set[PopWait]] = {}
        self._woken: dict[PopWait, None] = {}
        self._next_turn = NextTurn(self._look_at_woken)
        self._timer = DeadlineTimer(self._clock, self.expire)
        # Which queue of a topic the next pop of any begins with.
        self._turn = 0
        self.popped_total = 0
        self.repeated_total = 0
        pops.add_listener(lambda place, queue: self._wake(place.topic, place.queue_id, place.group))
        parts.topics.add_listener(self._topic_changed)
        parts.subscription_groups.add_listener(self._group_changed)

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.POP_MESSAGE: self._pop,
            RequestCode.NOTIFICATION: self._pop,
            RequestCode.PEEK_MESSAGE: self._peek,
            RequestCode.POLLING_INFO: self._polling_info,
        }

    def connection_lost(self, connection: ServerConnection) -> None:
        self._parked.drop_connection(connection)

    def stop(self) -> None:
        self._timer.cancel()
        self._woken.clear()
        self._attempts.clear()
        if self._store.is_replicated:
            # Another member will be master, and its clients are not to wait for these.
            for parked in self._parked.take_all():
                parked.connection.reply(self._nothing(parked))

    def wake(self, queues: Iterable[Queue]) -> None:
        """Look again for what waits for queues that have new entries."""
        for queue in queues:
            self._wake(queue.topic, queue.queue_id)

    def wake_after(self, place: Place, state: PopQueue) -> None:
        """Look again for what waits for a queue of which something is done: its order, or room."""
        if place.topic not in self._by_topic:
            return
        stored = self._store.find_queue(place.topic, place.queue_id)
        if state.ready_count or (stored is not None and state.next_offset < stored.max_offset):
            self._wake(place.topic, place.queue_id, place.group)

    def expire(self) -> None:
        """Answer the pops that waited as long as they wanted to: very many over several turns."""
        overdue = self._parked.take_overdue(self._clock.monotonic_s())
        turn = LoopSlice()
        while turn.take() and (parked := next(overdue, None)) is not None:
            parked.connection.reply(self._nothing(parked))
        self._timer.arm(self._parked.next_deadline_s)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_popped_records_total", "Records popped, each time.", self.popped_total),
            ("iotmq_broker_held_pops", "Pops parked now.", len(self._parked)),
            (
                "iotmq_broker_unheld_pops_total",
                "Pops not parked for want of room.",
                self._parked.refused_count,
            ),
        )

    # Requests

    def _pop(self, connection: ServerConnection, request: Command) -> Command | None:
        if request.is_oneway:
            # Nobody would have what it takes.
            return None
        group = request.text("consumerGroup")
        queue_id = request.integer("queueId", minimum=_ANY_QUEUE)
        topic = self._check(group, request.text("topic"), queue_id)
        poll_ms = request.integer("pollTime", 0)
        is_pop = request.code == RequestCode.POP_MESSAGE
        pop = Pop(
            connection,
            request,
            self._wait_of(group, topic, queue_id),
            records_max=min(
                request.integer("maxMsgNums", minimum=1) if is_pop else 0, limits.PULL_RECORDS_DEFAULT_MAX
            ),
            invisible_ms=invisible_ms(request) if is_pop else 0,
            tags=self._filter(request) if is_pop else None,
            order=(
                BY_KEY
                if request.boolean("isKeyOrdered")
                else BY_QUEUE
                if request.boolean("order")
                else NO_ORDER
            ),
            from_end=request.integer("initMode", 0) == _FROM_END,
            deadline_s=(
                self._clock.monotonic_s() + min(poll_ms, limits.HOLD_MS_MAX) / 1000 if poll_ms > 0 else None
            ),
            attempt=_attempt_of(request, group, topic.topic_name, queue_id) if is_pop else None,
        )
        if pop.attempt is not None:
            pop.again = self._attempts.take_back(pop.attempt)
        return self._look(pop, loads_left=_COLD_LOADS_MAX)

    def _peek(self, connection: ServerConnection, request: Command) -> Command | None:
        """Answer with what would be popped next, and hold nothing."""
        return self._look_only(connection, request, loads_left=_COLD_LOADS_MAX)

    def _look_only(
        self, connection: ServerConnection, request: Command, *, loads_left: int
    ) -> Command | None:
        group = request.text("consumerGroup")
        queue_id = request.integer("queueId", minimum=_ANY_QUEUE)
        topic = self._check(group, request.text("topic"), queue_id)
        left = min(request.integer("maxMsgNums", minimum=1), limits.PULL_RECORDS_DEFAULT_MAX)
        views: list[memoryview] = []
        bytes_left = limits.PULL_BYTES_DEFAULT_MAX
        rest = 0
        for stored in self._wait_of(group, topic, queue_id).queues:
            place = Place(group, topic.topic_name, stored.queue_id)
            state = self._pops.find(place)
            run = None if state is None else state.ready_run()
            offset = self._parts.offsets.find(*place) if state is None else state.next_offset
            offset = min(max(stored.min_offset, offset or 0), stored.max_offset)
            rest += stored.max_offset - offset
            for start, count in ((run[0], run[1] - run[0]) if run else (0, 0), (offset, left)):
                count = min(count, left)
                if count <= 0 or bytes_left <= 0 or start >= stored.max_offset:
                    continue
                plan = self._store.plan_read(stored, start, records_max=count, bytes_max=bytes_left)
                if plan is not None and loads_left:
                    self._cold_reads.start(
                        plan,
                        lambda error: answer_loaded(
                            connection,
                            request,
                            error,
                            lambda: self._look_only(connection, request, loads_left=loads_left - 1),
                        ),
                    )
                    return None
                read = self._store.read(stored, start, records_max=count, bytes_max=bytes_left)
                left -= read.count
                bytes_left -= read.size_bytes
                views += read.views
        ext = self._ext(self._clock.now_ms(), 0, rest)
        if not views:
            return request.reply(ResponseCode.PULL_NOT_FOUND, remark="nothing to pop", ext=ext)
        return request.reply(ResponseCode.SUCCESS, ext=ext, body=cast("list[bytes | memoryview]", views))

    def _polling_info(self, connection: ServerConnection, request: Command) -> Command:
        key = request.text("consumerGroup"), request.text("topic"), request.integer("queueId")
        wait = self._waits.get(key)
        count = 0 if wait is None else len(self._parked.waiting_for(wait))
        return request.reply(ResponseCode.SUCCESS, ext={"pollingNum": str(count)})

    def _check(self, group_name: str, topic_name: str, queue_id: int) -> TopicConfig:
        """Check a pop in the order of pulls."""
        if not self._parts.settings.is_readable:
            raise RequestError(ResponseCode.NO_PERMISSION, "this broker does not answer pops")
        group = known_group(self._parts.subscription_groups, group_name, "consumerGroup")
        if not group.consume_enable:
            raise RequestError(ResponseCode.NO_PERMISSION, f"group {group_name} may not consume")
        topic = known_topic(self._topics, topic_name)
        if not topic.is_readable:
            raise RequestError(ResponseCode.NO_PERMISSION, f"topic {topic_name} may not be read")
        if queue_id >= topic.read_queue_nums:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"the field queueId is {queue_id}, "
                f"but topic {topic_name} has {topic.read_queue_nums} queues to read",
            )
        return topic

    def _filter(self, request: Command) -> frozenset[int] | RecordFilter | None:
        expression = request.ext.get("exp", "")
        expression_type = request.ext.get("expType")
        if expression_type and expression_type != TAG_EXPRESSION:
            return self._filters.of_request(expression_type, expression)
        return parse_tags(expression)

    def _wait_of(self, group: str, topic: TopicConfig, queue_id: int) -> PopWait:
        key = group, topic.topic_name, queue_id
        wait = self._waits.get(key)
        if wait is None:
            queue_ids = range(topic.read_queue_nums) if queue_id == _ANY_QUEUE else [queue_id]
            wait = PopWait(
                key, [self._store.queue(topic.topic_name, each) for each in queue_ids], self._forget
            )
        return wait

    # Looking

    def _look(self, pop: Pop, *, loads_left: int) -> Command | None:
        """Answer a pop, park it, or have what it needs brought into memory first: then None."""
        begun_us = now_us()
        if not pop.records_max:
            return self._answer_question(pop)
        taken = self._take(pop, may_load=loads_left > 0)
        if taken.count:
            self._answer(pop, taken, begun_us)
            return None
        if taken.cold is not None:
            self._cold_reads.start(
                taken.cold, lambda error: self._loaded(pop, error, loads_left=loads_left - 1)
            )
            return None
        return self._nothing(pop) if taken.has_more else self._park(pop)

    def _loaded(self, pop: Pop, error: OSError | None, *, loads_left: int) -> None:
        """Go on with a pop whose pages were read from the disk, or could not be."""

        def look() -> Command | None:
            # Topic and group may be others by now.
            group, topic_name, queue_id = pop.queue.key
            pop.queue = self._wait_of(group, self._check(group, topic_name, queue_id), queue_id)
            return self._look(pop, loads_left=loads_left)

        answer_loaded(pop.connection, pop.request, error, look)

    def _states_of(self, pop: Pop, now_ms: int) -> list[tuple[Place, PopQueue, Queue]]:
        """Return the queues of a pop that may have something; each pop begins with another one."""
        queues = pop.queue.queues
        self._turn += 1
        first = self._turn % len(queues)
        found = []
        for stored in (*queues[first:], *queues[:first]):
            place = Place(pop.group, stored.topic, stored.queue_id)
            state = self._pops.open(place, stored, from_end=pop.from_end)
            self._pops.expire_queue(place, state, now_ms)
            if state.may_give(pop.order) and (
                state.ready_count
                or (
                    state.next_offset < stored.max_offset
                    and state.undone_count < limits.POP_IN_FLIGHT_MAX
                    and state.may_give_new(pop.order)
                )
            ):
                found.append((place, state, stored))
        if pop.again:
            found.sort(key=lambda each: each[0] not in pop.again)
        return found

    def _take(self, pop: Pop, *, may_load: bool) -> _Taken:
        now_ms = self._clock.now_ms()
        found = self._states_of(pop, now_ms)
        pop_ms = max([now_ms, *(state.pop_floor_ms for _, state, _ in found)])
        taken = _Taken(pop_ms, pop_ms + pop.invisible_ms)
        for place, state, stored in found:
            if taken.count >= pop.records_max or taken.size_bytes >= limits.PULL_BYTES_DEFAULT_MAX:
                break
            self._take_from(pop, taken, place, state, stored, may_load=may_load)
            if taken.cold is not None:
                break
        return taken

    def _take_from(
        self, pop: Pop, taken: _Taken, place: Place, state: PopQueue, stored: Queue, *, may_load: bool
    ) -> None:
        """Hold messages of one queue: those that come again first, then new ones."""
        offsets: list[bytes] = []
        for _ in range(_READS_MAX):
            left = pop.records_max - taken.count
            bytes_max = limits.PULL_BYTES_DEFAULT_MAX - taken.size_bytes
            run = state.ready_run()
            tags: frozenset[int] | RecordFilter | None
            if run is not None:
                # They passed the filter when they came first.
                start, end = run
                room = min(left, end - start)
                tags, entries_max = None, end - start
            elif self._pops.has_room and state.may_give_new(pop.order):
                start, end = state.next_offset, stored.max_offset
                room = min(
                    _KEYED_READ_RECORDS if pop.order == BY_KEY else left,
                    limits.POP_IN_FLIGHT_MAX - state.undone_count,
                )
                tags, entries_max = pop.tags, 0
            else:
                break
            if left <= 0 or room <= 0 or bytes_max <= 0 or start >= end:
                break
            plan = self._store.plan_read(
                stored, start, records_max=room, bytes_max=bytes_max, tags=tags, entries_max=entries_max
            )
            if plan is not None and (may_load or taken.count or offsets):
                if not taken.count and not offsets:
                    taken.cold = plan
                break
            read = self._store.read(
                stored, start, records_max=room, bytes_max=bytes_max, tags=tags, entries_max=entries_max
            )
            next_offset = min(max(read.next_offset, start), end) if run else max(read.next_offset, start)
            if next_offset == start:
                break
            views, held, count = state.hand_out(
                read.views,
                start,
                next_offset,
                pop_ms=taken.pop_ms,
                due_ms=taken.due_ms,
                order=pop.order,
                count_max=left,
            )
            self._pops.note(place, state)
            taken.views += views
            taken.count += count
            taken.size_bytes += sum(map(len, views))
            if count:
                offsets.append(held)
        else:
            taken.has_more = True
        if offsets:
            flag = "1" if place.topic.startswith(RETRY_PREFIX) else "0"
            held_offsets = b",".join(offsets)
            text = held_offsets.decode()
            taken.states.append((place, state, held_offsets))
            taken.starts.append(f"{flag} {place.queue_id} {text.partition(',')[0]}")
            taken.offsets.append(f"{flag} {place.queue_id} {text}")

    def _answer(self, pop: Pop, taken: _Taken, begun_us: int) -> None:
        """Answer with messages once it is stored that they are held."""
        rest = sum(
            max(0, stored.max_offset - state.next_offset)
            for stored in pop.queue.queues
            if (state := self._pops.find(Place(pop.group, stored.topic, stored.queue_id))) is not None
        )
        request = pop.request
        response = request.reply(
            ResponseCode.SUCCESS,
            ext=self._ext(taken.pop_ms, pop.invisible_ms, rest)
            | {"startOffsetInfo": ";".join(taken.starts), "msgOffsetInfo": ";".join(taken.offsets)},
            body=cast("list[bytes | memoryview]", taken.views),
        )

        def stored_or_not(refusal: RefusedBatch | None) -> None:
            if refusal is not None:
                for place, state, held_offsets in taken.states:
                    state.give_back(held_offsets, taken.pop_ms)
                    self._pops.note(place, state)
                pop.connection.reply(request.reply(refusal.code, remark=refusal.remark))
                return
            self.popped_total += taken.count
            if pop.attempt is not None:
                self._attempts.note(pop.attempt, taken.states, pop_ms=taken.pop_ms, due_ms=taken.due_ms)
            topic, queue_id = pop.queue.key[1], taken.states[0][0].queue_id
            self._statistics.counters.count_get(
                topic,
                queue_id,
                pop.group,
                taken.count,
                taken.size_bytes,
                self._statistics.get_latencies.end(begun_us),
                False,
            )
            pop.connection.reply(response)

        self._pops.when_stored(stored_or_not)

    def _answer_question(self, pop: Pop) -> Command | None:
        if self._states_of(pop, self._clock.now_ms()):
            return pop.request.reply(ResponseCode.SUCCESS, ext={"hasMsg": "true", "pollingFull": "false"})
        return self._park(pop)

    def _park(self, pop: Pop) -> Command | None:
        """Have a pop wait; the answer when it does not want to, or there is no room."""
        if pop.deadline_s is None:
            return self._nothing(pop)
        wait = pop.queue = self._waits.get(pop.queue.key, pop.queue)
        if not self._parked.park(pop):
            return self._nothing(pop, is_full=True)
        self._waits[wait.key] = wait
        self._by_topic.setdefault(wait.key[1], set()).add(wait)
        # What waits costs little, whatever came with it.
        pop.request.body = b""
        pop.request.ext = {}
        self._timer.arm(self._parked.next_deadline_s)
        return None

    def _nothing(self, pop: Pop, *, is_full: bool = False) -> Command:
        if not pop.records_max:
            ext = {"hasMsg": "false", "pollingFull": "true" if is_full else "false"}
            return pop.request.reply(ResponseCode.SUCCESS, ext=ext)
        return pop.request.reply(
            ResponseCode.POLLING_FULL if is_full else ResponseCode.POLLING_TIMEOUT,
            remark="too many pops wait already" if is_full else "nothing to pop",
            ext=self._ext(self._clock.now_ms(), pop.invisible_ms, 0),
        )

    def _ext(self, pop_ms: int, invisible_ms_: int, rest: int) -> dict[str, str]:
        return {
            "popTime": str(pop_ms),
            "invisibleTime": str(invisible_ms_),
            "reviveQid": "0",
            "restNum": str(rest),
        }

    # Waking

    def _wake(self, topic: str, queue_id: int, group: str | None = None) -> None:
        for wait in self._by_topic.get(topic, ()):
            if wait.key[2] in (_ANY_QUEUE, queue_id) and group in (None, wait.key[0]):
                self._woken[wait] = None
        if self._woken:
            self._next_turn.schedule()

    def _look_at_woken(self) -> None:
        """Look for what was woken, as long as there is something: the others wait on."""
        turn = LoopSlice()
        while self._woken and turn.take():
            wait = next(iter(self._woken))
            pop = self._parked.first(wait)
            if pop is None or not self._look_again(pop):
                del self._woken[wait]
        if self._woken:
            self._next_turn.schedule()

    def _look_again(self, pop: Pop) -> bool:
        """Answer a parked pop; False when there is nothing for it."""
        self._parked.remove(pop)
        try:
            response = self._look(pop, loads_left=_COLD_LOADS_MAX)
        except RequestError as refusal:
            response = pop.request.reply(refusal.code, remark=str(refusal))
        if response is not None:
            pop.connection.reply(response)
        return pop not in self._parked

    def _forget(self, wait: PopWait) -> None:
        if self._waits.get(wait.key) is wait:
            del self._waits[wait.key]
        of_topic = self._by_topic.get(wait.key[1])
        if of_topic is not None:
            of_topic.discard(wait)
            if not of_topic:
                del self._by_topic[wait.key[1]]

    def _topic_changed(self, name: str) -> None:
        """Have what waits ask again: the topic may have other queues, or be gone."""
        self._send_away(list(self._by_topic.get(name, ())))

    def _group_changed(self, name: str) -> None:
        """Have what waits ask again when the group is gone, or may not consume."""
        group = self._parts.subscription_groups.find(name)
        if group is None or not group.consume_enable:
            self._send_away([wait for key, wait in self._waits.items() if key[0] == name])

    def _send_away(self, waits: list[PopWait]) -> None:
        for wait in waits:
            for parked in self._parked.waiting_for(wait):
                self._parked.remove(parked)
                parked.connection.reply(self._nothing(parked))


def _attempt_of(request: Command, group: str, topic: str, queue_id: int) -> Attempt | None:
    attempt_id = request.ext.get("attemptId")
    if not attempt_id:
        return None
    if len(attempt_id.encode()) > limits.POP_ATTEMPT_ID_BYTES_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"the field attemptId has more than {limits.POP_ATTEMPT_ID_BYTES_MAX} bytes",
        )
    return Attempt(group, topic, queue_id, attempt_id)


def invisible_ms(request: Command, *, minimum: int = 1) -> int:
    """Return how long messages are to be invisible. RequestError (29) outside the limits."""
    value = request.integer("invisibleTime")
    if not minimum <= value <= limits.POP_INVISIBLE_MS_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"the field invisibleTime must be in {minimum}..{limits.POP_INVISIBLE_MS_MAX}: {value}",
        )
    return value
