"""Signing in by oidc-provider 9.13 (npm), an OpenID Connect provider: a browser goes there and comes back."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import pytest
from console_site import Browser, ConsoleSite, Reply
from gateway_process import ROOT
from manual_clock import ManualClock

from iotmq.console.settings import HttpSettings, OidcSettings, SignInSettings

MODULES = ROOT / "build" / "interop" / "node" / "node_modules"
SCRIPT = Path(__file__).parent / "node" / "oidc_provider.mjs"
SECRET = "secret-of-the-client:+and%and/"
RETURN = "http://127.0.0.1:8080/api/v1/sign-in/oidc/return"
PEOPLE = {"ada": ["staff", "iot-admins"], "bob": ["staff"], "eve": ["guests"]}

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed"),
    pytest.mark.skipif(
        not (MODULES / "oidc-provider").is_dir(),
        reason="oidc-provider is not installed (tools/setup.sh dev, with npm)",
    ),
]


@pytest.fixture(scope="module", params=[True, False], ids=["claims in the token", "claims in the userinfo"])
def issuer(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of the provider, which has its claims here or there."""
    given = {
        "clientId": "iotmq",
        "clientSecret": SECRET,
        "redirectUris": [RETURN],
        "people": PEOPLE,
        "inToken": request.param,
    }
    with subprocess.Popen(
        ["node", str(SCRIPT), str(MODULES), json.dumps(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:")
            yield address
        finally:
            process.terminate()


@asynccontextmanager
async def site_of(issuer: str, *, secret: str = SECRET) -> AsyncIterator[ConsoleSite]:
    oidc = OidcSettings(
        issuer=issuer,
        client_id="iotmq",
        client_secret=secret,
        administrators=("iot-admins",),
        viewers=("staff",),
    )
    # The provider has the time of the machine.
    clock = ManualClock(time.time_ns() // 1_000_000)
    async with ConsoleSite(HttpSettings(sign_in=SignInSettings(oidc=oidc)), None, clock) as site:
        yield site


async def at_provider(location: str, person: str) -> str:
    """Go through the pages of the provider, and return the address it sends the browser back to."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        for _ in range(12):
            async with session.get(location, allow_redirects=False) as answer:
                page = await answer.text()
            if "Location" in answer.headers:
                location = str(answer.url.join(answer.url.__class__(answer.headers["Location"])))
            else:
                action = re.search(r'action="([^"]+)"', page)
                prompt = re.search(r'name="prompt" value="(\w+)"', page)
                assert action is not None, page
                assert prompt is not None, page
                form = {"prompt": prompt[1], "login": person, "password": "any"}
                async with session.post(action[1], data=form, allow_redirects=False) as answer:
                    location = str(answer.url.join(answer.url.__class__(answer.headers["Location"])))
            if location.startswith(RETURN):
                return location
    raise AssertionError("the provider sends nobody back")


async def begun(browser: Browser, return_to: str = "") -> str:
    reply = await browser.ask("GET", f"/sign-in/oidc?return_to={return_to}", sec_fetch_site="same-origin")
    assert reply.status == 303
    return reply.headers["location"]


async def come_back(browser: Browser, address: str) -> Reply:
    query = urlsplit(address).query
    return await browser.ask("GET", f"/sign-in/oidc/return?{query}", sec_fetch_site="cross-site")


async def test_people_sign_in_with_the_role_of_their_claims(issuer: str) -> None:
    async with site_of(issuer) as site:
        for person, role in (("ada", "administrator"), ("bob", "viewer")):
            browser = site.browser()
            assert (await browser.ask("GET", "/sign-in")).body["oidc"] == "Single sign-on"
            back = await at_provider(await begun(browser, "%23/topics%3Fmatch%3Da"), person)
            reply = await come_back(browser, back)
            assert (reply.status, reply.headers["location"]) == (303, "/console/#/topics?match=a")
            me = (await browser.ask("GET", "/me")).body
            assert (me["name"], me["role"], me["way"]) == (person, role, "oidc")
            again = await come_back(browser, back)
            assert again.headers["location"].endswith("problem=refused"), "a code counts once"


async def test_who_has_no_role_is_not_signed_in(issuer: str) -> None:
    async with site_of(issuer) as site:
        browser = site.browser()
        reply = await come_back(browser, await at_provider(await begun(browser), "eve"))
        assert reply.headers["location"] == "/console/#/sign-in?problem=no-role"
        assert len(site.access.sessions) == 0


async def test_another_browser_cannot_come_back(issuer: str) -> None:
    async with site_of(issuer) as site:
        browser, other = site.browser(), site.browser()
        back = await at_provider(await begun(browser), "ada")
        for stranger in (other, site.browser()):
            assert (await come_back(stranger, back)).headers["location"].endswith("problem=refused")
            await begun(stranger)
            assert (await come_back(stranger, back)).headers["location"].endswith("problem=refused")
        assert (await come_back(browser, back)).headers["location"] == "/console/"


async def test_a_changed_return_signs_nobody_in(issuer: str) -> None:
    async with site_of(issuer) as site:
        browser = site.browser()
        back = await at_provider(await begun(browser), "ada")
        cookie = browser.cookie
        query = dict(parse_qsl(urlsplit(back).query))
        for change in (
            {"state": query["state"][:-1] + "x"},
            {"state": ""},
            {"code": "forged"},
            {"iss": "http://elsewhere.example"},
            {"error": "access_denied"},
        ):
            changed = "&".join(f"{name}={value}" for name, value in {**query, **change}.items())
            browser.cookie = cookie
            assert (await come_back(browser, f"{RETURN}?{changed}")).headers["location"].endswith("refused")
        assert len(site.access.sessions) == 0


async def test_with_a_wrong_secret_of_this_gateway_nobody_signs_in(issuer: str) -> None:
    async with site_of(issuer, secret="another secret") as site:
        browser = site.browser()
        reply = await come_back(browser, await at_provider(await begun(browser), "ada"))
        assert "problem=refused" in reply.headers["location"]
        assert len(site.access.sessions) == 0
