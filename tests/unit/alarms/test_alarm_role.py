"""The role: what it looks at, and what comes of it in this process."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from manual_clock import ManualClock

from iotmq.alarms import role as role_module
from iotmq.alarms.book import BookState
from iotmq.alarms.kept import read_state, write_state
from iotmq.alarms.measures import PROCESS
from iotmq.alarms.role import AlarmsRole, ProcessView, sys_text
from iotmq.alarms.settings import AlarmRule, AlarmSettings, AlertmanagerSettings, WebhookSettings
from iotmq.limits import ALARM_TEXT_CHARACTERS_MAX
from iotmq.metrics import Metric

RULE = AlarmRule(
    name="crowded",
    metric="iotmq_devices",
    by=("listener",),
    fires_at=2,
    clears_at=1,
    for_s=0,
    clear_for_s=0,
    level="critical",
    says="{value} at {listener}",
    what_to_do="Send some home.",
)
SETTINGS = AlarmSettings(rules=(RULE,))


class Topics:
    """The $SYS tree of a front end."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.kept: dict[str, str] = {}

    def put(self, topic: str, text: str) -> None:
        self.told.append((topic, json.loads(text)["count"]))
        self.kept[topic] = text

    def drop(self, topic: str) -> None:
        del self.kept[topic]


class Part:
    def __init__(self) -> None:
        self.devices: dict[str, float] = {}

    def metrics(self) -> Iterable[Metric]:
        # The page of metrics adds the prefix, too.
        for listener, count in self.devices.items():
            yield Metric("devices", "gauge", "Devices.", count, (("listener", listener),))


class Bench:
    def __init__(self, settings: AlarmSettings = SETTINGS, **more: Any) -> None:
        self.part = Part()
        self.reasons: dict[str, str | None] = {"broker": None}
        self.topics: Topics | None = Topics()
        self.refreshed = 0
        self.clock = ManualClock()
        view = ProcessView(
            "host-serve", [self.part], lambda: self.reasons, self._refresh, lambda: self.topics
        )
        self.role = AlarmsRole(settings, view, self.clock, **more)

    async def _refresh(self) -> None:
        self.refreshed += 1

    @property
    def firing(self) -> list[tuple[str, dict[str, str]]]:
        return [(alarm.name, dict(alarm.labels)) for alarm in self.role.book.engine.firing]


async def test_numbers_of_the_process_are_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.part.devices = {"tcp": 1, "tls": 3}
    with caplog.at_level(logging.INFO):
        await bench.role.look()
    assert bench.refreshed == 1
    assert bench.firing == [("crowded", {"listener": "tls", PROCESS: "host-serve"})]
    (line,) = caplog.records
    assert (line.levelname, line.getMessage()) == ("ERROR", "alarm: 3 at tls")
    fields = vars(line)
    assert (fields["alarm"], fields["state"], fields["label_listener"]) == ("crowded", "firing", "tls")
    assert fields["what_to_do"] == "Send some home."
    caplog.clear()
    bench.part.devices = {}
    with caplog.at_level(logging.INFO):
        await bench.role.look()
    (line,) = caplog.records
    assert (line.levelname, vars(line)["state"]) == ("INFO", "ended")


async def test_the_log_is_silent_where_that_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(AlarmSettings(rules=(RULE,), log_enabled=False))
    bench.part.devices = {"tls": 3}
    with caplog.at_level(logging.INFO):
        await bench.role.look()
    assert bench.firing
    assert caplog.records == []


async def test_a_part_that_is_not_ready_for_a_minute_is_an_alarm() -> None:
    bench = Bench()
    bench.reasons["broker"] = "no disk"
    await bench.role.look()
    bench.clock.advance(60)
    await bench.role.look()
    assert bench.firing == [("not-ready", {"part": "broker", PROCESS: "host-serve"})]


async def test_long_labels_are_cut() -> None:
    bench = Bench()
    for size in (ALARM_TEXT_CHARACTERS_MAX, ALARM_TEXT_CHARACTERS_MAX + 1):
        bench.part.devices = {"x" * size: 2}
        await bench.role.look()
        ((_, labels),) = bench.firing
        assert labels["listener"] == "x" * ALARM_TEXT_CHARACTERS_MAX


async def test_clients_below_sys_are_told_of_begin_and_end() -> None:
    bench = Bench()
    topics, topic = bench.topics, "$SYS/broker/alarms/crowded"
    assert topics is not None
    bench.part.devices = {"tcp": 2}
    for _ in range(2):
        await bench.role.look()
    assert topics.told == [(topic, 1)]
    bench.part.devices["tls"] = 2
    bench.clock.advance(1)
    await bench.role.look()
    assert topics.told[1:] == [(topic, 2)]
    said = json.loads(topics.kept[topic])["firing"]
    assert [each["labels"]["listener"] for each in said] == ["tcp", "tls"]
    bench.role.book.acknowledge(said[0]["id"], by="ann", note="")
    bench.role.changed()
    assert json.loads(topics.kept[topic])["firing"][0]["acknowledged_by"] == "ann"
    bench.part.devices = {}
    await bench.role.look()
    assert topics.told[-1] == (topic, 0)
    assert topics.kept == {}


async def test_a_front_end_that_starts_later_gets_what_fires() -> None:
    bench = Bench()
    bench.topics, later = None, Topics()
    bench.part.devices = {"tcp": 2}
    await bench.role.look()
    bench.topics = later
    await bench.role.look()
    assert later.told == [("$SYS/broker/alarms/crowded", 1)]


async def test_a_message_below_sys_names_the_last_ones() -> None:
    bench = Bench()
    bench.part.devices = {f"l{number:02}": 2.0 for number in range(21)}
    await bench.role.look()
    said = json.loads(sys_text("crowded", bench.role.book.engine.firing))
    assert (said["count"], len(said["firing"])) == (21, 20)


async def test_metrics_say_how_many_fire_and_how_delivery_goes() -> None:
    receivers = (
        WebhookSettings(name="hook", url="http://127.0.0.1:1/"),
        AlertmanagerSettings(name="am", url="http://127.0.0.1:1/"),
    )
    bench = Bench(AlarmSettings(rules=(RULE,), receivers=receivers))
    bench.part.devices = {"tcp": 2}
    await bench.role.look()
    found = {(each.name, dict(each.labels).get("level")): each.value for each in bench.role.metrics()}
    assert found["iotmq_alarms_firing", "critical"] == 1
    assert found["iotmq_alarms_fired_total", None] == 1
    assert bench.role.tells_cluster
    assert {delivery.kind for delivery in bench.role.deliveries.values()} == {"webhook", "alertmanager"}
    await bench.role.stop()


async def test_what_is_known_is_kept_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "alarms" / "serve.json"
    bench = Bench(file=file)
    await bench.role.start()
    bench.part.devices = {"tcp": 2}
    await bench.role.look()
    await bench.role.stop()
    again = Bench(file=file)
    assert again.firing == bench.firing


async def test_a_stop_waits_for_what_is_being_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "serve.json"
    begun, may_go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    at_once = 0

    def write(path: Path, state: BookState) -> None:
        nonlocal at_once
        at_once += 1
        assert at_once == 1, "two write one file"
        loop.call_soon_threadsafe(begun.set)
        assert may_go_on.wait(10)
        write_state(path, state)
        at_once -= 1

    monkeypatch.setattr(role_module, "write_state", write)
    bench = Bench(file=file)
    await bench.role.start()
    bench.part.devices = {"tcp": 2}
    await bench.role.look()
    await begun.wait()
    stopping = asyncio.ensure_future(bench.role.stop())
    await asyncio.sleep(0)
    bench.part.devices = {}
    await bench.role.look()
    loop.call_later(0.05, may_go_on.set)
    await stopping
    again = Bench(file=file)
    assert again.firing == bench.firing
    assert at_once == 0


async def test_a_file_that_cannot_be_written_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_module, "_SAVE_PAUSE_S", 0.0)
    file = tmp_path / "serve.json"
    errors = [OSError("no room")]
    loop, is_written = asyncio.get_running_loop(), asyncio.Event()

    def write(path: Path, state: BookState) -> None:
        if errors:
            raise errors.pop()
        write_state(path, state)
        loop.call_soon_threadsafe(is_written.set)

    monkeypatch.setattr(role_module, "write_state", write)
    bench = Bench(file=file)
    await bench.role.start()
    bench.part.devices = {"tcp": 2}
    await bench.role.look()
    await is_written.wait()
    await bench.role.stop()
    assert "alarms are not kept: no room" in caplog.text
    assert [alarm.name for alarm in read_state(file).firing] == ["crowded"]


async def test_an_end_goes_on_where_the_disk_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: Path, state: BookState) -> None:
        raise OSError("no room")

    monkeypatch.setattr(role_module, "write_state", write)
    bench = Bench(file=tmp_path / "serve.json")
    bench.part.devices = {"tcp": 2}
    await bench.role.look()
    await bench.role.stop()
    assert "alarms are not kept: no room" in caplog.text
