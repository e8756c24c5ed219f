"""Pulling: code 11, parked pulls and their waking (wire document 9)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias, cast

from iotmq import limits
from iotmq.broker.broker_role import MASTER_ID
from iotmq.broker.filters.consumer_filters import ConsumerFilters
from iotmq.broker.filters.subscription import TAG_EXPRESSION
from iotmq.broker.filters.tags import parse_tags
from iotmq.broker.handlers.native.loaded import answer_loaded
from iotmq.broker.handlers.native.parked_pulls import ParkedPulls, Pull
from iotmq.broker.handlers.native.pull_fast_path import PlainPull, PullPath
from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.request_table import Handler
from iotmq.broker.tables.generations import Change
from iotmq.broker.tables.subscription_groups import SubscriptionGroupConfig, known_group
from iotmq.broker.tables.topics import known_topic
from iotmq.errors import RefusedError, RequestError
from iotmq.event_loop import DeadlineTimer, LoopSlice, NextTurn
from iotmq.message.records.record_filter import RecordFilter
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import LanguageCode, RequestCode, ResponseCode, Serialize
from iotmq.remoting.command import Command
from iotmq.remoting.frames.pull_frames import PullFrame
from iotmq.remoting.server import ServerConnection
from iotmq.store.log.queue import Queue
from iotmq.store.queues.reads import Read, ReadStatus
from iotmq.telemetry.latencies import now_us

# Bits of a pull's sysFlag.
_COMMITS = 1
_MAY_WAIT = 2
_HAS_SUBSCRIPTION = 4

_INT32_MAX = 2**31 - 1

# A pull waits for the disk so often before it reads whatever is there: under memory pressure pages may go
# as fast as they come.
_COLD_LOADS_MAX = 4

_CODES: dict[ReadStatus, int] = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
}


# Reads that have looked at messages.
_LOOKED_AT = (ReadStatus.FOUND, ReadStatus.NO_MATCHED_MESSAGE)

# Reads whose next offset is behind what they have looked at.
_LOOKED_THROUGH = (*_LOOKED_AT, ReadStatus.MESSAGE_WAS_REMOVING, ReadStatus.OFFSET_FOUND_NULL)

# Told group, topic, queue id, the offset asked for and the one to go on at.
OffsetMoved: TypeAlias = Callable[[str, str, int, int, int], None]


class PullHeader(NamedTuple):
    """The header of a pull, checked."""

    group: str
    topic: str
    queue_id: int
    offset: int
    records_max: int
    sys_flag: int
    commit_offset: int
    suspend_ms: int
    subscription_version: int


class PullHandler:
    """Answers pulls from the store, and parks those that ask for what is not there yet."""

    def __init__(
        self,
        parts: BrokerParts,
        parked_pulls: ParkedPulls[Pull],
        filters: ConsumerFilters,
        *,
        offset_moved: OffsetMoved | None = None,
    ) -> None:
        self._parts = parts
        self._role = parts.role
        # What depends on the role takes the general path.
        self._has_fast_path = not parts.role.is_slave and parts.role.slave_read_behind_bytes is None
        self._store = parts.store
        self._topics = parts.topics
        self._generations = parts.generations
        self._groups = parts.groups
        self._subscription_groups = parts.subscription_groups
        self._offsets = parts.offsets
        self._parked_pulls = parked_pulls
        self._cold_reads = parts.cold_reads
        self._filters = filters
        self._clock = parts.clock
        self._statistics = parts.statistics
        self._offset_moved = offset_moved
        self._timer = DeadlineTimer(parts.clock, self.expire)
        # Of each queue with new entries the parked pulls that were not looked at since.
        self._woken: dict[Queue, deque[Pull]] = {}
        # Those of them that had more entries when some had been looked at already.
        self._woken_again: set[Queue] = set()
        self._next_turn = NextTurn(self._look_at_woken)
        self.found_count = 0
        self.missed_count = 0
        self.records_count = 0
        self._path = PullPath(
            parts.store,
            self._look_up,
            self._park,
            offsets=parts.offsets,
            groups=parts.groups,
            statistics=parts.statistics,
        )
        parts.topics.add_listener(self._path.forget_all)
        parts.subscription_groups.add_listener(self._path.forget_all)
        parts.changed_settings.add_listener(self._path.forget_all)

    def handlers(self) -> Mapping[int, Handler]:
        # The consumers of 5.x that pull by themselves ask under a code of their own.
        return {RequestCode.PULL_MESSAGE: self._pull, RequestCode.LITE_PULL_MESSAGE: self._pull}

    def serve_pull(self, connection: ServerConnection, frame: PullFrame) -> bool:
        """Answer or park a plain pull; False when it needs the general path, and nothing was done for it."""
        count = self._path.serve(connection, frame)
        if count > 0:
            self.found_count += 1
            self.records_count += count
        return count != 0

    def _park(
        self,
        connection: ServerConnection,
        opaque: int,
        flag: int,
        is_binary: bool,
        queue: Queue,
        group: str,
        tags: frozenset[int] | None,
        offset: int,
        records_max: int,
        bytes_max: int,
        suspend_ms: int,
    ) -> bool:
        """Park a plain pull whose messages are not there yet; False when there is no room."""
        if not self._parked_pulls.has_room:
            return False
        serialize = Serialize.BINARY if is_binary else Serialize.JSON
        request = Command(
            RequestCode.PULL_MESSAGE, opaque, flag, LanguageCode.OTHER, 0, None, {}, b"", serialize
        )
        parked = Pull(
            connection,
            request,
            queue,
            group=group,
            offset=offset,
            tags=tags,
            records_max=records_max,
            bytes_max=bytes_max,
            deadline_s=self._clock.monotonic_s() + min(suspend_ms, limits.HOLD_MS_MAX) / 1000,
            is_plain=True,
        )
        self._parked_pulls.park(parked)
        self._timer.arm(self._parked_pulls.next_deadline_s)
        return True

    def _look_up(self, topic: str, group: str, queue_id: int, subscription: str | None) -> PlainPull | None:
        """Prepare the fast path for pulls of a queue; None when they need the checks and filters of `_pull`.

        Asked once until topics or groups change: whatever `_pull` asks of them has its place here too.
        """
        if not self._has_fast_path:
            return None
        header = PullHeader(group, topic, queue_id, 0, 1, 0, 0, 0, 0)
        try:
            config = self._check(header)
            queue = self._store.find_queue(topic, queue_id)
            if queue is None:
                return None
            if subscription is not None:
                return PlainPull(queue, parse_tags(subscription), None, None)
            consumers = self._groups.consumer_group(group)
            if consumers is None or (consumers.is_broadcasting and not config.consume_broadcast_enable):
                return None
            subscribed = consumers.subscriptions.get(topic)
            if subscribed is None or not subscribed.is_by_tag:
                return None
            return PlainPull(queue, parse_tags(subscribed.expression), consumers, subscribed)
        except RequestError:
            return None

    def connection_lost(self, connection: ServerConnection) -> None:
        self._parked_pulls.drop_connection(connection)

    def stop(self) -> None:
        self._timer.cancel()
        self._woken.clear()
        self._woken_again.clear()
        self._cold_reads.stop()
        if self._store.is_replicated:
            # Another member will be master. Java clients wait 30 s for pulls of a connection that ended.
            for parked in self._parked_pulls.take_all():
                parked.connection.reply(
                    _reply(
                        parked.request,
                        ResponseCode.PULL_RETRY_IMMEDIATELY,
                        remark="the master is another one",
                        next_offset=parked.offset,
                        min_offset=0,
                        max_offset=parked.offset,
                    )
                )

    def wake(self, queues: Iterable[Queue]) -> None:
        """Look again for the pulls parked on queues that have new entries: very many over several turns."""
        is_under_way = bool(self._woken)
        for queue in queues:
            if queue in self._woken:
                self._woken_again.add(queue)
            else:
                self._woken[queue] = deque(self._parked_pulls.waiting_for(queue))
        if not is_under_way:
            self._look_at_woken()

    def _look_at_woken(self) -> None:
        """Look for some of the woken pulls now, and for the others in the turns that follow."""
        turn = LoopSlice()
        try:
            while self._woken and not turn.is_over:
                queue, waiting = next(iter(self._woken.items()))
                while waiting and turn.take():
                    parked = waiting.popleft()
                    if parked in self._parked_pulls:
                        self._look_again(parked)
                del self._woken[queue]
                if waiting:
                    # Behind other queues, so that one of very many pulls keeps nobody waiting.
                    self._woken[queue] = waiting
                elif queue in self._woken_again:
                    self._woken_again.discard(queue)
                    self._woken[queue] = deque(self._parked_pulls.waiting_for(queue))
        finally:
            if self._woken:
                self._next_turn.schedule()

    def _look_again(self, parked: Pull) -> None:
        """Answer a parked pull if there is something for it now."""
        parked.begun_us = now_us()
        read = self._read(parked)
        if read.status == ReadStatus.NO_MATCHED_MESSAGE and read.next_offset >= read.max_offset:
            # Nothing for its filter: it waits on, behind what was looked through. When that was not
            # all, it is told to ask again (20): nobody would wake it for the rest.
            parked.offset = read.next_offset
        elif self._code_of(read, parked.offset) != ResponseCode.PULL_NOT_FOUND:
            self._parked_pulls.remove(parked)
            self._answer_parked(parked, read)

    def expire(self) -> None:
        """Answer the pulls that waited as long as they wanted to: very many over several turns."""
        overdue = self._parked_pulls.take_overdue(self._clock.monotonic_s())
        turn = LoopSlice()
        while turn.take() and (parked := next(overdue, None)) is not None:
            parked.begun_us = now_us()
            self._answer_parked(parked, self._read(parked))
        self._timer.arm(self._parked_pulls.next_deadline_s)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_pulls_found_total", "Pulls answered with records.", self.found_count),
            ("iotmq_broker_pulls_missed_total", "Pulls answered without.", self.missed_count),
            ("iotmq_broker_pulled_records_total", "Records pulled.", self.records_count),
        )

    def _pull(self, connection: ServerConnection, request: Command) -> Command | None:
        header = _read_header(request)
        group = self._check(header)
        tags = self._filter(request, header, group)
        queue = self._store.find_queue(header.topic, header.queue_id)
        may_wait = header.sys_flag & _MAY_WAIT and header.suspend_ms > 0
        if queue is None and may_wait and header.offset == 0:
            queue = self._store.queue(header.topic, header.queue_id)
        # A slave keeps offsets that are committed on their own (15) only.
        if header.sys_flag & _COMMITS and header.commit_offset >= 0 and not self._role.is_slave:
            end = 0 if queue is None else queue.max_offset
            self._offsets.commit(header.group, header.topic, header.queue_id, min(header.commit_offset, end))
        if queue is None:
            self.missed_count += 1
            code = ResponseCode.PULL_NOT_FOUND if header.offset == 0 else ResponseCode.PULL_OFFSET_MOVED
            if code == ResponseCode.PULL_OFFSET_MOVED:
                code = self._moved(header.group, header.topic, header.queue_id, header.offset, 0)
            return _reply(
                request,
                code,
                remark=ReadStatus.NO_MATCHED_LOGIC_QUEUE.name,
                next_offset=0,
                min_offset=0,
                max_offset=0,
            )
        records_max, bytes_max = _maxima(request, header)
        if "generation" in request.ext:
            topic = known_topic(self._topics, header.topic)
            change = self._generations.change(topic, queue, request.ext["generation"])
            if change is not None and change.offset <= header.offset:
                self.missed_count += 1
                return _changed(request, queue, change)
            if change is not None:
                records_max = min(records_max, change.offset - header.offset)
        deadline_s = None
        if may_wait:
            deadline_s = self._clock.monotonic_s() + min(header.suspend_ms, limits.HOLD_MS_MAX) / 1000
        pull = Pull(
            connection,
            request,
            queue,
            group=header.group,
            offset=header.offset,
            tags=tags,
            records_max=records_max,
            bytes_max=bytes_max,
            deadline_s=deadline_s,
            with_expired=request.boolean("withExpired") and "expiredAt" not in request.ext,
            expired_at_ms=request.integer("expiredAt", 0, minimum=0),
            tells_gaps=request.boolean("tellGaps"),
            entries_max=_entries_max(request, header),
            begun_us=now_us(),
        )
        return self._look(pull, loads_left=_COLD_LOADS_MAX)

    def _look(self, pull: Pull, *, loads_left: int) -> Command | None:
        """Answer a pull, park it, or have what it needs brought into memory first: then None."""
        plan = self._store.plan_read(
            pull.queue,
            pull.offset,
            records_max=pull.records_max,
            bytes_max=pull.bytes_max,
            tags=pull.tags,
            entries_max=pull.entries_max,
        )
        if plan is not None and loads_left > 0:
            pull.is_from_disk = True
            if plan.records_max:
                # One load covers so many; the rest is the next pull's.
                if isinstance(pull.tags, RecordFilter):
                    pull.entries_max = min(pull.entries_max or plan.records_max, plan.records_max)
                else:
                    pull.records_max = min(pull.records_max, plan.records_max)
            self._cold_reads.start(plan, lambda error: self._loaded(pull, error, loads_left=loads_left - 1))
            return None
        read = self._read(pull)
        code = self._code_of(read, pull.offset)
        request = pull.request
        may_park = code == ResponseCode.PULL_NOT_FOUND and pull.deadline_s is not None
        if may_park and not request.is_oneway and self._parked_pulls.park(pull):
            pull.entries_max, pull.is_from_disk = 0, False
            # What waits costs little, whatever came with it.
            request.body = b""
            request.ext = {}
            self._timer.arm(self._parked_pulls.next_deadline_s)
            return None
        return self._answer(pull, code, read)

    def _loaded(self, pull: Pull, error: OSError | None, *, loads_left: int) -> None:
        """Go on with a pull whose pages were read from the disk, or could not be."""
        answer_loaded(pull.connection, pull.request, error, lambda: self._look(pull, loads_left=loads_left))

    def _check(self, header: PullHeader) -> SubscriptionGroupConfig:
        """Check a pull in the protocol's order, up to the queue id."""
        if not self._parts.settings.is_readable:
            raise RequestError(ResponseCode.NO_PERMISSION, "this broker does not answer pulls")
        group = known_group(self._subscription_groups, header.group, "consumerGroup")
        if not group.consume_enable:
            raise RequestError(ResponseCode.NO_PERMISSION, f"group {header.group} may not consume")
        topic = known_topic(self._topics, header.topic)
        if not topic.is_readable:
            raise RequestError(ResponseCode.NO_PERMISSION, f"topic {header.topic} may not be read")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RefusedError(
                f"the field queueId is {header.queue_id}, "
                f"but topic {header.topic} has {topic.read_queue_nums} queues to read"
            )
        return group

    def _filter(
        self, request: Command, header: PullHeader, config: SubscriptionGroupConfig
    ) -> frozenset[int] | RecordFilter | None:
        """Find the subscription of a pull: that of the request, otherwise that of the group's heartbeat."""
        ext = request.ext
        if header.sys_flag & _HAS_SUBSCRIPTION:
            expression = ext.get("subscription", "")
            expression_type = ext.get("expressionType")
            if expression_type and expression_type != TAG_EXPRESSION:
                return self._filters.of_request(expression_type, expression)
        else:
            group = self._groups.consumer_group(header.group)
            if group is None:
                raise RequestError(
                    ResponseCode.SUBSCRIPTION_NOT_EXIST, f"group {header.group} has no live consumer"
                )
            if group.is_broadcasting and not config.consume_broadcast_enable:
                raise RequestError(
                    ResponseCode.NO_PERMISSION, f"group {header.group} may not consume by broadcast"
                )
            subscription = group.subscriptions.get(header.topic)
            if subscription is None:
                raise RequestError(
                    ResponseCode.SUBSCRIPTION_NOT_EXIST,
                    f"group {header.group} is not subscribed to topic {header.topic}",
                )
            if subscription.sub_version < header.subscription_version:
                raise RequestError(
                    ResponseCode.SUBSCRIPTION_NOT_LATEST,
                    f"the field subVersion is {header.subscription_version}, "
                    f"newer than the heartbeat's {subscription.sub_version}",
                )
            if not subscription.is_by_tag:
                return self._filters.of_group(header.group, subscription)
            expression = subscription.expression
        return parse_tags(expression)

    def _read(self, pull: Pull) -> Read:
        return self._store.read(
            pull.queue,
            pull.offset,
            records_max=pull.records_max,
            bytes_max=pull.bytes_max,
            tags=pull.tags,
            with_expired=pull.with_expired,
            expired_at_ms=pull.expired_at_ms,
            entries_max=pull.entries_max,
        )

    def _code_of(self, read: Read, offset: int) -> int:
        code = _CODES.get(read.status)
        if code is None:
            # The queue is empty or not there.
            code = ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
        return code

    def _answer_parked(self, parked: Pull, read: Read) -> None:
        request = parked.request
        if parked.is_plain and read.status == ReadStatus.FOUND:
            self._count_found(parked, read)
            is_binary = request.serialize == Serialize.BINARY
            self._path.answer_parked(parked.connection, request.opaque, is_binary, read)
        else:
            parked.connection.reply(self._answer(parked, self._code_of(read, parked.offset), read))

    def _count_found(self, pull: Pull, read: Read) -> None:
        count, queue = read.count, pull.queue
        self.found_count += 1
        self.records_count += count
        statistics = self._statistics
        took_us = statistics.get_latencies.end(pull.begun_us)
        statistics.counters.count_get(
            queue.topic, queue.queue_id, pull.group, count, read.size_bytes, took_us, pull.is_from_disk
        )

    def _answer(self, pull: Pull, code: int, read: Read) -> Command:
        if code == ResponseCode.SUCCESS:
            self._count_found(pull, read)
        else:
            self.missed_count += 1
            if code == ResponseCode.PULL_OFFSET_MOVED:
                queue = pull.queue
                code = self._moved(pull.group, queue.topic, queue.queue_id, pull.offset, read.next_offset)
        reply = _reply(
            pull.request,
            code,
            suggested_broker_id=self._suggested_broker_id(pull, read),
            remark=read.status.name,
            next_offset=read.next_offset,
            min_offset=read.min_offset,
            max_offset=read.max_offset,
            body=read.views,
        )
        if pull.tells_gaps and read.status in _LOOKED_THROUGH:
            gaps = read.next_offset - pull.offset - read.count
            if gaps and read.lost:
                reply.ext["lostOffsets"] = ",".join(f"{first}-{end - 1}" for first, end in read.lost)
                gaps -= sum(end - first for first, end in read.lost)
            if gaps:
                reply.ext["passedOver"] = str(gaps)
        return reply

    def _moved(self, group: str, topic: str, queue_id: int, offset: int, next_offset: int) -> int:
        """Return the code for an offset the queue does not have. A slave corrects none: it may be behind."""
        if self._role.is_slave:
            return ResponseCode.PULL_RETRY_IMMEDIATELY
        if self._offset_moved is not None:
            self._offset_moved(group, topic, queue_id, offset, next_offset)
        return ResponseCode.PULL_OFFSET_MOVED

    def _suggested_broker_id(self, pull: Pull, read: Read) -> int:
        """Return which broker of the name the consumer should ask next: a slave when it is far behind."""
        behind_bytes = self._role.slave_read_behind_bytes
        if behind_bytes is None or read.status not in _LOOKED_AT:
            return MASTER_ID
        group = self._subscription_groups.find(pull.group)
        if group is None:
            return MASTER_ID
        position = self._store.position_of(pull.queue, read.next_offset - 1)
        if position is not None and self._store.confirmed_position - position > behind_bytes:
            return group.which_broker_when_consume_slowly
        return group.broker_id


def _reply(
    request: Command,
    code: int,
    *,
    suggested_broker_id: int = MASTER_ID,
    remark: str,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    body: list[memoryview] | None = None,
) -> Command:
    return request.reply(
        code,
        remark=remark,
        ext={
            "suggestWhichBrokerId": str(suggested_broker_id),
            "nextBeginOffset": str(next_offset),
            "minOffset": str(min_offset),
            "maxOffset": str(max_offset),
        },
        body=cast("list[bytes | memoryview]", body) if body else b"",
    )


def _changed(request: Command, queue: Queue, change: Change) -> Command:
    """Answer a pull of a former generation: what it asks for is not what there was."""
    reply = _reply(
        request,
        ResponseCode.PULL_OFFSET_MOVED,
        remark="the records from there on are others than in the generation of the request",
        next_offset=change.offset,
        min_offset=queue.min_offset,
        max_offset=queue.max_offset,
    )
    reply.ext |= {"changedOffset": str(change.offset), "change": change.reason}
    return reply


def _maxima(request: Command, header: PullHeader) -> tuple[int, int]:
    """Records and bytes the answer may have: the protocol's, or ours for who sends `maxMsgBytes`."""
    if "maxMsgBytes" in request.ext:
        bytes_wanted = request.integer("maxMsgBytes", minimum=1, maximum=_INT32_MAX)
        return (
            min(header.records_max, limits.PULL_RECORDS_MAX),
            min(bytes_wanted, limits.PULL_BYTES_MAX),
        )
    return min(header.records_max, limits.PULL_RECORDS_DEFAULT_MAX), limits.PULL_BYTES_DEFAULT_MAX


def _entries_max(request: Command, header: PullHeader) -> int:
    """Return how many entries may be looked at: up to `endOffset`, or 0 for as many as usual."""
    if "endOffset" not in request.ext:
        return 0
    return min(max(1, request.integer("endOffset") - header.offset), limits.PULL_RECORDS_MAX)


def _read_header(request: Command) -> PullHeader:
    """Read the fields of a pull. Raises RequestError for the first one that is missing or wrong."""
    return PullHeader(
        request.text("consumerGroup"),
        request.text("topic"),
        request.integer("queueId"),
        request.integer("queueOffset"),
        request.integer("maxMsgNums", minimum=1, maximum=_INT32_MAX),
        request.integer("sysFlag", minimum=0, maximum=_INT32_MAX),
        request.integer("commitOffset"),
        request.integer("suspendTimeoutMillis"),
        request.integer("subVersion"),
    )
