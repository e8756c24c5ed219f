"""A service that is asked by HTTP: what it is told and may answer, and one that is down, slow or lying."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from chain_site import ChainSite, chained
from eventually import soon
from fake_gateway import RawClient, connect_packet
from http_service import HttpService, serving
from manual_clock import ManualClock

from iotmq import limits
from iotmq.mqtt_front.access.links.http import cache_seconds

DENIED, UNAVAILABLE, BUSY = 0x87, 0x88, 0x89


@pytest.fixture
async def service() -> AsyncIterator[HttpService]:
    async with serving() as service:
        yield service


def link(service: HttpService, **settings: Any) -> dict[str, Any]:
    return {"kind": "http", "name": "own", "url": service.url("/device"), **settings}


async def code(
    site: ChainSite, user: str | None = "pump", password: bytes | None = b"pmup", **fields: Any
) -> int:
    return await site.code(user, password, protocol_level=5, **fields)


async def test_what_the_service_is_told(service: HttpService) -> None:
    service.says({"result": "allow"})
    async with chained(link(service, headers={"authorization": "Bearer of-mine"})) as site:
        assert await code(site) == 0
        assert await site.code(None, None, client_id="e", protocol_level=4) == 0
        assert await code(site, password=b"\xff\xfe") == 0
    assert service.asked == [
        {"client_id": "d", "user_name": "pump", "password": "pmup", "address": "127.0.0.1",
         "listener": "tcp", "protocol": "5"},
        {"client_id": "e", "address": "127.0.0.1", "listener": "tcp", "protocol": "3.1.1"},
        {"client_id": "d", "user_name": "pump", "password_base64": "//4=", "address": "127.0.0.1",
         "listener": "tcp", "protocol": "5"},
    ]  # fmt: skip
    assert service.headers[0]["authorization"] == "Bearer of-mine"
    assert service.headers[0]["content-type"] == "application/json"


async def test_what_it_answers_becomes_an_identity(service: HttpService) -> None:
    service.says(
        {
            "result": "allow", "user": "meter-7", "client_id": "its-own", "roles": ["r"], "groups": ["g"],
            "attributes": {"site": "3"}, "acl": [{"permission": "deny", "action": "all", "topic": "#"}],
            "limits": {"messages_per_s": 3}, "expire_at": 4_000_000_000, "is_bridge": True, "unknown": 1,
        }
    )  # fmt: skip
    async with chained(link(service)) as site:
        assert await code(site) == 0
        device = site.device("its-own")
        identity = device.identity
        assert (device.user, identity.user, identity.roles, identity.groups) == (
            "meter-7", "meter-7", ("r",), ("g",),
        )  # fmt: skip
        assert identity.attributes == {"site": "3"}
        assert identity.permissions == ({"permission": "deny", "action": "all", "topic": "#"},)
        assert (identity.limits, identity.expires_at_s, identity.is_bridge) == (
            {"messages_per_s": 3}, 4_000_000_000.0, True,
        )  # fmt: skip
        assert identity.decided_by == "own"


async def test_deny_and_ignore(service: HttpService, caplog: pytest.LogCaptureFixture) -> None:
    service.says({"result": "deny", "reason": "not paid"})
    async with chained(link(service, refusal_cache_s=0.0)) as site:
        assert await code(site) == DENIED
        assert any("not paid" in str(vars(record)) for record in caplog.records)
        service.says({"result": "ignore"})
        assert await code(site) == 0x86
        assert (site.answers("own", "denied"), site.answers("own", "not_mine")) == (1, 1)
    async with chained(link(service), allow_anonymous=True) as site:
        assert await code(site, None, None) == 0
        assert site.device().user is None
        assert site.device().identity.decided_by == "anonymous"


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"{}", b"[]", b"true", b"null", b"<html>", b'"allow"',
        b'{"result": "Allow"}', b'{"result": true}', b'{"result": "allow", "user": 7}',
        b'{"result": "allow", "user": ""}', b'{"result": "allow", "user": "a\\nb"}',
        b'{"result": "allow", "client_id": "a\\u0000b"}',
        b'{"result": "allow", "roles": "admin"}', b'{"result": "allow", "attributes": {"a": {}}}',
        b'{"result": "allow", "acl": {}}', b'{"result": "allow", "limits": {"a": -1}}',
        b'{"result": "allow", "expire_at": "tomorrow"}', b'{"result": "allow", "expire_at": 1e999}',
        b"[" * 60_000,
    ],
)  # fmt: skip
async def test_a_service_that_lies_denies(service: HttpService, answer: bytes) -> None:
    service.says(answer)
    async with chained(link(service)) as site:
        assert await code(site) == UNAVAILABLE
        assert site.answers("own", "failed") == 1
        service.says({"result": "allow"})
        assert await code(site) == 0, "a failure is not remembered"


@pytest.mark.parametrize("status", [204, 301, 302, 307, 308, 401, 403, 404, 500, 503])
async def test_other_statuses_and_redirects_deny(service: HttpService, status: int) -> None:
    async with serving() as elsewhere:
        elsewhere.says({"result": "allow"})
        service.says({"result": "allow"}, status=status, headers={"location": elsewhere.url()})
        async with chained(link(service)) as site:
            assert await code(site) == UNAVAILABLE
        assert not elsewhere.asked, "nobody else gets the password"


async def test_a_service_that_is_down_denies_and_the_address_is_not_blamed(
    service: HttpService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    service.says({"result": "allow"})
    async with chained(link(service), failures_per_minute_max=2) as site:
        await service.stop()
        for _ in range(4):
            assert await code(site) == UNAVAILABLE
        assert await site.code("pump", b"pmup") == 3
        (first, *_) = (record for record in caplog.records if "gives no answer" in record.message)
        assert (first.link, first.outcome) == ("own", "failed")  # type: ignore[attr-defined]
        await service.start()
        assert await code(site) == 0


async def test_a_slow_service_denies_after_its_time_and_holds_up_nobody_else(service: HttpService) -> None:
    service.says({"result": "allow"})
    released = service.hangs()
    chain = [link(service, timeout_s=0.2, when_user="slow.*"), link(service, name="other", when_user="quick")]
    async with chained(*chain) as site:
        late = asyncio.ensure_future(code(site, "slow-1", client_id="slow"))
        await soon(lambda: service.count, "it is asked")
        assert await late == UNAVAILABLE
        assert site.answers("own", "late") == 1
        released.set()
        assert await code(site, "quick") == 0


async def test_an_answer_at_its_maximum_and_past_it(service: HttpService) -> None:
    async with chained(link(service)) as site:
        body = json.dumps({"result": "allow", "user": "pump"}).encode()
        service.says(body + b" " * (limits.MQTT_SERVICE_ANSWER_BYTES_MAX - len(body)))
        assert await code(site) == 0
        service.says(body + b" " * (limits.MQTT_SERVICE_ANSWER_BYTES_MAX - len(body) + 1))
        assert await code(site, "other") == UNAVAILABLE
        names = [f"r{number}" for number in range(limits.MQTT_IDENTITY_NAMES_MAX)]
        service.says({"result": "allow", "roles": names})
        assert await code(site, "third") == 0
        service.says({"result": "allow", "roles": [*names, "more"]})
        assert await code(site, "fourth") == UNAVAILABLE


async def test_a_compressed_answer_is_not_unpacked(service: HttpService) -> None:
    service.says(b"\x1f\x8b" + b"x" * 100, headers={"content-encoding": "gzip"})
    async with chained(link(service)) as site:
        assert await code(site) == UNAVAILABLE
        assert service.headers[0]["accept-encoding"] == "identity"


# Remembered


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", None), ("private", None), ("max-age=30", 30.0), ("private, max-age=5", 5.0),
        ('Max-Age="7"', 7.0), ("no-store", 0.0), ("max-age=60, no-cache", 0.0),
        ("max-age=999999999", 86_400.0), ("s-max-age=5", None), ("max-age=-1", None), ("max-age=x", None),
    ],
)  # fmt: skip
def test_cache_control(header: str, expected: float | None) -> None:
    assert cache_seconds(header) == expected


@pytest.mark.parametrize("result", ["allow", "deny", "ignore"])
@pytest.mark.parametrize(("header", "asked"), [("max-age=3600", 1), ("no-store", 3)])
async def test_answers_are_remembered_as_the_service_says(
    service: HttpService, result: str, header: str, asked: int
) -> None:
    service.says({"result": result}, headers={"cache-control": header})
    async with chained(link(service, cache_s=0.0 if asked == 1 else 60.0)) as site:
        codes = {await code(site) for _ in range(3)}
        assert codes == {{"allow": 0, "deny": DENIED, "ignore": 0x86}[result]}
        assert service.count == asked
        assert site.answers("own", "remembered") == 3 - asked


async def test_another_word_of_the_device_is_another_question(service: HttpService) -> None:
    service.says({"result": "allow"})
    async with chained(link(service)) as site:
        for _ in range(2):
            assert await code(site) == 0
            assert await code(site, password=b"other") == 0
            assert await code(site, client_id="e") == 0
            assert await site.code("pump", b"pmup", protocol_level=4) == 0
        assert service.count == 4


async def test_the_clock_of_the_settings_counts(service: HttpService) -> None:
    service.says({"result": "allow"}, headers={"cache-control": "max-age=3600"})
    async with chained(link(service, honours_cache_control=False, cache_s=0.0)) as site:
        for _ in range(2):
            assert await code(site) == 0
        assert service.count == 2


# Paced


async def test_a_storm_reaches_the_service_in_turns(service: HttpService) -> None:
    service.says({"result": "allow"})
    released = service.hangs()
    settings = {"at_once_max": 4, "waiting_max": 6, "wait_s": 20.0}
    async with chained(link(service, **settings)) as site:
        storm = [
            asyncio.ensure_future(code(site, client_id=f"d{number}", user=f"u{number}"))
            for number in range(14)
        ]
        await soon(lambda: sum(task.done() for task in storm) == 4, "those past the limit are answered")
        assert {task.result() for task in storm if task.done()} == {BUSY}
        assert site.number("iotmq_mqtt_link_waiting", link="own") == 6
        assert site.number("iotmq_mqtt_link_under_way", link="own") == 4
        await soon(lambda: service.under_way == 4, "the service has those whose turn it is")
        released.set()
        assert sorted(await asyncio.gather(*storm)) == [0] * 10 + [BUSY] * 4
        assert service.under_way_most == 4
        assert site.answers("own", "busy") == 4


async def test_who_waits_too_long_for_a_turn_is_told_that_it_is_busy(service: HttpService) -> None:
    service.says({"result": "allow"})
    released = service.hangs()
    async with chained(link(service, at_once_max=1, wait_s=0.1)) as site:
        first = asyncio.ensure_future(code(site))
        await soon(lambda: service.count, "it is asked")
        assert await code(site, "other") == BUSY
        released.set()
        assert await first == 0


async def test_devices_that_have_gone_are_not_asked_about(service: HttpService) -> None:
    service.says({"result": "allow"})
    released = service.hangs()
    clock = ManualClock()
    async with chained(link(service, at_once_max=1), clock=clock) as site:
        first, second = [await RawClient.dial(site.front.port) for _ in range(2)]
        first.send(connect_packet("first", user_name="first"))
        await soon(lambda: service.count, "it is asked")
        second.send(connect_packet("second", user_name="second"))
        await soon(lambda: site.number("iotmq_mqtt_link_waiting", link="own") == 1, "it waits")
        clock.advance(limits.MQTT_CONNECT_TIMEOUT_S + 1)
        await soon(lambda: not site.number("iotmq_mqtt_connections"), "they are gone")
        released.set()
        await soon(lambda: not site.number("iotmq_mqtt_link_waiting", link="own"), "nobody waits")
        assert await code(site, "third") == 0
        assert [asked["user_name"] for asked in service.asked] == ["first", "third"]


async def test_a_service_that_sends_its_answer_bit_by_bit_has_no_more_time(service: HttpService) -> None:
    async def dribble(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b" ")
            await asyncio.sleep(0.02)

    service.answer = dribble
    async with chained(link(service, timeout_s=0.3)) as site:
        assert await code(site) == UNAVAILABLE
        assert site.answers("own", "late") == 1
