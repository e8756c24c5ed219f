"""API keys by the API: made, used, listed and removed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from console_site import Browser, ConsoleSite

from iotmq.console.settings import HttpSettings, HttpTokenSettings

TOKEN = "secret-of-a-program"
SETTINGS = HttpSettings(tokens=(HttpTokenSettings(name="program", token=TOKEN, role="administrator"),))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[ConsoleSite]:
    async with ConsoleSite(SETTINGS, tmp_path) as running:
        yield running


def program(site: ConsoleSite, token: str = TOKEN) -> Browser:
    browser = site.browser(authorization=f"Bearer {token}")
    browser.headers["sec-fetch-site"] = ""
    return browser


async def made(site: ConsoleSite, **body: object) -> Browser:
    reply = await program(site).ask("POST", "/api-keys", {"name": "robot", "role": "viewer", **body})
    assert reply.status == 200, reply
    return program(site, reply.body["key"])


async def test_a_key_is_used_until_it_expires_or_is_removed(site: ConsoleSite) -> None:
    robot = await made(site, expires_days=1)
    me = (await robot.ask("GET", "/me")).body
    assert (me["name"], me["role"], me["way"], me["expires_ms"]) == ("robot", "viewer", "key", None)
    (entry,) = (await program(site).ask("GET", "/api-keys")).body["items"]
    assert entry == {
        "name": "robot",
        "role": "viewer",
        "areas": [],
        "created_ms": site.clock.now_ms(),
        "expires_ms": site.clock.now_ms() + 86_400_000,
        "used_ms": site.clock.now_ms(),
    }
    site.clock.advance(86_399)
    assert (await robot.ask("GET", "/me")).status == 200
    site.clock.advance(1)
    assert (await robot.ask("GET", "/me")).problem == "unauthenticated"
    assert (await program(site).ask("DELETE", "/api-keys/robot")).status == 200
    other = await made(site)
    assert (await other.ask("GET", "/me")).status == 200
    assert (await program(site).ask("DELETE", "/api-keys/robot")).status == 200
    assert (await other.ask("GET", "/me")).problem == "unauthenticated"
    assert (await program(site).ask("DELETE", "/api-keys/robot")).problem == "not-found"


async def test_a_key_may_do_what_its_role_and_areas_say(site: ConsoleSite) -> None:
    robot = await made(site, areas=["topics", "sign-in"])
    assert (await robot.ask("GET", "/me")).status == 200
    assert (await robot.ask("GET", "/groups")).problem == "forbidden"
    assert (await robot.ask("DELETE", "/topics/x")).problem == "forbidden"
    # There is no broker here: that it is asked is what the key is for.
    assert (await robot.ask("GET", "/topics")).problem == "unavailable"


async def test_no_key_looks_after_people_and_keys(site: ConsoleSite) -> None:
    robot = await made(site, role="administrator")
    for method, path, body in (
        ("GET", "/api-keys", None),
        ("POST", "/api-keys", {"name": "more", "role": "administrator"}),
        ("DELETE", "/api-keys/robot", None),
        ("GET", "/console-users", None),
        ("PUT", "/console-users/eve", {"role": "administrator", "password": "password of eve"}),
        ("GET", "/console-sessions", None),
    ):
        assert (await robot.ask(method, path, body)).problem == "forbidden", path


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"name": "robot", "role": "viewer"}, "conflict"),
        ({"name": "a b", "role": "viewer"}, "invalid"),
        ({"name": "x", "role": "root"}, "invalid"),
        ({"name": "x"}, "invalid"),
        ({"name": "x", "role": "viewer", "expires_days": 0}, "invalid"),
        ({"name": "x", "role": "viewer", "expires_days": 3651}, "invalid"),
        ({"name": "x", "role": "viewer", "areas": ["everything"]}, "invalid"),
        ({"name": "x", "role": "viewer", "areas": ["topics"] * 33}, "invalid"),
    ],
)
async def test_keys_that_cannot_be(site: ConsoleSite, body: object, problem: str) -> None:
    await made(site)
    assert (await program(site).ask("POST", "/api-keys", body)).problem == problem
    assert len((await program(site).ask("GET", "/api-keys")).body["items"]) == 1


async def test_a_key_is_a_header_of_its_own_and_no_cookie_beside_it_counts(site: ConsoleSite) -> None:
    robot = await made(site)
    robot.headers["authorization"] = robot.headers["authorization"] + "x"
    assert (await robot.ask("GET", "/me")).problem == "unauthenticated"


async def test_without_a_file_the_routes_of_keys_say_so() -> None:
    async with ConsoleSite(SETTINGS, None) as site:
        assert (await program(site).ask("GET", "/api-keys")).problem == "not-supported"
        assert (await program(site, "iotmq-key.a.b").ask("GET", "/me")).problem == "unauthenticated"
