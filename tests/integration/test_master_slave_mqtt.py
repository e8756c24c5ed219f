"""MQTT devices beside master and slave: stored once without a slave, and never at a slave."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from eventually import soon
from gateway_process import GatewayProcess
from log_reader import read_topic
from mqtt_publisher import Publisher

# Without the key index a batch that is sent again is stored again.
SETTINGS = ("replication.mode=static", "replication.role=sync_master", "store.index_enabled=false")
COUNT = 50


async def publish(port: int) -> Publisher:
    publisher = Publisher(port, "device", "Alpha")
    running = asyncio.ensure_future(publisher.run())
    await soon(lambda: len(publisher.acknowledged) >= COUNT, "messages are acknowledged")
    publisher.finish()
    async with asyncio.timeout(30):
        await running
    return publisher


def bodies(registry: str) -> list[bytes]:
    return [each.body for queue in read_topic(registry, "mqtt").values() for each in queue]


@pytest.mark.parametrize("is_apart", [False, True])
async def test_messages_are_stored_once_and_acknowledged(tmp_path: Path, is_apart: bool) -> None:
    if not is_apart:
        with GatewayProcess(tmp_path / "data", *SETTINGS) as gateway:
            publisher = await publish(gateway.mqtt_port)
            stored = await asyncio.to_thread(bodies, gateway.registry)
    else:
        with GatewayProcess(tmp_path / "registry", role="registry") as registry:
            registries = f"registries={registry.registry}"
            with (
                GatewayProcess(tmp_path / "data", *SETTINGS, f"broker.{registries}", role="broker"),
                GatewayProcess(tmp_path / "front", f"mqtt.{registries}", role="mqtt") as front,
            ):
                publisher = await publish(front.mqtt_port)
                stored = await asyncio.to_thread(bodies, registry.registry)
    assert len(publisher.acknowledged) == publisher.sent_count >= COUNT
    assert sorted(stored) == sorted(publisher.body(number) for number in publisher.acknowledged)


async def test_devices_at_a_slaves_process_reach_the_master(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "master", "replication.mode=static") as master:
        registries = f'registries=["{master.registry}"]'
        role = ("replication.mode=static", "replication.role=slave", "replication.broker_id=1")
        addresses = (f"broker.{registries}", f"mqtt.{registries}")
        with GatewayProcess(tmp_path / "slave", *role, *addresses) as slave:
            publisher = await publish(slave.mqtt_port)
            stored = await asyncio.to_thread(bodies, master.registry)
            assert slave.metric("iotmq_broker_records_total") == 0
            end_position = master.metric("iotmq_store_appended_position_bytes")
            await soon(
                lambda: slave.metric("iotmq_store_confirmed_position_bytes") == end_position,
                "the slave has what the devices sent",
            )
    assert sorted(stored) == sorted(publisher.body(number) for number in publisher.acknowledged)
