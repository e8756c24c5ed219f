"""What operators do through the HTTP API again and again leaves nothing behind in the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from eventually import WITHIN_S, soon
from live_objects import growing

from iotmq.alarms.alarm import Reading
from iotmq.alarms.role import AlarmsRole
from iotmq.assembly import Process
from iotmq.config.config import config_from_table
from iotmq.console.api.api import BASE

pytestmark = pytest.mark.uvloop

ROUNDS = 5
# Users that have proven who they are, and alarms that have ended, are remembered up to a limit.
BOUNDED = {
    "in iotmq.credentials.failed_attempts.FailedAttempts",
    "iotmq.alarms.alarm.Alarm",
    "in iotmq.alarms.engine.Engine",
    # When brokers took what, for two seconds.
    "in iotmq.alarms.shared.SharedWords",
}
TOKEN = "token-of-the-administrator"
PASSWORD = "a long password"
SETTINGS: dict[str, Any] = {
    "registry": {"listen_port": 0},
    "broker": {"listen_port": 0, "statistics_names_max": 0},
    "mqtt": {"listen_port": 0},
    # Nothing looks at the cluster meanwhile.
    "alarms": {"cluster_interval_s": 0},
    "store": {"segment_bytes": 16_777_216, "allocation_step_bytes": 65_536},
    "http": {
        "listen_port": 0,
        "tokens": [{"name": "administrator", "token": TOKEN, "role": "administrator"}],
    },
}


class Caller:
    """Asks the API of a process, over one connection or with a token of its own."""

    def __init__(self, process: Process, session: aiohttp.ClientSession) -> None:
        self.process = process
        self._session = session
        self._base = f"http://{process.addresses['http']}{BASE}"

    async def ask(self, method: str, path: str, body: object = None, **more: Any) -> Any:
        """The body of an answer that has to be a good one."""
        async with self._session.request(method, self._base + path, json=body, **more) as answer:
            assert answer.status == 200, (path, await answer.text())
            is_json = answer.content_type == "application/json"
            return await (answer.json() if is_json else answer.text())

    @asynccontextmanager
    async def stream(self, path: str, **headers: str) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
        """Open a stream; its function reads until a line that begins with a text."""
        async with self._session.get(self._base + path, headers=headers) as answer:
            assert answer.status == 200, await answer.text()

            async def read(begin: str) -> str:
                while not (line := (await answer.content.readline()).decode()).startswith(begin):
                    assert line, "the stream goes on"
                return line.removeprefix(begin).strip()

            yield read
            # As by a browser that is closed.
            answer.close()


async def streams(api: Caller, number: int) -> None:
    """One that all share, and one that goes on from a place of its own."""
    path = "/stream/messages?filter=s"
    async with api.stream(path) as read:
        place = await read("id: ")
        await api.ask("POST", "/messages", {"mqtt_topic": "s", "payload": "x"})
        await read("data: ")
    async with api.stream(path, **{"Last-Event-ID": place}) as read:
        await read("data: ")


async def traces(api: Caller, number: int) -> None:
    name = f"trace-{number}"
    await api.ask("POST", "/traces", {"kind": "client", "value": f"device-{number}", "name": name})
    await api.ask("GET", "/traces")
    await api.ask("GET", f"/traces/{name}/events")
    await api.ask("GET", f"/traces/{name}/download")
    await api.ask("POST", f"/traces/{name}/stop")
    await api.ask("DELETE", f"/traces/{name}")


async def inspections(api: Caller, number: int) -> None:
    for path in ("/clients", "/sessions", "/retained", "/groups"):
        await api.ask("GET", path)


async def history(api: Caller, number: int) -> None:
    """As ten seconds later."""
    assert api.process.history is not None
    api.process.history.sample()
    (series, *_) = (await api.ask("GET", "/history/series"))["items"]
    await api.ask("GET", "/history", params={"series": series["name"]})


async def console_sessions(api: Caller, number: int) -> None:
    """One that signs out, and one whose user is removed."""
    name = f"user-{number}"
    await api.ask("PUT", f"/console-users/{name}", {"role": "viewer", "password": PASSWORD})
    browsers = []
    for _ in range(2):
        # With the cookies of an address, too.
        jar = aiohttp.CookieJar(unsafe=True)
        origin = {"Origin": f"http://{api.process.addresses['http']}"}
        browser = Caller(api.process, aiohttp.ClientSession(cookie_jar=jar, headers=origin))
        browsers.append(browser)
        await browser.ask("POST", "/sign-in", {"user": name, "password": PASSWORD})
    assert (await browsers[0].ask("GET", "/me"))["name"] == name
    await browsers[0].ask("DELETE", "/sign-in")
    assert len((await api.ask("GET", "/console-sessions"))["items"]) == 1
    await api.ask("DELETE", f"/console-users/{name}")
    for browser in browsers:
        await browser._session.close()


async def api_keys(api: Caller, number: int) -> None:
    name = f"key-{number}"
    made = await api.ask("POST", "/api-keys", {"name": name, "role": "viewer"})
    await api.ask("GET", "/me", headers={"Authorization": f"Bearer {made['key']}"})
    await api.ask("DELETE", f"/api-keys/{name}")


async def alarms(api: Caller, number: int) -> None:
    """Two that fire and end, with somebody who looks after them, and a silence of both."""
    (role,) = [each for _, each in api.process._started if isinstance(each, AlarmsRole)]
    silence = {"alarm": "*", "reason": "work", "until_ms": role.book.now_ms + 60_000}
    await api.ask("PUT", f"/silences/silence-{number}", silence)
    condition = "alarms-not-delivered"
    labels = [(("receiver", f"{each}-{number}"),) for each in "ab"]

    def observe(value: float) -> None:
        role.changed(role.book.observe([Reading(condition, each, value) for each in labels], {condition}))

    observe(100.0)
    listed = (await api.ask("GET", "/alarms"))["items"]
    mine = [each for each in listed if each["name"] == condition and each["state"] == "firing"]
    assert len(mine) == 2
    await api.ask("POST", f"/alarms/{mine[0]['id']}/acknowledge", {"note": "seen"})
    observe(0.0)
    await api.ask("GET", "/alarms/history")
    await api.ask("DELETE", f"/silences/silence-{number}")
    # Other processes are told of what was said.
    await soon(lambda: not role.shared._unsent, "brokers know it", step_s=0.01)


async def idempotent_requests(api: Caller, number: int) -> None:
    for _ in range(2):
        body = {"mqtt_topic": "once", "payload": "x"}
        await api.ask("POST", "/messages", body, headers={"Idempotency-Key": f"order-{number}"})


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Caller]:
    process = Process(config_from_table(SETTINGS | {"data": str(tmp_path)}), "serve")
    await process.start()
    try:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
            yield Caller(process, session)
    finally:
        await process.stop()


async def test_what_has_ended_leaves_nothing(api: Caller) -> None:
    uses = (streams, traces, inspections, history, console_sessions, api_keys, alarms, idempotent_requests)

    async def round_of(number: int) -> None:
        for use in uses:
            async with asyncio.timeout(WITHIN_S):
                await use(api, number)

    assert await growing(round_of, ROUNDS) - BOUNDED == set()
