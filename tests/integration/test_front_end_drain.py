"""`iotmq sessions drain`: over brokers, for front ends in their own processes' way and beside a broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from mqtt_site import MqttSite, SessionDevice, open_site

from iotmq.commands import cli
from iotmq.commands.admin import front_ends
from iotmq.commands.admin.command import run_action
from iotmq.errors import ClientError
from iotmq.front_port import session_link
from iotmq.ports.sessions import DrainOrder

pytestmark = pytest.mark.uvloop


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_ends, "_LOOK_S", 0.02)
    monkeypatch.setattr(session_link, "_HEARTBEAT_S", 0.05)


async def command(site: MqttSite, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert site.registry is not None
    options = cli.parser().parse_args(["sessions", *words, "--json"])
    assert await run_action(options, (f"127.0.0.1:{site.registry.port}",)) == 0
    return json.loads(capsys.readouterr().out)


async def listed(site: MqttSite, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[int, bool]]:
    rows = await command(site, capsys, "front-ends")
    return {row["front_end"]: (row["clients"], row["is_draining"]) for row in rows}


async def test_a_front_end_is_emptied_and_taken_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = await open_site(tmp_path, "one", "two", is_remote=True, brokers=2)
    devices = [SessionDevice(f"d{number}") for number in range(6)]
    for number, device in enumerate(devices):
        await device.connect(site.fronts["one"], clean_session=number % 2 == 0)
    other = SessionDevice("other")
    await other.connect(site.fronts["two"])
    assert await listed(site, capsys) == {"one": (6, False), "two": (1, False)}
    with pytest.raises(ClientError, match="no front end nobody is connected"):
        await command(site, capsys, "drain", "one", "nobody")
    assert site.number("iotmq_mqtt_draining") == 0

    said = await command(site, capsys, "drain", "one", "--per-second", "1000", "--reference", "two:1883")
    assert said == {"front_ends": ["one"], "is_draining": True, "clients": 0}
    await soon(lambda: not any(device.is_connected for device in devices), "all were told")
    assert site.fronts["one"].mqtt.not_ready_reason == "the front end is being drained"
    assert other.is_connected
    await devices[1].connect(site.fronts["two"])
    assert devices[1].is_present, "kept sessions go on elsewhere"
    assert await listed(site, capsys) == {"one": (0, True), "two": (2, False)}

    await site.restart_one_broker(site.benches[1])
    states = [bench.broker.sessions.front_ends for bench in site.benches]
    await soon(
        lambda: all(found._channels["one"].is_draining for found in states), "the broker is told again"
    )
    said = await command(site, capsys, "drain", "one", "--undo")
    assert said == {"front_ends": ["one"], "is_draining": False}
    await soon(lambda: site.number("iotmq_mqtt_draining") == 0, "it is over")
    await devices[0].connect(site.fronts["one"], clean_session=True)
    assert await listed(site, capsys) == {"one": (1, False), "two": (2, False)}
    for device in (*devices[:2], other):
        await device.disconnect()
    await site.close()


async def test_waiting_has_an_end_when_nobody_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_ends, "_STUCK_LOOKS", 2)
    site = await open_site(tmp_path, "one", is_remote=True)
    device = SessionDevice("d")
    await device.connect(site.fronts["one"])
    monkeypatch.setattr("iotmq.mqtt_front.sessions.drain.Drain._step", lambda drain: None)
    said = await command(site, capsys, "drain", "one")
    assert said["clients"] == 1
    said = await command(site, capsys, "drain", "one", "--no-wait")
    assert said["clients"] == 1
    await device.disconnect()
    await site.close()


async def test_the_front_end_beside_a_broker_is_drained_as_well(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one")
    sessions = site.bench.broker.sessions
    device = SessionDevice("d")
    await device.connect(site.fronts["one"])
    assert sessions.front_end_views() == [("one", 1, False)]
    assert sessions.front_ends.drain("one", DrainOrder(is_draining=True, per_second=100))
    await soon(lambda: not device.is_connected, "it was told")
    await soon(lambda: sessions.front_end_views() == [("one", 0, True)], "and has gone")
    assert not sessions.front_ends.drain("two", DrainOrder(is_draining=True, per_second=100))
    await site.close()
    assert sessions.front_end_views() == []
