"""Filters of LDAP, and what passwords may be sent over; a real server is in tests/integration."""

from __future__ import annotations

from typing import Any

import pytest

from iotmq.errors import ConfigError
from iotmq.mqtt_front.access.links.ldap import LdapLink, escaped
from iotmq.mqtt_front.access.verdicts import NOT_MINE, Credentials, Denied
from iotmq.mqtt_front.settings.service_links import LdapLinkSettings

pytest.importorskip("bonsai", reason="needs the headers of OpenLDAP: tools/setup.sh")

GIVEN = {"name": "dir", "url": "ldap://127.0.0.1:1", "base_dn": "dc=example,dc=org"}


def said(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        LdapLink(LdapLinkSettings(**{**GIVEN, **settings}))
    return str(caught.value)


def test_what_means_something_in_a_filter_is_escaped() -> None:
    assert escaped("a*(b)\\c\0") == "a\\2a\\28b\\29\\5cc\\00"
    assert escaped("größe, x=y") == "größe, x=y"


def test_passwords_are_encrypted_but_on_loopback() -> None:
    assert "in clear" in said(url="ldap://ldap.example.org", start_tls=False)
    for settings in (
        {"url": "ldap://ldap.example.org"},
        {"url": "ldaps://ldap.example.org", "start_tls": False},
        {"url": "ldap://[::1]:389", "start_tls": False},
        {"url": "ldap://localhost", "start_tls": False},
        {"url": "ldap://ldap.example.org", "start_tls": False, "plain_remote": True},
    ):
        LdapLink(LdapLinkSettings(**{**GIVEN, **settings}))


def test_filters_are_looked_at_when_it_starts() -> None:
    assert "{name}" in said(filter="(uid={name})")
    assert "asks for no device" in said(filter="(objectClass=*)")
    assert "is no filter" in said(filter="uid={user_name}")
    assert "is no filter" in said(filter="(&(uid={user_name})")
    assert "{address}" in said(group_filter="(ip={address})")


@pytest.mark.parametrize(("user", "password"), [(None, b"x"), ("", b"x"), ("u", None), ("u", b"")])
async def test_without_a_password_nobody_is_asked(user: str | None, password: bytes | None) -> None:
    """The server is not there: asking it would be an error."""
    link = LdapLink(LdapLinkSettings(**GIVEN))
    assert await link.decide(Credentials("c", user, password, None, "tcp")) is NOT_MINE


@pytest.mark.parametrize("password", [b"a\0b", b"\xff\xfe"])
async def test_what_can_be_no_password_is_wrong(password: bytes) -> None:
    link = LdapLink(LdapLinkSettings(**GIVEN))
    assert isinstance(await link.decide(Credentials("c", "u", password, None, "tcp")), Denied)
