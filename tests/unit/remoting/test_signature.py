"""Signatures of requests beside values computed by hand, and what they do and do not cover."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from iotmq.remoting.command import Command
from iotmq.remoting.signature import Credentials, is_signed_with, sign

KEYS = Credentials("account", "secret12")


def signed(ext: dict[str, str], body: bytes | memoryview | list[bytes | memoryview] = b"") -> Command:
    request = Command.request(10, ext, body)
    sign(request, KEYS)
    return request


def by_hand(text: str, body: bytes = b"") -> str:
    return base64.b64encode(hmac.new(b"secret12", text.encode() + body, hashlib.sha1).digest()).decode()


def test_the_values_are_signed_in_the_order_of_their_names_and_the_body_after_them() -> None:
    request = signed({"topic": "T", "a": "1", "Z": "ü"}, b"body")
    # Capital letters come first: AccessKey, Z, a, topic.
    assert request.ext["Signature"] == by_hand("accountü1T", b"body")
    assert request.ext["AccessKey"] == "account"


def test_a_known_value() -> None:
    """Computed with `openssl dgst -sha1 -hmac secret12 -binary | base64` over `account1`."""
    assert signed({"b": "1"}).ext["Signature"] == by_hand("account1") == "jy5LaXFseB1boFF25ojTkObdXIk="


@pytest.mark.parametrize(
    "body", [b"", b"body", memoryview(b"body"), [b"bo", memoryview(b"dy")], [b"", b"body"]]
)
def test_every_kind_of_body_is_signed_alike(body: bytes | memoryview | list[bytes | memoryview]) -> None:
    request = signed({"a": "1"}, body)
    assert is_signed_with(request, b"secret12")
    assert request.ext["Signature"] == by_hand("account1", request.body_bytes())


def test_a_change_of_field_body_or_secret_is_seen() -> None:
    assert not is_signed_with(signed({"a": "1"}), b"secret13")
    for change in ({"a": "2"}, {"b": "1"}, {"AccessKey": "other"}, {"Signature": ""}, {"Signature": "ü"}):
        request = signed({"a": "1"}, b"body")
        request.ext.update(change)
        assert not is_signed_with(request, b"secret12")
    request = signed({"a": "1"}, b"body")
    request.body = b"Body"
    assert not is_signed_with(request, b"secret12")
    assert not is_signed_with(Command.request(10, {"a": "1"}), b"secret12")


def test_signing_again_after_a_change_replaces_the_signature() -> None:
    request = signed({"a": "1"})
    request.ext["a"] = "2"
    sign(request, KEYS)
    assert is_signed_with(request, b"secret12")


def test_older_clients_add_one_field_after_they_have_signed() -> None:
    request = signed({"topic": "T"})
    request.ext["_UNIQUE_KEY_QUERY"] = "true"
    request.version = 399
    assert is_signed_with(request, b"secret12")
    request.version = 401
    assert not is_signed_with(request, b"secret12")
    sign(request, KEYS)
    assert is_signed_with(request, b"secret12")


def test_credentials_do_not_show_their_secret() -> None:
    assert "secret12" not in f"{KEYS} {KEYS!r}"
