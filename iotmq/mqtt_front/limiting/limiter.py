"""Keep devices to the limits of `[mqtt.device_limits]`: the buckets of a connection, and who may connect."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from iotmq import limits
from iotmq.clock import Clock
from iotmq.credentials.addresses import network_of
from iotmq.metrics import Metric, samples, samples_by
from iotmq.mqtt.reason_codes import CONNECTION_RATE_EXCEEDED, QUOTA_EXCEEDED, Reason
from iotmq.mqtt_front.limiting.buckets import DeviceLimits, Pacer, Scope
from iotmq.mqtt_front.settings.limiting import (
    LimitSettings,
    PlaceLimitSettings,
    RateSettings,
    UserLimitSettings,
)

_log: Final = logging.getLogger("iotmq.mqtt")

_LOG_PAUSE_US: Final = 1_000_000
_RATES: Final = ("messages_in", "bytes_in", "messages_out", "bytes_out", "connects")

Rates: TypeAlias = tuple[tuple[int, int], ...]
_Rated = TypeVar("_Rated", bound=RateSettings)


class LimitedDevice(Protocol):
    """The connection of a device, as far as limits know it."""

    @property
    def client_id(self) -> str | None: ...
    @property
    def user(self) -> str | None: ...
    @property
    def close_reason(self) -> Reason | None: ...
    def limit(self, new: DeviceLimits | None) -> None: ...
    def tokens_came(self, is_output: bool) -> None: ...


class Refusal(NamedTuple):
    """Why a connection may not be open; `cause` is for metrics."""

    reason: Reason
    cause: str
    detail: str


class Scopes:
    """The scopes of one kind, by what they are of. Those without connections are remembered for a while."""

    def __init__(self, name: str, settings: RateSettings, pacer: Pacer, *, section: str = "") -> None:
        """`section` is where the settings are, when that is not `name`."""
        self._name = name
        self._pacer = pacer
        self.section = section or name
        self.rates = _rates_of(settings)
        self.connections_max: int = getattr(settings, "connections_max", 0)
        self._scopes: dict[Hashable, Scope] = {}
        # Without a connection; the one that lost its last one longest ago comes first.
        self._idle: dict[Hashable, None] = {}
        self.is_used = any(rate for rate, _ in self.rates) or bool(self.connections_max)

    def __len__(self) -> int:
        return len(self._scopes)

    def of(self, key: Hashable, rates: Rates | None = None) -> Scope:
        """Return the scope of a key, a new one if need be; one with rates of its own is another scope."""
        if rates is not None and rates != self.rates:
            key = (key, rates)
        else:
            rates = self.rates
        scope = self._scopes.get(key)
        if scope is None:
            scope = self._scopes[key] = Scope(self._name, key, rates, self._pacer)
            self._idle[key] = None
            if len(self._idle) > limits.MQTT_IDLE_SCOPES_MAX:
                oldest = next(iter(self._idle))
                del self._idle[oldest]
                del self._scopes[oldest]
        return scope

    def enter(self, scope: Scope) -> None:
        """One more connection has the scope."""
        if not scope.connections:
            # It may have been forgotten since it was looked up.
            self._scopes.setdefault(scope.key, scope)
            self._idle.pop(scope.key, None)
        scope.connections += 1

    def leave(self, scope: Scope) -> None:
        scope.connections -= 1
        if not scope.connections:
            self._idle[scope.key] = None
            if len(self._idle) > limits.MQTT_IDLE_SCOPES_MAX:
                oldest = next(iter(self._idle))
                del self._idle[oldest]
                del self._scopes[oldest]

    def check_invariants(self) -> None:
        """Raise AssertionError when connections are counted wrongly."""
        assert len(self._idle) <= limits.MQTT_IDLE_SCOPES_MAX
        assert self._idle.keys() == {key for key, scope in self._scopes.items() if not scope.connections}


class Limiter:
    """The limits of one front end. Limits that nobody has set cost a comparison for a connection."""

    def __init__(
        self, settings: LimitSettings, loop: asyncio.AbstractEventLoop, clock: Clock | None = None
    ) -> None:
        self._settings = settings
        self.pacer = Pacer(loop, self._held, clock)
        self._listeners = Scopes("listener", settings.listener, self.pacer)
        self._own_listeners: Final = {
            own.listener: Scopes("listener", own, self.pacer, section=f"listeners[{number}]")
            for number, own in enumerate(settings.listeners)
        }
        self._addresses = Scopes("address", settings.address, self.pacer)
        self._users = Scopes("user", settings.user, self.pacer)
        self._clients = Scopes("client", settings.client, self.pacer)
        self._books: Final = {
            "client": self._clients,
            "user": self._users,
            "address": self._addresses,
            "listener": self._listeners,
        }
        self._all_books: Final = (*self._books.values(), *self._own_listeners.values())
        # Connection -> the scopes it counts in; connections without any are not here.
        self._devices: dict[LimitedDevice, list[Scope]] = {}
        self._refused: Counter[str] = Counter()
        self._logged_us: dict[str, int] = {}
        self._suppressed: Counter[str] = Counter()

    # Places

    @property
    def knows_addresses(self) -> bool:
        """Return whether addresses have limits."""
        return self._addresses.is_used

    def arriving(self, listener: str, address: str | None) -> Refusal | None:
        """A connection was accepted: return why it is to be closed at once, or None."""
        for book, key in self._places(listener, address):
            scope = book.of(key)
            if not scope.takes_connect(self.pacer):
                return self._refusal(CONNECTION_RATE_EXCEEDED, scope, "connects_per_s")
        return self.refusal_of_place(listener, address)

    def refusal_of_place(self, listener: str, address: str | None) -> Refusal | None:
        """Return why a listener or an address has no room for one more connection."""
        for book, key in self._places(listener, address):
            scope = book.of(key)
            if 0 < book.connections_max <= scope.connections:
                return self._refusal(QUOTA_EXCEEDED, scope, "connections_max")
        return None

    def connected(self, device: LimitedDevice, listener: str, address: str | None) -> None:
        """A connection is open."""
        scopes = []
        for book, key in self._places(listener, address):
            scope = book.of(key)
            book.enter(scope)
            scopes.append(scope)
        if scopes:
            self._devices[device] = scopes
            self._apply(device, scopes)

    def _places(self, listener: str, address: str | None) -> Iterable[tuple[Scopes, str]]:
        book = self._own_listeners.get(listener, self._listeners)
        if book.is_used:
            yield book, listener
        if self._addresses.is_used and address is not None:
            yield self._addresses, network_of(address)

    # Sessions

    def opening(
        self,
        device: LimitedDevice,
        client_id: str,
        own: Mapping[str, int] | None = None,
        *,
        is_open: bool = False,
    ) -> Refusal | None:
        """A device is known: return why it may not be connected, or have it keep to its limits.

        `own` are limits that came with its identity, by the names of their settings. A device without a
        client id of its own has limits for itself.
        """
        scopes = []
        user_settings, client_settings = self._settings.user, self._settings.client
        if own:
            user_settings, client_settings = own_limits(user_settings, client_settings, own)
        if device.user is not None and (self._users.is_used or own):
            scope = self._users.of(device.user, _rates_of(user_settings))
            if not is_open and 0 < user_settings.connections_max <= scope.connections:
                return self._refusal(QUOTA_EXCEEDED, scope, "connections_max")
            scopes.append(scope)
            self._users.enter(scope)
        if self._clients.is_used or own:
            scope = self._clients.of(client_id or id(device), _rates_of(client_settings))
            scopes.append(scope)
            self._clients.enter(scope)
        if scopes:
            # As NAMES: what is narrow comes first.
            found = self._devices[device] = [*reversed(scopes), *self._devices.get(device, ())]
            self._apply(device, found)
        return None

    def renewed(self, device: LimitedDevice, client_id: str, own: Mapping[str, int] | None) -> None:
        """A connected device has another identity of its user: the limits of that hold from now on."""
        places = []
        for scope in self._devices.pop(device, ()):
            if scope.name in ("listener", "address"):
                places.append(scope)
            else:
                self._book_of(scope).leave(scope)
        if places:
            self._devices[device] = places
        device.limit(None)
        self._apply(device, places)
        self.opening(device, client_id, own, is_open=True)

    def lost(self, device: LimitedDevice) -> None:
        """The connection is over."""
        for scope in self._devices.pop(device, ()):
            self._book_of(scope).leave(scope)

    def _apply(self, device: LimitedDevice, scopes: Iterable[Scope]) -> None:
        limiting = [scope for scope in scopes if scope.is_limiting]
        if limiting:
            device.limit(DeviceLimits(self.pacer, device, limiting))

    # What is told

    def _refusal(self, reason: Reason, scope: Scope, setting: str) -> Refusal:
        if setting == "connections_max":
            self._refused[f"{scope.name}.{setting}"] += 1
            self._held(scope, setting)
        return Refusal(
            reason, setting, f"mqtt.device_limits.{self._book_of(scope).section}.{setting} is reached"
        )

    def _book_of(self, scope: Scope) -> Scopes:
        if scope.name == "listener":
            return self._own_listeners.get(str(scope.key), self._listeners)
        return self._books[scope.name]

    def _held(self, scope: Scope, kind: str) -> None:
        """Log a limit that was reached, at most once a second for each."""
        name = f"{self._book_of(scope).section}.{kind}"
        key = scope.key[0] if isinstance(scope.key, tuple) else scope.key
        now_us = self.pacer.now_us
        last_us = self._logged_us.get(name)
        if last_us is not None and now_us - last_us < _LOG_PAUSE_US:
            self._suppressed[name] += 1
            return
        self._logged_us[name] = now_us
        _log.warning(
            "a limit is reached",
            extra={
                "setting": f"mqtt.device_limits.{name}",
                scope.name: str(key),
                "others_since_last": self._suppressed.pop(name, 0),
            },
        )

    def metrics(self) -> Iterable[Metric]:
        held = self.pacer.held()
        refused = {name: held[name] for name in held if name.endswith(".connects_per_s")}
        waited = {name: held[name] for name in held if name not in refused}
        refused |= {
            f"{name}.connections_max": self._refused[f"{name}.connections_max"]
            for name in ("user", "address", "listener")
        }
        yield from samples_by(
            "limit",
            "iotmq_mqtt_limit_waits_total",
            "Times a device was not read, or was sent nothing, because of a limit of mqtt.device_limits.",
            waited,
        )
        yield from samples_by(
            "limit",
            "iotmq_mqtt_limit_refused_total",
            "Connections that were refused because of a limit of mqtt.device_limits.",
            refused,
        )
        yield from samples_by(
            "scope",
            "iotmq_mqtt_limit_dropped_total",
            "Messages of QoS 0 that were not sent because of a limit on what is sent.",
            self.pacer.dropped(),
        )
        yield from samples(
            (
                "iotmq_mqtt_limit_scopes",
                "Clients, users, addresses and listeners whose use of limits is known.",
                sum(map(len, self._all_books)),
            )
        )

    def check_invariants(self) -> None:
        """Raise AssertionError when scopes and connections do not agree."""
        for book in self._all_books:
            book.check_invariants()
        counted = Counter(id(scope) for scopes in self._devices.values() for scope in scopes)
        for scopes in self._devices.values():
            assert all(counted[id(scope)] == scope.connections for scope in scopes)


def own_limits(
    user: UserLimitSettings, client: RateSettings, own: Mapping[str, int]
) -> tuple[UserLimitSettings, RateSettings]:
    """Return the limits of a user and a client with their own in place; unknown names are ignored."""
    of_user = {name.removeprefix("user."): value for name, value in own.items() if name.startswith("user.")}
    of_client = {
        name.removeprefix("client."): value for name, value in own.items() if not name.startswith("user.")
    }
    return _changed(user, of_user), _changed(client, of_client)


def _changed(settings: _Rated, own: Mapping[str, int]) -> _Rated:
    """With those of `own` that it has and that are no nonsense."""
    known = {
        name: value
        for name, value in own.items()
        if name in settings.__struct_fields__
        and isinstance(value, int)
        and 0 <= value <= limits.MQTT_RATE_MAX
    }
    return msgspec.structs.replace(settings, **known)


def _rates_of(settings: RateSettings | PlaceLimitSettings) -> Rates:
    """(tokens a second, burst) of every kind, as `buckets.Scope` wants them."""
    return tuple(
        (getattr(settings, f"{name}_per_s", 0), getattr(settings, f"{name}_burst", 0)) for name in _RATES
    )
