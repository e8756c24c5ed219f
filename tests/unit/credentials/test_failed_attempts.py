"""Failures by address: a minute, networks, and how many addresses are remembered."""

from __future__ import annotations

import pytest

from iotmq import limits
from iotmq.credentials.failed_attempts import FailedAttempts


def test_a_minute_begins_with_the_first_failure() -> None:
    failures = FailedAttempts(2)
    failures.add("192.0.2.1", None, 10.0)
    assert not failures.is_exceeded("192.0.2.1", None, 10.0)
    failures.add("192.0.2.1", None, 69.0)
    assert failures.is_exceeded("192.0.2.1", None, 69.9)
    assert not failures.is_exceeded("192.0.2.2", None, 69.9)
    assert not failures.is_exceeded("192.0.2.1", None, 70.0)
    failures.add("192.0.2.1", None, 70.0)
    assert not failures.is_exceeded("192.0.2.1", None, 70.0)


def test_an_address_that_is_refused_from_now_on_is_counted_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = FailedAttempts(2)
    for at_s in (0.0, 1.0, 2.0):
        failures.add("192.0.2.1", None, at_s)
    failures.add("192.0.2.2", None, 3.0)
    assert failures.exceeded_total == 1
    (line,) = caplog.records
    assert vars(line)["address"] == "192.0.2.1"
    # In the next minute it may be so again.
    failures.add("192.0.2.1", None, 60.0)
    failures.add("192.0.2.1", None, 61.0)
    assert failures.exceeded_total == 2
    none = FailedAttempts(0)
    none.add("192.0.2.1", None, 0.0)
    assert none.exceeded_total == 0


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("not:an:address", "not:an:address", True),
    ],
)
def test_of_ipv6_a_network_counts(one: str, other: str, is_same: bool) -> None:
    failures = FailedAttempts(1)
    failures.add(one, None, 0.0)
    assert failures.is_exceeded(other, None, 0.0) is is_same


def test_addresses_are_bounded_and_the_oldest_goes() -> None:
    failures = FailedAttempts(1)
    for number in range(limits.MQTT_FAILING_ADDRESSES_MAX):
        failures.add(f"a{number}", None, 0.0)
    assert failures.is_exceeded("a0", None, 0.0)
    assert len(failures) == limits.MQTT_FAILING_ADDRESSES_MAX
    failures.add("one more", None, 0.0)
    assert len(failures) == limits.MQTT_FAILING_ADDRESSES_MAX
    assert not failures.is_exceeded("a0", None, 0.0)
    assert failures.is_exceeded("a1", None, 0.0)


def test_nothing_is_counted_without_a_limit_or_an_address() -> None:
    failures = FailedAttempts(0)
    failures.add("192.0.2.1", None, 0.0)
    assert not failures.is_exceeded("192.0.2.1", None, 0.0)
    failures = FailedAttempts(1)
    failures.add(None, None, 0.0)
    assert not failures.is_exceeded(None, None, 0.0)
    assert len(failures) == 0


def test_a_user_who_was_right_from_an_address_is_counted_there_alone() -> None:
    failures = FailedAttempts(2)
    failures.prove("192.0.2.1", "pump")
    for _ in range(2):
        failures.add("192.0.2.1", "valve", 0.0)
        failures.check_invariants()
    assert failures.is_exceeded("192.0.2.1", "valve", 0.0)
    assert failures.is_exceeded("192.0.2.1", None, 0.0)
    assert not failures.is_exceeded("192.0.2.1", "pump", 0.0)
    for _ in range(2):
        assert not failures.is_exceeded("192.0.2.1", "pump", 0.0)
        failures.add("192.0.2.1", "pump", 0.0)
    assert failures.is_exceeded("192.0.2.1", "pump", 0.0), "a guess from there is counted, too"
    for _ in range(2):
        failures.add("192.0.2.2", "pump", 0.0)
    assert failures.is_exceeded("192.0.2.2", "pump", 0.0), "it was never right from there"


def test_users_who_were_right_are_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MQTT_PROVEN_USERS_MAX", 3)
    failures = FailedAttempts(1)
    for user in ("a", "b", "c", "a"):
        failures.prove("192.0.2.1", user)
    failures.prove("192.0.2.1", "d")
    failures.check_invariants()
    failures.add("192.0.2.1", None, 0.0)
    exceeded = [user for user in "abcd" if failures.is_exceeded("192.0.2.1", user, 0.0)]
    assert exceeded == ["b"]
