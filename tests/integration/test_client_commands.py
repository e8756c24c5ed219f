"""`iotmq admin client`: connected clients in tables and as JSON, and what becomes of hostile names."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from mqtt_site import MqttSite, SessionDevice, open_site

from iotmq import limits
from iotmq.commands import cli
from iotmq.commands.admin.command import run_action
from iotmq.errors import ClientError

pytestmark = pytest.mark.uvloop

# Right to left from here on, markup, and what steers a terminal.
HOSTILE = "\u202egnp.<img onerror=x>"
LONG = "z" * limits.MQTT_CLIENT_ID_BYTES_MAX


class Commands:
    def __init__(self, site: MqttSite, capsys: pytest.CaptureFixture[str]) -> None:
        self._site = site
        self._capsys = capsys

    async def text(self, *words: str) -> str:
        assert self._site.registry is not None
        options = cli.parser().parse_args(["admin", "client", *words])
        assert await run_action(options, (f"127.0.0.1:{self._site.registry.port}",)) == 0
        return self._capsys.readouterr().out

    async def json(self, *words: str) -> Any:
        return json.loads(await self.text(*words, "--json"))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[MqttSite]:
    site = await open_site(tmp_path, "one", is_remote=True)
    yield site
    await site.close()


async def test_clients_are_listed_shown_and_disconnected(
    site: MqttSite, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Commands(site, capsys)
    devices = [SessionDevice(name) for name in ("a", HOSTILE, LONG)]
    for device in devices:
        await device.connect(site.fronts["one"])
    await devices[0].subscribe(("t/#", 1))
    rows = await run.json("list", "--sort=-subscriptions", "--limit", "2")
    assert [row["client_id"] for row in rows] == ["a", HOSTILE]
    text = await run.text("list")
    assert text.splitlines()[0].startswith("client id")
    assert "\\u202egnp" in text
    assert "\u202e" not in text
    assert LONG in text
    rows = await run.json("list", "--id", "z*", "--kept", "--where", "queued<=0", "--version", "3.1.1")
    assert [row["client_id"] for row in rows] == [LONG]
    shown = await run.json("show", "a")
    assert (shown["filters"], shown["front_end"]) == (["t/#"], "one")
    with pytest.raises(ClientError, match="is not connected"):
        await run.text("show", "nobody")
    for words in (
        ("show", "\udcff"),
        ("list", "--id", "\udcff"),
        ("kick", "\udcff"),
        ("queue", "a", "\udcff"),
    ):
        with pytest.raises(ClientError, match="is no text that a client can have"):
            await run.text(*words)
    rows = await run.json("subscriptions", "--topic", "t/1")
    assert [(row["client_id"], row["topic_filter"]) for row in rows] == [("a", "t/#")]
    assert await run.text("slow", "--by", "dropped") == "no client is slow\n"
    waiting = await run.json("queue", "a", "t/#")
    assert waiting == []
    with pytest.raises(ClientError, match="no kept session of a has this filter"):
        await run.text("queue", "a", "u")
    assert await run.text("refused") == "nobody was refused that is remembered\n"

    with pytest.raises(ClientError, match="name clients, or say which ones"):
        await run.text("kick")
    with pytest.raises(ClientError, match="3 clients fit, more than --limit 2"):
        await run.text("kick", "--id", "*", "--limit", "2")
    assert (await run.json("kick", "--id", "*", "--dry-run"))["matched"] == 3
    assert await run.text("kick", "a", "gone") == "disconnected: 1 (a); not connected: gone\n"
    await soon(lambda: not devices[0].is_connected, "it is disconnected")
    assert (await run.json("kick", "--id", "*"))["kicked"] == 2
    await soon(lambda: not any(device.is_connected for device in devices), "they are disconnected")


async def test_pages_of_long_names_go_on_where_they_ended(
    site: MqttSite, capsys: pytest.CaptureFixture[str]
) -> None:
    names = sorted(f"{LONG[:-2]}{number:02}" for number in range(5))
    devices = [SessionDevice(name) for name in names]
    for device in devices:
        await device.connect(site.fronts["one"])
    found: list[str] = []
    cursor: list[str] = []
    while True:
        options = cli.parser().parse_args(["admin", "client", "list", "--limit", "2", *cursor])
        assert site.registry is not None
        assert await run_action(options, (f"127.0.0.1:{site.registry.port}",)) == 0
        said = capsys.readouterr()
        found += [line.split()[0] for line in said.out.splitlines()[1:]]
        if "--cursor" not in said.err:
            break
        cursor = ["--cursor", said.err.split()[-1]]
    assert sorted(found) == names, "ordered by a hash behind what they have in common"
    for device in devices:
        await device.disconnect()


@pytest.mark.parametrize(
    "words",
    [
        ("list", "--where", "queued=1"),
        ("list", "--where", "user>=1"),
        ("list", "--sort", "size"),
        ("list", "--limit", str(limits.CONNECTIONS_LISTED_MAX + 1)),
        ("queue", "a", "b", "--limit", str(limits.SESSION_QUEUE_LISTED_MAX + 1)),
        ("slow", "--by", "user"),
    ],
)
def test_words_that_mean_nothing_are_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.parser().parse_args(["admin", "client", *words])
    assert "error: argument" in capsys.readouterr().err
