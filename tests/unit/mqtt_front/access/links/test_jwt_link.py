"""Tokens: which are taken, what is made of their claims, and what forged ones get."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from chain_site import ChainSite, chained
from tokens import SECRET, SigningKey, claims_of, hmac_token, jwks, key_of, raw_token

from iotmq import limits
from iotmq.config.config import config_from_table
from iotmq.errors import ConfigError
from iotmq.mqtt_front.access.authentication import shown_user

BAD, NOT_AUTHORIZED = 0x86, 0x87


def link(directory: Path, key: SigningKey | None = None, **settings: Any) -> dict[str, Any]:
    """A link that takes tokens of one key in a PEM file."""
    key = key_of("ES256") if key is None else key
    file = key.pem_file(directory, f"{key.algorithm}-{key.kid}.pem")
    return {"kind": "jwt", "name": "tokens", "algorithms": [key.algorithm], "key_files": [file], **settings}


class In(float):
    """A time so many seconds ahead of when the token is made."""


def later(claims: dict[str, Any]) -> dict[str, Any]:
    return {name: time.time() + value if isinstance(value, In) else value for name, value in claims.items()}


async def code(site: ChainSite, token: bytes | None, user: str | None = None, **fields: Any) -> int:
    return await site.code(user, token, protocol_level=5, **fields)


@pytest.mark.parametrize("algorithm", ["ES256", "ES384", "ES512", "RS256", "PS384", "EdDSA"])
async def test_tokens_of_every_kind_of_key(tmp_path: Path, algorithm: str) -> None:
    key = key_of(algorithm)
    async with chained(link(tmp_path, key)) as site:
        assert await code(site, key.token()) == 0
        assert site.device().user == "pump"
        assert site.device().identity.decided_by == "tokens"
        assert await code(site, key_of(algorithm, "other").token()) == BAD


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_tokens_signed_with_a_secret(tmp_path: Path, algorithm: str) -> None:
    secret = SECRET * 2
    (tmp_path / "secret").write_bytes(secret + b"\n")
    settings = {"kind": "jwt", "name": "tokens", "algorithms": [algorithm]}
    async with chained({**settings, "secret_file": str(tmp_path / "secret")}) as site:
        assert await code(site, hmac_token(secret=secret, algorithm=algorithm)) == 0
        assert await code(site, hmac_token(secret=secret + b"x", algorithm=algorithm)) == BAD


async def test_claims_become_an_identity(tmp_path: Path) -> None:
    claims = {
        "sub": None,
        "realm": {"name": "meter-7"},
        "roles": ["reader", "writer"],
        "group": "site-3",
        "site": 3,
        "is_new": True,
        "https://example.com/tenant": "acme",
        "acl": [{"permission": "allow", "action": "publish", "topic": "a/#"}],
        "limits": {"messages_per_s": 10},
    }
    settings = {
        "user_claim": "realm.name",
        "groups_claim": "group",
        "attribute_claims": ["site", "is_new", "https://example.com/tenant", "none"],
        "leeway_s": 5.0,
    }
    async with chained(link(tmp_path, **settings)) as site:
        ends = round(time.time()) + 60
        assert await code(site, key_of("ES256").token({**claims, "exp": ends})) == 0
        identity = site.device().identity
        assert (identity.user, identity.roles, identity.groups) == (
            "meter-7",
            ("reader", "writer"),
            ("site-3",),
        )
        assert identity.attributes == {"site": "3", "is_new": "true", "https://example.com/tenant": "acme"}
        assert identity.permissions == tuple(claims["acl"])  # type: ignore[arg-type]
        assert identity.limits == {"messages_per_s": 10}
        assert identity.expires_at_s == ends + 5


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": None},
        {"exp": In(-11)},
        {"exp": "9999999999"},
        {"exp": True},
        {"exp": In(367 * 86_400)},
        {"nbf": In(60)},
        {"iat": In(60)},
        {"nbf": []},
        {"aud": "us"},
        {"aud": ["us", "them"]},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "a\nb"},
        {"sub": "n" * (limits.MQTT_USER_NAME_BYTES_MAX + 1)},
        {"roles": {"a": 1}},
        {"roles": [1]},
        {"roles": ["r"] * (limits.MQTT_IDENTITY_NAMES_MAX + 1)},
        {"acl": "all"},
        {"acl": ["all"]},
        {"limits": {"x": -1}},
        {"limits": {"x": True}},
        {"limits": [1]},
    ],
)
async def test_claims_that_are_refused(tmp_path: Path, claims: dict[str, Any]) -> None:
    async with chained(link(tmp_path)) as site:
        assert await code(site, key_of("ES256").token(later(claims))) == BAD
        assert site.answers("tokens", "denied") == 1


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": In(-5)},
        {"exp": In(365 * 86_400)},
        {"nbf": In(5), "iat": In(5)},
        {"sub": "n" * limits.MQTT_USER_NAME_BYTES_MAX},
        {"roles": ["r"] * limits.MQTT_IDENTITY_NAMES_MAX},
    ],
)
async def test_claims_at_their_limits(tmp_path: Path, claims: dict[str, Any]) -> None:
    async with chained(link(tmp_path)) as site:
        assert await code(site, key_of("ES256").token(later(claims))) == 0


async def test_audience_and_issuer(tmp_path: Path) -> None:
    key = key_of("ES256")
    async with chained(link(tmp_path, audience=["us", "also"], issuer="https://id")) as site:
        assert await code(site, key.token({"aud": "us", "iss": "https://id"})) == 0
        assert await code(site, key.token({"aud": ["x", "also"], "iss": "https://id"})) == 0
        for wrong in (
            {"aud": "us"},
            {"iss": "https://id"},
            {"aud": "them", "iss": "https://id"},
            {"aud": "us", "iss": "https://id.evil"},
            {"aud": [["us"]], "iss": "https://id"},
        ):
            assert await code(site, key.token(wrong)) == BAD


async def test_user_name_and_client_id_have_to_be_those_of_the_token(tmp_path: Path) -> None:
    key = key_of("ES256")
    async with chained(link(tmp_path, client_id_claim="device")) as site:
        token = key.token({"device": "d-1"})
        assert await code(site, token, "pump", client_id="d-1") == 0
        assert await code(site, token, "valve", client_id="d-1") == BAD
        assert await code(site, token, client_id="d-2") == BAD
        assert await code(site, key.token(), client_id="d-1") == BAD
        assert await code(site, token, client_id="") == 0
        assert site.device("d-1").user == "pump", "who asks for no client id gets that of the token"


async def test_a_token_as_user_name_is_not_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = key_of("ES256")
    async with chained(link(tmp_path, token_from="user-name")) as site:
        token = key.token().decode()
        assert len(token) < limits.MQTT_USER_NAME_BYTES_MAX
        assert await site.code(token) == 0
        assert site.device().user == "pump"
        assert await site.code(token + "x", b"password") == 4
        assert token[-40:] not in str([vars(record) for record in caplog.records])
        assert shown_user(token) == token[:16] + "..."
        assert shown_user("a.b.c") == "a.b.c"


# Forged


def forged() -> dict[str, bytes]:
    key = key_of("ES256")
    claims = claims_of(None)
    head, body, signature = key.token().split(b".")
    return {
        "none": raw_token({"alg": "none", "typ": "JWT"}, claims),
        "None in other letters": raw_token({"alg": "nOnE"}, claims),
        "no algorithm": raw_token({"typ": "JWT"}, claims),
        "an algorithm that is a list": raw_token({"alg": ["ES256"]}, claims),
        "the public key as a secret": _with_public_key_as_secret(key.pem, claims),
        "the public key without its line break": _with_public_key_as_secret(key.pem.strip(), claims),
        "another algorithm in its header": raw_token({"alg": "RS256"}, claims, b"x" * 256),
        "no signature": b".".join((head, body, b"")),
        "another body": b".".join((head, raw_token({}, {**claims, "sub": "root"}).split(b".")[1], signature)),
        "a signature of zeros": raw_token({"alg": "ES256"}, claims, bytes(64)),
        "a short signature": raw_token({"alg": "ES256"}, claims, b"x"),
        "a body that is no object": raw_token({"alg": "ES256"}, [claims], b"x" * 64),
        "a key in its header": raw_token({"alg": "ES256", "jwk": key.jwk}, claims, b"x" * 64),
        "a way to a key": raw_token({"alg": "ES256", "kid": "../../dev/null"}, claims, b"x" * 64),
        "a key that is a number": raw_token({"alg": "ES256", "kid": 7}, claims, b"x" * 64),
        "a body that is not in the token": raw_token(
            {"alg": "ES256", "b64": False, "crit": ["b64"]}, claims, b"x" * 64
        ),
        "something critical": raw_token({"alg": "ES256", "crit": ["exp"]}, claims, b"x" * 64),
        "a deep header": raw_token({"alg": "ES256", "x": json_depth(400)}, claims, b"x" * 64),
    }


def json_depth(depth: int) -> object:
    nested: object = 1
    for _ in range(depth):
        nested = [nested]
    return nested


def _with_public_key_as_secret(pem: bytes, claims: dict[str, Any]) -> bytes:
    import hmac

    unsigned = raw_token({"alg": "HS256"}, claims).rpartition(b".")[0]
    signed = hmac.digest(pem, unsigned, "sha256")
    return unsigned + b"." + raw_token({}, {}, signed).rpartition(b".")[2]


@pytest.mark.parametrize("what", sorted(forged()))
async def test_forged_tokens(tmp_path: Path, what: str) -> None:
    async with chained(link(tmp_path)) as site:
        assert await code(site, forged()[what]) == BAD
        assert site.answers("tokens", "denied") == 1
        assert site.number("iotmq_mqtt_authentication_refused_total", cause="token") == 1


async def test_a_token_is_no_longer_than_a_password(tmp_path: Path) -> None:
    async with chained(link(tmp_path)) as site:
        filled = key_of("ES256").token({"x": "x" * limits.MQTT_PASSWORD_BYTES_MAX})
        assert len(filled) > limits.MQTT_PASSWORD_BYTES_MAX
        assert await code(site, filled) == BAD
        fits = key_of("ES256").token({"x": "x" * (limits.MQTT_PASSWORD_BYTES_MAX // 2)})
        assert await code(site, fits) == 0


async def test_passwords_are_for_the_next_link(tmp_path: Path) -> None:
    async with chained(link(tmp_path)) as site:
        for password in (b"secret", b"a.b.c", b"", None):
            assert await code(site, password, "pump") == BAD
        assert site.answers("tokens", "not_mine") + site.answers("tokens", "remembered") == 4
        assert site.number("iotmq_mqtt_authentication_refused_total", cause="chain") == 4


async def test_a_token_is_remembered_until_it_ends_or_its_key_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key, other = key_of("ES256", "one"), key_of("ES256", "two")

    def write(*keys: SigningKey) -> None:
        import json

        file.write_text(json.dumps(jwks(*keys)))

    write(key, other)
    settings = {"kind": "jwt", "name": "tokens", "algorithms": ["ES256"], "jwks_file": str(file)}
    async with chained(settings) as site:
        token = key.token()
        for _ in range(3):
            assert await code(site, token) == 0
        assert (site.answers("tokens", "accepted"), site.answers("tokens", "remembered")) == (1, 2)
        assert await code(site, token, client_id="another") == 0
        assert site.answers("tokens", "accepted") == 2
        write(other)
        keys = site.link("tokens").link._keys  # type: ignore[attr-defined]
        await keys.refresh()
        assert await code(site, token) == BAD
        assert await code(site, other.token()) == 0


# Settings


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"algorithms": []}, "chain"),
        ({"algorithms": ["none"], "key_files": ["x"]}, "algorithms"),
        ({"algorithms": ["HS256", "ES256"], "secret_file": "x"}, "make two links"),
        ({"algorithms": ["ES256"], "secret_file": "x"}, "secret_file is for the algorithms"),
        ({"algorithms": ["HS256"], "key_files": ["x"]}, "secret_file is for the algorithms"),
        ({"algorithms": ["ES256"]}, "it needs secret_file"),
        ({"algorithms": ["ES256"], "jwks_url": "file:///etc/passwd"}, "jwks_url"),
        (
            {
                "algorithms": ["ES256"],
                "key_files": ["x"],
                "user_claim": "x" * (limits.MQTT_CLAIM_NAME_CHARACTERS_MAX + 1),
            },
            "user_claim",
        ),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], what: str) -> None:
    table = {"mqtt": {"authentication": {"chain": [{"kind": "jwt", "name": "tokens", **settings}]}}}
    with pytest.raises(ConfigError, match=what):
        config_from_table(table)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "No such file"),
        (b"", "no public key or certificate"),
        (b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n", "no public key or certificate"),
        (SigningKey("RS256", bits=1_024).pem, "less than 2,048 bits"),
        (key_of("RS256").pem, "no key for ES256"),
        (b"x" * (limits.MQTT_TOKEN_KEYS_BYTES_MAX + 1), "has more than"),
    ],
)
async def test_a_front_end_does_not_start_without_keys_it_can_use(
    tmp_path: Path, content: bytes | None, what: str
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    algorithms = ["RS256"] if what == "less than 2,048 bits" else ["ES256"]
    settings = {"kind": "jwt", "name": "tokens", "algorithms": algorithms, "key_files": [str(file)]}
    with pytest.raises(ConfigError, match=what):
        async with chained(settings):
            pass


async def test_a_secret_that_is_too_short(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s" * 31)
    settings = {"kind": "jwt", "name": "tokens", "algorithms": ["HS256"], "secret_file": f"{tmp_path}/secret"}
    with pytest.raises(ConfigError, match="a secret of 31 bytes"):
        async with chained(settings):
            pass
