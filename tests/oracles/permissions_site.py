"""A front end with a file of rules, over scripted brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fake_gateway import RawClient, ScriptedGateway, connect_packet
from front_metrics import number_of
from manual_clock import ManualClock

from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.permissions.questions import Decider
from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.mqtt_front.settings.permissions import PermissionSettings

REFUSED = "iotmq_mqtt_permissions_refused_total"
NOT_AUTHORIZED = 0x87


def rule_text(permission: str, action: str, *topics: str, who: str = '"all"', **more: str) -> str:
    """One rule of a file."""
    given = {
        "permission": f'"{permission}"',
        "action": f'"{action}"',
        "who": who,
        "topics": str(list(topics)),
    }
    return "[[rules]]\n" + "".join(f"{name} = {value}\n" for name, value in (given | more).items())


def write(path: Path, text: str | None) -> None:
    """The file has this text; None: it is not there."""
    if text is None:
        path.unlink()
    else:
        path.write_text(text)


class Site:
    """The running front end."""

    def __init__(self, path: Path, deciders: Sequence[Decider], settings: dict[str, Any]) -> None:
        self.path = path
        self.gateway = ScriptedGateway()
        self.gateway.automatic = 0
        self.clock = ManualClock()
        names = PermissionSettings.__struct_fields__
        permissions = PermissionSettings(
            permissions_file=str(path) if path.exists() else "",
            **{name: settings.pop(name) for name in list(settings) if name in names},
        )
        self.front = MqttFront(
            MqttSettings(listen_port=0, permissions=permissions, **settings),
            self.gateway,
            clock=self.clock,
            deciders=deciders,
        )

    async def connect(self, client_id: str = "c", level: int = 4, **fields: Any) -> RawClient:
        """A device with an open session."""
        client = await RawClient.dial(self.front.port)
        client.send(connect_packet(client_id, protocol_level=level, **fields))
        first, body = await client.packet()
        assert first == packets.CONNACK << 4
        assert body[1] == 0, body
        return client

    async def published(self, client: RawClient, topic: str, payload: bytes = b"x", **fields: Any) -> int:
        """The code that a message gets; 0 before MQTT 5."""
        qos = fields.pop("qos", 1)
        client.send(packets.encode_publish(topic, payload, qos=qos, packet_id=7, **fields))
        first, body = await client.packet()
        assert first >> 4 == {1: packets.PUBACK, 2: packets.PUBREC}[qos]
        assert int.from_bytes(body[:2], "big") == 7
        return body[2] if len(body) > 2 else 0

    @property
    def topics(self) -> list[str]:
        """Of what brokers were given, in order."""
        return [message.topic for handed in self.gateway.handed for message in handed.messages]

    def number(self, name: str, **labels: str) -> float:
        return number_of(self.front, name, **labels)

    async def change(self, text: str | None) -> None:
        """Other rules; None: the file has gone."""
        write(self.path, text)
        await self.front.parts.permissions.reload()


@asynccontextmanager
async def running(
    path: Path, text: str | None = None, *, deciders: Sequence[Decider] = (), **settings: Any
) -> AsyncIterator[Site]:
    """Without a text there is no file."""
    if text is not None:
        write(path, text)
    # Tests say when the file is looked at.
    site = Site(path, deciders, {"reload_interval_s": 3_600.0} | settings)
    await site.front.start()
    try:
        yield site
    finally:
        await site.front.stop()
