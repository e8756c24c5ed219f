"""Keys of tokens that are fetched: rotated, unknown, and from a service that is down, slow, lying or huge."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from chain_site import ChainSite, chained
from eventually import STEP_S, WITHIN_S, soon
from http_service import HttpService, serving
from tokens import SigningKey, jwks, key_of

from iotmq import limits
from iotmq.credentials.token_keys import keys_of_set

BAD, UNAVAILABLE = 0x86, 0x88


@pytest.fixture
async def service() -> AsyncIterator[HttpService]:
    async with serving() as service:
        yield service


def link(service: HttpService, **settings: Any) -> dict[str, Any]:
    defaults = {"refresh_s": 3_600.0, "refusal_cache_s": 0.0, "timeout_s": 10.0}
    return {"kind": "jwt", "name": "tokens", "algorithms": ["ES256"], "jwks_url": service.url("/keys"),
            **defaults, **settings}  # fmt: skip


async def code(site: ChainSite, key: SigningKey) -> int:
    return await site.code(None, key.token(), protocol_level=5)


async def test_keys_are_fetched_before_the_first_token(service: HttpService) -> None:
    key = key_of("ES256", "one")
    service.says(jwks(key, key_of("ES256", "two")))
    async with chained(link(service)) as site:
        assert await code(site, key) == 0
        assert await code(site, key_of("ES256", "three")) == BAD
        assert site.number("iotmq_mqtt_token_keys") == 2
        assert service.headers[0]["host"].startswith("127.0.0.1")


async def test_an_unknown_key_has_the_set_fetched_sooner_but_not_again_and_again(
    service: HttpService,
) -> None:
    old, new = key_of("ES256", "one"), key_of("ES256", "two")
    service.says(jwks(old))
    async with chained(link(service, refresh_s=1.0)) as site:
        assert await code(site, old) == 0
        service.says(jwks(old, new))
        await counts(site, new)
    service.asked.clear()
    service.says(jwks(old))
    async with chained(link(service)) as site:
        for _ in range(20):
            assert await code(site, key_of("ES256", "made-up")) == BAD
        assert service.count == 1


async def counts(site: ChainSite, key: SigningKey) -> None:
    """Until tokens of the key are taken."""
    async with asyncio.timeout(WITHIN_S):
        while await code(site, key):  # noqa: ASYNC110 - there is nothing else that tells
            await asyncio.sleep(STEP_S)


async def test_keys_that_are_rotated_away_count_no_more(service: HttpService) -> None:
    old, new = key_of("ES256", "one"), key_of("ES256", "two")
    service.says(jwks(old))
    async with chained(link(service, refresh_s=0.05)) as site:
        assert await code(site, old) == 0
        service.says(jwks(new))
        await soon(lambda: site.link("tokens").link._keys.current.keys[0].kid == "two", "fetched")  # type: ignore[attr-defined]
        assert await code(site, old) == BAD
        assert await code(site, new) == 0


async def test_a_start_without_the_service_uses_the_copy_of_the_last_good_set(
    service: HttpService, tmp_path: Path
) -> None:
    copy = tmp_path / "kept" / "keys.json"
    key, other = key_of("ES256", "one"), key_of("ES256", "two")
    service.says(jwks(key))
    async with chained(link(service, jwks_copy_file=str(copy))) as site:
        assert await code(site, key) == 0
    assert json.loads(copy.read_bytes()) == jwks(key)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    service.says(b"", status=500)
    async with chained(link(service, jwks_copy_file=str(copy), refresh_s=0.05)) as site:
        assert await code(site, key) == 0
        assert await code(site, other) == BAD
        service.says(jwks(other))
        await counts(site, other)
        assert await code(site, key) == BAD
        await soon(lambda: json.loads(copy.read_bytes()) == jwks(other), "the copy is of the last good set")
        service.says(b"no keys")
        await soon(lambda: site.number("iotmq_mqtt_token_keys_failed_reads_total") >= 2, "it was tried")
        assert json.loads(copy.read_bytes()) == jwks(other)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"keys": []}', b" " * (limits.MQTT_TOKEN_KEYS_BYTES_MAX + 1)]
)
async def test_a_copy_that_is_no_set_of_keys_is_not_used(
    service: HttpService, tmp_path: Path, content: bytes
) -> None:
    copy = tmp_path / "keys.json"
    copy.write_bytes(content)
    service.says(b"", status=500)
    async with chained(link(service, jwks_copy_file=str(copy))) as site:
        assert await code(site, key_of("ES256", "one")) == UNAVAILABLE


async def test_a_copy_that_others_may_write_is_not_used(service: HttpService, tmp_path: Path) -> None:
    copy, key = tmp_path / "keys.json", key_of("ES256", "one")
    copy.write_text(json.dumps(jwks(key)))
    copy.chmod(0o662)
    service.says(b"", status=500)
    async with chained(link(service, jwks_copy_file=str(copy))) as site:
        assert await code(site, key) == UNAVAILABLE


async def test_a_password_in_the_url_is_not_in_the_log(
    service: HttpService, caplog: pytest.LogCaptureFixture
) -> None:
    service.says("no keys")
    url = service.url("/keys").replace("://", "://gateway:top-secret@")
    async with chained(link(service, jwks_url=url)) as site:
        assert await code(site, key_of("ES256")) == UNAVAILABLE
    said = str([vars(record) for record in caplog.records])
    assert "former ones count" in said
    assert "top-secret" not in said


async def test_a_copy_that_cannot_be_written_costs_nothing(
    service: HttpService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = key_of("ES256", "one")
    service.says(jwks(key))
    (tmp_path / "file").write_bytes(b"")
    async with chained(link(service, jwks_copy_file=str(tmp_path / "file" / "keys.json"))) as site:
        assert await code(site, key) == 0
    assert any("copy of token keys" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"no json",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "one"}]}',
        b"[" * 100_000,
        b'{"keys": [' + b" " * limits.MQTT_TOKEN_KEYS_BYTES_MAX + b"]}",
        None,
        302,
        500,
    ],
)
async def test_what_is_no_set_of_keys_leaves_the_last_good_one(service: HttpService, bad: Any) -> None:
    key = key_of("ES256", "one")
    service.says(jwks(key))
    async with chained(link(service, refresh_s=0.05)) as site:
        assert await code(site, key) == 0
        if bad is None:
            await service.stop()
        elif isinstance(bad, int):
            service.says(
                jwks(key_of("ES256", "evil")), status=bad, headers={"location": service.url("/evil")}
            )
        else:
            service.says(bad)
        await soon(lambda: site.number("iotmq_mqtt_token_keys_failed_reads_total") >= 2, "it was tried")
        site.link("tokens")._accepted._kept.clear()
        assert await code(site, key) == 0
        assert site.number("iotmq_mqtt_token_keys") == 1


async def test_without_any_keys_everybody_is_denied_until_they_come(service: HttpService) -> None:
    key = key_of("ES256", "one")
    async with chained(link(service, refresh_s=0.05)) as site:
        assert await code(site, key) == UNAVAILABLE
        assert site.answers("tokens", "failed") == 1
        service.says(jwks(key))
        await soon(lambda: site.number("iotmq_mqtt_token_keys"), "they come")
        assert await code(site, key) == 0


async def test_a_slow_service_holds_nobody_for_longer_than_its_time(service: HttpService) -> None:
    key = key_of("ES256", "one")
    service.says(jwks(key))
    released = service.hangs()
    async with chained(link(service, timeout_s=0.1, refresh_s=0.2)) as site:
        assert await code(site, key) == UNAVAILABLE
        assert site.answers("tokens", "late") + site.answers("tokens", "failed") == 1
        released.set()
        await soon(lambda: site.number("iotmq_mqtt_token_keys"), "they come")
        assert await code(site, key) == 0


async def test_an_answer_without_an_end_is_not_read_to_it(service: HttpService) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b" " * 65_536)
            sent += 65_536

    service.answer = endless
    async with chained(link(service)) as site:
        assert await code(site, key_of("ES256", "one")) == UNAVAILABLE
        await soon(lambda: not service.under_way, "the service is left alone")
        assert sent < 64 * 1024 * 1024


def test_a_set_at_its_maximum_and_past_it() -> None:
    jwk = key_of("ES256", "one").jwk
    at_most = {"keys": [{**jwk, "kid": str(number)} for number in range(limits.MQTT_TOKEN_KEYS_MAX)]}
    assert len(keys_of_set(json.dumps(at_most).encode(), ["ES256"])) == limits.MQTT_TOKEN_KEYS_MAX
    at_most["keys"].append(jwk)
    with pytest.raises(ValueError, match="more than"):
        keys_of_set(json.dumps(at_most).encode(), ["ES256"])


@pytest.mark.parametrize(
    "change",
    [
        {"use": "enc"},
        {"alg": "ES384"},
        {"kid": 7},
        {"crv": "P-384"},
        {"x": "!"},
        {"d": "private"},
        {"kty": "RSA"},
    ],
)
def test_keys_that_are_of_no_use_beside_one_that_is(change: dict[str, Any]) -> None:
    jwk = key_of("ES256", "one").jwk
    found = keys_of_set(json.dumps({"keys": [jwk | change, jwk]}).encode(), ["ES256", "RS256"])
    assert [key.kid for key in found] == ["one"]


def test_small_keys_of_rsa_are_none() -> None:
    weak = SigningKey("RS256", "weak", bits=1_024)
    with pytest.raises(ValueError, match="no key for RS256"):
        keys_of_set(json.dumps(jwks(weak)).encode(), ["RS256"])


async def test_a_file_of_keys_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    old, new = key_of("ES256", "one"), key_of("ES256", "two")
    await asyncio.to_thread(file.write_text, json.dumps(jwks(old)))
    settings = {
        "kind": "jwt",
        "name": "tokens",
        "algorithms": ["ES256"],
        "jwks_file": str(file),
        "refresh_s": 0.05,
    }
    async with chained(settings) as site:
        assert await code(site, old) == 0
        await asyncio.to_thread(file.write_text, json.dumps(jwks(new)))
        await counts(site, new)
        await asyncio.to_thread(file.write_text, "broken")
        await soon(lambda: site.number("iotmq_mqtt_token_keys_failed_reads_total"), "it was tried")
        assert await code(site, new) == 0
