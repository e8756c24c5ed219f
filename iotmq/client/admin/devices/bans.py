"""List, make and end bans of MQTT devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from iotmq.client.admin.asking import Asking
from iotmq.client.admin.operator_state import OperatorState
from iotmq.mqtt.bans import BANS_FILTER, Ban, BanKind, ban_topic, decode_ban


class BanAdmin(Asking):
    """Bans at all brokers; needs a started client."""

    async def all(self, now_ms: int) -> list[Ban]:
        """List the bans that are not over, each once, by kind and value."""
        found = _bans_of(await OperatorState(self._client).read(BANS_FILTER))
        return sorted(
            (ban for ban in found if not ban.is_over(now_ms)), key=lambda ban: (ban.kind, ban.value)
        )

    async def put(self, ban: Ban, now_ms: int) -> list[str]:
        """Make a ban, or change it, at every broker; returns their names."""
        expires_ms = max(1, ban.until_ms - now_ms) if ban.until_ms else 0
        return await OperatorState(self._client).put(ban.topic, ban.body, expires_ms=expires_ms)

    async def remove(self, kind: BanKind, value: str) -> list[str]:
        """End a ban at every broker; returns their names."""
        return await OperatorState(self._client).put(ban_topic(kind, value), b"")


def _bans_of(found: Iterable[tuple[str, bytes]]) -> Iterator[Ban]:
    """Read bans; what is none is left out: no front end takes it for a ban either, and counts it."""
    for topic, body in found:
        with suppress(ValueError):
            yield decode_ban(topic, body)
