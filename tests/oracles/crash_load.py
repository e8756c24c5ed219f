"""Load for crash tests: senders that know what was acknowledged, a consumer group, and the check at the end.

Sent, acknowledged, stored and received are compared: what was acknowledged is in the log, in one queue per
sender, in order, where its acknowledgement says, and no more often than it was sent; the group has seen all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from eventually import soon
from log_reader import StoredMessage, read_topic
from mqtt_publisher import Publisher

from iotmq.client import (
    ClientSettings,
    IotmqClient,
    Message,
    Producer,
    ProducerSettings,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
)
from iotmq.errors import IotmqError
from iotmq.message.hosts import encode_host
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

PUBLISHERS = 4
NATIVE_TOPIC = "Native"
# A killed process takes about a second to be back, on a busy machine several.
BACK_S = 60.0


class NativeProducer:
    """Sends `native-0`, `native-1`, ... to one queue, each one until it is acknowledged."""

    def __init__(self, client: IotmqClient) -> None:
        # One try per send, so that what was sent again is known.
        settings = ProducerSettings(tries_max=1, send_timeout_ms=1_000)
        self._producer = Producer(client, "crash-producer", settings)
        self._is_finishing = False
        self.sent_count = 0
        self.acknowledged: list[int] = []
        self.resent: Counter[int] = Counter()
        self.places: dict[int, tuple[int, int]] = {}
        """Number -> (queue, offset) of its acknowledgement."""

    def body(self, number: int) -> bytes:
        return f"native-{number}".encode()

    def finish(self) -> None:
        self._is_finishing = True

    async def run(self) -> None:
        async with self._producer:
            while not self._is_finishing:
                number = self.sent_count
                self.sent_count += 1
                await self._send(number)

    async def _send(self, number: int) -> None:
        while True:
            try:
                result = await self._producer.send(Message(NATIVE_TOPIC, self.body(number), key="one-queue"))
            except IotmqError:
                self.resent[number] += 1
                await asyncio.sleep(0.05)
            else:
                self.acknowledged.append(number)
                self.places[number] = (result.queue.queue_id, result.queue_offset)
                return


class Load:
    """Publishers, a native producer and a consumer group at work on one gateway."""

    def __init__(self, *, registry: str, mqtt_port: int) -> None:
        self._registry = registry
        self.publishers = [
            Publisher(mqtt_port, f"p{number}", f"crash/p{number}/t", padding=100 * number)
            for number in range(PUBLISHERS)
        ]
        self.client = IotmqClient(
            ClientSettings(
                registries=(registry,), connect_timeout_ms=1_000, request_timeout_ms=2_000,
                route_refresh_ms=500, missing_route_refresh_ms=200, heartbeat_ms=1_000,
                reconnect_ms_max=200,
            )
        )  # fmt: skip
        self.producer = NativeProducer(self.client)
        self.received: Counter[bytes] = Counter()

    @property
    def senders(self) -> list[Publisher | NativeProducer]:
        return [*self.publishers, self.producer]

    def acknowledged_count(self) -> int:
        return sum(len(sender.acknowledged) for sender in self.senders)

    def _receive(self, messages: list[ReceivedMessage]) -> None:
        self.received.update(message.body for message in messages)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """At the end every sender has its last acknowledgement and the group has seen every message."""
        consumer = PushConsumer(
            self.client,
            "crash-group",
            self._receive,
            settings=PushConsumerSettings(consume_from="first", rebalance_ms=500, commit_ms=200),
        )
        async with self.client:
            await consumer.subscribe("mqtt")
            await consumer.subscribe(NATIVE_TOPIC)
            async with consumer, asyncio.TaskGroup() as group:
                for sender in self.senders:
                    group.create_task(sender.run())
                yield
                for sender in self.senders:
                    sender.finish()
                await soon(
                    lambda: all(len(each.acknowledged) == each.sent_count for each in self.senders),
                    "every message is acknowledged",
                    within_s=BACK_S,
                )
                await soon(
                    lambda: all(
                        each.body(number) in self.received
                        for each in self.senders
                        for number in range(each.sent_count)
                    ),
                    "the consumer group has everything",
                    within_s=BACK_S,
                )

    async def check(self, *, copies_more: int = 0) -> None:
        """Compare what was sent and acknowledged with what is in the log.

        `copies_more` is how often somebody between a publisher and the log may have sent a message again.
        """
        queues = await asyncio.to_thread(read_topic, self._registry, "mqtt")
        for publisher in self.publishers:
            check_sender(publisher, queues, copies_more=copies_more)
        check_sender(self.producer, await asyncio.to_thread(read_topic, self._registry, NATIVE_TOPIC))
        everything = {each.body(number) for each in self.senders for number in range(each.sent_count)}
        stored = {message.body for messages in queues.values() for message in messages}
        assert stored <= everything, "the log holds what nobody sent"
        assert set(self.received) <= everything, "the group received what nobody sent"


def check_sender(
    sender: Publisher | NativeProducer, queues: dict[int, list[StoredMessage]], *, copies_more: int = 0
) -> None:
    """Each message once, or as often as it was sent again; all in one queue; in order."""
    numbers = {sender.body(number): number for number in range(sender.sent_count)}
    places = [
        (message.queue_id, numbers[message.body], message.offset)
        for messages in queues.values()
        for message in messages
        if message.body in numbers
    ]
    assert len({queue_id for queue_id, _, _ in places}) == 1, "one publisher's topic in several queues"
    counts = Counter(number for _, number, _ in places)
    missing = [number for number in sender.acknowledged if not counts[number]]
    assert missing == [], f"acknowledged and lost: {missing[:10]}"
    allowed = 1 + copies_more
    too_many = {n: count for n, count in counts.items() if count > allowed + sender.resent.get(n, 0)}
    assert too_many == {}, f"more copies than were sent: {too_many}"
    first = list(dict.fromkeys(number for _, number, _ in places))
    assert first == sorted(first), "out of order"
    if isinstance(sender, NativeProducer):
        stored_at = {(queue_id, offset): number for queue_id, number, offset in places}
        wrong = {n: place for n, place in sender.places.items() if stored_at.get(place) != n}
        assert wrong == {}, f"not where the acknowledgement says: {wrong}"


# Small files, so that kills fall on their borders as well.
SMALL_FILES = (
    "store.segment_bytes=524288", "store.record_bytes_max=262144", "store.queue_file_entries=500",
)  # fmt: skip


def check_store(data: Path) -> None:
    """Open the data as the next start would, and have every file compared with every other."""
    settings = StoreSettings(
        segment_bytes=524_288, record_bytes_max=262_144, queue_file_entries=500, allocation_step_bytes=65_536
    )
    store = Store.open(data, settings, store_host=encode_host("127.0.0.1", 1))
    try:
        assert store.check() == []
    finally:
        store.close()
