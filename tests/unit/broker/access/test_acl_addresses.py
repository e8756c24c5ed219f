"""Patterns of remote addresses, as RocketMQ's files of accounts have them."""

from __future__ import annotations

import pytest

from iotmq.broker.access.addresses import parse_address_pattern, split_patterns


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (
            "192.168.1.7",
            ["192.168.1.7", "::ffff:192.168.1.7"],
            ["192.168.1.8", "192.168.1.70", "::1", "x", ""],
        ),
        ("*", ["1.2.3.4", "::1"], []),
        ("*.*.*.*", ["1.2.3.4", "::1"], []),
        ("*:*:*:*:*:*:*:*", ["1.2.3.4", "::1"], []),
        ("", [], ["1.2.3.4", "::1"]),
        ("  ", [], ["1.2.3.4"]),
        ("192.168.*.*", ["192.168.0.0", "192.168.255.255"], ["192.169.0.0", "::1"]),
        ("192.168.1.*", ["192.168.1.0"], ["192.168.11.0"]),
        ("192.168.1.10-20", ["192.168.1.10", "192.168.1.20"], ["192.168.1.9", "192.168.1.21"]),
        ("192.168.1-2.*", ["192.168.2.9"], ["192.168.3.9"]),
        ("192.168.1.{7,9}", ["192.168.1.7", "192.168.1.9"], ["192.168.1.8"]),
        ("192.168.1.7,10.0.0.1", ["192.168.1.7", "10.0.0.1"], ["10.0.0.2"]),
        ("10.0.0.{1,2},10.1.*.*", ["10.0.0.2", "10.1.7.7"], ["10.0.0.3"]),
        ("10.0.0.0/8", ["10.255.0.1"], ["11.0.0.1", "::1"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "0.0.0.1"]),
        ("1050::0005:0600:300c:3261", ["1050:0000:0000:0000:0005:0600:300c:3261"], ["1050::5:600:300c:3262"]),
        ("fe80::*", ["fe80::ffff", "fe80::1%eth0"], ["fe80::1:1"]),
        ("5::7:6:1-200:*", ["5::7:6:1:0", "5::7:6:200:ffff"], ["5::7:6:201:0", "5::7:6:0:0"]),
        ("5::7:6:{1,f}", ["5::7:6:f"], ["5::7:6:2"]),
        ("fd00::/8", ["fdff::1"], ["fe00::1"]),
    ],
)
def test_who_is_meant(pattern: str, inside: list[str], outside: list[str]) -> None:
    matches = parse_address_pattern(pattern).matches
    assert [address for address in inside if not matches(address)] == []
    assert [address for address in outside if matches(address)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "192.168.1",
        "192.168.1.256",
        "192.168.1.2.3",
        "192.168.1.20-10",
        "192.168.1.-5",
        "192.168.1.{",
        "192.168.1.{}",
        "192.168.1.x",
        "192.168.1.٣",
        "10.0.0.0/33",
        "1:2:3",
        "::10000",
        "1:2:3:4:5:6:7:8:9",
        "host.example",
        "1.2.3.4,,",
    ],
)
def test_what_is_no_pattern_is_named(pattern: str) -> None:
    with pytest.raises(ValueError, match="invalid address pattern"):
        parse_address_pattern(pattern)


def test_commas_inside_braces_do_not_separate() -> None:
    assert split_patterns("1.2.3.{4,5},6.7.8.9") == ["1.2.3.{4,5}", "6.7.8.9"]
