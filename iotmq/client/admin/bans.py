"""List, make and end bans of MQTT devices."""

from __future__ import annotations

from typing import Final

from iotmq.client.admin.asking import Asking
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.calls import ask, master_addresses
from iotmq.client.transport.message import Message
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import ProducerSettings
from iotmq.errors import ClientError, StoreError
from iotmq.message.properties import MQTT_TOPIC, decode_properties
from iotmq.message.records.record import decode_record
from iotmq.mqtt.bans import BANS_FILTER, BANS_TOPIC, Ban, BanKind, ban_properties, decode_ban
from iotmq.remoting.codes import RequestCode

_GROUP: Final = "iotmq_bans"
_PAGE: Final = {"maxNums": "256", "maxMsgBytes": str(256 * 1024)}


class BanAdmin(Asking):
    """Bans at all brokers; needs a started client."""

    async def all(self, now_ms: int) -> list[Ban]:
        """List the bans that are not over, each once, by kind and value."""
        found: dict[tuple[str, str], Ban] = {}
        for name, address in sorted((await master_addresses(self._client)).items()):
            after = ""
            while True:
                ext = {"filter": BANS_FILTER, "after": after, **_PAGE}
                doing = f"listing bans at broker {name}"
                answer = await ask(self._client, address, RequestCode.READ_RETAINED, ext, doing=doing)
                for ban in _bans_of(answer.body_bytes()):
                    if not ban.is_over(now_ms):
                        known = found.get((ban.kind, ban.value), ban)
                        found[ban.kind, ban.value] = max(known, ban, key=lambda ban: ban.made_ms)
                after = answer.ext.get("after") or ""
                if not after:
                    break
        return sorted(found.values(), key=lambda ban: (ban.kind, ban.value))

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


def _bans_of(body: bytes) -> list[Ban]:
    """Read the bans of an answer; what is none is left out, as front ends do."""
    bans = []
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        if size < 4 or at + size > len(body):
            raise ClientError("the records of an answer do not fill it")
        try:
            record = decode_record(body[at : at + size])
            topic = decode_properties(bytes(record.properties)).get(MQTT_TOPIC, "")
            if record.topic == BANS_TOPIC:
                bans.append(decode_ban(topic, bytes(record.body)))
        except StoreError as error:
            raise ClientError(f"a record of an answer cannot be read: {error}") from error
        except ValueError:
            # Written by hand into the topic: no front end takes it for a ban either, and counts it.
            pass
        at += size
    return bans
