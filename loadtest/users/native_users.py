"""`NativeProducerUser` and `NativeConsumerUser`: services that send and consume over the native protocol."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from locust import User, task
from locust.env import Environment

from iotmq.client import (
    ClientSettings,
    IotmqClient,
    Message,
    Producer,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
    SendResult,
)
from iotmq.errors import IotmqError
from loadtest.swarm import STAMP_BYTES
from loadtest.users.faults import REPEATED, Fault
from loadtest.users.loop_thread import LoopThread
from loadtest.users.process import Process
from loadtest.users.sequences import Scope, Stream, stamp_of
from loadtest.users.statistics import Batch, bucket, install_buckets, merge

if TYPE_CHECKING:
    pass

REQUEST_TYPE: Final = "native"
_START_S: Final = 20.0


def event_name(action: str, topic: str) -> str:
    """Name a row."""
    return f"{action}:{topic}"


class _NativeUser(User):
    """One native client of its own connections, on the loop of this process."""

    abstract = True

    registries: ClassVar[tuple[str, ...]] = ("127.0.0.1:9876",)
    """Addresses of registries; `--host` wins over them, several separated by semicolons."""
    group: ClassVar[str] = "loadtest"
    """The producer's or consumer's group."""
    checks_sequences: bool = True
    """Consumers count what is lost or repeated, by the stamps of producers and devices."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        install_buckets()
        self.thread = LoopThread.get()
        self._process = Process.get(environment)
        registries = tuple(self.host.split(";")) if self.host else self.registries
        self._native = IotmqClient(ClientSettings(registries=registries))

    def event_name(self, action: str, topic: str) -> str:
        """Name the row of `send` and `receive`."""
        return event_name(action, topic)

    def _fire(self, action: str, topic: str, elapsed_ms: float, size: int, fault: Fault | None) -> None:
        self.environment.events.request.fire(
            request_type=REQUEST_TYPE,
            name=self.event_name(action, topic),
            response_time=elapsed_ms,
            response_length=size,
            exception=fault,
            context={"topic": topic},
        )


class NativeProducerUser(_NativeUser):
    """A service that sends: `self.client.send(topic, body)` waits until the broker has stored it."""

    abstract = True

    stamps: ClassVar[bool] = True
    """24 bytes in front of each body: consumers measure end-to-end latency by them, and find what is lost."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.client = self
        self._producer: Producer | None = None
        self._streams: dict[str, Stream] = {}

    def send(self, topic: str, body: bytes, *, key: str = "", tags: str = "") -> SendResult | None:
        """Send one message; None when that failed, which the statistics have."""
        began_ns = time.monotonic_ns()
        if self.stamps:
            stream = self._streams.get(topic)
            if stream is None:
                stream = self._streams[topic] = self._process.streams.add(topic)
            body = stream.next_stamp(began_ns) + body
        result, fault = None, None
        try:
            if self._producer is None:
                self._producer = self.thread.run(self._start(), timeout_s=_START_S)
            result = self.thread.run(self._producer.send(Message(topic, body, key=key, tags=tags)))
        except IotmqError as error:
            fault = Fault(f"{type(error).__name__}: {error}")
        self._fire("send", topic, (time.monotonic_ns() - began_ns) / 1e6, len(body), fault)
        return result

    async def _start(self) -> Producer:
        await self._native.start()
        producer = Producer(self._native, self.group)
        await producer.start()
        return producer

    def start(self, group: Any) -> Any:
        greenlet = super().start(group)
        greenlet.link(lambda _: self.thread.post(self._close_soon))
        return greenlet

    def _close_soon(self) -> None:
        self.thread.loop.create_task(self._close())

    async def _close(self) -> None:
        if self._producer is not None:
            await self._producer.stop()
        await self._native.stop()


class NativeConsumerUser(_NativeUser):
    """A member of a consumer group; it needs no task."""

    abstract = True

    topic: ClassVar[str] = "mqtt"
    consume_from: ClassVar[Literal["last", "first"]] = "last"
    """Where a group begins that the broker does not know."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._scope: Scope | None = None

    @task
    def consume(self) -> None:
        import gevent

        if self.checks_sequences:
            self._process.joins_group(f"{self.group}@{self.topic}")
        consumer = self.thread.run(self._start(), timeout_s=_START_S)
        try:
            while True:
                gevent.sleep(3600)
        finally:
            if self._process.is_ending:
                self._process.close_at_end(lambda: self._close(consumer))
            else:
                self.thread.run(self._close(consumer), timeout_s=_START_S)

    async def _start(self) -> PushConsumer:
        await self._native.start()
        if self.checks_sequences and self._process.check.follows_groups:
            # The members of a group get each message once together.
            self._scope = self._process.check.group(f"{self.group}@{self.topic}", self)
        consumer = PushConsumer(
            self._native,
            self.group,
            self._receive,
            settings=PushConsumerSettings(consume_from=self.consume_from),
        )
        await consumer.subscribe(self.topic)
        await consumer.start()
        return consumer

    def received_row(self, topic: str, qos: int) -> tuple[str, str]:
        """Return the row of what did not arrive."""
        return REQUEST_TYPE, self.event_name("receive", topic)

    def _receive(self, messages: list[ReceivedMessage]) -> None:
        """Count a batch at once; on the loop's thread."""
        now_ns = time.monotonic_ns()
        batch = Batch(REQUEST_TYPE, self.event_name("receive", self.topic))
        check = self._process.check
        for message in messages:
            body = message.body
            one = stamp_of(body, ()) if len(body) >= STAMP_BYTES else None
            batch.content_bytes += len(body)
            if one is None or not check.is_of_this_run(one):
                batch.add_untimed(1)
                continue
            elapsed_ms = (now_ns - one.time_ns) / 1e6
            batch.times[bucket(elapsed_ms)] = batch.times.get(bucket(elapsed_ms), 0) + 1
            batch.request_count += 1
            batch.timed_count += 1
            batch.total_ms += elapsed_ms
            batch.max_ms = max(batch.max_ms, elapsed_ms)
            batch.min_ms = elapsed_ms if batch.min_ms is None else min(batch.min_ms, elapsed_ms)
            if self._scope is not None and not check.received(self._scope, one, self.topic, 0, now_ns / 1e9):
                batch.mark_failed(Fault(REPEATED), 1)
        self.thread.tell(merge, self.environment.stats, batch)

    async def _close(self, consumer: PushConsumer) -> None:
        await consumer.stop()
        await self._native.stop()
