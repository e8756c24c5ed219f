"""The rules for browsers: pages of other sites, cookies, headers."""

from __future__ import annotations

import pytest

from iotmq.console.access.browser import (
    API_HEADERS,
    SessionCookie,
    is_of_other_site,
    may_have_session,
    own_origin,
    page_headers,
    security_headers,
    user_agent,
)
from iotmq.console.server.messages import Request
from iotmq.ports.websockets import WebSocketPlace

TOKEN = "A" * 43


def request(
    method: str = "POST", *, peer: str = "127.0.0.1", is_encrypted: bool = False, **headers: str
) -> Request:
    fields = {"host": "gateway:8080", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return Request(method, "/", "", fields, peer, is_encrypted)


@pytest.mark.parametrize(
    ("headers", "is_other"),
    [
        ({"sec_fetch_site": "same-origin"}, False),
        ({"sec_fetch_site": "none"}, False),
        ({"sec_fetch_site": "cross-site"}, True),
        ({"sec_fetch_site": "same-site"}, True),
        ({"sec_fetch_site": "Same-Origin"}, True),
        ({"sec_fetch_site": "same-origin, cross-site"}, True),
        ({"sec_fetch_site": ""}, True),
        ({"sec_fetch_site": "cross-site", "origin": "http://gateway:8080"}, True),
        ({"origin": "http://gateway:8080"}, False),
        ({"origin": "https://gateway:8080"}, True),
        ({"origin": "http://gateway:8081"}, True),
        ({"origin": "http://gateway"}, True),
        ({"origin": "http://gateway:8080.example.org"}, True),
        ({"origin": "null"}, True),
        ({"origin": ""}, True),
        ({"referer": "http://gateway:8080/"}, True),
    ],
)
def test_a_page_of_another_site_is_seen(headers: dict[str, str], is_other: bool) -> None:
    assert is_of_other_site(request(**headers), may_be_silent=False) is is_other


def test_who_says_nothing_is_a_program_where_that_is_enough() -> None:
    assert is_of_other_site(request(), may_be_silent=False)
    assert not is_of_other_site(request(), may_be_silent=True)
    assert is_of_other_site(request(origin="null"), may_be_silent=True)


def test_what_changes_nothing_needs_no_origin_but_no_other_site_either() -> None:
    assert not is_of_other_site(request("GET"), may_be_silent=False)
    assert is_of_other_site(request("GET", sec_fetch_site="cross-site"), may_be_silent=False)


def test_an_origin_is_that_of_the_address_bar() -> None:
    assert own_origin(request()) == "http://gateway:8080"
    assert own_origin(request(is_encrypted=True)) == "https://gateway:8080"


@pytest.mark.parametrize(
    ("peer", "is_encrypted", "may"),
    [
        ("127.0.0.1", False, True),
        ("::1", False, True),
        ("192.0.2.1", False, False),
        ("192.0.2.1", True, True),
    ],
)
def test_a_cookie_is_never_readable_on_the_way(peer: str, is_encrypted: bool, may: bool) -> None:
    assert may_have_session(request(peer=peer, is_encrypted=is_encrypted)) is may
    cookie = SessionCookie("")
    name = cookie.set(request(is_encrypted=is_encrypted), TOKEN)[1].partition("=")[0]
    sent = request(peer=peer, is_encrypted=is_encrypted, cookie=f"{name}={TOKEN}")
    assert (cookie.token(sent) == TOKEN) is may


def test_a_cookie_has_the_marks_that_keep_it() -> None:
    cookie = SessionCookie("/ops/iotmq")
    assert cookie.set(request(), TOKEN) == (
        "Set-Cookie",
        f"iotmq.ops.iotmq-8080={TOKEN}; Path=/; HttpOnly; SameSite=Lax",
    )
    by_tls = request(is_encrypted=True)
    assert cookie.set(by_tls, TOKEN)[1] == (
        f"__Host-iotmq.ops.iotmq-8080={TOKEN}; Path=/; HttpOnly; SameSite=Lax; Secure"
    )
    assert "Max-Age=0" in cookie.clear(by_tls)[1]
    assert SessionCookie("").set(request(host="gateway"), TOKEN)[1].startswith("iotmq=")
    assert SessionCookie("").set(request(host="[::1]:9000"), TOKEN)[1].startswith("iotmq-9000=")


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "iotmq-8080",
        "iotmq-8080=",
        f"iotmq-8081={TOKEN}",
        f"iotmq={TOKEN}",
        f"__Host-iotmq-8080={TOKEN}",
        f"iotmq-8080={TOKEN}\udcff",
        f"iotmq-8080={'A' * 2001}",
        f"iotmq-8080={'A' * 60_000}",
        f'iotmq-8080="{TOKEN}"',
        f"iotmq-8080={TOKEN[:19]}; iotmq-8080={TOKEN}",
        ";" * 8000,
    ],
)
def test_what_is_no_cookie_of_this_port_is_none(sent: str) -> None:
    assert SessionCookie("").token(request(cookie=sent)) is None


def test_a_cookie_stands_beside_others() -> None:
    sent = f"a=b; iotmq-8080={TOKEN};c=d"
    assert SessionCookie("").token(request(cookie=sent)) == TOKEN


def test_browsers_are_told_to_come_by_tls_again_but_not_for_localhost() -> None:
    assert security_headers(request()) == API_HEADERS
    by_tls = dict(security_headers(request(is_encrypted=True), page_headers(request())))
    assert by_tls["Strict-Transport-Security"] == "max-age=31536000"
    assert "Strict-Transport-Security" not in dict(
        security_headers(request(is_encrypted=True, host="localhost:8080"))
    )


def policy_of(host: str, *places: WebSocketPlace) -> dict[str, str]:
    headers = dict(page_headers(request(host=host), places))
    return dict(part.partition(" ")[::2] for part in headers["Content-Security-Policy"].split("; "))


def test_pages_load_nothing_from_elsewhere_and_run_no_text() -> None:
    policy = policy_of("localhost:8080")
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in str(policy)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("Gateway.example:8080", "'self' ws://gateway.example:8083/mqtt%3Ba%2Cb wss://gateway.example:8084/"),
        ("10.0.0.1", "'self' ws://10.0.0.1:8083/mqtt%3Ba%2Cb wss://10.0.0.1:8084/"),
        # What a policy has no word for, or what would be another part of it.
        ("[::1]:8080", "'self'"),
        ("a b", "'self'"),
        ("a;script-src", "'self'"),
        ("a" * 254, "'self'"),
        ("", "'self'"),
    ],
)
def test_pages_connect_to_the_listeners_of_mqtt_at_their_host(host: str, expected: str) -> None:
    plain = WebSocketPlace("ws", "ws", 8083, "/mqtt;a,b", frozenset())
    policy = policy_of(host, plain, WebSocketPlace("wss", "wss", 8084, "/", frozenset()))
    assert policy["connect-src"] == expected
    assert policy.keys() == policy_of("").keys()


def test_the_name_of_a_program_prints() -> None:
    assert user_agent({"user-agent": "a\x1b[31m\u202eb"}) == "a[31mb"
    assert user_agent({}) == ""
