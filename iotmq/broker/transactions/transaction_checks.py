"""Asking producers about transactions they have not ended (the RocketMQ wire format, section 11).

Every check interval each transaction old enough has its half written again with one more check counted,
and one live producer of its group is asked (39), another one the next time. After too many checks, or past
the age to which the log keeps messages, the half goes to TRANS_CHECK_MAX_TIME_TOPIC instead. A half that
nobody may be asked about yet is written again when it stands in the log's oldest file, which is the next
to be deleted.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

from iotmq.broker.members.groups import Member
from iotmq.broker.parts import BrokerParts
from iotmq.broker.transactions.half_messages import Half, copied_properties, read_half
from iotmq.broker.transactions.transactions import Pending, State, Transactions
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.event_loop import DeadlineTimer, LoopSlice
from iotmq.message.records.record import Record, decode_record, encode_record, property_value
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.store.queues.cold_steps import Steps

logger = logging.getLogger(__name__)


class TransactionChecks:
    """Looks at the pending transactions from time to time."""

    def __init__(self, parts: BrokerParts, transactions: Transactions) -> None:
        self._store = parts.store
        self._transactions = transactions
        self._groups = parts.groups
        self._message_ids = parts.message_ids
        self._cold_reads = parts.cold_reads
        self._clock = parts.clock
        # So long a producer is left alone, unless a message says otherwise.
        self._timeout_s = parts.settings.transaction_timeout_s
        self._interval_s = parts.settings.transaction_check_interval_s
        self._checks_max = parts.settings.transaction_checks_max
        self._timer = DeadlineTimer(parts.clock, self.check)
        self._turn_timer = DeadlineTimer(parts.clock, self._see_to_some)
        # The first offsets of those whose halves are being read.
        self._reading: set[int] = set()
        self._is_stopped = False
        self.may_be_asked: Callable[[ServerConnection, str, bytes], bool] = lambda *_: True
        """Says whether a producer may see a prepared message to a topic, with these properties."""
        # When the next round is due.
        self._next_s = float("inf")
        # What this round has still to see to.
        self._due: deque[Pending] = deque()
        self.checks_count = 0
        self.unasked_count = 0
        self.put_off_count = 0
        self.lost_count = 0

    def start(self) -> None:
        self._next_s = self._clock.monotonic_s() + self._interval_s
        self._timer.arm(self._next_s)

    def stop(self) -> None:
        self._is_stopped = True
        self._timer.cancel()
        self._turn_timer.cancel()
        self._due.clear()

    def check(self) -> None:
        """Check one round; runs by itself every check interval."""
        self.start()
        if not self._due:
            self._due.extend(self._transactions.pending())
            self._see_to_some()

    def expire(self) -> None:
        """Do the round that is due by the clock, if one is."""
        if self._clock.monotonic_s() >= self._next_s:
            self.check()

    def metrics(self) -> Iterable[Metric]:
        prefix = "iotmq_broker_transaction_checks"
        yield from samples(
            (f"{prefix}_total", "Times a producer was asked about a transaction.", self.checks_count),
            (
                f"{prefix}_unasked_total",
                "Checks for which the group had no live producer.",
                self.unasked_count,
            ),
            (
                f"{prefix}_put_off_total",
                "Checks put off because no producer of the group reads from its connection.",
                self.put_off_count,
            ),
            (
                "iotmq_broker_transactions_lost_total",
                "Pending transactions whose half the log has lost.",
                self.lost_count,
            ),
        )

    @property
    def _age_max_s(self) -> float:
        """Return the age at which a transaction is given up: that of the log, or what its questions take.

        A half that the log would lose before is written again.
        """
        asked_s = self._timeout_s + self._checks_max * self._interval_s
        return max(self._store.settings.retention_hours * 3600, asked_s)

    def _see_to_some(self) -> None:
        due = self._due
        now_s = self._clock.monotonic_s()
        turn = LoopSlice()
        while due and turn.take():
            self._see_to(due.popleft(), now_s)
        if due:
            self._turn_timer.arm(now_s)

    def _see_to(self, pending: Pending, now_s: float) -> None:
        if pending.state is State.OP_OWED:
            self._transactions.settle(pending, self._written)
            return
        if pending.state is not State.OPEN or self._transactions.find(pending.first_offset) is not pending:
            return
        age_s = now_s - pending.begun_s
        immunity_s = self._timeout_s if pending.immunity_ms < 0 else pending.immunity_ms / 1000
        is_checked = age_s >= min(immunity_s, self._age_max_s)
        if (not is_checked and not self._is_leaving(pending)) or pending.first_offset in self._reading:
            return
        self._reading.add(pending.first_offset)
        self._cold_reads.finish(
            self._look_steps(pending, age_s, is_checked=is_checked),
            lambda _: None,
            # The next round tries again.
            lambda error: self._reading.discard(pending.first_offset),
        )

    def _look_steps(self, pending: Pending, age_s: float, *, is_checked: bool) -> Steps[None]:
        """Read the half of a transaction and do with it what its age wants."""
        view = yield from self._store.record_steps(pending.position)
        record = None if view is None else decode_record(view)
        is_half = record is not None and record.queue_offset == pending.offset
        if record is not None and is_half:
            yield from self._transactions.look_for_delivery(pending, record)
        self._reading.discard(pending.first_offset)
        if self._is_stopped or self._transactions.find(pending.first_offset) is not pending:
            return
        if record is None or not is_half:
            self.lost_count += 1
            logger.error(
                "the half message at position %d is lost: its transaction cannot be ended", pending.position
            )
            self._transactions.forget(pending)
        elif pending.state in (State.OPEN, State.OP_OWED):
            self._go_on_with(pending, record, age_s, is_checked=is_checked)

    def _go_on_with(self, pending: Pending, record: Record, age_s: float, *, is_checked: bool) -> None:
        if pending.state is State.OP_OWED:
            self._transactions.settle(pending, self._written)
        elif not is_checked:
            self._transactions.copy(pending, record, check_times=pending.check_times, done=self._written)
        elif pending.check_times >= self._checks_max or age_s >= self._age_max_s:
            logger.warning(
                "nobody has ended the transaction of %s in %d checks: its half goes to another topic",
                (property_value(record.properties, b"UNIQ_KEY") or b"?").decode("utf-8", "replace"),
                pending.check_times,
            )
            self._transactions.give_up(pending, record, self._written)
        else:
            self._ask_about(pending, record)

    def _is_leaving(self, pending: Pending) -> bool:
        """Return whether the half stands in the log's oldest file, and that is not the only one."""
        oldest_end = self._store.min_position + self._store.settings.segment_bytes
        return pending.position < oldest_end <= self._store.confirmed_position

    def _ask_about(self, pending: Pending, record: Record) -> None:
        """Write the half again and ask a producer, unless none of them reads what it is sent."""
        half = read_half(record)
        assert half is not None
        live = [
            member
            for member in self._groups.producers(half.group)
            if not member.connection.is_closed
            and self.may_be_asked(member.connection, half.topic, record.properties)
        ]
        reading = [member for member in live if not member.connection.is_congested]
        if live and not reading:
            # Asking on would only fill memory, and count checks that nobody could answer.
            self.put_off_count += 1
            return

        def copied(result: StoredBatch | RefusedBatch) -> None:
            self._written(result)
            # It may have been ended while the copy was written.
            if not isinstance(result, StoredBatch) or pending.state is not State.OPEN:
                return
            if reading:
                # Not the one asked the last time, if there is another.
                turn = pending.first_offset + pending.check_times
                self._ask(reading[turn % len(reading)], pending, record, half)
            else:
                self.unasked_count += 1

        self._transactions.copy(pending, record, check_times=pending.check_times + 1, done=copied)

    def _ask(self, producer: Member, pending: Pending, record: Record, half: Half) -> None:
        """Send 39 about the copy that `record`, a half, has got."""
        key = (property_value(record.properties, b"UNIQ_KEY") or b"").decode("utf-8", "replace")
        producer.connection.send_oneway(
            Command.request(
                RequestCode.CHECK_TRANSACTION_STATE,
                {
                    "tranStateTableOffset": str(pending.offset),
                    "commitLogOffset": str(pending.position),
                    "msgId": key,
                    "transactionId": key,
                    "offsetMsgId": self._message_ids.one(pending.position),
                },
                encode_record(
                    topic=half.topic,
                    body=record.body,
                    properties=copied_properties(
                        record.properties,
                        first_offset=pending.first_offset,
                        check_times=pending.check_times,
                    ),
                    queue_id=half.queue_id,
                    flag=record.flag,
                    queue_offset=pending.offset,
                    position=pending.position,
                    sys_flag=record.sys_flag,
                    born_timestamp_ms=record.born_timestamp_ms,
                    born_host=record.born_host,
                    store_timestamp_ms=record.store_timestamp_ms,
                    store_host=record.store_host,
                    reconsume_times=record.reconsume_times,
                ),
                oneway=True,
            )
        )
        self.checks_count += 1

    def _written(self, result: StoredBatch | RefusedBatch) -> None:
        if isinstance(result, RefusedBatch) and result.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            # A full disk takes nothing of the others either; the next round tries again.
            self._due.clear()
