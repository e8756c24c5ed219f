"""Ban devices that connect again and again."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_network
from typing import Final

from iotmq import limits
from iotmq.clock import Clock
from iotmq.credentials.addresses import network_of, parsed
from iotmq.credentials.window_counts import WindowCounts
from iotmq.mqtt.bans import Ban, BanKind
from iotmq.mqtt_front.settings.limiting import FlappingSettings

_IPV6_COUNTED_BITS: Final = 64


class Flapping:
    """Counts connections of addresses and CONNECTs of client ids. `ban` gets what was too much."""

    def __init__(self, settings: FlappingSettings, clock: Clock, ban: Callable[[Ban], None]) -> None:
        self._settings = settings
        self._clock = clock
        self._ban = ban
        self._addresses: WindowCounts[str] = WindowCounts(
            window_s=settings.window_s, names_max=limits.MQTT_FLAPPING_COUNTED_MAX
        )
        self._clients: WindowCounts[str] = WindowCounts(
            window_s=settings.window_s, names_max=limits.MQTT_FLAPPING_COUNTED_MAX
        )
        self.banned_total = 0

    @property
    def counts_addresses(self) -> bool:
        return bool(self._settings.address_connects_max)

    def arrived(self, address: str | None) -> bool:
        """A connection came; True when it was one too many."""
        most = self._settings.address_connects_max
        if not most or address is None:
            return False
        name = network_of(address)
        if self._addresses.add(name, self._clock.monotonic_s()) <= most:
            return False
        self._addresses.forget(name)
        self._make(*_of_address(address), "address_connects_max")
        return True

    def connecting(self, client_id: str) -> bool:
        """A CONNECT came; True when it was one too many."""
        most = self._settings.client_connects_max
        if not most or not client_id:
            return False
        if self._clients.add(client_id, self._clock.monotonic_s()) <= most:
            return False
        self._clients.forget(client_id)
        self._make("client", client_id, "client_connects_max")
        return True

    def _make(self, kind: BanKind, value: str, setting: str) -> None:
        self.banned_total += 1
        most: int = getattr(self._settings, setting)
        now_ms = self._clock.now_ms()
        self._ban(
            Ban(
                kind=kind,
                value=value,
                until_ms=now_ms + self._settings.ban_s * 1000,
                reason=f"more than {most} connects in {self._settings.window_s} s",
                by=f"mqtt.device_limits.flapping.{setting}",
                made_ms=now_ms,
            )
        )


def _of_address(address: str) -> tuple[BanKind, str]:
    """Return what is banned for an address: of IPv6 its network, as it is counted."""
    found = parsed(address)
    if found is None or found.version == 4:
        return "address", str(found or address)
    return "network", str(ip_network((int(found) >> 64 << 64, _IPV6_COUNTED_BITS)))
