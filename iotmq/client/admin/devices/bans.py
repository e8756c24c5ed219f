"""List, make and end bans of MQTT devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from iotmq.client.admin.asking import Asking
from iotmq.client.admin.devices.retained import RetainedAdmin
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.calls import master_addresses
from iotmq.client.transport.message import Message, StoredMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import ProducerSettings
from iotmq.message.properties import MQTT_TOPIC
from iotmq.mqtt.bans import BANS_FILTER, BANS_TOPIC, Ban, BanKind, ban_properties, decode_ban

_GROUP: Final = "iotmq_bans"


class BanAdmin(Asking):
    """Bans at all brokers; needs a started client."""

    async def all(self, now_ms: int) -> list[Ban]:
        """List the bans that are not over, each once, by kind and value."""
        found: list[Ban] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await RetainedAdmin(self._client).page(BANS_FILTER, cursor)
            found += _bans_of(page.messages)
            cursor = page.next_cursor
        return sorted(
            (ban for ban in found if not ban.is_over(now_ms)), key=lambda ban: (ban.kind, ban.value)
        )

    async def put(self, ban: Ban, now_ms: int) -> list[str]:
        """Make a ban, or change it, at every broker; returns their names."""
        expires_ms = max(1, ban.until_ms - now_ms) if ban.until_ms else 0
        return await self._send(ban.kind, ban.value, ban.body, expires_ms)

    async def remove(self, kind: BanKind, value: str) -> list[str]:
        """End a ban at every broker; returns their names."""
        return await self._send(kind, value, b"", 0)

    async def _send(self, kind: BanKind, value: str, body: bytes, expires_ms: int) -> list[str]:
        names = sorted(await master_addresses(self._client))
        producer = Producer(self._client, _GROUP, ProducerSettings())
        await producer.start()
        try:
            for name in names:
                properties = dict(ban_properties(kind, value, expires_ms=expires_ms))
                message = Message(BANS_TOPIC, body, properties=properties)
                await producer.send(message, queue=MessageQueue(BANS_TOPIC, name, 0))
        finally:
            await producer.stop()
        return names


def _bans_of(messages: Iterable[StoredMessage]) -> Iterator[Ban]:
    """Read bans; what is none is left out, as front ends do."""
    for message in messages:
        if message.topic == BANS_TOPIC:
            # Written by hand into the topic: no front end takes it for a ban either, and counts it.
            with suppress(ValueError):
                yield decode_ban(message.properties.get(MQTT_TOPIC, ""), bytes(message.record.body))
