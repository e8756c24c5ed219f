"""A front end with a file of users over scripted brokers, whose clock tests move."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from fake_gateway import RawClient, ScriptedGateway, connect_packet
from front_metrics import number_of
from manual_clock import ManualClock

from iotmq.config.config import config_from_table
from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.access.links.users import UsersLink
from iotmq.mqtt_front.access.scram import make_verifier
from iotmq.mqtt_front.access.users_file import write_users
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.server import MqttFront

WAY = "iotmq_mqtt_authenticated_total"
REFUSED = "iotmq_mqtt_authentication_refused_total"
USERS = ("pump", "valve", "größe", "c,d=e")


@cache
def line_of(name: str) -> str:
    """The line of a user whose password is the name backwards."""
    return f"{name}:{make_verifier(name[::-1].encode(), iterations=4_096)}\n"


def file_of_all(directory: Path) -> Path:
    """A new file with all users."""
    write_users(directory / "users", "".join(map(line_of, USERS)).encode())
    return directory / "users"


class Site:
    """A front end with a file of users."""

    def __init__(self, path: Path, settings: dict[str, Any], mqtt: dict[str, Any]) -> None:
        self.path = path
        self.clock = ManualClock()
        self.gateway = ScriptedGateway()
        table = {"listen_port": 0, **mqtt, "authentication": {"users_file": str(path), **settings}}
        self.front = MqttFront(config_from_table({"mqtt": table}).mqtt, self.gateway, clock=self.clock)

    async def dial(self) -> RawClient:
        return await RawClient.dial(self.front.port)

    async def answer(self, packet: bytes) -> tuple[int, bytes]:
        """What a CONNECT is answered first."""
        client = await self.dial()
        client.send(packet)
        return await client.packet()

    async def code(self, user: str | None = None, password: bytes | None = None, **fields: Any) -> int:
        """The code of the CONNACK; after a refusal the connection ends."""
        client = await self.dial()
        client.send(connect_packet("", user_name=user, password=password, **fields))
        first, body = await client.packet()
        assert first == packets.CONNACK << 4
        if body[1]:
            assert await client.rest() == b""
        client.close()
        return body[1]

    def number(self, name: str, **labels: str) -> float:
        return number_of(self.front, name, **labels)

    @property
    def devices(self) -> list[Device]:
        return list(self.front.parts.sessions.devices())

    @property
    def users(self) -> UsersLink:
        chains = self.front.parts.authentication.chains
        assert chains is not None
        found = chains.places["users"].link
        assert isinstance(found, UsersLink)
        return found


@asynccontextmanager
async def running(path: Path, mqtt: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Site]:
    site = Site(path, settings, mqtt or {})
    await site.front.start()
    try:
        yield site
    finally:
        await site.front.stop()
