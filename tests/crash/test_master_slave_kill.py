"""A master is killed: its slave serves pulls, and goes on as master when it is restarted as one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
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
    SendStatus,
)

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

COUNT = 200
TIMEOUT_MS = 500


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path / "registry", role="registry") as gateway:
        yield gateway


def broker(directory: Path, registry: GatewayProcess, *settings: str) -> GatewayProcess:
    return GatewayProcess(
        directory, f"broker.registries={registry.registry}", "broker.registration_interval_s=0.3",
        "replication.mode=static", *SMALL_FILES, *settings, role="broker",
    )  # fmt: skip


@pytest.fixture
def master(tmp_path: Path, registry: GatewayProcess) -> Iterator[GatewayProcess]:
    settings = ("replication.role=sync_master", f"replication.slave_timeout_ms={TIMEOUT_MS}")
    with broker(tmp_path / "master", registry, *settings) as gateway:
        yield gateway


@pytest.fixture
def slave(tmp_path: Path, registry: GatewayProcess, master: GatewayProcess) -> Iterator[GatewayProcess]:
    # Where its master is it learns from the registry.
    settings = ("replication.role=slave", "replication.broker_id=1")
    with broker(tmp_path / "slave", registry, *settings) as gateway:
        yield gateway


def client_of(registry: GatewayProcess) -> IotmqClient:
    return IotmqClient(
        ClientSettings(registries=(registry.registry,), request_timeout_ms=2_000, route_refresh_ms=300)
    )


async def connected(master: GatewayProcess) -> None:
    await soon(
        lambda: master.metric("iotmq_ha_reported_position_bytes") >= 0,
        "the slave is connected",
        within_s=BACK_S,
    )


async def read_all(registry: GatewayProcess, expected: set[bytes]) -> None:
    """A new group gets all of them."""
    received: set[bytes] = set()

    def listen(batch: list[ReceivedMessage]) -> None:
        received.update(message.body for message in batch)

    async with client_of(registry) as client:
        settings = PushConsumerSettings(consume_from="first", rebalance_ms=500)
        consumer = PushConsumer(client, f"readers-{len(expected)}", listen, settings=settings)
        await consumer.subscribe("T")
        async with consumer:
            await soon(lambda: received >= expected, "the group has got everything", within_s=BACK_S)


async def test_what_a_sync_master_acknowledged_is_served_by_its_slave_and_by_the_next_master(
    registry: GatewayProcess, master: GatewayProcess, slave: GatewayProcess
) -> None:
    await connected(master)
    async with client_of(registry) as client:
        await Admin(client).create_topic("T", queues=4, timeout_s=BACK_S)
        # Slaves ask for tables now and then.
        polls = slave.metric("iotmq_ha_slave_tables_polls_total")
        await soon(
            lambda: slave.metric("iotmq_ha_slave_tables_polls_total") > polls, "the slave has the topic"
        )
        bodies = [b"%d" % number for number in range(COUNT)]
        async with Producer(client, "pg", ProducerSettings(tries_max=1)) as producer:
            results = [await producer.send(Message("T", body)) for body in bodies]
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    master.kill()
    await read_all(registry, set(bodies))

    slave.terminate()
    slave.assignments += ["replication.role=async_master", "replication.broker_id=0"]
    slave.start()
    async with client_of(registry) as client:
        async with Producer(client, "pg", ProducerSettings(tries_max=20)) as producer:
            result = await producer.send(Message("T", b"more"))
        assert result.status is SendStatus.SEND_OK
    await read_all(registry, {*bodies, b"more"})
    slave.terminate()
    check_store(slave.data)
    check_store(master.data)


async def test_a_slave_that_is_stopped_or_dead_is_told_of(
    registry: GatewayProcess, master: GatewayProcess, slave: GatewayProcess
) -> None:
    await connected(master)
    async with client_of(registry) as client:
        await Admin(client).create_topic("T", queues=4, timeout_s=BACK_S)
        async with Producer(client, "pg", ProducerSettings(tries_max=1)) as producer:

            async def statuses() -> set[SendStatus]:
                sends = [producer.send(Message("T", b"%d" % number)) for number in range(20)]
                return {result.status for result in await asyncio.gather(*sends)}

            assert await statuses() == {SendStatus.SEND_OK}
            os.kill(slave.pid, signal.SIGSTOP)
            assert await statuses() == {SendStatus.FLUSH_SLAVE_TIMEOUT}
            os.kill(slave.pid, signal.SIGCONT)
            end_position = master.metric("iotmq_store_appended_position_bytes")
            await soon(
                lambda: master.metric("iotmq_ha_reported_position_bytes") == end_position,
                "the slave has come up",
                within_s=BACK_S,
            )
            assert await statuses() == {SendStatus.SEND_OK}
            slave.kill()
            await soon(lambda: master.metric("iotmq_ha_reported_position_bytes") < 0, "the slave is gone")
            assert await statuses() == {SendStatus.SLAVE_NOT_AVAILABLE}
            slave.start()
            await connected(master)
            assert await statuses() == {SendStatus.SEND_OK}
    # All of them are stored, whatever their senders were told.
    assert master.metric("iotmq_broker_records_total") >= 100
