"""Flapping: how often devices may connect before they are banned, and for how long."""

from __future__ import annotations

import pytest
from manual_clock import ManualClock

from iotmq import limits
from iotmq.mqtt.bans import Ban, normal_value
from iotmq.mqtt_front.limiting.flapping import Flapping
from iotmq.mqtt_front.settings.limiting import FlappingSettings


def bench(**settings: int) -> tuple[Flapping, ManualClock, list[Ban]]:
    clock, bans = ManualClock(), []
    return Flapping(FlappingSettings(**settings), clock, bans.append), clock, bans


def test_a_client_is_banned_past_the_limit_and_not_at_it() -> None:
    flapping, clock, bans = bench(client_connects_max=3, window_s=60, ban_s=300)
    assert not any(flapping.connecting("c") for _ in range(3))
    assert bans == []
    assert flapping.connecting("c")
    (ban,) = bans
    assert (ban.kind, ban.value) == ("client", "c")
    assert ban.until_ms == clock.now_ms() + 300_000
    assert ban.by == "mqtt.device_limits.flapping.client_connects_max"
    assert flapping.banned_total == 1
    # Counted anew: after the ban it has all its tries again.
    assert not any(flapping.connecting("c") for _ in range(3))


def test_the_window_ends() -> None:
    flapping, clock, bans = bench(client_connects_max=3, window_s=60)
    for _ in range(3):
        flapping.connecting("c")
    clock.advance(60)
    assert not flapping.connecting("c")
    assert bans == []


@pytest.mark.parametrize(
    ("address", "kind", "value"),
    [
        ("192.0.2.1", "address", "192.0.2.1"),
        ("::ffff:192.0.2.1", "address", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "network", "2001:db8:1:2::/64"),
    ],
)
def test_an_address_is_banned_as_it_is_counted(address: str, kind: str, value: str) -> None:
    flapping, _, bans = bench(address_connects_max=1)
    assert flapping.counts_addresses
    assert not flapping.arrived(address)
    assert flapping.arrived(address)
    assert [(ban.kind, ban.value) for ban in bans] == [(kind, value)]
    assert normal_value(bans[0].kind, bans[0].value) == value


def test_nothing_is_counted_without_a_limit_or_a_name() -> None:
    flapping, _, bans = bench()
    assert not flapping.counts_addresses
    assert not any(flapping.connecting("c") or flapping.arrived("192.0.2.1") for _ in range(1_000))
    flapping, _, bans = bench(client_connects_max=1, address_connects_max=1)
    assert not any(flapping.connecting("") or flapping.arrived(None) for _ in range(10))
    assert bans == []


def test_so_many_are_counted() -> None:
    flapping, _, bans = bench(client_connects_max=1)
    for number in range(limits.MQTT_FLAPPING_COUNTED_MAX):
        flapping.connecting(f"c{number}")
    flapping.connecting("one more")
    # The first one was forgotten for it.
    assert not flapping.connecting("c0")
    assert flapping.connecting("one more")
    assert len(bans) == 1
