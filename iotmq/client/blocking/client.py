"""The same producers and consumers for programs without an event loop: one thread runs it for them.

Every method waits for the result of its namesake in the asyncio classes and raises what that raises.
All are safe to call from any thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import uvloop

from iotmq.client.admin.admin import Admin, QueueOffsets
from iotmq.client.consuming.pull_consumer import DEFAULT_GROUP as PULL_GROUP
from iotmq.client.consuming.pull_consumer import PullConsumer
from iotmq.client.consuming.push_consumer import PushConsumer
from iotmq.client.sending.producer import DEFAULT_GROUP as PRODUCER_GROUP
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.lifetime import BlockingLifetime
from iotmq.client.transport.message import Message, ReceivedMessage, SendResult
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import (
    ClientSettings,
    ProducerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
)
from iotmq.errors import ClientClosedError, ClientError
from iotmq.message.records.columns import COLUMNS, Columns

T = TypeVar("T")

SyncListener = Callable[[list[ReceivedMessage]], Iterable[ReceivedMessage] | None]
SyncColumnsListener = Callable[[MessageQueue, Columns], None]


class SyncClient(BlockingLifetime):
    """An `ClientTransport` on a thread of its own; `with` starts and stops it."""

    def __init__(self, settings: ClientSettings | None = None) -> None:
        self.client = ClientTransport(settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        """Set while the thread runs."""
        self._thread: threading.Thread | None = None

    @property
    def client_id(self) -> str:
        """Name of this client inside its consumer groups."""
        return self.client.client_id

    def start(self) -> None:
        """Start the thread."""
        if self._thread is not None:
            return
        loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(loop,), name="iotmq-client", daemon=True)
        self._thread.start()
        self._loop = loop
        self.run(self.client.start())

    def stop(self) -> None:
        """Close the connections and end the thread. Stop producers and consumers first."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self.run(self.client.stop())
        self._loop = self._thread = None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's loop and wait for it; the waiting thread may be interrupted."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the client's loop."""
        if self._loop is None:
            coroutine.close()
            raise ClientClosedError("the client is not started: use `with SyncClient(...)`, or start()")
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise ClientError("a blocking call from the client's own thread would wait for itself forever")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


class SyncProducer(BlockingLifetime):
    """A `Producer` for blocking code; `with` starts and stops it."""

    def __init__(
        self, client: SyncClient, group: str = PRODUCER_GROUP, settings: ProducerSettings | None = None
    ) -> None:
        self._client = client
        self.producer = Producer(client.client, group, settings)

    def start(self) -> None:
        """Take part in the client's heartbeats."""
        self._client.run(self.producer.start())

    def stop(self) -> None:
        """Wait for the sends in flight, then leave."""
        self._client.run(self.producer.stop())

    def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send one message and wait until it is stored."""
        return self._client.run(self.producer.send(message, queue=queue, timeout_ms=timeout_ms))

    def send_async(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> concurrent.futures.Future[SendResult]:
        """Send one message; the future has the result. Its callbacks run on the client's thread."""
        return self._client.submit(self.producer.send(message, queue=queue, timeout_ms=timeout_ms))

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send one message without asking for an answer."""
        self._client.run(self.producer.send_oneway(message, queue=queue))

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send messages with one request per queue."""
        return self._client.run(self.producer.send_batch(messages, queue=queue, timeout_ms=timeout_ms))

    def send_encoded_batch(
        self, topic: str, queue: MessageQueue | None, elements: bytes | memoryview, count: int
    ) -> SendResult:
        """Send messages encoded by `encode_batch`, as one request."""
        return self._client.run(self.producer.send_encoded_batch(topic, queue, elements, count))

    def recall(self, recall_handle: str) -> bool:
        """Take back a message that waits; False when it does not wait any more. As `Producer.recall`."""
        return self._client.run(self.producer.recall(recall_handle))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that take messages of `topic`, sorted."""
        return self._client.run(self.producer.queues(topic))


class SyncPushConsumer(BlockingLifetime):
    """A `PushConsumer` whose listener runs on worker threads and may block; `with` starts and stops it."""

    def __init__(
        self,
        client: SyncClient,
        group: str,
        listener: SyncListener | None = None,
        *,
        columns_listener: SyncColumnsListener | None = None,
        settings: PushConsumerSettings | None = None,
        threads: int = 4,
    ) -> None:
        if threads < 1:
            raise ClientError(f"{threads} listener threads: at least 1 is needed")
        self._client = client
        self._workers = concurrent.futures.ThreadPoolExecutor(threads, f"iotmq-{group}")
        self.consumer = PushConsumer(
            client.client,
            group,
            None if listener is None else self._on_worker(listener),
            columns_listener=None if columns_listener is None else self._on_worker(columns_listener),
            settings=settings,
        )

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Consume `topic`: all of it, the tags of an expression like `TagA || TagB`, or the messages that
        `sql` selects."""
        self._client.run(self.consumer.subscribe(topic, tags, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        """Consume `topic` no more."""
        self._client.run(self.consumer.unsubscribe(topic))

    def start(self) -> None:
        """Join the group and begin consuming."""
        self._client.run(self.consumer.start())

    def stop(self) -> None:
        """Let running listener calls end, commit, and leave the group; it cannot be started again."""
        self._client.run(self.consumer.stop())
        # A call that outlived stop_timeout_ms is not waited for again.
        self._workers.shutdown(wait=False, cancel_futures=True)

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues this member has now, sorted."""
        return self.consumer.assigned

    def _on_worker(self, listener: Callable[..., T]) -> Callable[..., asyncio.Future[T]]:
        def call(*arguments: object) -> asyncio.Future[T]:
            return asyncio.get_running_loop().run_in_executor(self._workers, listener, *arguments)

        return call


class SyncPullConsumer(BlockingLifetime):
    """A `PullConsumer` for blocking code; `with` starts and stops it."""

    def __init__(
        self, client: SyncClient, group: str = PULL_GROUP, settings: PullConsumerSettings | None = None
    ) -> None:
        self._client = client
        self.consumer = PullConsumer(client.client, group, settings)

    def start(self) -> None:
        """Allow `assign`."""
        self._client.run(self.consumer.start())

    def stop(self) -> None:
        """Drop all queues and the messages fetched of them."""
        self._client.run(self.consumer.stop())

    def queues(self, topic: str, *, timeout_ms: int = 1_000) -> tuple[MessageQueue, ...]:
        """Return the queues of `topic`, sorted."""
        return self._client.run(self.consumer.queues(topic, timeout_ms=timeout_ms))

    def assign(
        self,
        positions: Mapping[MessageQueue, int] | Iterable[MessageQueue],
        *,
        tags: str = "*",
        sql: str | None = None,
    ) -> None:
        """Read these queues, and no others, from these offsets on."""
        self._client.run(self.consumer.assign(positions, tags=tags, sql=sql))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on reading `queue` at `offset`."""
        self._client.run(self.consumer.seek(queue, offset))

    def position(self, queue: MessageQueue) -> int:
        """Return the offset behind the last message that a poll returned."""
        return self.consumer.position(queue)

    def positions(self) -> dict[MessageQueue, int]:
        """`position` of all queues."""
        return self.consumer.positions()

    def getmany(self, *, timeout_ms: int = 1_000, records_max: int = 1_024) -> list[ReceivedMessage]:
        """Return the next messages of one queue, in order; empty when none came in `timeout_ms`."""
        return self._client.run(self.consumer.getmany(timeout_ms=timeout_ms, records_max=records_max))

    def getmany_columns(
        self, *, timeout_ms: int = 1_000, columns: Sequence[str] = COLUMNS, keys: Sequence[str] = ()
    ) -> tuple[MessageQueue, Columns] | None:
        """Return the next answer of one queue as columns; None after `timeout_ms`."""
        return self._client.run(
            self.consumer.getmany_columns(timeout_ms=timeout_ms, columns=columns, keys=keys)
        )

    def begin_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message that is still there."""
        return self._client.run(self.consumer.begin_offset(queue))

    def end_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return self._client.run(self.consumer.end_offset(queue))

    def offset_at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a time."""
        return self._client.run(self.consumer.offset_at_time(queue, timestamp_ms))

    def commit(self, positions: Mapping[MessageQueue, int] | None = None) -> None:
        """Store offsets for the group at the brokers."""
        self._client.run(self.consumer.commit(positions))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset the group committed, or None when it never did."""
        return self._client.run(self.consumer.committed(queue))


class SyncAdmin:
    """An `Admin` for blocking code."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client
        self._admin = Admin(client.client)

    def brokers(self) -> dict[str, dict[int, str]]:
        """Broker name -> broker id (0 = master) -> HOST:PORT."""
        return self._client.run(self._admin.brokers())

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._client.run(self._admin.topics())

    def create_topic(self, topic: str, *, queues: int = 4) -> None:
        """Make (or change) a topic with so many queues on each broker."""
        self._client.run(self._admin.create_topic(topic, queues=queues))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic, sorted."""
        return self._client.run(self._admin.queues(topic))

    def offsets(self, topic: str) -> dict[MessageQueue, QueueOffsets]:
        """Return the offsets of each queue of a topic."""
        return self._client.run(self._admin.offsets(topic))

    def group_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return the offset a group committed of each queue of a topic."""
        return self._client.run(self._admin.group_offsets(group, topic))

    def set_group_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Make a group go on at `offset`; its consumers must be stopped."""
        self._client.run(self._admin.set_group_offset(group, queue, offset))


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
