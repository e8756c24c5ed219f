"""Whose buckets a connection has: kept between connections, with an identity's own limits, within bounds."""

from __future__ import annotations

from typing import Any

import pytest
from fake_gateway import FakeLoop
from manual_clock import ManualClock

from iotmq import limits
from iotmq.mqtt_front.limiting.buckets import DeviceLimits
from iotmq.mqtt_front.limiting.limiter import Limiter, own_limits
from iotmq.mqtt_front.settings.limiting import (
    LimitSettings,
    ListenerLimitSettings,
    PlaceLimitSettings,
    RateSettings,
    UserLimitSettings,
)


class FakeDevice:
    def __init__(self, user: str | None = None) -> None:
        self.user = user
        self.client_id = None
        self.close_reason = None
        self.limits: DeviceLimits | None = None

    def limit(self, new: DeviceLimits | None) -> None:
        self.limits = new

    def tokens_came(self, is_output: bool) -> None:
        pass

    @property
    def scopes(self) -> list[str]:
        return [] if self.limits is None else [scope.name for scope in self.limits.scopes]


def limiter(**settings: Any) -> Limiter:
    return Limiter(LimitSettings(**settings), FakeLoop(), ManualClock())  # type: ignore[arg-type]


def opened(limiter: Limiter, client_id: str, user: str | None = None, own: Any = None) -> FakeDevice:
    device = FakeDevice(user)
    limiter.connected(device, "tcp", "192.0.2.1")
    assert limiter.opening(device, client_id, own) is None
    limiter.check_invariants()
    return device


def test_without_settings_a_connection_has_no_limits() -> None:
    found = limiter()
    assert not found.knows_addresses
    assert found.arriving("tcp", "192.0.2.1") is None
    assert opened(found, "c", "u").limits is None


def test_a_connection_has_the_buckets_of_all_it_is_part_of() -> None:
    rates: dict[str, Any] = {"messages_in_per_s": 10}
    found = limiter(
        client=RateSettings(**rates),
        user=UserLimitSettings(**rates),
        address=PlaceLimitSettings(**rates),
        listener=PlaceLimitSettings(**rates),
    )
    one, other = opened(found, "a", "u"), opened(found, "b", "u")
    assert one.scopes == ["client", "user", "listener", "address"]
    assert one.limits is not None
    assert other.limits is not None
    assert [own is its for own, its in zip(one.limits.scopes, other.limits.scopes, strict=True)] == [
        False,
        True,
        True,
        True,
    ]
    found.lost(one)
    found.check_invariants()
    found.lost(one)


def test_addresses_of_one_network_share_a_bucket() -> None:
    found = limiter(address=PlaceLimitSettings(connections_max=1))
    found.connected(FakeDevice(), "tcp", "2001:db8::1")
    assert found.refusal_of_place("tcp", "2001:db8::2") is not None
    assert found.refusal_of_place("tcp", "2001:db8:0:1::2") is None
    assert found.refusal_of_place("unix", None) is None


def test_a_listener_with_limits_of_its_own_has_none_of_the_others() -> None:
    own = ListenerLimitSettings(listener="tls", connections_max=1)
    found = limiter(listener=PlaceLimitSettings(messages_in_per_s=1), listeners=(own,))
    device = FakeDevice()
    found.connected(device, "tls", None)
    assert device.scopes == []
    refusal = found.refusal_of_place("tls", None)
    assert refusal is not None
    assert refusal.detail == "mqtt.device_limits.listeners[0].connections_max is reached"
    assert found.refusal_of_place("tcp", None) is None
    other = FakeDevice()
    found.connected(other, "tcp", None)
    assert other.scopes == ["listener"]
    found.check_invariants()
    found.lost(device)
    assert found.refusal_of_place("tls", None) is None
    found.check_invariants()


def test_an_identity_brings_limits_of_its_own() -> None:
    found = limiter(user=UserLimitSettings(connections_max=1))
    device = opened(found, "c", "u", {"messages_in_per_s": 3, "user.connections_max": 2, "unknown": 1})
    assert device.scopes == ["client"]
    assert device.limits is not None
    assert device.limits.scopes[0].left(0) == 3
    other = FakeDevice("u")
    assert found.opening(other, "d", {"user.connections_max": 1}) is not None
    assert found.opening(other, "d", {"user.connections_max": 2}) is None


def test_another_identity_of_a_connected_device_brings_other_limits() -> None:
    """As with a new token: a device that keeps its connection keeps no larger limits."""
    found = limiter(address=PlaceLimitSettings(messages_in_per_s=9))
    device = opened(found, "c", "u", {"messages_in_per_s": 5, "user.connections_max": 1})
    assert device.scopes == ["client", "address"]
    own = {"messages_in_per_s": 3, "user.messages_in_per_s": 7, "user.connections_max": 1}
    found.renewed(device, "c", own)
    assert device.limits is not None
    assert [(scope.name, scope.left(0)) for scope in device.limits.scopes] == [
        ("client", 3),
        ("user", 7),
        ("address", 9),
    ]
    found.check_invariants()
    found.renewed(device, "c", None)
    assert device.scopes == ["address"]
    found.check_invariants()
    found.lost(device)
    found.check_invariants()
    unlimited = limiter()
    device = opened(unlimited, "c", "u", {"messages_in_per_s": 5})
    unlimited.renewed(device, "c", None)
    assert device.limits is None


@pytest.mark.parametrize("nonsense", [-1, limits.MQTT_RATE_MAX + 1, "5", None])
def test_nonsense_of_an_identity_changes_nothing(nonsense: Any) -> None:
    user, client = own_limits(UserLimitSettings(), RateSettings(), {"messages_in_per_s": nonsense})
    assert (user, client) == (UserLimitSettings(), RateSettings())
    _, client = own_limits(UserLimitSettings(), RateSettings(), {"messages_in_per_s": limits.MQTT_RATE_MAX})
    assert client.messages_in_per_s == limits.MQTT_RATE_MAX


def test_those_without_a_connection_are_remembered_within_a_maximum() -> None:
    found = limiter(client=RateSettings(messages_in_per_s=1, messages_in_burst=5))
    first = opened(found, "first")
    assert first.limits is not None
    scope = first.limits.scopes[0]
    stays = opened(found, "stays")
    found.lost(first)
    for number in range(limits.MQTT_IDLE_SCOPES_MAX - 1):
        device = FakeDevice()
        found.opening(device, f"c{number}")
        found.lost(device)
    again = opened(found, "first")
    assert again.limits is not None
    assert again.limits.scopes[0] is scope
    found.lost(again)
    for number in range(limits.MQTT_IDLE_SCOPES_MAX):
        device = FakeDevice()
        found.opening(device, f"d{number}")
        found.lost(device)
    forgotten = opened(found, "first")
    assert forgotten.limits is not None
    assert forgotten.limits.scopes[0] is not scope
    # One with a connection is never forgotten.
    assert stays.limits is not None
    found.check_invariants()
