"""Transactions for programs without an event loop: the application's part runs on worker threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from iotmq.client.blocking.client import SyncClient, SyncProducer
from iotmq.client.sending.transactions import Transaction, TransactionProducer, TransactionState
from iotmq.client.transport.message import Message, ReceivedMessage, SendResult
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import ProducerSettings
from iotmq.errors import ClientError

T = TypeVar("T")

SyncCheck: TypeAlias = Callable[[ReceivedMessage], TransactionState]
SyncExecute: TypeAlias = Callable[[str], TransactionState]


class SyncTransaction:
    """A `Transaction` for blocking code."""

    def __init__(self, client: SyncClient, transaction: Transaction) -> None:
        self._client = client
        self._transaction = transaction

    @property
    def message_id(self) -> str:
        """Return the message's unique key, which a check names it by."""
        return self._transaction.message_id

    @property
    def result(self) -> SendResult:
        """Return where the prepared message is kept."""
        return self._transaction.result

    @property
    def state(self) -> TransactionState:
        """COMMIT or ROLLBACK once the broker has confirmed it."""
        return self._transaction.state

    def commit(self) -> None:
        """Have the message delivered."""
        self._client.run(self._transaction.commit())

    def rollback(self) -> None:
        """Have the message dropped."""
        self._client.run(self._transaction.rollback())


class SyncTransactionProducer(SyncProducer):
    """A `TransactionProducer` for blocking code: its check runs on worker threads."""

    def __init__(
        self,
        client: SyncClient,
        group: str,
        check: SyncCheck,
        settings: ProducerSettings | None = None,
        *,
        topics: Iterable[str] = (),
        threads: int = 4,
    ) -> None:
        if threads < 1:
            raise ClientError(f"{threads} threads for checks: at least 1 is needed")
        self._client = client
        self._workers = concurrent.futures.ThreadPoolExecutor(threads, f"iotmq-{group}")
        self._transactions = TransactionProducer(
            client.client, group, lambda message: self._on_worker(check, message), settings, topics=topics
        )
        self.producer = self._transactions

    def stop(self) -> None:
        """Wait for the sends in flight, answer no more questions, then leave; it cannot be started again."""
        super().stop()
        self._workers.shutdown(wait=False, cancel_futures=True)

    def begin(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        check_after_s: int | None = None,
    ) -> SyncTransaction:
        """Prepare a message: it is delivered once the transaction is committed."""
        begin = self._transactions.begin(
            message, queue=queue, timeout_ms=timeout_ms, check_after_s=check_after_s
        )
        return SyncTransaction(self._client, self._client.run(begin))

    def send_in_transaction(
        self,
        message: Message,
        execute: SyncExecute,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        check_after_s: int | None = None,
    ) -> SyncTransaction:
        """Prepare a message, run `execute` on a worker thread, and end the transaction as it says."""
        send = self._transactions.send_in_transaction(
            message,
            lambda message_id: self._on_worker(execute, message_id),
            queue=queue,
            timeout_ms=timeout_ms,
            check_after_s=check_after_s,
        )
        return SyncTransaction(self._client, self._client.run(send))

    def _on_worker(
        self, function: Callable[[T], TransactionState], argument: T
    ) -> asyncio.Future[TransactionState]:
        return asyncio.get_running_loop().run_in_executor(self._workers, function, argument)
