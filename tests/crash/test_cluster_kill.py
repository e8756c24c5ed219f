"""Two registries and two brokers; one of each dies and comes back under load, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from crash_load import BACK_S, SMALL_FILES, check_store
from eventually import soon
from gateway_process import GatewayProcess

from iotmq.client import (
    Admin,
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

pytestmark = pytest.mark.crash

SENDERS = 8
# Acknowledged before, between and after the deaths.
STEP = 300


@pytest.fixture
def registries(tmp_path: Path) -> Iterator[list[GatewayProcess]]:
    first, second = (GatewayProcess(tmp_path / f"registry-{n}", role="registry") for n in range(2))
    with first, second:
        yield [first, second]


@pytest.fixture
def brokers(tmp_path: Path, registries: list[GatewayProcess]) -> Iterator[list[GatewayProcess]]:
    addresses = ",".join(registry.registry for registry in registries)
    first, second = (
        GatewayProcess(
            tmp_path / f"broker-{number}", f"broker.registries={addresses}", f"broker.name=broker-{number}",
            "broker.registration_interval_s=0.3", "broker.offsets_interval_s=0.3", *SMALL_FILES,
            role="broker",
        )
        for number in range(2)
    )  # fmt: skip
    with first, second:
        yield [first, second]


class Load:
    """Senders that repeat a message until it is acknowledged, and a group that should get all of them."""

    def __init__(self, registries: list[GatewayProcess]) -> None:
        self.acknowledged: set[bytes] = set()
        self.acknowledged_by: dict[str, int] = {}
        self.received: set[bytes] = set()
        self._numbers = itertools.count()
        self._is_over = False
        self._settings = ClientSettings(
            registries=tuple(registry.registry for registry in registries),
            request_timeout_ms=1_000,
            route_refresh_ms=300,
            reconnect_ms_min=20,
            reconnect_ms_max=200,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        # A client of its own each: the group must not live from the producer's connections.
        async with IotmqClient(self._settings) as sending, IotmqClient(self._settings) as receiving:
            await Admin(sending).create_topic("T", queues=4, timeout_s=BACK_S)
            producer = Producer(sending, "pg", ProducerSettings(send_timeout_ms=1_000))
            settings = PushConsumerSettings(consume_from="first", commit_ms=200, rebalance_ms=500)
            consumer = PushConsumer(receiving, "cg", self._listen, settings=settings)
            await consumer.subscribe("T")
            async with producer, consumer:
                senders = [asyncio.ensure_future(self._send(producer)) for _ in range(SENDERS)]
                yield
                self._is_over = True
                await asyncio.gather(*senders)
                await soon(
                    lambda: self.acknowledged <= self.received,
                    "the group has got everything acknowledged",
                    within_s=BACK_S,
                )

    async def acknowledges(self, count: int) -> None:
        """Wait for so many more acknowledgements."""
        target = len(self.acknowledged) + count
        await soon(
            lambda: len(self.acknowledged) >= target, f"{count} more are acknowledged", within_s=BACK_S
        )

    async def both_acknowledge(self) -> None:
        """Wait until each broker has stored something since now."""
        before = dict(self.acknowledged_by)
        await soon(
            lambda: all(
                self.acknowledged_by.get(name, 0) > before.get(name, 0) for name in ("broker-0", "broker-1")
            ),
            "both brokers take messages",
            within_s=BACK_S,
        )

    async def _send(self, producer: Producer) -> None:
        while not self._is_over:
            body = b"%d" % next(self._numbers)
            while True:
                try:
                    result = await producer.send(Message("T", body))
                except IotmqError:
                    await asyncio.sleep(0.02)
                    continue
                break
            self.acknowledged.add(body)
            name = result.queue.broker_name
            self.acknowledged_by[name] = self.acknowledged_by.get(name, 0) + 1

    def _listen(self, batch: list[ReceivedMessage]) -> None:
        self.received.update(message.body for message in batch)


def restart(process: GatewayProcess) -> None:
    process.launch()
    process.wait_ready(within_s=BACK_S)


@pytest.mark.timeout(180)
async def test_one_registry_and_one_broker_die_and_nothing_acknowledged_is_lost(
    registries: list[GatewayProcess], brokers: list[GatewayProcess]
) -> None:
    load = Load(registries)
    async with load.running():
        await load.both_acknowledge()
        await load.acknowledges(STEP)
        # The other broker takes over while this one is away; the registry that is left is enough.
        brokers[0].kill()
        await load.acknowledges(STEP)
        registries[0].kill()
        await load.acknowledges(STEP)
        await asyncio.to_thread(restart, brokers[0])
        await load.both_acknowledge()
        await asyncio.to_thread(restart, registries[0])
        # And the other way round: what the restarted registry knows is all there is now.
        registries[1].kill()
        await load.both_acknowledge()
        await load.acknowledges(STEP)
        await asyncio.to_thread(restart, registries[1])
    assert len(load.acknowledged) >= 4 * STEP
    for broker in brokers:
        await asyncio.to_thread(broker.terminate)
        check_store(broker.data)
        broker.start()
