"""The header of a proxy that has signed somebody in: whose it is, and what is in it."""

from __future__ import annotations

from typing import Any

import pytest

from iotmq import limits
from iotmq.console.access.named_roles import Person
from iotmq.console.access.trusted_header import HeaderRefusedError, TrustedHeader
from iotmq.console.server.messages import Request
from iotmq.console.settings import HeaderSettings, HttpSettings, OidcSettings, SignInSettings

SECRET = "secret-of-the-proxy"
NAMES: dict[str, Any] = {
    "user": "X-Forwarded-User",
    "roles": "X-Forwarded-Groups",
    "administrators": ("iot-admins",),
    "viewers": ("staff",),
}
HEADER = TrustedHeader(HeaderSettings(**NAMES, secret=SECRET))


def request(proxy: str = "10.0.0.5", **headers: str) -> Request:
    fields = {"x_iotmq_proxy_secret": SECRET, **headers}
    named = {name.replace("_", "-"): value for name, value in fields.items() if value}
    return Request("GET", "/", "", named, "192.0.2.1", proxy=proxy)


def test_a_named_proxy_names_people_and_their_roles() -> None:
    for roles, role in (("staff", "viewer"), ("a, iot-admins ,staff", "administrator")):
        found = HEADER.find(request(x_forwarded_user="ada", x_forwarded_groups=roles))
        assert found == Person("ada", role)
    utf8 = "é@example.org".encode().decode("latin-1")
    found = HEADER.find(request(x_forwarded_user=utf8, x_forwarded_groups="staff"))
    assert found == Person("é@example.org", "viewer")


def test_nobody_else_names_anybody() -> None:
    assert HEADER.find(request(proxy="", x_forwarded_user="ada", x_forwarded_groups="staff")) is None
    assert HEADER.find(request(x_forwarded_groups="staff")) is None
    off = TrustedHeader(HeaderSettings())
    assert off.find(request(x_forwarded_user="ada", x_forwarded_groups="staff")) is None


@pytest.mark.parametrize("secret", ["", SECRET[:-1], SECRET + "x", "é", "€"])
def test_a_proxy_without_its_secret_names_nobody(secret: str) -> None:
    with pytest.raises(HeaderRefusedError, match="secret"):
        HEADER.find(
            request(x_forwarded_user="ada", x_forwarded_groups="staff", x_iotmq_proxy_secret=secret)
        )


@pytest.mark.parametrize(
    ("user", "groups", "why"),
    [
        ("ada", "", "no role"),
        ("ada", "staf,*", "no role"),
        (" ", "staff", "nobody"),
        ("a\x1b[31m", "staff", "nobody"),
        ("\xff\xfe", "staff", "nobody"),
        ("a" * (limits.CONSOLE_FOREIGN_NAME_CHARACTERS_MAX + 1), "staff", "nobody"),
        ("ada", "," * limits.CONSOLE_FOREIGN_ROLES_MAX + "staff", "roles"),
    ],
)
def test_who_may_not_be_here_is_told_so(user: str, groups: str, why: str) -> None:
    with pytest.raises(HeaderRefusedError, match=why):
        HEADER.find(request(x_forwarded_user=user, x_forwarded_groups=groups))


def test_the_most_roles_there_may_be() -> None:
    groups = "," * (limits.CONSOLE_FOREIGN_ROLES_MAX - 1) + "staff"
    assert HEADER.find(request(x_forwarded_user="ada", x_forwarded_groups=groups)) is not None


def test_settings_that_would_trust_too_much_are_refused() -> None:
    with pytest.raises(ValueError, match="one of administrators"):
        HeaderSettings(user="x-user")
    with pytest.raises(ValueError, match="at least 16"):
        HeaderSettings(**NAMES, secret="short")
    without_secret = SignInSettings(header=HeaderSettings(**NAMES))
    with pytest.raises(ValueError, match="needs proxies"):
        HttpSettings(sign_in=without_secret)
    for proxy in ("127.0.0.1", "::1", "127.0.0.0/8"):
        with pytest.raises(ValueError, match="needs a secret"):
            HttpSettings(sign_in=without_secret, proxies=(proxy,))
    HttpSettings(sign_in=without_secret, proxies=("10.0.0.5",))
    with_secret = SignInSettings(header=HeaderSettings(**NAMES, secret=SECRET))
    HttpSettings(sign_in=with_secret, proxies=("127.0.0.1",))
    assert SECRET not in repr(with_secret)


def test_settings_of_a_provider_that_would_be_unsafe_are_refused() -> None:
    for wrong, why in (
        ({"issuer": "https://p"}, "client_id"),
        ({"issuer": "http://p.example", "client_id": "c"}, "https"),
        ({"issuer": "https://p", "client_id": "c"}, "one of administrators"),
    ):
        with pytest.raises(ValueError, match=why):
            OidcSettings(**wrong)
    settings = OidcSettings(
        issuer="http://127.0.0.1:1", client_id="c", client_secret="hush", viewers=("*",)
    )
    assert "hush" not in repr(settings)
