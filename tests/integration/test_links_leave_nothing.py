"""What links have opened is closed when the front end stops, and when their service fails again and again."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chain_site import ChainSite, chained
from eventually import soon
from gateway_process import free_port

pytestmark = pytest.mark.uvloop

FAILURES = 1_000
AT_ONCE = 50
OWN = ("iotmq-access", "iotmq-hash", "iotmq-ldap", "iotmq-password", "iotmq-plugin")


def threads() -> list[str]:
    """Threads of the chain, its links and plug-ins; those of SQLite have no name of ours."""
    return [each.name for each in threading.enumerate() if each.name.startswith(OWN) or "sqlite" in each.name]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def links(tmp_path: Path) -> list[dict[str, Any]]:
    """One of each kind that asks somebody; nobody is there."""
    pytest.importorskip("bonsai", reason="needs the headers of OpenLDAP: tools/setup.sh")
    port = free_port()
    common = {"refusal_cache_s": 0.0, "cache_s": 0.0, "timeout_s": 5.0}
    by_name = {"statement": "SELECT password_hash FROM users WHERE name = :user_name"}
    found: list[dict[str, Any]] = [
        {"kind": "http", "url": f"http://127.0.0.1:{port}/"},
        {"kind": "jwt", "algorithms": ["ES256"], "jwks_url": f"http://127.0.0.1:{port}/keys"},
        {"kind": "redis", "url": f"redis://127.0.0.1:{port}/0"},
        {"kind": "ldap", "url": f"ldap://127.0.0.1:{port}", "start_tls": False, "base_dn": "dc=org"},
        {"kind": "sql", "url": f"postgresql+asyncpg://u:p@127.0.0.1:{port}/db", **by_name},
        {"kind": "sql", "url": f"sqlite+aiosqlite:///{tmp_path}/users.db", **by_name},
    ]
    return [{"name": f"link-{number}", **each, **common} for number, each in enumerate(found)]


@pytest.fixture(autouse=True)
def none_before() -> Iterator[None]:
    assert threads() == []
    return


async def ask(site: ChainSite, count: int, password: bytes = b"x") -> None:
    for begin in range(0, count, AT_ONCE):
        numbers = range(begin, min(begin + AT_ONCE, count))
        await asyncio.gather(*(site.code("pump", password, client_id=f"d{number}") for number in numbers))
        for client in site.clients:
            client.abort()
        site.clients.clear()


@pytest.mark.parametrize("number", range(6))
async def test_a_service_that_fails_a_thousand_times_costs_no_thread_and_no_descriptor(
    links: list[dict[str, Any]], number: int
) -> None:
    link = links[number]
    # A token is asked about keys; others by name and password.
    password = b"eyJhbGciOiJFUzI1NiJ9.e30.x" if link["kind"] == "jwt" else b"x"
    async with chained(link, failures_per_minute_max=0) as site:
        await ask(site, AT_ONCE, password)
        await soon(lambda: not site.number("iotmq_mqtt_connections"), "they are gone")
        before = descriptors(), len(threads())
        await ask(site, FAILURES, password)
        await soon(lambda: not site.number("iotmq_mqtt_connections"), "they are gone")
        assert site.answers(link["name"], "failed") >= FAILURES
        assert site.answers(link["name"], "late") == 0, "who is refused is known at once"
        assert site.number("iotmq_mqtt_link_under_way", link=link["name"]) == 0
        assert descriptors() <= before[0] + 2
        assert len(threads()) <= before[1]
    await soon(lambda: threads() == [], "nothing is left")


async def test_a_front_end_that_stops_leaves_nothing(links: list[dict[str, Any]], tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "users.db") as database:
        database.execute("CREATE TABLE users (name TEXT, password_hash TEXT)")
    database.close()
    plugins = {"plugins": {"amqtt": [{"class_path": "amqtt_plugins.Scripted", "timeout_s": 0.1}]}}
    chain = [{"kind": "amqtt", "name": "plug-ins"}, *links]
    tasks = len(asyncio.all_tasks())
    before = 0
    for turn in range(3):
        async with chained(*chain, mqtt=plugins) as site:
            await ask(site, AT_ONCE, b"none")
            await ask(site, AT_ONCE, b"sleep")
            await ask(site, AT_ONCE, b"yes")
        await soon(lambda: threads() == [], "no thread is left")
        await soon(lambda: len(asyncio.all_tasks()) == tasks, "no task is left")
        if not turn:
            before = descriptors()
    assert descriptors() <= before
