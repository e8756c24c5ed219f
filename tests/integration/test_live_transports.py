"""A connection leaves nothing behind, whatever transport it came by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop
from fake_gateway import RawClient, ScriptedGateway, connect_packet
from live_objects import forget_silent, leaving_nothing_behind
from mqtt_transports import TRANSPORTS, Files, Transport, make_files, usable

from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.settings.mqtt import MqttSettings

CONNECTIONS = 8


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy()


@pytest.fixture(params=TRANSPORTS, ids=lambda transport: transport.name)
def transport(request: pytest.FixtureRequest) -> Transport:
    return usable(request.param)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files | None:
    return make_files(tmp_path_factory)


@pytest.mark.parametrize("end", [RawClient.close, RawClient.abort], ids=["closed", "cut off"])
async def test_connections_leave_nothing_behind(
    transport: Transport, files: Files | None, end: Callable[[RawClient], None]
) -> None:
    front = MqttFront(MqttSettings(listen_port=0, **transport.settings(files)), ScriptedGateway())
    await front.start()

    async def connect_and_go() -> None:
        client = await transport.dial(transport.port(front), files)
        client.send(connect_packet("d"))
        assert (await client.packet())[0] == packets.CONNACK << 4
        await client.subscribe(("t", 1))
        end(client)

    await connect_and_go()
    await forget_silent(front)
    async with leaving_nothing_behind(f"{CONNECTIONS} connections by {transport.name}"):
        for _ in range(CONNECTIONS):
            await connect_and_go()
        await forget_silent(front)
    await front.stop()
