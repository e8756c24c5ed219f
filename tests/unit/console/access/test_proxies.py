"""Requests through proxies: what a named one says counts, and what others say does not."""

from __future__ import annotations

import pytest

from iotmq.console.access.proxies import Proxies, networks_of
from iotmq.console.server.messages import Request

PROXIES = Proxies(networks_of(("10.0.0.5", "10.1.0.0/16", "fd00::/8")), "/ops/iotmq")


def seen(peer: str = "10.0.0.5", path: str = "/", **headers: str) -> Request:
    fields = {"host": "inner:8080", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return PROXIES.seen(Request("GET", path, "", fields, peer))


FORWARDED = {
    "x_forwarded_for": "203.0.113.7",
    "x_forwarded_proto": "https",
    "x_forwarded_host": "gateway.example",
}


@pytest.mark.parametrize("peer", ["10.0.0.5", "10.1.200.3", "fd00::1", "::ffff:10.0.0.5"])
def test_what_a_named_proxy_says_counts(peer: str) -> None:
    request = seen(peer, **FORWARDED)
    assert (request.peer, request.is_encrypted, request.headers["host"], request.proxy) == (
        "203.0.113.7",
        True,
        "gateway.example",
        peer,
    )


@pytest.mark.parametrize("peer", ["10.0.0.6", "127.0.0.1", "203.0.113.7", "", "nothing"])
def test_what_others_say_does_not(peer: str) -> None:
    request = seen(peer, **FORWARDED)
    assert (request.peer, request.is_encrypted, request.headers["host"], request.proxy) == (
        peer,
        False,
        "inner:8080",
        "",
    )


@pytest.mark.parametrize(
    ("way", "sender"),
    [
        ("", "10.0.0.5"),
        ("192.0.2.1", "192.0.2.1"),
        ("127.0.0.1, 192.0.2.1", "192.0.2.1"),
        ("127.0.0.1, 192.0.2.1, 10.1.2.3", "192.0.2.1"),
        ("10.1.2.3, 10.1.2.4", "10.1.2.3"),
        ("192.0.2.1, nonsense", "10.0.0.5"),
        ("192.0.2.1, nonsense, 10.1.2.3", "10.1.2.3"),
        ("2001:db8::1", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:50000", "192.0.2.1"),
        ("192.0.2.1:50000, 10.1.2.3:443", "192.0.2.1"),
        ("[2001:db8::1]:50000", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("192.0.2.1:nonsense", "10.0.0.5"),
        ("127.0.0.1," * 5000 + "10.1.2.3", "127.0.0.1"),
        ("192.0.2.1," + "10.1.2.3," * 20 + "10.1.2.3", "10.1.2.3"),
    ],
)
def test_the_sender_is_the_last_address_that_is_no_proxy(way: str, sender: str) -> None:
    assert seen(x_forwarded_for=way).peer == sender


@pytest.mark.parametrize(
    ("host", "taken"),
    [
        ("gateway.example:8443", True),
        ("[2001:db8::1]:443", True),
        ("a.example, gateway.example", True),
        ("", False),
        ("gateway.example/evil", False),
        ("a b", False),
        ("g\r\nx: y", False),
        ("x" * 300, False),
    ],
)
def test_a_host_is_one_in_form(host: str, taken: bool) -> None:
    assert (seen(x_forwarded_host=host).headers["host"] != "inner:8080") is taken


def test_without_a_word_of_the_proxy_nothing_is_encrypted() -> None:
    assert not seen(x_forwarded_proto="http").is_encrypted
    assert not seen(x_forwarded_proto="https, http").is_encrypted
    assert seen(x_forwarded_proto="http, HTTPS").is_encrypted
    request = Request("GET", "/", "", {}, "10.0.0.5", is_encrypted=True)
    assert not PROXIES.seen(request).is_encrypted


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/ops/iotmq", "/"),
        ("/ops/iotmq/", "/"),
        ("/ops/iotmq/api/v1/me", "/api/v1/me"),
        ("/ops/iotmqx/api", "/ops/iotmqx/api"),
        ("/api/v1/me", "/api/v1/me"),
        ("/ops/iotmq/ops/iotmq/x", "/ops/iotmq/x"),
    ],
)
def test_paths_are_those_below_the_base(path: str, expected: str) -> None:
    assert seen("192.0.2.1", path).path == expected
    assert seen("10.0.0.5", path).path == expected


def test_networks_that_are_none_are_named() -> None:
    for wrong in ("10.0.0.5/33", "10.0.0.5/8", "proxy.example", ""):
        with pytest.raises(ValueError, match="no address or network"):
            networks_of([wrong])
