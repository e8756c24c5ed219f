"""What a bridge knows of the session that another broker keeps for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from manual_clock import ManualClock

from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt_bridge.bridge import Bridge, _Way
from iotmq.mqtt_bridge.connection import BridgeCounts, BridgeIngress, RefusingSink
from iotmq.mqtt_bridge.settings import BridgeSettings, ReceiveRuleSettings, SendRuleSettings
from iotmq.mqtt_front.connection.device import DeviceGroup

pytestmark = pytest.mark.uvloop


async def test_what_was_received_in_a_session_that_is_gone_is_forgotten() -> None:
    """Also when the CONNACK is no good otherwise: a message with the same packet id is a new one."""

    class Sink(BridgeIngress):
        def __init__(self) -> None: ...

        def when_settled(self, device: object, callback: Any) -> bool:
            return True

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        properties = Properties(qos_max=1)
        writer.write(packets.encode_connack(0, session_present=False, properties=properties))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    rules = (ReceiveRuleSettings(filter="a/#"),)
    bridge = Bridge(
        BridgeSettings(
            name="b",
            address=f"mqtt://127.0.0.1:{port}",
            send=(SendRuleSettings(qos_max=2),),
            receive=rules,
            version="5",
        ),
        None,  # type: ignore[arg-type]
        lambda: ("mqtt",),
        gateway="g",
        sink=(Sink(), BridgeCounts()),
        clock=ManualClock(),
    )
    bridge._group = DeviceGroup(asyncio.get_running_loop(), RefusingSink(), bridge, now_s=0.0)
    way = _Way(bridge, 0)
    bridge._ways = [way]
    way.received = [7]
    lost = await bridge._connect(way)
    assert lost is not None
    assert "QoS" in lost.why
    bridge._learn(way)
    await bridge._settle(way)
    bridge._gone(way)
    assert way.received == []
    server.close()
    await server.wait_closed()
