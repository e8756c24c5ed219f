"""A front end with an authentication chain over scripted brokers, on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fake_gateway import RawClient, ScriptedGateway, connect_packet
from front_metrics import number_of
from mqtt5_oracle import read_properties

from iotmq.clock import Clock
from iotmq.config.config import config_from_table
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt_front.access.chain_link import ChainLink
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.server import MqttFront

ANSWERS = "iotmq_mqtt_link_answers_total"


class ChainSite:
    """A running front end whose chain a test has written."""

    def __init__(
        self, chain: list[dict[str, Any]], clock: Clock | None, mqtt: dict[str, Any], settings: dict[str, Any]
    ) -> None:
        table = {"listen_port": 0, **mqtt, "authentication": {"chain": chain, **settings}}
        self.front = MqttFront(config_from_table({"mqtt": table}).mqtt, ScriptedGateway(), clock=clock)
        self.clients: list[RawClient] = []

    async def connect(self, packet: bytes, port: int | None = None, **options: Any) -> tuple[RawClient, int]:
        """The connection, and the code of its CONNACK."""
        client = await RawClient.dial(self.front.port if port is None else port, **options)
        self.clients.append(client)
        client.send(packet)
        first, body = await client.packet()
        assert first == packets.CONNACK << 4, (first, body)
        return client, body[1]

    async def code(
        self, user: str | None = None, password: bytes | None = None, client_id: str = "d", **fields: Any
    ) -> int:
        """What a CONNECT is answered."""
        packet = connect_packet(client_id, user_name=user, password=password, **fields)
        return (await self.connect(packet))[1]

    def answers(self, link: str, outcome: str) -> float:
        return number_of(self.front, ANSWERS, link=link, outcome=outcome)

    def number(self, name: str, **labels: str) -> float:
        return number_of(self.front, name, **labels)

    def link(self, name: str) -> ChainLink:
        chains = self.front.parts.authentication.chains
        assert chains is not None
        return chains.places[name]

    def device(self, client_id: str = "d") -> Device:
        """The connected device of this client id."""
        (found,) = (
            device
            for device in self.front.parts.sessions.devices()
            if device.client_id == client_id and device.close_reason is None
        )
        return found


@asynccontextmanager
async def chained(
    *chain: dict[str, Any], clock: Clock | None = None, mqtt: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[ChainSite]:
    site = ChainSite(list(chain), clock, mqtt or {}, settings)
    await site.front.start()
    try:
        yield site
    finally:
        for client in site.clients:
            client.abort()
        await site.front.stop()


def token_connect(token: bytes | None, client_id: str = "d", **fields: Any) -> bytes:
    """A CONNECT of MQTT 5 that shows a token in an exchange."""
    properties = Properties(authentication_method="iotmq-jwt", authentication_data=token)
    return connect_packet(client_id, protocol_level=5, properties=properties, **fields)


def token_auth(token: bytes | None, code: int) -> bytes:
    return packets.encode_auth(code, Properties(authentication_method="iotmq-jwt", authentication_data=token))


async def reason_of(client: RawClient) -> tuple[int, str | None]:
    """Code and reason string of the DISCONNECT that comes next."""
    first, body = await client.packet()
    assert first == packets.DISCONNECT << 4, (first, body)
    properties: dict[str, Any] = read_properties(body[1:], packets.DISCONNECT)[1] if len(body) > 1 else {}
    return body[0], properties.get("reason_string")
