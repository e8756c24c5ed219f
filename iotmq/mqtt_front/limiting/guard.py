"""Decide about connections before anything is done for them: bans, overload, rates and numbers.

The front end and its listeners ask; the parts beside this one know. What a limit refuses is counted by the
limit, and told in the log at most once a second for each.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from iotmq.clock import Clock, SystemClock
from iotmq.event_loop import LoopSlice
from iotmq.metrics import Metric, samples, samples_by
from iotmq.mqtt.bans import KINDS, Ban
from iotmq.mqtt.codec.packets import Connect
from iotmq.mqtt.reason_codes import ADMINISTRATIVE_ACTION, BANNED, SERVER_BUSY, Reason
from iotmq.mqtt_front.limiting.bans import Bans
from iotmq.mqtt_front.limiting.flapping import Flapping
from iotmq.mqtt_front.limiting.limiter import LimitedDevice, Limiter, Refusal
from iotmq.mqtt_front.limiting.overload import Overload
from iotmq.mqtt_front.limiting.shared_bans import BrokerPorts, Hearing, SharedBans
from iotmq.mqtt_front.settings.limiting import LimitSettings
from iotmq.supervised import surviving

_log: Final = logging.getLogger("iotmq.mqtt")

_LOG_PAUSE_S: Final = 1.0
# Connections that are looked at in a turn because of new bans, some 3 us each; when that may begin again.
_LOOKED_AT_PER_TURN: Final = 64
_LOOK_PAUSE_S: Final = 0.5


class Bannable(Protocol):
    """Something that a ban ends."""

    @property
    def client_id(self) -> str | None: ...
    @property
    def user(self) -> str | None: ...
    @property
    def address(self) -> str | None: ...
    @property
    def close_reason(self) -> Reason | None: ...
    def close(self, reason: Reason, detail: str = "") -> None: ...
    def finish(self) -> None: ...


class WithLimits(Protocol):
    """An identity, as far as a guard knows it."""

    @property
    def limits(self) -> Mapping[str, int] | None: ...


class GuardedDevice(LimitedDevice, Bannable, Protocol):
    """The connection of a device, as far as a guard knows it."""

    @property
    def identity(self) -> WithLimits | None: ...


class GuardedFront(NamedTuple):
    """Hold what a guard needs of its front end."""

    devices: Callable[[], Iterable[Bannable]]
    """Everything that a ban ends: connections, and wills that wait."""
    broker_latency_s: Callable[[], float]
    """How long the oldest batch of messages has had no answer."""
    overload_changed: Callable[[int], None]
    """Told of another level."""
    audit: Callable[..., None]
    """Told of what happened, as (event, **fields)."""


class Guard:
    """One front end's."""

    def __init__(
        self,
        settings: LimitSettings,
        front: GuardedFront,
        ports: BrokerPorts,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
    ) -> None:
        self._front = front
        self._loop = loop
        self._clock = clock
        self.bans = Bans()
        self.shared_bans = SharedBans(self.bans, ports, loop, clock, self._banned)
        self.flapping = Flapping(settings.flapping, clock, self._ban_flapping)
        # The machine's own clock is read without Python, for each message.
        self.limiter = Limiter(settings, loop, None if isinstance(clock, SystemClock) else clock)
        self.overload = Overload(
            settings.overload, loop, clock, front.broker_latency_s, front.overload_changed
        )
        # The connections that are still to be looked at because of new bans; None while there are none.
        self._looking: Iterator[Bannable] | None = None
        self._has_new_bans = False
        self._refused: Counter[str] = Counter()
        self._ended_total = 0
        self._logged_s = 0.0
        self._suppressed = 0

    async def start(self, hearing: Hearing) -> None:
        """Know the bans, and begin to measure."""
        await self.shared_bans.start(hearing)
        self.overload.start()

    async def stop(self) -> None:
        self.overload.stop()
        await self.shared_bans.stop()

    # Connections

    @property
    def knows_addresses(self) -> bool:
        """Return whether it matters where a connection comes from."""
        return self.bans.has_addresses or self.limiter.knows_addresses or self.flapping.counts_addresses

    def refusal_at_door(self, listener: str, address: str | None) -> Refusal | None:
        """A connection was accepted: return why it is closed before anything is read, or None."""
        return self._ban_of(address) or self.overload_refusal() or self._limit_at_door(listener, address)

    def refusal_of_place(self, listener: str, address: str | None) -> Refusal | None:
        """As `refusal_at_door`, but for overload: a connection without TLS may be told of that."""
        return self._ban_of(address) or self._limit_at_door(listener, address)

    def overload_refusal(self) -> Refusal | None:
        """Return why no connection is taken now, wherever it comes from."""
        if not self.overload.level:
            return None
        self._refused["overload"] += 1
        return Refusal(SERVER_BUSY, "overload", self.overload.reason or "")

    def _ban_of(self, address: str | None) -> Refusal | None:
        ban = self.bans.of_address(address, self._clock.now_ms()) if self.bans.has_addresses else None
        return None if ban is None else self._refusal_of_ban(ban, address=address)

    def _limit_at_door(self, listener: str, address: str | None) -> Refusal | None:
        refusal = self.limiter.arriving(listener, address)
        if refusal is not None:
            return refusal
        return self._ban_of(address) if self.flapping.arrived(address) else None

    def connected(self, device: GuardedDevice, listener: str, address: str | None) -> Refusal | None:
        """A connection may begin with MQTT: return why there is no room for it, or count it."""
        refusal = self.limiter.refusal_of_place(listener, address)
        if refusal is None:
            self.limiter.connected(device, listener, address)
        return refusal

    def refusal_of_connect(self, connect: Connect, device: GuardedDevice) -> Refusal | None:
        """A CONNECT came: return why it is refused whoever sent it."""
        if len(self.bans):
            now_ms = self._clock.now_ms()
            # A name that is no proof is enough to be refused by.
            ban = self.bans.of_client(connect.client_id, now_ms) or self.bans.of_user(
                connect.user_name, now_ms
            )
            if ban is not None:
                return self._refusal_of_ban(ban, address=device.address)
        return None

    def opening(self, device: GuardedDevice, client_id: str) -> Refusal | None:
        """A device has proved who it is: return why it may not connect, or have it keep to its limits."""
        if len(self.bans):
            now_ms = self._clock.now_ms()
            # The client id may be another one than that of the CONNECT.
            ban = self.bans.of_user(device.user, now_ms) or self.bans.of_client(client_id, now_ms)
            if ban is not None:
                return self._refusal_of_ban(ban, address=device.address)
        # Of those who have proved who they are: nobody else is to have a client id banned.
        if self.flapping.connecting(client_id):
            ban = self.bans.of_client(client_id, self._clock.now_ms())
            if ban is not None:
                return self._refusal_of_ban(ban, address=device.address)
        return self.limiter.opening(device, client_id, _own_limits(device))

    def renewed(self, device: GuardedDevice) -> None:
        """A connected device has proved anew who it is."""
        self.limiter.renewed(device, device.client_id or "", _own_limits(device))

    def lost(self, device: GuardedDevice) -> None:
        """The connection is over."""
        self.limiter.lost(device)

    # Bans

    def _ban_flapping(self, ban: Ban) -> None:
        _log.warning(
            "a device connects too often and is banned",
            extra={"kind": ban.kind, "value": ban.value, "setting": ban.by, "detail": ban.reason},
        )
        self.shared_bans.put(ban)

    def _refusal_of_ban(self, ban: Ban, *, address: str | None) -> Refusal:
        self._refused[ban.kind] += 1
        now_s = self._clock.monotonic_s()
        if now_s - self._logged_s < _LOG_PAUSE_S:
            self._suppressed += 1
        else:
            self._logged_s = now_s
            _log.warning(
                "a banned device is refused",
                extra={
                    "kind": ban.kind,
                    "value": ban.value,
                    "peer": address,
                    "detail": ban.reason,
                    "others_since_last": self._suppressed,
                },
            )
            self._suppressed = 0
        return Refusal(BANNED, "banned", f"a ban of the {ban.kind}: {ban.reason or 'no reason is given'}")

    def _banned(self, ban: Ban) -> None:
        """There is a new ban: look for connections that it ends."""
        self._front.audit("banned", kind=ban.kind, value=ban.value, reason=ban.reason, by=ban.by)
        if self._looking is None and not self._has_new_bans:
            self._loop.call_soon(self._begin_to_look)
        self._has_new_bans = True

    def _look(self) -> None:
        """Look at some connections; another ban that comes meanwhile has all looked at once more."""
        assert self._looking is not None
        loop_slice = LoopSlice(_LOOKED_AT_PER_TURN)
        with surviving("ends of banned connections"):
            while loop_slice.take():
                device = next(self._looking, None)
                if device is not None:
                    self._end_if_banned(device)
                else:
                    self._looking = None
                    break
        if self._looking is not None:
            self._loop.call_soon(self._look)
        elif self._has_new_bans:
            # In an attack there are many bans a second: one look is for all that came during the last.
            self._loop.call_later(_LOOK_PAUSE_S, self._begin_to_look)

    def _begin_to_look(self) -> None:
        if self._looking is None and self._has_new_bans:
            self._has_new_bans = False
            self._looking = iter(self._front.devices())
            self._look()

    def _end_if_banned(self, device: Bannable) -> None:
        if device.close_reason is not None:
            return
        now_ms = self._clock.now_ms()
        ban = self.bans.of_address(device.address, now_ms) if self.bans.has_addresses else None
        if ban is None and device.client_id is not None:
            ban = self.bans.of_client(device.client_id, now_ms) or self.bans.of_user(device.user, now_ms)
        if ban is None:
            return
        self._ended_total += 1
        device.close(ADMINISTRATIVE_ACTION, f"a ban of the {ban.kind}")
        device.finish()

    def metrics(self) -> Iterable[Metric]:
        yield from self.limiter.metrics()
        yield from self.overload.metrics()
        yield from samples_by(
            "cause",
            "iotmq_mqtt_turned_away_total",
            "Connections and CONNECTs refused because of a ban, by its kind, or because of overload.",
            {cause: self._refused[cause] for cause in (*KINDS, "overload")},
        )
        yield from samples(
            ("iotmq_mqtt_bans", "Bans that are known.", len(self.bans)),
            (
                "iotmq_mqtt_bans_refused_total",
                "Bans that were not taken, because there are too many.",
                self.bans.refused_total,
            ),
            (
                "iotmq_mqtt_bans_malformed_total",
                "Messages at the topics of bans that are none.",
                self.bans.malformed_total,
            ),
            (
                "iotmq_mqtt_banned_ended_total",
                "Connections, and wills that waited, that a ban has ended.",
                self._ended_total,
            ),
            (
                "iotmq_mqtt_flapping_bans_total",
                "Bans of devices that connected too often (mqtt.device_limits.flapping).",
                self.flapping.banned_total,
            ),
        )


def _own_limits(device: GuardedDevice) -> Mapping[str, int] | None:
    """Return the limits that came with the identity of a device."""
    return None if device.identity is None else device.identity.limits
