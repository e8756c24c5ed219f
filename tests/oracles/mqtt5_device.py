"""A device of MQTT 5 on a real socket, for tests that look at single packets."""

from __future__ import annotations

from typing import Any

from fake_gateway import RawClient, connect_packet
from mqtt5_reading import Received, read_publish5
from mqtt_site import MqttSite

from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.field_reader import FieldReader
from iotmq.mqtt.codec.properties import Properties, read_properties


class Device5:
    """A device of MQTT 5 over one connection."""

    def __init__(self, client: RawClient, connack: bytes) -> None:
        self.client = client
        self.is_present = bool(connack[0] & 1)
        self.told = read_properties(FieldReader(connack[2:], "CONNACK"), packets.CONNACK)
        self._packet_id = 0

    @classmethod
    async def connect(
        cls,
        site: MqttSite,
        client_id: str = "d",
        *,
        is_clean: bool = True,
        front: str = "one",
        expiry_s: int | None = None,
        **fields: Any,
    ) -> Device5:
        client = await RawClient.dial(site.fronts[front].mqtt.port)
        fields.setdefault("properties", Properties(session_expiry_s=expiry_s))
        client.send(connect_packet(client_id, protocol_level=5, clean_session=is_clean, **fields))
        first, body = await client.packet()
        assert first == packets.CONNACK << 4
        assert body[1] == 0, body
        return cls(client, body)

    async def subscribe(self, *filters: tuple[str, int], identifier: int = 0) -> list[int]:
        self._packet_id += 1
        properties = Properties(subscription_identifiers=(identifier,) if identifier else ())
        self.client.send(packets.encode_subscribe(self._packet_id, filters, properties))
        first, body = await self.client.packet()
        assert (first, body[:2]) == (packets.SUBACK << 4, self._packet_id.to_bytes(2, "big"))
        assert body[2] == 0
        return list(body[3:])

    async def publish(self, topic: str, payload: bytes, *, is_retained: bool = False, **fields: Any) -> None:
        """Returns when the broker has it; nothing else may come before."""
        self._packet_id += 1
        self.client.send(
            packets.encode_publish(
                topic,
                payload,
                qos=1,
                packet_id=self._packet_id,
                retain=is_retained,
                properties=Properties(**fields),
            )
        )
        first, body = await self.client.packet()
        assert (first, body) == (packets.PUBACK << 4, self._packet_id.to_bytes(2, "big"))

    async def received(self) -> Received:
        """The next packet, a PUBLISH, which is acknowledged."""
        message = read_publish5(await self.client.packet())
        if message.qos == 1:
            self.client.send(packets.encode_acknowledgement(packets.PUBACK, message.packet_id))
        return message

    async def end(self, code: int = 0, **fields: Any) -> None:
        """Say good-bye; returns when the server has closed the connection."""
        self.client.send(packets.encode_disconnect(code, Properties(**fields)))
        assert await self.client.rest() == b""
