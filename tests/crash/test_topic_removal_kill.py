"""A broker killed right after it said that a topic is deleted does not have it afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gateway_process import GatewayProcess

from iotmq.client import Admin, ClientSettings, IotmqClient, Message, Producer
from iotmq.errors import IotmqError

pytestmark = pytest.mark.crash

BACK_S = 60.0
ROUNDS = 3


@pytest.mark.timeout(240)
async def test_deleted_and_made_again_under_kills(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "data", "broker.registration_interval_s=0.3") as gateway:
        settings = ClientSettings(
            registries=(gateway.registry,), reconnect_ms_min=20, reconnect_ms_max=200, route_refresh_ms=200
        )
        for number in range(ROUNDS):
            async with IotmqClient(settings) as client, Producer(client, "pg") as producer:
                admin = Admin(client)
                await admin.create_topic("T", queues=2, timeout_s=BACK_S)
                await producer.send(Message("T", b"%d" % number))
                contents = await admin.statistics.topic_content("T")
                # Nothing of the rounds before.
                assert sum(held.max_offset - held.min_offset for held in contents.values()) == 1
                await admin.changes.delete_topic("T")
                gateway.kill()
            gateway.launch()
            await asyncio.to_thread(gateway.wait_ready, within_s=BACK_S)
            async with IotmqClient(settings) as client:
                admin = Admin(client)

                async def has_topics(admin: Admin = admin) -> list[str]:
                    try:
                        return await admin.topics()
                    except IotmqError:
                        return []

                async with asyncio.timeout(BACK_S):
                    while "TBW102" not in (topics := await has_topics()):  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                assert "T" not in topics
                assert "T" not in (await admin.configurations.topics())["broker-a"]
