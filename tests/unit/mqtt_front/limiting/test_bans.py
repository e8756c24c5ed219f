"""Bans: by name, address, network and pattern, until when, and how many."""

from __future__ import annotations

import random
from ipaddress import ip_address, ip_network

import pytest

from iotmq import limits
from iotmq.mqtt.bans import (
    BANS_PREFIX,
    KINDS,
    Ban,
    BanKind,
    ban_of_topic,
    ban_topic,
    decode_ban,
    normal_value,
)
from iotmq.mqtt_front.limiting.bans import Bans


def ban(kind: BanKind, value: str, **fields: int) -> Ban:
    return Ban(kind=kind, value=value, **fields)


@pytest.mark.parametrize(
    ("banned", "value", "client_id", "user", "address", "is_banned"),
    [
        ("client", "c", "c", "u", "192.0.2.1", True),
        ("client", "c", "C", "u", "192.0.2.1", False),
        ("user", "u", "c", "u", "192.0.2.1", True),
        ("user", "c", "c", "u", "192.0.2.1", False),
        ("user", "u", "c", None, "192.0.2.1", False),
        ("address", "192.0.2.1", "c", "u", "192.0.2.1", True),
        ("address", "192.0.2.1", "c", "u", "::ffff:192.0.2.1", True),
        ("address", "192.0.2.1", "c", "u", "192.0.2.2", False),
        ("address", "192.0.2.1", "c", "u", None, False),
        ("address", "2001:db8::1", "c", "u", "2001:db8:0::1", True),
        ("address", "fe80::1", "c", "u", "fe80::1%eth0", True),
        ("network", "192.0.2.0/24", "c", "u", "192.0.2.255", True),
        ("network", "192.0.2.0/24", "c", "u", "192.0.3.0", False),
        ("network", "2001:db8::/32", "c", "u", "2001:db8:ffff::1", True),
        ("network", "0.0.0.0/0", "c", "u", "192.0.2.1", True),
        ("network", "0.0.0.0/0", "c", "u", "2001:db8::1", False),
        ("network", "0.0.0.0/0", "c", "u", "no address", False),
        ("client-pattern", "bot-[0-9]+", "bot-17", "u", "192.0.2.1", True),
        ("client-pattern", "bot-[0-9]+", "a bot-17", "u", "192.0.2.1", False),
        ("user-pattern", "bot-[0-9]+", "bot-17", "u", "192.0.2.1", False),
        ("user-pattern", "bot-[0-9]+", "c", "bot-1", "192.0.2.1", True),
    ],
)
def test_who_is_banned(
    banned: BanKind, value: str, client_id: str, user: str | None, address: str | None, is_banned: bool
) -> None:
    bans = Bans()
    made = ban(banned, value)
    assert bans.put(made)

    def found() -> list[Ban]:
        asked = (bans.of_client(client_id, 0), bans.of_user(user, 0), bans.of_address(address, 0))
        return [ban for ban in asked if ban is not None]

    assert found() == ([made] if is_banned else [])
    bans.check_invariants()
    bans.remove(banned, value)
    bans.remove(banned, value)
    assert found() == []
    assert len(bans) == 0
    bans.check_invariants()


def test_a_ban_ends_by_itself() -> None:
    bans = Bans()
    for kind, value in (("client", "c"), ("network", "192.0.2.0/24"), ("client-pattern", "d+")):
        bans.put(ban(kind, value, until_ms=1_000))  # type: ignore[arg-type]
    assert bans.of_client("c", 999)
    assert bans.of_address("192.0.2.1", 999)
    assert bans.of_client("dd", 999)
    assert not bans.of_client("c", 1_000)
    assert not bans.of_address("192.0.2.1", 1_000)
    assert not bans.of_client("dd", 1_000)
    bans.drop_over(999)
    assert len(bans) == 3
    bans.drop_over(1_000)
    assert len(bans) == 0
    bans.check_invariants()


def test_a_ban_is_changed_by_another_one() -> None:
    bans = Bans()
    bans.put(ban("network", "192.0.2.0/24", until_ms=1))
    bans.put(ban("network", "192.0.2.0/24"))
    assert bans.of_address("192.0.2.1", 10**12)
    assert len(bans) == 1


def test_exact_bans_have_a_maximum_together() -> None:
    bans = Bans()
    for number in range(limits.MQTT_BANS_MAX - 1):
        assert bans.put(ban("client", f"c{number}"))
    assert bans.put(ban("user", "u"))
    assert not bans.put(ban("address", "192.0.2.1"))
    assert not bans.put(ban("client", "one more"))
    # One that is known may be changed.
    assert bans.put(ban("client", "c0", until_ms=5))
    assert bans.refused_total == 2
    assert len(bans) == limits.MQTT_BANS_MAX
    assert not bans.of_client("one more", 0)


def test_networks_have_a_maximum() -> None:
    bans = Bans()
    for number in range(limits.MQTT_BANNED_NETWORKS_MAX):
        assert bans.put(ban("network", f"10.{number >> 8}.{number & 255}.0/24"))
    assert not bans.put(ban("network", "192.0.2.0/24"))
    bans.check_invariants()


def test_patterns_have_a_maximum() -> None:
    bans = Bans()
    for number in range(limits.MQTT_BANNED_PATTERNS_MAX):
        assert bans.put(ban("client-pattern" if number % 2 else "user-pattern", f"p{number}"))
    assert not bans.put(ban("client-pattern", "q"))
    bans.check_invariants()


def test_what_is_no_regular_expression_is_no_ban() -> None:
    bans = Bans()
    with pytest.raises(ValueError, match="RE2"):
        bans.put(ban("client-pattern", "(?=look)"))
    assert len(bans) == 0
    bans.check_invariants()


def test_networks_are_found_as_by_comparing_with_each() -> None:
    chance = random.Random(7)
    bans = Bans()
    networks = []
    for _ in range(200):
        length = chance.randint(4, 32)
        network = ip_network((chance.getrandbits(32) >> (32 - length) << (32 - length), length))
        networks.append(network)
        bans.put(ban("network", str(network)))
    for _ in range(5_000):
        inside = chance.choice(networks)
        address = inside.network_address + chance.getrandbits(20) if chance.random() < 0.5 else None
        address = address or ip_address(chance.getrandbits(32))
        is_inside = any(address in network for network in networks)
        assert (bans.of_address(str(address), 0) is not None) is is_inside


# What brokers keep


@pytest.mark.parametrize("kind", KINDS)
def test_the_topic_of_a_ban_says_what_it_is_of(kind: BanKind) -> None:
    for value in ("c", "a/b+#", "\u00e4 \U0001f600", "x" * 512):
        topic = ban_topic(kind, value)
        assert topic.startswith(BANS_PREFIX)
        assert not {"+", "#"} & set(topic)
        assert ban_of_topic(topic) == (kind, value)


@pytest.mark.parametrize(
    "topic",
    ["", "$iotmq/bans/", "$iotmq/bans/client", "$iotmq/bans/client/!", "$iotmq/bans/x/Yw==", "x/client/Yw=="],
)
def test_other_topics_are_of_no_ban(topic: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it
        ban_of_topic(topic)


def test_a_ban_is_read_as_it_was_written() -> None:
    made = Ban(kind="user", value="u", until_ms=5, reason="why", by="operator", made_ms=1)
    assert decode_ban(made.topic, made.body) == made


@pytest.mark.parametrize(
    ("topic", "body"),
    [
        (ban_topic("client", "c"), b"{"),
        (ban_topic("client", "c"), ban("client", "d").body),
        (ban_topic("client", "c"), ban("user", "c").body),
        (ban_topic("network", "192.0.2.1/24"), ban("network", "192.0.2.1/24").body),
        (ban_topic("address", "nobody"), ban("address", "nobody").body),
        (ban_topic("client", "c"), b'{"kind":"client","value":"c","until_ms":-1}'),
        (
            ban_topic("client", "c"),
            Ban(kind="client", value="c", reason="r" * (limits.MQTT_BAN_REASON_CHARACTERS_MAX + 1)).body,
        ),
    ],
)
def test_what_is_no_ban_is_not_read(topic: str, body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it
        decode_ban(topic, body)


@pytest.mark.parametrize(
    ("kind", "given", "normal"),
    [
        ("address", "2001:0DB8::0001", "2001:db8::1"),
        ("address", "::ffff:192.0.2.1", "192.0.2.1"),
        ("network", "192.0.2.77/24", "192.0.2.0/24"),
        ("network", "192.0.2.77", "192.0.2.77/32"),
        ("client", "x", "x"),
    ],
)
def test_values_have_one_form(kind: BanKind, given: str, normal: str) -> None:
    assert normal_value(kind, given) == normal


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("address", "192.0.2.0/24"),
        ("network", "192.0.2.0/33"),
        ("client", ""),
        ("client", "x" * (limits.MQTT_USER_NAME_BYTES_MAX + 1)),
        ("client-pattern", "x" * (limits.MQTT_BAN_PATTERN_CHARACTERS_MAX + 1)),
    ],
)
def test_impossible_values_are_refused(kind: BanKind, value: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it
        normal_value(kind, value)
    if kind.startswith("client"):
        assert normal_value(kind, value[:-1] or "x")
