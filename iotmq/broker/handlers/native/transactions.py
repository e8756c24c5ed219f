"""Ending transactions (37), asking again about those given up (323): the RocketMQ wire format, section 11."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.tables.topics import HALF_TOPIC, TRANSACTION_CHECKS_MAX_TOPIC
from iotmq.broker.transactions.half_messages import COMMIT, NOT_A_TRANSACTION, ROLLBACK, read_half
from iotmq.broker.transactions.transactions import GIVEN_UP, Transactions
from iotmq.broker.writing.stored_reply import StoredReply
from iotmq.errors import RefusedError, RequestError
from iotmq.message.errors import MessageFormatError
from iotmq.message.message_ids import parse_offset_message_id
from iotmq.message.records.record import Record, decode_record, property_value
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.store.queues.cold_steps import Steps

_ENDS = {COMMIT: "committed", ROLLBACK: "rolled back", GIVEN_UP: "given up, because nobody ended it in time"}


class TransactionHandler(RequestProcessor):
    """Checks who ends what, and hands it to the table of transactions."""

    def __init__(self, parts: BrokerParts, transactions: Transactions) -> None:
        self._store = parts.store
        self._transactions = transactions
        self._cold_reads = parts.cold_reads
        self.undecided_count = 0
        self.refused_count = 0

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.END_TRANSACTION: self._end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self._resume,
        }

    def metrics(self) -> Iterable[Metric]:
        prefix = "iotmq_broker_transaction_ends"
        yield from samples(
            (
                f"{prefix}_undecided_total",
                "Ends that left it open how the transaction ends.",
                self.undecided_count,
            ),
            (f"{prefix}_refused_total", "Transaction ends refused.", self.refused_count),
        )

    def _end(self, connection: ServerConnection, request: Command) -> Command | None:
        try:
            return self._end_checked(connection, request)
        except RequestError:
            # Most clients do not ask for an answer and never see it.
            self.refused_count += 1
            raise

    def _end_checked(self, connection: ServerConnection, request: Command) -> Command | None:
        group = request.text("producerGroup")
        offset = request.integer("tranStateTableOffset", minimum=0)
        position = request.integer("commitLogOffset", minimum=0)
        outcome = request.integer("commitOrRollback")
        request.boolean("fromTransactionCheck")
        request.text("msgId")
        if outcome == NOT_A_TRANSACTION:
            # The producer does not know yet; it is asked later.
            self.undecided_count += 1
            return request.reply(ResponseCode.SUCCESS)
        if outcome not in (COMMIT, ROLLBACK):
            raise RefusedError(
                f"the field commitOrRollback is {outcome}; {COMMIT} commits, {ROLLBACK} rolls back, "
                f"{NOT_A_TRANSACTION} leaves it open"
            )
        answer = StoredReply(connection, request, refused=self._count_refusal)
        steps = self._end_steps(answer, group=group, offset=offset, position=position, outcome=outcome)

        def refused(error: RequestError) -> None:
            self.refused_count += 1
            answer.refuse(error)

        self._cold_reads.finish(steps, lambda _: None, refused)
        return answer.now_or_later()

    def _end_steps(
        self, answer: StoredReply, *, group: str, offset: int, position: int, outcome: int
    ) -> Steps[None]:
        """Look at the half, and whether its message was delivered; then end it."""
        record = yield from self._half_record(group=group, offset=offset, position=position)
        half = read_half(record)
        if half is None:
            raise RefusedError("the record at the field commitLogOffset names no topic to go to")
        pending = self._transactions.find(half.first_offset)
        if pending is not None:
            yield from self._transactions.look_for_delivery(pending, record)
            # It may have been ended meanwhile.
            pending = self._transactions.find(half.first_offset)
        if pending is None:
            yield from self._check_ended(half.first_offset, record, outcome)
            answer.succeed()
        else:
            self._transactions.end(pending, record, outcome, answer)

    def _half_record(self, *, group: str, offset: int, position: int) -> Steps[Record]:
        """The half a producer means; RequestError (1) naming the field when it is not one of its own."""
        view = yield from self._store.record_steps(position)
        record = None if view is None else decode_record(view)
        if record is None or record.topic != HALF_TOPIC:
            raise RefusedError(f"the field commitLogOffset is {position}, where no prepared message starts")
        if property_value(record.properties, b"PGROUP") != group.encode():
            raise RefusedError("the field producerGroup is not the group that prepared the message")
        if record.queue_offset != offset:
            raise RefusedError(
                f"the field tranStateTableOffset is {offset}, but the prepared message has another"
            )
        return record

    def _check_ended(self, first_offset: int, record: Record, outcome: int) -> Steps[None]:
        """A repeated end does no harm; a different one comes too late: RequestError (1)."""
        before = self._transactions.outcome_of(first_offset)
        if before is None and (yield from self._transactions.is_delivered(first_offset, record)):
            before = COMMIT
        if before != outcome:
            text = "has ended before" if before is None else f"was {_ENDS[before]}"
            raise RefusedError(f"this transaction {text}")

    def _count_refusal(self) -> None:
        self.refused_count += 1

    def _resume(self, connection: ServerConnection, request: Command) -> Command | None:
        message_id = request.text("msgId")
        try:
            _, _, position = parse_offset_message_id(message_id)
        except MessageFormatError as error:
            raise RefusedError(f"the field msgId: {error}") from error
        answer = StoredReply(connection, request, refused=self._count_refusal)

        def read(view: memoryview | None) -> None:
            record = None if view is None else decode_record(view)
            if record is None or record.topic != TRANSACTION_CHECKS_MAX_TOPIC or read_half(record) is None:
                raise RefusedError(
                    f"the field msgId names no record of {TRANSACTION_CHECKS_MAX_TOPIC}, where transactions "
                    "are that were asked about too often"
                )
            self._transactions.resume(record, answer)

        self._cold_reads.finish(self._store.record_steps(position), read, answer.refuse)
        return answer.now_or_later()
