"""The gateway killed and started again under load: what was acknowledged is stored, in order, and consumed.

Sent, acknowledged, stored and received are sets that a checker compares at the end. `make crash` runs many
rounds (IOTMQ_CRASH_ROUNDS) from a seed of its own (IOTMQ_CRASH_SEED); a failure names the seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from eventually import soon
from gateway_process import ROOT, SMALL_STORE, GatewayProcess
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

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("IOTMQ_CRASH_ROUNDS", "4"))
SEED = int(os.environ.get("IOTMQ_CRASH_SEED", "20"))
PUBLISHERS = 4
NATIVE_TOPIC = "Native"
# A killed gateway takes about a second to be back, on a busy machine several.
BACK_S = 60.0

Stop = Callable[[GatewayProcess, random.Random], Awaitable[None]]


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

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self.publishers = [
            Publisher(gateway.mqtt_port, f"p{number}", f"crash/p{number}/t", padding=100 * number)
            for number in range(PUBLISHERS)
        ]
        self.client = IotmqClient(
            ClientSettings(
                registries=(gateway.registry,), connect_timeout_ms=1_000, request_timeout_ms=2_000,
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

    async def check(self) -> None:
        """Compare what was sent and acknowledged with what is in the log."""
        registry = self.gateway.registry
        queues = await asyncio.to_thread(read_topic, registry, "mqtt")
        for publisher in self.publishers:
            check_sender(publisher, queues)
        check_sender(self.producer, await asyncio.to_thread(read_topic, registry, NATIVE_TOPIC))
        everything = {each.body(number) for each in self.senders for number in range(each.sent_count)}
        stored = {message.body for messages in queues.values() for message in messages}
        assert stored <= everything, "the log holds what nobody sent"
        assert set(self.received) <= everything, "the group received what nobody sent"


def check_sender(sender: Publisher | NativeProducer, queues: dict[int, list[StoredMessage]]) -> None:
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
    too_many = {n: count for n, count in counts.items() if count > 1 + sender.resent.get(n, 0)}
    assert too_many == {}, f"more copies than were sent: {too_many}"
    first = list(dict.fromkeys(number for _, number, _ in places))
    assert first == sorted(first), "out of order"
    if isinstance(sender, NativeProducer):
        stored_at = {(queue_id, offset): number for queue_id, number, offset in places}
        wrong = {n: place for n, place in sender.places.items() if stored_at.get(place) != n}
        assert wrong == {}, f"not where the acknowledgement says: {wrong}"


def check_store(data: Path) -> None:
    """Open the data as the next start would, and have every file compared with every other."""
    settings = StoreSettings(segment_bytes=16_777_216, allocation_step_bytes=65_536)
    store = Store.open(data, settings, store_host=encode_host("127.0.0.1", 1))
    try:
        assert store.check() == []
    finally:
        store.close()


async def kill_and_start(gateway: GatewayProcess, random_source: random.Random) -> None:
    """kill -9; sometimes once more while it starts, perhaps in the middle of its recovery."""
    gateway.kill()
    if random_source.random() < 0.3:
        gateway.launch()
        await asyncio.sleep(random_source.uniform(0.2, 0.8))
        gateway.kill()
    gateway.launch()
    await asyncio.to_thread(gateway.wait_ready, within_s=BACK_S)


async def stop_and_start(gateway: GatewayProcess, _random_source: random.Random) -> None:
    """SIGTERM, and two seconds for a clean end."""
    took_s = await asyncio.to_thread(gateway.terminate)
    assert took_s < 2.0
    assert not (gateway.data / "abort").exists()
    gateway.launch()
    await asyncio.to_thread(gateway.wait_ready, within_s=BACK_S)


@pytest.mark.timeout(60 + 30 * ROUNDS)
@pytest.mark.parametrize(
    ("flush", "stop", "rounds"),
    [
        pytest.param("async", kill_and_start, ROUNDS, id="kill-async"),
        pytest.param("sync", kill_and_start, max(1, ROUNDS // 2), id="kill-sync"),
        pytest.param("async", stop_and_start, max(1, ROUNDS // 2), id="sigterm"),
    ],
)
async def test_nothing_acknowledged_is_lost(tmp_path: Path, flush: str, stop: Stop, rounds: int) -> None:
    print(f"IOTMQ_CRASH_SEED={SEED}")
    random_source = random.Random(SEED)
    # A kill finds offsets that were just written, or not yet.
    gateway = GatewayProcess(
        tmp_path / "data", f"store.flush={flush}", "broker.offsets_interval_s=0.3",
        "store.checkpoint_interval_ms=500",
    )  # fmt: skip
    with gateway:
        load = Load(gateway)
        async with load.running():
            for _ in range(rounds):
                # The moment is a number of acknowledgements after the start, from none to many.
                target = load.acknowledged_count() + int(random_source.expovariate(1 / 1_500))
                await soon(
                    lambda target=target: load.acknowledged_count() >= target,
                    "messages are acknowledged after a start",
                    within_s=BACK_S, step_s=random_source.uniform(0.001, 0.02),
                )  # fmt: skip
                await stop(gateway, random_source)
            # Everybody came back and goes on.
            for sender in load.senders:
                before = len(sender.acknowledged)
                await soon(
                    lambda sender=sender, before=before: len(sender.acknowledged) > before,
                    "every sender goes on after the last start",
                    within_s=BACK_S,
                )
        assert all(publisher.connections > 1 for publisher in load.publishers)
        await load.check()
        again = [sum(sender.resent.values()) for sender in load.senders]
        print(f"{load.acknowledged_count()} acknowledged, {load.received.total()} received, again: {again}")
    check_store(gateway.data)


def test_a_second_process_on_the_data_is_refused_by_the_name_of_the_lock(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "data") as gateway:
        words = [
            word
            for name in (*(f"{part}.listen_port=0" for part in gateway.ports), *SMALL_STORE)
            for word in ("--set", name)
        ]
        second = subprocess.run(
            [sys.executable, "-m", "iotmq", "serve", "--data", str(gateway.data), *words],
            cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert second.returncode == 1
        assert str(gateway.data / "lock") in second.stderr
        assert str(gateway.pid) in second.stderr
        assert "Traceback" not in second.stderr
        # The first one has not noticed.
        assert gateway.http("/readyz")[0] == 200
    # A lock that a killed process left behind holds nobody up.
    with GatewayProcess(tmp_path / "data") as gateway:
        gateway.restart()


async def test_messages_of_a_topic_that_was_not_saved_are_found_again(tmp_path: Path) -> None:
    """A power cut may take topics.json back to before the topic, while its messages are on the disk."""
    with GatewayProcess(tmp_path / "data") as gateway:
        async with (
            IotmqClient(ClientSettings(registries=(gateway.registry,))) as client,
            Producer(client) as producer,
        ):
            for number in range(20):
                await producer.send(Message("Young", b"%d" % number, key=str(number)))
        gateway.kill()
        for file in (gateway.data / "config").glob("topics.json*"):
            file.unlink()
        gateway.start()
        queues = await asyncio.to_thread(read_topic, gateway.registry, "Young")
        bodies = [message.body for messages in queues.values() for message in messages]
        assert sorted(bodies) == sorted(b"%d" % number for number in range(20))
        assert "topic Young was not in topics.json" in gateway.log_text()
