"""Tokens that are broken anywhere are denied or for the next link; none of them breaks the link."""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokens import key_of

from iotmq.clock import SystemClock
from iotmq.mqtt_front.access.links.jwt import JwtLink
from iotmq.mqtt_front.access.verdicts import Accepted, Credentials, Denied, NotMine
from iotmq.mqtt_front.settings.links import JwtLinkSettings

KEY = key_of("ES256", "one")
# It is made when the file is read, maybe long before the tests.
TOKEN = KEY.token({"sub": "pump", "roles": ["a"], "iat": 1, "exp": round(time.time()) + 86_400})


@pytest.fixture(scope="module")
def link() -> Iterator[JwtLink]:
    with tempfile.TemporaryDirectory() as directory:
        file = KEY.pem_file(Path(directory))
        yield JwtLink(JwtLinkSettings(name="tokens", algorithms=("ES256",), key_files=(file,)), SystemClock())


def decided(link: JwtLink, token: bytes, *, in_exchange: bool = False) -> Accepted | Denied | NotMine:
    shown = {"token": token} if in_exchange else {"password": token}
    asked = Credentials("d", None, None, None, "tcp")._replace(**shown)
    link.told(asked)
    return asyncio.run(link.decide(asked))


def test_the_token_itself_is_accepted(link: JwtLink) -> None:
    assert isinstance(decided(link, TOKEN), Accepted)
    assert isinstance(decided(link, TOKEN, in_exchange=True), Accepted)


@given(
    at=st.integers(0, len(TOKEN) - 1), put=st.binary(max_size=3), drop=st.integers(0, 3), whole=st.booleans()
)
def test_a_changed_token_is_not_accepted(link: JwtLink, at: int, put: bytes, drop: int, whole: bool) -> None:
    changed = TOKEN[:at] + put + TOKEN[at + drop :]
    verdict = decided(link, changed, in_exchange=whole)
    assert changed == TOKEN or isinstance(verdict, (Denied, NotMine))


@given(data=st.binary(max_size=200), whole=st.booleans())
def test_bytes_are_no_token(link: JwtLink, data: bytes, whole: bool) -> None:
    assert isinstance(decided(link, data, in_exchange=whole), (Denied, NotMine))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(header=st.dictionaries(st.sampled_from(["alg", "kid", "crit", "b64", "typ", "jwk"]), JSON), body=JSON)
def test_headers_and_bodies_of_any_form(link: JwtLink, header: dict[str, Any], body: Any) -> None:
    parts = (json.dumps({"alg": "ES256", **header}).encode(), json.dumps(body).encode(), b"x" * 64)
    token = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    assert isinstance(decided(link, token), (Denied, NotMine))


NAMES = ["sub", "exp", "nbf", "iat", "aud", "iss", "roles", "groups", "acl", "limits"]


@given(claims=st.dictionaries(st.sampled_from(NAMES), JSON))
def test_signed_claims_of_any_form_are_accepted_or_denied(link: JwtLink, claims: dict[str, Any]) -> None:
    import jwt

    signed = jwt.PyJWS().encode(json.dumps(claims).encode(), KEY.private, "ES256")
    verdict = decided(link, signed.encode())
    assert isinstance(verdict, (Accepted, Denied))
    if isinstance(verdict, Accepted):
        assert verdict.identity.user
        assert verdict.identity.expires_at_s is not None
