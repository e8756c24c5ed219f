"""Signing in and out by the API, users and sessions, and what forged and foreign requests get."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from console_site import Browser, ConsoleSite

from iotmq import limits
from iotmq.console.settings import (
    HeaderSettings,
    HttpSettings,
    HttpTokenSettings,
    OidcSettings,
    SignInSettings,
)
from iotmq.credentials import argon2

PASSWORDS = {"ada": "password of ada", "bob": "password of bob"}
TOKEN = "secret-of-a-program"
SETTINGS = HttpSettings(
    tokens=(HttpTokenSettings(name="program", token=TOKEN, role="administrator"),),
    sign_in=SignInSettings(idle_s=600, session_s=3600),
)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[ConsoleSite]:
    async with ConsoleSite(SETTINGS, tmp_path) as running:
        program = running.browser(authorization=f"Bearer {TOKEN}", sec_fetch_site="")
        program.headers["sec-fetch-site"] = ""
        for name, role in (("ada", "administrator"), ("bob", "viewer")):
            body = {"role": role, "password": PASSWORDS[name]}
            assert (await program.ask("PUT", f"/console-users/{name}", body)).status == 200
        yield running


async def signed_in(site: ConsoleSite, name: str) -> Browser:
    browser = site.browser()
    assert (await browser.sign_in(name, PASSWORDS[name])).status == 200
    return browser


async def test_a_session_begins_with_a_password_and_ends_with_a_word(site: ConsoleSite) -> None:
    bob = site.browser()
    assert (await bob.ask("GET", "/me")).problem == "unauthenticated"
    reply = await bob.sign_in("bob", PASSWORDS["bob"])
    assert (reply.body["name"], reply.body["role"], reply.body["way"]) == ("bob", "viewer", "password")
    assert reply.body["expires_ms"] == site.clock.now_ms() + 600_000
    assert reply.body["ends_ms"] == site.clock.now_ms() + 3_600_000
    assert reply.headers["cache-control"] == "no-store"
    assert (await bob.ask("GET", "/me")).body == reply.body
    kept = bob.cookie
    assert (await bob.ask("DELETE", "/sign-in")).status == 200
    bob.cookie = kept
    assert (await bob.ask("GET", "/me")).problem == "unauthenticated"


async def test_who_is_removed_or_changed_while_a_password_is_checked_is_not_signed_in(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = await signed_in(site, "ada")
    is_right = argon2.is_password_of
    go_on = threading.Event()

    def slow(kept: str, data: bytes) -> bool:
        go_on.wait(30)
        return is_right(kept, data)

    monkeypatch.setattr(argon2, "is_password_of", slow)
    for method, body in (("PUT", {"role": "operator"}), ("DELETE", None)):
        bob = site.browser()
        go_on.clear()
        signing_in = asyncio.ensure_future(bob.sign_in("bob", PASSWORDS["bob"]))
        await asyncio.sleep(0)
        assert (await ada.ask(method, "/console-users/bob", body)).status == 200
        go_on.set()
        assert (await signing_in).problem == "unauthenticated"
    assert [each.name for each in site.access.sessions.all()] == ["ada"]


async def test_a_flood_of_refused_sign_ins_is_no_flood_of_records(site: ConsoleSite) -> None:
    records: list[dict[str, str]] = []
    site.access.record = lambda event, **fields: records.append(fields)
    browser = site.browser()
    for number in range(60):
        await browser.ask("POST", "/sign-in", {"link": f"guess {number}"})
    assert len(records) == 20
    site.clock.advance(60)
    await browser.ask("POST", "/sign-in", {"link": "guess"})
    await signed_in(site, "bob")
    assert [each["result"] for each in records[20:]] == ["refused", "done"]
    metrics = {(each.name, each.labels): each.value for each in site.access.metrics()}
    assert metrics["iotmq_http_sign_ins_total", (("result", "refused"),)] == 61


async def test_a_wrong_password_says_no_more_than_a_wrong_name(site: ConsoleSite) -> None:
    browser = site.browser()
    replies = [await browser.sign_in(name, "a wrong password") for name in ("ada", "nobody")]
    assert replies[0] == replies[1]
    assert (replies[0].problem, browser.cookie) == ("unauthenticated", "")
    for _ in range(8):
        await browser.sign_in("ada", "a wrong password")
    late = await browser.sign_in("ada", PASSWORDS["ada"])
    assert (late.problem, late.headers["retry-after"]) == ("too-many", "1")
    counts = {metric.labels: metric.value for metric in site.access.metrics()}
    assert counts[("result", "refused"),] == 11


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "invalid"),
        ({"user": "ada", "link": "x"}, "invalid"),
        ({"password": "x"}, "invalid"),
        ({"user": "ada", "password": ["x"]}, "invalid"),
        ({"user": "ada", "passwort": "x"}, "invalid"),
        ({"user": "a" * (limits.CONSOLE_USER_NAME_CHARACTERS_MAX + 1), "password": "x"}, "invalid"),
        ({"user": "ada", "password": "x" * (limits.CONSOLE_PASSWORD_BYTES_MAX + 1)}, "invalid"),
        ({"user": "ada", "password": "ä" * limits.CONSOLE_PASSWORD_BYTES_MAX}, "unauthenticated"),
        ({"user": "ada\x00", "password": "x"}, "unauthenticated"),
        ({"link": "x"}, "unauthenticated"),
    ],
)
async def test_what_is_no_sign_in(site: ConsoleSite, body: object, problem: str) -> None:
    assert (await site.browser().ask("POST", "/sign-in", body)).problem == problem


async def test_sign_ins_are_audited_with_the_name_and_without_the_password(site: ConsoleSite) -> None:
    records: list[dict[str, object]] = []

    def record(event: str, **fields: object) -> None:
        records.append({"event": event, **fields})

    site.access.record = record
    browser = site.browser()
    await browser.sign_in("ada", "a wrong password")
    await browser.sign_in("ada", PASSWORDS["ada"])
    await browser.ask("POST", "/sign-in", {"link": "forged"})
    assert [(each["account"], each["fields"], each["result"]) for each in records] == [
        ("ada", '{"way":"password"}', "refused"),
        ("ada", '{"way":"password"}', "done"),
        (None, '{"way":"link"}', "refused"),
    ]
    assert {each["address"] for each in records} == {"127.0.0.1"}


async def test_forged_cookies_open_nothing(site: ConsoleSite) -> None:
    bob = await signed_in(site, "bob")
    name, _, token = bob.cookie.partition("=")
    for forged in (token[:-1], token[:-1] + ("A" if token[-1] != "A" else "B"), "A" * 43, "", "é" * 43):
        bob.cookie = f"{name}={forged}"
        assert (await bob.ask("GET", "/me")).problem == "unauthenticated"
    bob.cookie = f"x={token}"
    assert (await bob.ask("GET", "/me")).problem == "unauthenticated"
    bob.cookie = f"{name}={token}"
    assert (await bob.ask("GET", "/me", authorization="Bearer wrong")).problem == "unauthenticated"
    assert (await bob.ask("GET", "/me", authorization="Basic YTpi")).problem == "unauthenticated"
    assert (await bob.ask("GET", "/me")).status == 200


async def test_pages_of_other_sites_can_do_nothing_with_a_cookie(site: ConsoleSite) -> None:
    ada = await signed_in(site, "ada")
    for headers in (
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "", "origin": "http://elsewhere.example"},
        {"sec_fetch_site": "", "origin": "null"},
        {"sec_fetch_site": ""},
    ):
        assert (await ada.ask("DELETE", "/console-users/bob", **headers)).problem == "forbidden"
    assert (await ada.ask("GET", "/me", sec_fetch_site="cross-site")).problem == "forbidden"
    own = {"sec_fetch_site": "", "origin": "http://127.0.0.1:8080"}
    assert (await ada.ask("DELETE", "/console-users/bob", **own)).status == 200


async def test_pages_of_other_sites_sign_nobody_in(site: ConsoleSite) -> None:
    body = {"user": "ada", "password": PASSWORDS["ada"]}
    browser = site.browser()
    for headers in ({"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "", "origin": "http://elsewhere"}):
        assert (await browser.ask("POST", "/sign-in", body, **headers)).problem == "forbidden"
    form = {"content_type": "text/plain", "sec_fetch_site": ""}
    assert (await browser.ask("POST", "/sign-in", body, **form)).problem == "media-type"
    assert (await browser.ask("POST", "/sign-in", body, sec_fetch_site="")).status == 200


async def test_nobody_signs_in_over_an_open_network(site: ConsoleSite) -> None:
    browser = site.browser()
    browser.peer = "192.0.2.9"
    assert (await browser.ask("GET", "/sign-in")).body["is_safe"] is False
    reply = await browser.sign_in("ada", PASSWORDS["ada"])
    assert reply.problem == "forbidden"
    assert "tls_certificate_file" in reply.body["detail"]
    browser.is_encrypted = True
    assert (await browser.sign_in("ada", PASSWORDS["ada"])).status == 200
    assert browser.cookie.startswith("__Host-")
    assert (await browser.ask("GET", "/me")).status == 200
    browser.is_encrypted = False
    assert (await browser.ask("GET", "/me")).problem == "unauthenticated"


async def test_signing_in_again_takes_the_place_of_the_session_of_this_browser(site: ConsoleSite) -> None:
    browser = await signed_in(site, "ada")
    former = browser.cookie
    assert (await browser.sign_in("bob", PASSWORDS["bob"])).status == 200
    assert browser.cookie != former
    browser.cookie = former
    assert (await browser.ask("GET", "/me")).problem == "unauthenticated"
    assert len(site.access.sessions) == 1


async def test_sessions_are_listed_and_ended_by_their_owner_and_administrators(site: ConsoleSite) -> None:
    ada, bob, other = [await signed_in(site, name) for name in ("ada", "bob", "bob")]
    assert [each["name"] for each in (await bob.ask("GET", "/console-sessions")).body["items"]] == ["bob"] * 2
    listed = (await ada.ask("GET", "/console-sessions")).body["items"]
    assert [each["name"] for each in listed] == ["ada", "bob", "bob"]
    assert [each["is_own"] for each in listed] == [True, False, False]
    own_of_ada = listed[0]["id"]
    assert (await bob.ask("DELETE", f"/console-sessions/{own_of_ada}")).problem == "not-found"
    own = next(
        each["id"] for each in (await bob.ask("GET", "/console-sessions")).body["items"] if each["is_own"]
    )
    assert (await other.ask("DELETE", f"/console-sessions/{own}")).status == 200
    assert (await bob.ask("GET", "/me")).problem == "unauthenticated"
    (left,) = [
        each["id"]
        for each in (await ada.ask("GET", "/console-sessions")).body["items"]
        if each["name"] == "bob"
    ]
    assert (await ada.ask("DELETE", f"/console-sessions/{left}")).status == 200
    assert (await other.ask("GET", "/me")).problem == "unauthenticated"


async def test_a_role_that_changes_counts_at_once_and_a_password_ends_sessions(site: ConsoleSite) -> None:
    ada, bob = await signed_in(site, "ada"), await signed_in(site, "bob")
    assert (await ada.ask("PUT", "/console-users/bob", {"role": "administrator"})).status == 200
    assert (await bob.ask("GET", "/console-users")).status == 200
    assert (await ada.ask("PUT", "/console-users/bob", {"role": "viewer"})).status == 200
    assert (await bob.ask("GET", "/console-users")).problem == "forbidden"
    assert (await ada.ask("PUT", "/console-users/bob", {"password": "quite another"})).status == 200
    assert (await bob.ask("GET", "/me")).problem == "unauthenticated"
    assert (await bob.sign_in("bob", "quite another")).body["role"] == "viewer"


async def test_what_others_write_into_the_file_counts(site: ConsoleSite) -> None:
    bob = await signed_in(site, "bob")
    users = site.access.users
    assert users is not None
    users.change_now(lambda items: items.pop("bob"))
    assert (await bob.ask("GET", "/me")).status == 200
    await users.look()
    assert (await bob.ask("GET", "/me")).problem == "unauthenticated"


async def test_there_is_always_an_administrator(site: ConsoleSite) -> None:
    ada = await signed_in(site, "ada")
    program = site.browser(authorization=f"Bearer {TOKEN}")
    assert (await ada.ask("PUT", "/console-users/ada", {"role": "viewer"})).problem == "conflict"
    assert (await ada.ask("DELETE", "/console-users/ada")).problem == "conflict"
    assert (await program.ask("DELETE", "/console-users/ada")).problem == "conflict"
    assert (await ada.ask("PUT", "/console-users/bob", {"role": "administrator"})).status == 200
    assert (await program.ask("DELETE", "/console-users/ada")).status == 200


@pytest.mark.parametrize(
    ("name", "body", "problem"),
    [
        ("eve", {"role": "viewer"}, "invalid"),
        ("eve", {"password": "long enough 1"}, "invalid"),
        ("eve", {"role": "viewer", "password": "too short"}, "invalid"),
        ("eve", {"role": "root", "password": "long enough 1"}, "invalid"),
        ("e%3Ave", {"role": "viewer", "password": "long enough 1"}, "invalid"),
        ("e%0Ave", {"role": "viewer", "password": "long enough 1"}, "invalid"),
        ("e%0A", {"role": "viewer", "password": "long enough 1"}, "invalid"),
        ("%3Cimg%3E", {"role": "viewer", "password": "long enough 1"}, "invalid"),
    ],
)
async def test_users_that_cannot_be(site: ConsoleSite, name: str, body: object, problem: str) -> None:
    ada = await signed_in(site, "ada")
    assert (await ada.ask("PUT", f"/console-users/{name}", body)).problem == problem
    listed = (await ada.ask("GET", "/console-users")).body["items"]
    assert [each["name"] for each in listed] == ["ada", "bob"]
    assert (await ada.ask("DELETE", "/console-users/eve")).problem == "not-found"


async def test_one_changes_ones_own_password_with_the_former_one(site: ConsoleSite) -> None:
    bob = await signed_in(site, "bob")
    wrong = await bob.ask("PUT", "/me/password", {"former": "wrong", "password": "quite another"})
    assert (wrong.problem, wrong.body["errors"][0]["pointer"]) == ("invalid", "/former")
    short = await bob.ask("PUT", "/me/password", {"former": PASSWORDS["bob"], "password": "short"})
    assert short.body["errors"][0]["pointer"] == "/password"
    change = {"former": PASSWORDS["bob"], "password": "quite another"}
    assert (await bob.ask("PUT", "/me/password", change)).status == 200
    assert (await bob.ask("GET", "/me")).problem == "unauthenticated"
    assert (await bob.sign_in("bob", "quite another")).status == 200
    program = site.browser(authorization=f"Bearer {TOKEN}")
    assert (await program.ask("PUT", "/me/password", change)).problem == "forbidden"


async def test_the_first_link_signs_an_administrator_in_where_there_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ConsoleSite(HttpSettings(base_path="/ops"), tmp_path / "none") as site:
        site.access.announce("http://127.0.0.1:8080")
        address = caplog.records[-1].__dict__["link"]
        assert address.startswith("http://127.0.0.1:8080/ops/console/#/sign-in?link=")
        browser = site.browser()
        ways = (await browser.ask("GET", "/sign-in")).body
        assert (ways["password"], ways["link"]) == (False, True)
        reply = await browser.ask("POST", "/sign-in", {"link": address.partition("link=")[2]})
        assert (reply.body["role"], reply.body["way"]) == ("administrator", "link")
        user = {"role": "operator", "password": "password of ada"}
        assert (await browser.ask("PUT", "/console-users/ada", user)).status == 200
        ways = (await browser.ask("GET", "/sign-in")).body
        assert (ways["password"], ways["link"]) == (True, False)


async def test_there_is_no_link_where_somebody_is_administrator_or_the_file_is_broken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ConsoleSite(SETTINGS, tmp_path / "token") as site:
        site.access.announce("http://x")
        assert not site.access.link.is_open
    broken = tmp_path / "broken"
    broken.write_text("nonsense")
    broken.chmod(0o600)
    settings = HttpSettings(sign_in=SignInSettings(users_file=str(broken)))
    async with ConsoleSite(settings, None) as site:
        site.access.announce("http://x")
        assert not site.access.link.is_open
        refused = await site.browser().sign_in("ada", "password of ada")
        assert refused.problem == "unauthenticated"
    assert "cannot be used" in caplog.text


async def test_without_users_the_routes_of_users_say_so(tmp_path: Path) -> None:
    async with ConsoleSite(SETTINGS, None) as site:
        program = site.browser(authorization=f"Bearer {TOKEN}")
        assert (await program.ask("GET", "/console-users")).problem == "not-supported"
        assert (await site.browser().sign_in("ada", "x")).problem == "unauthenticated"


async def test_whom_a_proxy_has_signed_in_is_known_by_its_header(tmp_path: Path) -> None:
    header = HeaderSettings(user="X-User", roles="X-Groups", administrators=("admins",), viewers=("staff",))
    settings = HttpSettings(proxies=("10.0.0.5",), sign_in=SignInSettings(header=header))
    async with ConsoleSite(settings, tmp_path) as site:
        browser = site.browser(x_user="ada", x_groups="staff")
        assert (await browser.ask("GET", "/me")).problem == "unauthenticated"
        browser.proxy = "10.0.0.5"
        me = (await browser.ask("GET", "/me")).body
        assert (me["name"], me["role"], me["way"]) == ("ada", "viewer", "header")
        assert (await browser.ask("GET", "/me", x_groups="guests")).problem == "forbidden"
        assert (await browser.ask("GET", "/console-users")).problem == "forbidden"
        # A browser sends what the proxy knows it by, whoever has made the page.
        other = {"sec_fetch_site": "cross-site", "x_groups": "admins"}
        assert (await browser.ask("DELETE", "/console-users/bob", **other)).problem == "forbidden"
        assert (await browser.ask("DELETE", "/console-users/bob", x_groups="admins")).problem == "not-found"
        # Whom the proxy names needs no link of the log.
        site.access.announce("http://x")
        assert not site.access.link.is_open


async def test_without_the_settings_nobody_is_known_by_a_header(tmp_path: Path) -> None:
    header = HeaderSettings(user="X-User", viewers=("*",))
    sign_in = SignInSettings(enabled=False, header=header)
    settings = HttpSettings(proxies=("10.0.0.5",), sign_in=sign_in)
    async with ConsoleSite(settings, tmp_path) as site:
        browser = site.browser(x_user="ada")
        browser.proxy = "10.0.0.5"
        assert (await browser.ask("GET", "/me")).problem == "unauthenticated"
        assert (await browser.ask("GET", "/sign-in")).body == {
            "password": False,
            "link": False,
            "oidc": None,
            "is_safe": True,
        }


async def test_a_provider_that_is_not_there_sends_nobody_anywhere(tmp_path: Path) -> None:
    oidc = OidcSettings(issuer="http://127.0.0.1:1", client_id="c", administrators=("*",), label="Company")
    settings = HttpSettings(base_path="/ops", sign_in=SignInSettings(oidc=oidc))
    async with ConsoleSite(settings, tmp_path) as site:
        browser = site.browser()
        assert (await browser.ask("GET", "/sign-in")).body["oidc"] == "Company"
        reply = await browser.ask("GET", "/sign-in/oidc")
        assert (reply.status, reply.headers["location"]) == (
            303,
            "/ops/console/#/sign-in?problem=unavailable",
        )
        assert browser.cookie == ""
        reply = await browser.ask("GET", "/sign-in/oidc/return?code=a&state=b&session_state=c")
        assert reply.headers["location"] == "/ops/console/#/sign-in?problem=refused"
        browser.peer = "192.0.2.1"
        assert (await browser.ask("GET", "/sign-in/oidc")).problem == "forbidden"


async def test_who_has_come_by_a_provider_is_told_where_to_sign_out_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oidc = OidcSettings(issuer="http://127.0.0.1:1", client_id="c", administrators=("*",))
    async with ConsoleSite(HttpSettings(sign_in=SignInSettings(oidc=oidc)), tmp_path) as site:
        assert site.access.oidc is not None
        there = "https://login.example.com/out?client_id=c"
        for way, known, told in (("oidc", there, there), ("oidc", None, None), ("password", there, None)):
            monkeypatch.setattr(site.access.oidc, "sign_out_location", lambda known=known: known)
            browser = site.browser()
            token, _ = site.access.sessions.open("eve", "viewer", way, address="127.0.0.1", agent="")
            _, browser.cookie = site.access.cookie.set(browser.request("GET", "/me"), token)
            browser.cookie = browser.cookie.partition(";")[0]
            assert (await browser.ask("DELETE", "/sign-in")).body == {"done": True, "provider": told}
            assert (await browser.ask("GET", "/me")).problem == "unauthenticated"
