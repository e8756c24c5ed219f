"""The one way into the log, for wire requests and for front ends in the same process.

A batch is checked against the topic, appended, and confirmed: at once under asynchronous flush, after
the group commit under synchronous flush. Batches that wait for a group commit stand in one queue in
log order; nothing is made per batch but its entry there. Those of a sync master wait for a slave as well
(`slave_waits`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from typing_extensions import Buffer

from iotmq import limits
from iotmq.broker.statistics.statistics import Statistics
from iotmq.broker.tables.changed_settings import ChangedSettings
from iotmq.broker.tables.topics import TopicTable
from iotmq.broker.writing.slave_waits import SlaveWaits
from iotmq.clock import Clock
from iotmq.errors import (
    RecordTooLargeError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from iotmq.event_loop import DeadlineTimer, NextTurn, happens_within
from iotmq.message.errors import MessageFormatError
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import ResponseCode
from iotmq.store.log.commit_log import Appended
from iotmq.store.log.queue import Queue
from iotmq.store.store import Store
from iotmq.supervised import surviving
from iotmq.telemetry.latencies import now_us

logger = logging.getLogger(__name__)

# After a full disk, appends are tried again this often.
_FULL_RETRY_S: Final = 1.0
# What other members may take to have a message before its sender is told that they do not. Clients of the
# RocketMQ family wait 3 s, and then know less.
_CONFIRM_TIMEOUT_S: Final = 2.5
# How long a broker that stops waits for the disk.
_DRAIN_S: Final = 1.0
_BORN_HOST_IS_IPV6 = 16
_STORE_HOST_IS_IPV6 = 32
# What stands for the queues of a topic whose configuration is not asked.
_ANY_QUEUE: list[Queue | None] = [None] * limits.QUEUES_PER_TOPIC_MAX
_HOST_FLAGS = _BORN_HOST_IS_IPV6 | _STORE_HOST_IS_IPV6


class FoundBatch:
    """Where records stand that were stored before, as Appended says it of new ones."""

    __slots__ = ("_positions", "end_position", "first_offset", "start_position", "store_timestamp_ms")

    def __init__(
        self, positions: list[int], end_position: int, *, first_offset: int = 0, store_timestamp_ms: int = 0
    ) -> None:
        self._positions = positions
        self.start_position = positions[0] if positions else end_position
        self.end_position = end_position
        self.first_offset = first_offset
        self.store_timestamp_ms = store_timestamp_ms

    @property
    def count(self) -> int:
        return len(self._positions)

    def positions(self) -> list[int]:
        return list(self._positions)


class StoredBatch:
    """A batch that is in the log.

    `status` is SUCCESS; FLUSH_DISK_TIMEOUT when the disk took too long, FLUSH_SLAVE_TIMEOUT when others
    did; SLAVE_NOT_AVAILABLE when no other member has it, and none is to; or what `slave_waits` says.
    """

    __slots__ = ("appended", "queue_id", "status")

    def __init__(self, appended: Appended | FoundBatch, queue_id: int) -> None:
        self.appended = appended
        self.queue_id = queue_id
        self.status: int = ResponseCode.SUCCESS

    @property
    def batches(self) -> int:
        return 1

    @property
    def end_position(self) -> int:
        return self.appended.end_position

    @property
    def first_offset(self) -> int:
        return self.appended.first_offset

    @property
    def count(self) -> int:
        return self.appended.count


class StoredRun:
    """Report batches that are in the log up to `end_position`; `status` as for a single batch."""

    __slots__ = ("batches", "end_position", "status")

    def __init__(self, end_position: int, batches: int) -> None:
        self.end_position = end_position
        self.batches = batches
        self.status: int = ResponseCode.SUCCESS


class RefusedBatch:
    """A batch that was refused whole: nothing of it is in the log. `code` is the response code for it."""

    __slots__ = ("code", "remark")

    def __init__(self, code: int, remark: str) -> None:
        self.code = code
        self.remark = remark


Done: TypeAlias = Callable[[StoredBatch | RefusedBatch], None]


class _UnconfirmedBatch:
    """A stored batch whose group commit is outstanding."""

    __slots__ = ("batch", "begun_us", "deadline_s", "done", "is_patient")

    def __init__(
        self,
        batch: StoredBatch | StoredRun,
        deadline_s: float,
        done: Callable[[Any], None],
        *,
        is_patient: bool,
        begun_us: int,
    ) -> None:
        self.batch = batch
        self.begun_us = begun_us
        # When it is answered anyway, or, if it is patient, looked at again.
        self.deadline_s = deadline_s
        self.is_patient = is_patient
        self.done = done


class MessageWriter:
    """Appends for everybody. All methods but `on_flushed` belong to the event loop's thread."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        settings: ChangedSettings,
        clock: Clock,
        statistics: Statistics,
        *,
        slave_waits: SlaveWaits | None = None,
    ) -> None:
        """`slave_waits` is a sync master's."""
        self._store = store
        self._slave_waits = slave_waits
        self._topics = topics
        self._clock = clock
        self._settings = settings
        self._flush_timeout_s = store.settings.sync_flush_timeout_ms / 1000
        if store.is_replicated:
            self._flush_timeout_s = min(self._flush_timeout_s, _CONFIRM_TIMEOUT_S)
        self.confirmed_status: int = ResponseCode.SUCCESS
        """The status of what is confirmed from now on, for callers that are not patient: SLAVE_NOT_AVAILABLE
        while a replicated broker goes on alone."""
        self._timer = DeadlineTimer(clock, self.time_out)
        # Also called by the compiled way of plain sends.
        self.count_put = statistics.counters.count_put
        self._put_latencies = statistics.put_latencies
        # Queues of every topic that was appended to and still may be; None where no handle was needed yet.
        self._queues: dict[str, list[Queue | None]] = {}
        self._waiting: deque[_UnconfirmedBatch] = deque()
        self._dispatch_listeners: list[Callable[[list[Queue]], None]] = []
        self._confirmed_listeners: list[Callable[[], None]] = []
        self._written_listeners: list[Callable[[], None]] = []
        self._next_turn = NextTurn(self._notify)
        # True within `gathered`.
        self._is_gathering = False
        # Appends of this turn wait to be dispatched, which `_notify` does at its end.
        self._is_dispatch_due = False
        # True while the loop has been asked to advance the store and has not done it yet.
        self._is_confirm_scheduled = False
        # Set by open(); flushes are reported to this loop.
        self._loop: asyncio.AbstractEventLoop | None = None
        # Why appends are refused, and until when; empty while they are taken.
        self._refusal = "the broker has not started"
        self._refused_until_s = float("inf")
        # When the run of appends under way began.
        self._run_begun_us = 0
        self._confirms_later = store.confirms_later
        # The disk refused, and no append has succeeded since.
        self._was_refused = False
        self.batches_count = 0
        self.records_count = 0
        self.bytes_count = 0
        self.refused_count = 0
        self.flush_timeouts_count = 0
        topics.add_listener(self._forget_topic)
        store.on_flushed = self.on_flushed

    def open(self, refusal: str = "") -> None:
        """Start taking batches, on the running loop; with `refusal` only confirm what comes otherwise."""
        self._loop = asyncio.get_running_loop()
        self._refusal = refusal

    def close(self, reason: str = "the broker is stopping") -> None:
        """Refuse batches from now on; those waiting for a group commit still wait."""
        self._refusal = reason
        self._refused_until_s = float("inf")

    def depose(self, reason: str) -> None:
        """Refuse batches from now on, and confirm none of those that wait.

        Whether they stay in the log another member decides. Senders of plain messages are told to send them
        again; the end of their connections tells the others as much as is known.
        """
        self.close(reason)
        self._timer.cancel()
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if isinstance(each.batch, StoredRun) and each.batch.batches:
                each.batch.status = ResponseCode.SERVICE_NOT_AVAILABLE
                with surviving("answers of a former master"):
                    each.done(each.batch)
        if self._slave_waits is not None:
            self._slave_waits.forget()

    async def drain(self) -> None:
        """Wait up to a second until everything appended is on the disk and no batch waits for its commit.

        The writer is closed. delayOffset.json counts only deliveries that are on the disk, and another broker
        of the file format delivers again what it does not count.
        """
        store = self._store
        if store.flushed_position >= store.appended_position and not self.waiting_count:
            return
        finished = asyncio.Event()
        store.when_flushed(store.appended_position, finished.set)
        store.request_flush()
        await happens_within(finished, _DRAIN_S)

    def finish(self) -> None:
        """Answer everything that still waits as stored but not known to be flushed. The last call.

        In a replicated log nobody knows whether it stays there: then the end of their connections tells the
        senders as much.
        """
        self._timer.cancel()
        # Of a disk that does not take the queues' files: a stop has more to save than these.
        with surviving("confirmation at the stop"):
            # The loop may not have come to confirming what the last flush covered.
            self.confirm()
            self.write_out()
        if self._store.is_replicated:
            self._waiting.clear()
        while self._waiting:
            self._time_out(self._waiting.popleft())
        if self._slave_waits is not None:
            self._slave_waits.finish()

    @property
    def is_writable(self) -> bool:
        """Return False while appends are known to fail; `refusal` says why."""
        return not self.refusal

    @property
    def refusal(self) -> str:
        """Return why batches are refused, in words for a remark or a log line; empty while they are taken."""
        if self._refusal and self._clock.monotonic_s() >= self._refused_until_s:
            # The next append finds out.
            self._refusal = ""
        return self._refusal

    @property
    def waiting_count(self) -> int:
        """Batches that wait for a group commit."""
        return sum(waiting.batch.batches for waiting in self._waiting)

    @property
    def longest_wait_ms(self) -> int:
        """Return how long the oldest of them has waited, 0 when there is none."""
        return (now_us() - self._waiting[0].begun_us) // 1_000 if self._waiting else 0

    def add_dispatch_listener(self, listener: Callable[[list[Queue]], None]) -> None:
        """`listener` gets the watched queues that have new entries; holds wake this way."""
        self._dispatch_listeners.append(listener)

    def add_confirmed_listener(self, listener: Callable[[], None]) -> None:
        """`listener` is called once per turn of the loop that confirmed anything, after holds woke."""
        self._confirmed_listeners.append(listener)

    def add_written_listener(self, listener: Callable[[], None]) -> None:
        """`listener` is called when runs of appends were given to their queues: once for those of a turn."""
        self._written_listeners.append(listener)

    def queue_count(self, topic: str, *, create: bool) -> int:
        """Queues of the topic that take messages, 0 for an unknown one.

        With `create` the topic is made, whatever clients may do: for topics an operator named in the
        configuration. Raises RequestError for a name that cannot be a topic.
        """
        config = self._topics.find(topic)
        if config is None:
            if not create:
                return 0
            config = self._topics.ensure(topic, queues=self._settings.broker.default_topic_queues)
        return config.write_queue_nums if config.is_writable else 0

    def append(
        self,
        topic: str,
        queue_id: int,
        elements: Buffer,
        *,
        born_timestamp_ms: int,
        born_host: bytes,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_position: int = 0,
        batch_properties: bytes = b"",
        done: Done,
        waits_for_flush: bool = True,
        is_patient: bool = False,
        is_internal: bool = False,
    ) -> None:
        """Store a batch (wire document 6.5); `done` is called once, at once or when it is confirmed.

        Never raises for a batch that is refused. `waits_for_flush=False` confirms after the append
        even where the store promises more. A patient caller would only send the same again, so it waits
        for a slow disk as long as that may take, unless the store has given up. `is_internal` is for the
        broker's own messages: the topic's permissions are not asked. `prepared_position` is where the half
        of a committed transaction stands.
        """
        if self._refusal and self.refusal:
            self._refuse(done, ResponseCode.SERVICE_NOT_AVAILABLE, self._refusal)
            return
        begun_us = now_us()
        store = self._store
        queues = _ANY_QUEUE if is_internal else self._queues.get(topic)
        if queues is None:
            queues = self._open_topic(topic)
            if queues is None:
                self._refuse_topic(topic, done)
                return
        if not 0 <= queue_id < len(queues):
            self._refuse(
                done,
                ResponseCode.SYSTEM_ERROR,
                f"the queueId {queue_id} is not one of the {len(queues)} queues of topic {topic}",
            )
            return
        if is_internal:
            taking_queue_id = self._topics.taking_queue(topic, queue_id)
            if taking_queue_id is None:
                self._refuse_topic(topic, done)
                return
            queue_id = taking_queue_id
        queue = queues[queue_id]
        sys_flag &= ~_HOST_FLAGS
        if len(born_host) > 8:
            sys_flag |= _BORN_HOST_IS_IPV6
        try:
            if queue is None:
                queue = store.queue(topic, queue_id)
                if not is_internal:
                    queues[queue_id] = queue
            appended = store.append(
                queue,
                elements,
                born_timestamp_ms=born_timestamp_ms,
                born_host=born_host,
                sys_flag=sys_flag,
                reconsume_times=reconsume_times,
                prepared_position=prepared_position,
                batch_properties=batch_properties,
            )
        except (StoreError, MessageFormatError) as error:
            self._refuse_for(done, error)
            return
        if self._was_refused:
            self._was_refused = False
            logger.info("sends are taken again")
        count = appended.count
        size = appended.end_position - appended.start_position
        self.batches_count += 1
        self.records_count += count
        self.bytes_count += size
        batch = StoredBatch(appended, queue.queue_id)
        self.count_put(topic, batch.queue_id, count, size)
        if self._slave_waits is not None and waits_for_flush and not is_internal:
            done = self._slave_waits.then(batch.end_position, done, is_patient=is_patient)
        if self._is_gathering or store.confirmed_position >= appended.end_position:
            self._next_turn.schedule()
            self._put_latencies.end(begun_us)
            done(batch)
        elif waits_for_flush:
            self._wait(batch, done, is_patient=is_patient, begun_us=begun_us)
        else:
            self._put_latencies.end(begun_us)
            done(batch)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Appends in here are given to their queues together at the end; they are done before."""
        if self._confirms_later:
            # Which is how a flush does it.
            yield
            return
        self._is_gathering = True
        self._store.is_dispatching = False
        try:
            yield
        finally:
            self._is_gathering = False
            self._store.is_dispatching = True
            self._is_dispatch_due = True
            self.write_out()

    @property
    def store(self) -> Store:
        """Return the store behind it, for the compiled way of plain sends."""
        return self._store

    @property
    def answers_later(self) -> bool:
        """Return whether a send is answered later than appended: after a flush, by members, by a slave."""
        return self._confirms_later or self._slave_waits is not None

    def appended_raw(self) -> None:
        """Tell that the store took bytes of another log: pulls that wait for them wake in the next turn."""
        self._next_turn.schedule()

    def open_queues(self, topic: str) -> list[Queue | None] | None:
        """The list `append` takes a topic's queues from until it changes; None when it takes nothing."""
        queues = self._queues.get(topic)
        return self._open_topic(topic) if queues is None else queues

    def begin_run(self) -> int:
        """Return the store time for a run of appends made by compiled code, -1 while none are taken."""
        if self._refusal and self.refusal:
            return -1
        self._run_begun_us = now_us()
        return self._store.begin_appends()

    def end_run(
        self,
        batches: int,
        *,
        records: int,
        size_bytes: int,
        waiting: int,
        done: Callable[[StoredRun], None],
    ) -> None:
        """Count the appends since `begin_run`; `waiting` of the batches wait for the disk, or a slave.

        If there are such, `done` is called once in a later turn, when it has them or has taken too long.
        Statistics of queues are the caller's, with `count_put`.
        """
        self.batches_count += batches
        self.records_count += records
        self.bytes_count += size_bytes
        store = self._store
        store.end_appends()
        if self._was_refused:
            self._was_refused = False
            logger.info("sends are taken again")
        if not self._confirms_later:
            # Runs of one turn, of as many connections as there are, are dispatched together.
            self._is_dispatch_due = True
            self._next_turn.schedule()
        if batches > waiting:
            self._put_latencies.end(self._run_begun_us, batches - waiting)
        if waiting:
            run = StoredRun(store.appended_position, waiting)
            if self._slave_waits is not None:
                done = self._slave_waits.then(run.end_position, done)
            if self._confirms_later:
                self._wait(run, done, is_patient=False, begun_us=self._run_begun_us)
            else:
                self._put_latencies.end(self._run_begun_us, waiting)
                asyncio.get_running_loop().call_soon(done, run)

    def when_flushed(self, done: Callable[[StoredRun], None]) -> None:
        """Call `done`, perhaps at once, when all that is appended by now is confirmed, or takes too long."""
        run = StoredRun(self._store.appended_position, 0)
        self.write_out()
        if self._store.confirmed_position >= run.end_position:
            done(run)
        else:
            self._wait(run, done, is_patient=False, begun_us=now_us())

    def write_out(self) -> None:
        """Give what was appended to its queues: what was answered is there for whatever is asked next."""
        if self._is_dispatch_due:
            self._is_dispatch_due = False
            try:
                self._store.advance()
            except Exception:
                # Tried again by whoever asks next.
                self._is_dispatch_due = True
                raise
            for listener in self._written_listeners:
                listener()

    def on_flushed(self) -> None:
        """Called by the store from its flush thread."""
        loop = self._loop
        if loop is None or self._is_confirm_scheduled:
            return
        self._is_confirm_scheduled = True
        try:
            loop.call_soon_threadsafe(self.confirm)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            pass

    def confirm(self) -> None:
        """Confirm what the last flush covered: dispatch it, wake holds, answer those who waited."""
        # Taken back first: a flush that ends from here on asks again.
        self._is_confirm_scheduled = False
        before = self._store.confirmed_position
        confirmed_position = self._store.advance()
        if confirmed_position == before:
            return
        waiting, status = self._waiting, self.confirmed_status
        while waiting and waiting[0].batch.end_position <= confirmed_position:
            head = waiting.popleft()
            if status and not head.is_patient and head.batch.batches:
                head.batch.status = status
            self._put_latencies.end(head.begun_us, head.batch.batches)
            # The others are answered whatever it raises: nobody would come by for them before the next flush.
            with surviving("answers to flushed batches"):
                head.done(head.batch)
        self._notify()

    def time_out(self) -> None:
        """Answer the batches whose group commit takes longer than the flush timeout."""
        now_s = self._clock.monotonic_s()
        late: list[_UnconfirmedBatch] = []
        kept: deque[_UnconfirmedBatch] = deque()
        for waiting in self._waiting:
            if waiting.deadline_s > now_s:
                kept.append(waiting)
            elif waiting.is_patient and self._store.failure is None:
                waiting.deadline_s = now_s + self._flush_timeout_s
                kept.append(waiting)
            else:
                late.append(waiting)
        self._waiting = kept
        for waiting in late:
            self._time_out(waiting)
        if self._waiting:
            self._timer.arm(min(waiting.deadline_s for waiting in self._waiting))

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_batches_total", "Batches stored.", self.batches_count),
            ("iotmq_broker_records_total", "Records stored.", self.records_count),
            ("iotmq_broker_stored_bytes_total", "Bytes of records stored.", self.bytes_count),
            ("iotmq_broker_refused_batches_total", "Batches refused.", self.refused_count),
            (
                "iotmq_broker_flush_timeouts_total",
                "Batches stored whose flush did not end in time.",
                self.flush_timeouts_count,
            ),
            ("iotmq_broker_waiting_batches", "Batches waiting for a group commit.", self.waiting_count),
            ("iotmq_broker_writable", "1 while sends are taken.", float(self.is_writable)),
        )
        if self._slave_waits is not None:
            yield from self._slave_waits.metrics()

    def _notify(self) -> None:
        self.write_out()
        queues = self._store.take_dispatched()
        if queues:
            for dispatch_listener in self._dispatch_listeners:
                dispatch_listener(queues)
        for listener in self._confirmed_listeners:
            listener()

    def _open_topic(self, topic: str) -> list[Queue | None] | None:
        """A list with a place for every queue of the topic; None when it takes no messages."""
        config = self._topics.find(topic)
        if config is None or not config.is_writable:
            return None
        queues: list[Queue | None] = [None] * config.queue_count
        for queue_id in config.frozen:
            if queue_id < len(queues):
                # Messages of senders that do not know yet go to the queue that stands in.
                queues[queue_id] = self._store.queue(topic, config.taking_queue(queue_id))
        self._queues[topic] = queues
        return queues

    def _forget_topic(self, topic: str) -> None:
        self._queues.pop(topic, None)

    def _refuse_topic(self, topic: str, done: Done) -> None:
        if self._topics.find(topic) is None:
            self._refuse(done, ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} does not exist")
        else:
            self._refuse(done, ResponseCode.NO_PERMISSION, f"topic {topic} does not take messages")

    def _refuse_for(self, done: Done, error: StoreError | MessageFormatError) -> None:
        code: int = ResponseCode.SYSTEM_ERROR
        remark = str(error)
        if isinstance(error, MessageFormatError | RecordTooLargeError):
            code = ResponseCode.MESSAGE_ILLEGAL
        elif isinstance(error, StoreFullError | StoreReadOnlyError):
            code = ResponseCode.SERVICE_NOT_AVAILABLE
            remark = f"{error} (data directory {self._store.directory})"
            if not self._was_refused:
                logger.error("sends are refused: %s", remark)
                self._was_refused = True
            self._refusal = remark
            self._refused_until_s = self._clock.monotonic_s() + _FULL_RETRY_S
        self._refuse(done, code, remark)

    def _refuse(self, done: Done, code: int, remark: str) -> None:
        self.refused_count += 1
        done(RefusedBatch(code, remark))

    def _wait(
        self,
        batch: StoredBatch | StoredRun,
        done: Callable[[Any], None],
        *,
        is_patient: bool,
        begun_us: int,
    ) -> None:
        """Call `done` when the disk has what was appended last, or when that takes too long."""
        deadline_s = self._clock.monotonic_s() + self._flush_timeout_s
        unconfirmed = _UnconfirmedBatch(batch, deadline_s, done, is_patient=is_patient, begun_us=begun_us)
        self._waiting.append(unconfirmed)
        if len(self._waiting) == 1:
            self._timer.arm(deadline_s)

    def _time_out(self, waiting: _UnconfirmedBatch) -> None:
        self.flush_timeouts_count += waiting.batch.batches
        self._put_latencies.end(waiting.begun_us, waiting.batch.batches)
        store = self._store
        is_on_disk = store.settings.flush != "sync" or store.flushed_position >= waiting.batch.end_position
        waiting.batch.status = (
            ResponseCode.FLUSH_SLAVE_TIMEOUT
            if store.is_replicated and is_on_disk and store.failure is None
            else ResponseCode.FLUSH_DISK_TIMEOUT
        )
        # As in `confirm`: nobody would come by for the others again.
        with surviving("answers to flushed batches"):
            waiting.done(waiting.batch)
