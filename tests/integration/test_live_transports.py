"""A connection leaves nothing behind, whatever transport it came by."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_gateway import RawClient, ScriptedGateway, connect_packet
from live_objects import forget_silent, leaving_nothing_behind
from mqtt_transports import Transport

from iotmq.mqtt.codec import packets

pytestmark = pytest.mark.uvloop

CONNECTIONS = 8


@pytest.mark.parametrize("end", [RawClient.close, RawClient.abort], ids=["closed", "cut off"])
async def test_connections_leave_nothing_behind(
    transport: Transport, end: Callable[[RawClient], None]
) -> None:
    async def connect_and_go() -> None:
        client = await transport.dial(front)
        client.send(connect_packet("d"))
        assert (await client.packet())[0] == packets.CONNACK << 4
        await client.subscribe(("t", 1))
        end(client)

    async with transport.front(ScriptedGateway()) as front:
        await connect_and_go()
        await forget_silent(front)
        async with leaving_nothing_behind(f"{CONNECTIONS} connections by {transport.name}"):
            for _ in range(CONNECTIONS):
                await connect_and_go()
            await forget_silent(front)
