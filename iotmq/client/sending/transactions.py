"""Send messages in transactions: prepare them, then commit or roll back.

The broker keeps a prepared message to itself. When its producer says nothing about it for a while, the broker
asks a producer of the group how it ended, which may be another process than the one that prepared it.
"""

from __future__ import annotations

import asyncio
import copy
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias, TypeVar

from iotmq import limits
from iotmq.addresses import address_text
from iotmq.client.sending.pending_send import PREPARED_FLAG
from iotmq.client.sending.producer import Producer
from iotmq.client.sending.queue_choice import QueueChoice
from iotmq.client.transport.application_calls import call_application, end_calls
from iotmq.client.transport.calls import ask
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import Message, ReceivedMessage, SendResult, SendStatus
from iotmq.client.transport.routes import MASTER_ID, MessageQueue
from iotmq.client.transport.settings import ProducerSettings
from iotmq.errors import (
    BrokerError,
    ClientClosedError,
    ClientError,
    ConfigError,
    ConnectionClosedError,
    IotmqError,
    NotMasterError,
    RouteNotFoundError,
)
from iotmq.message.errors import MessageFormatError
from iotmq.message.message_ids import parse_offset_message_id
from iotmq.message.properties import CHECK_IMMUNITY_TIME_S, PRODUCER_GROUP, TRANSACTION_PREPARED
from iotmq.message.records.record import decode_record, property_value
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.supervised import end, supervise

_log = logging.getLogger(__name__)

# The end of a transaction is said again after so long, and at once where a registry tells of another master.
_END_REST_S = 0.5
# The time for the end of a check that was cancelled.
_CHECK_END_S = 5.0

T = TypeVar("T")


class TransactionState(enum.Enum):
    """The result of a transaction."""

    COMMIT = 8
    """Deliver the message."""
    ROLLBACK = 12
    """Drop it."""
    UNKNOWN = 0
    """Not known now: the broker asks later."""


Check: TypeAlias = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState]]
"""Says how the transaction of a prepared message ended. Raising counts as UNKNOWN."""
Execute: TypeAlias = Callable[[str], TransactionState | Awaitable[TransactionState]]
"""Does the application's part, given the message id by which a check names the message later."""


class Transaction:
    """One prepared message. Exactly one of `commit` and `rollback` ends it."""

    __slots__ = ("_end", "result", "state")

    def __init__(
        self, result: SendResult, end: Callable[[SendResult, TransactionState], Awaitable[None]]
    ) -> None:
        """Use `TransactionProducer.begin`."""
        self._end = end
        self.result = result
        """Where the prepared message is kept."""
        self.state = TransactionState.UNKNOWN
        """COMMIT or ROLLBACK once the broker has confirmed it."""

    @property
    def message_id(self) -> str:
        """Return the message's unique key, which a check names it by."""
        return self.result.message_id

    async def commit(self) -> None:
        """Have the message delivered. May be repeated after an error; if it is not, the broker asks."""
        await self._end(self.result, TransactionState.COMMIT)
        self.state = TransactionState.COMMIT

    async def rollback(self) -> None:
        """Have the message dropped. May be repeated after an error; if it is not, the broker asks."""
        await self._end(self.result, TransactionState.ROLLBACK)
        self.state = TransactionState.ROLLBACK

    def __repr__(self) -> str:
        return f"<Transaction {self.message_id} {self.state.name}>"


class TransactionProducer(Producer):
    """A producer that can prepare messages, too. `check` answers the broker's questions about them.

    All members of the group must give the same answers: any of them may be asked. A plain function runs on
    the event loop and must not block (`SyncTransactionProducer` takes one that does). After a lost connection
    a message may be prepared twice, under one message id.

    Brokers ask on connections that there are: to the brokers of `topics`, also those that come later, and to
    those that something was sent to. Name the topics whose transactions another process may have left open.
    """

    def __init__(
        self,
        client: ClientTransport,
        group: str,
        check: Check,
        settings: ProducerSettings | None = None,
        *,
        topics: Iterable[str] = (),
    ) -> None:
        if not callable(check):
            raise ConfigError(f"the check of a transaction producer is a function, not {check!r}")
        super().__init__(client, group, settings)
        self._check = check
        self._topics = tuple(topics)
        self._checks_max = limits.TRANSACTION_CHECKS_IN_FLIGHT_MAX
        self._checks: set[asyncio.Task[None]] = set()
        self._meetings: list[asyncio.Task[None]] = []
        self._checks_total = 0
        self._checks_dropped_total = 0
        self._failed_checks_total = 0

    async def start(self) -> None:
        """Take part in the client's heartbeats, so that brokers can ask; the client must be started."""
        await self._ending.over()
        if self._is_running:
            return
        await super().start()
        self._client.add_request_handler(RequestCode.CHECK_TRANSACTION_STATE, self._asked)
        try:
            # Brokers that are connected already would otherwise hear of the group only later.
            await self._client.heartbeat()
            await self._meet_brokers()
            self._meetings = [supervise("brokers that ask", self._meet_repeatedly)] if self._topics else []
        except BaseException:
            await self.stop()
            raise

    async def _finish(self) -> None:
        self._client.remove_request_handler(RequestCode.CHECK_TRANSACTION_STATE, self._asked)
        await end(self._meetings)
        await end_calls(self._checks, within_s=_CHECK_END_S, what=f"the check of group {self.group}")
        await super()._finish()

    async def begin(
        self,
        message: Message,
        *,
        queue: QueueChoice | None = None,
        timeout_ms: int | None = None,
        check_after_s: int | None = None,
    ) -> Transaction:
        """Prepare a message: it is stored, and delivered once the transaction is committed.

        The broker asks after `check_after_s`, by default after a time of its own (6 s). Raises what `send`
        raises, and BrokerError when the broker's promise (flush, copies) was not kept: a message that is
        lost after all could not be committed, so it is rolled back.
        """
        half = copy.copy(message)
        properties = {**(message.properties or {}), TRANSACTION_PREPARED: "true", PRODUCER_GROUP: self.group}
        if check_after_s is not None:
            properties[CHECK_IMMUNITY_TIME_S] = str(check_after_s)
        half.properties = properties
        await self.room()
        transaction = Transaction(await self._send_half(half, queue, timeout_ms), self._end)
        status = transaction.result.status
        if status is not SendStatus.SEND_OK:
            await self._end_or_leave(transaction, TransactionState.ROLLBACK)
            raise BrokerError(
                status.value, f"transaction {transaction.message_id} is rolled back: {status.name}"
            )
        return transaction

    def _send_half(
        self, half: Message, queue: QueueChoice | None, timeout_ms: int | None
    ) -> asyncio.Future[SendResult]:
        def send(message: Message) -> asyncio.Future[SendResult]:
            prepared = self._prepare(message, queue, timeout_ms)
            prepared.sys_flag |= PREPARED_FLAG
            return self._start(prepared)

        return send(half) if self._interceptors is None else self._interceptors.send(half, send)

    async def send_in_transaction(
        self,
        message: Message,
        execute: Execute,
        *,
        queue: QueueChoice | None = None,
        timeout_ms: int | None = None,
        check_after_s: int | None = None,
    ) -> Transaction:
        """Prepare a message, run `execute`, and end the transaction as it says.

        When `execute` raises, the transaction stays open, the broker asks later, and the error is raised.
        An end that does not get through is only logged (`state` stays UNKNOWN), and the broker asks.
        """
        transaction = await self.begin(
            message, queue=queue, timeout_ms=timeout_ms, check_after_s=check_after_s
        )
        state = await _outcome(execute, transaction.message_id)
        await self._end_or_leave(transaction, state)
        return transaction

    def metrics(self) -> Iterable[Metric]:
        """Report the counters of this producer."""
        yield from super().metrics()
        prefix = "iotmq_client_transaction_checks"
        yield from samples(
            (f"{prefix}_total", "Times a broker asked about a transaction", self._checks_total),
            (
                f"{prefix}_failed_total",
                "Questions about transactions in which the listener raised an exception",
                self._failed_checks_total,
            ),
            (
                f"{prefix}_dropped_total",
                "Questions about transactions dropped because too many waited",
                self._checks_dropped_total,
            ),
            labels=(("group", self.group),),
        )

    async def _meet_repeatedly(self) -> None:
        """Be connected also to brokers that come, and to those that nobody knew at the start."""
        while True:
            await asyncio.sleep(self._client.settings.heartbeat_ms / 1000)
            await self._meet_brokers()

    async def _meet_brokers(self) -> None:
        """Be connected to the brokers of the topics, as far as they can be reached now."""
        for topic in self._topics:
            await self._meet_brokers_of(topic)

    async def _meet_brokers_of(self, topic: str) -> None:
        try:
            route = await self._client.routes.find(topic)
        except (RouteNotFoundError, BrokerError) as error:
            _log.warning("nobody can ask about transactions of topic %s yet: %s", topic, error)
            return
        for by_id in () if route is None else route.addresses.values():
            address = by_id.get(MASTER_ID)
            try:
                if address is not None:
                    await self._client.connections.get(address)
            except ConnectionClosedError as error:
                _log.warning("the broker at %s cannot ask about transactions now: %s", address, error)

    async def _end_or_leave(self, transaction: Transaction, state: TransactionState) -> None:
        """End it as far as that gets through now; an open one the broker asks about."""
        try:
            if state is TransactionState.COMMIT:
                await transaction.commit()
            elif state is TransactionState.ROLLBACK:
                await transaction.rollback()
        except IotmqError as error:
            _log.warning("transaction %s: the broker will ask, because %s", transaction.message_id, error)

    async def _end(self, result: SendResult, state: TransactionState) -> None:
        queue = result.queue
        ids = result.offset_message_ids
        try:
            position = parse_offset_message_id(ids[0] if ids else "")[2]
        except MessageFormatError as error:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {queue.broker_name} gave a prepared message a bad id: {error}",
            ) from error
        ext = {
            **self._end_fields(state, str(result.queue_offset), str(position), result.message_id),
            "fromTransactionCheck": "false",
            "bname": queue.broker_name,
        }
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.settings.send_timeout_ms / 1000
        while True:
            address = None
            try:
                address = (await self._tries.route(queue.topic)).master(queue.broker_name)
                await self._ask_to_end(queue, address, ext)
                return
            except ClientClosedError:
                raise
            except (ConnectionClosedError, NotMasterError, RouteNotFoundError):
                # Another master may take it, and it may be said twice.
                left_s = deadline_s - loop.time()
                if left_s <= 0:
                    raise
            present = self._client.routes.known(queue.topic)
            if present is None or present.master(queue.broker_name) in (None, address):
                await self._client.masters.moved_within(min(left_s, _END_REST_S))

    async def _ask_to_end(self, queue: MessageQueue, address: str | None, ext: dict[str, str]) -> None:
        if address is None:
            raise RouteNotFoundError(f"broker {queue.broker_name} of topic {queue.topic} has no master now")
        doing = f"end of transaction {ext['msgId']} in topic {queue.topic} at broker {queue.broker_name}"
        await ask(self._client, address, RequestCode.END_TRANSACTION, ext, doing=doing)

    def _end_fields(
        self, state: TransactionState, offset: str, position: str, message_id: str
    ) -> dict[str, str]:
        return {
            "producerGroup": self.group,
            "tranStateTableOffset": offset,
            "commitLogOffset": position,
            "commitOrRollback": str(state.value),
            "msgId": message_id,
            "transactionId": message_id,
        }

    def _asked(self, connection: ClientConnection, command: Command) -> Command | None:
        try:
            record = decode_record(command.body_bytes())
        except MessageFormatError as error:
            _log.warning("a broker asks about a transaction without a readable message: %s", error)
            return None
        if property_value(record.properties, b"PGROUP") != self.group.encode():
            return None
        self._checks_total += 1
        if len(self._checks) >= self._checks_max:
            # The broker asks again.
            self._checks_dropped_total += 1
            return command.reply(ResponseCode.SYSTEM_BUSY, remark="too many questions at a time")
        queue = MessageQueue(record.topic, self._broker_name(connection), record.queue_id)
        task = asyncio.ensure_future(self._answer(connection, command, ReceivedMessage(queue, record)))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)
        return command.reply(ResponseCode.SUCCESS)

    async def _answer(self, connection: ClientConnection, command: Command, message: ReceivedMessage) -> None:
        try:
            state = await _outcome(self._check, message)
        except Exception:
            self._failed_checks_total += 1
            _log.warning("the check of transaction %s failed", message.message_id, exc_info=True)
            state = TransactionState.UNKNOWN
        ext = command.ext
        fields = self._end_fields(
            state,
            ext.get("tranStateTableOffset", str(message.queue_offset)),
            ext.get("commitLogOffset", str(message.record.position)),
            ext.get("msgId", message.message_id),
        )
        connection.send_oneway(
            Command.request(
                RequestCode.END_TRANSACTION,
                {**fields, "fromTransactionCheck": "true", "bname": message.queue.broker_name},
                oneway=True,
            )
        )

    def _broker_name(self, connection: ClientConnection) -> str:
        """Return the broker behind a connection; empty when no route leads there by this address."""
        address = address_text(*connection.peer)
        for route in self._client.routes.all_known():
            for name, by_id in route.addresses.items():
                if address in by_id.values():
                    return name
        return ""


async def _outcome(
    function: Callable[[T], TransactionState | Awaitable[TransactionState]], argument: T
) -> TransactionState:
    """Check the result of an application's function; ClientError when it is not a TransactionState."""
    state = await call_application(function, argument)
    if not isinstance(state, TransactionState):
        raise ClientError(f"invalid result {state!r}: return TransactionState.COMMIT, ROLLBACK or UNKNOWN")
    return state
