"""Alarms, silences and receivers together, and over a restart."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from manual_clock import ManualClock

from iotmq import limits
from iotmq.alarms.alarm import Alarm, Reading, alarm_id
from iotmq.alarms.book import AlarmBook, BookState, TooManySilencesError
from iotmq.alarms.kept import read_state, write_state
from iotmq.alarms.settings import AlarmSettings, WebhookSettings
from iotmq.alarms.silence import Silence

SETTINGS = AlarmSettings(
    receivers=(WebhookSettings(name="ops", url="http://localhost/", group_wait_s=0, repeat_s=3600),)
)
GONE = (("broker", "b"),)


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.book = AlarmBook(SETTINGS, self.clock)

    def look(self, *readings: Reading, name: str = "broker-gone") -> list[str]:
        events = self.book.observe(readings, {name})
        self.book.check_invariants()
        return [event.kind for event in events]

    def fire(self) -> str:
        reading = Reading("broker-gone", GONE, 1.0)
        self.look(reading)
        self.clock.advance(30)
        assert self.look(reading) == ["fired"]
        return alarm_id("broker-gone", GONE)

    def told(self) -> list[str]:
        """What the receiver is told now."""
        found = []
        while True:
            notification, _ = self.book.next_for("ops", tells_cluster=True)
            if notification is None:
                return found
            self.book.told("ops", notification)
            found += [f"{one.name} {one.state}" for one in (*notification.ended, *notification.firing)]

    def silence(self, name: str = "works", **more: Any) -> Silence:
        values = {
            "name": name,
            "alarm": "broker-*",
            "until_ms": self.book.now_ms + 60_000,
            "reason": "works",
            "by": "ann",
            "made_ms": 0,
        }
        silence = Silence(**{**values, **more})
        self.book.silence(silence)
        return silence

    def restart(self) -> None:
        """As a process that was killed and comes back."""
        self.book = AlarmBook(SETTINGS, self.clock, msgspec.json.decode(self.kept(), type=BookState))

    def kept(self) -> bytes:
        return msgspec.json.encode(self.book.state)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_receiver_is_told_once_of_the_begin_and_once_of_the_end(bench: Bench) -> None:
    bench.fire()
    assert bench.told() == ["broker-gone firing"]
    assert bench.told() == []
    bench.look()
    bench.clock.advance(30)
    assert bench.look() == ["ended"]
    assert bench.told() == ["broker-gone ended"]


def test_a_restart_neither_repeats_nor_forgets(bench: Bench) -> None:
    bench.fire()
    bench.restart()
    assert bench.told() == ["broker-gone firing"]
    bench.restart()
    assert bench.told() == []
    assert bench.look(Reading("broker-gone", GONE, 1.0)) == []
    bench.look()
    bench.clock.advance(30)
    assert bench.look() == ["ended"]
    bench.restart()
    assert bench.told() == ["broker-gone ended"]
    bench.restart()
    assert bench.told() == []
    assert [one.name for one in bench.book.engine.ended] == ["broker-gone"]


def test_a_clock_that_is_set_back_ends_nothing_and_holds_nothing_up(bench: Bench) -> None:
    bench.fire()
    fired_ms = bench.book.engine.firing[0].fired_ms
    bench.clock.step(-86_400)
    bench.restart()
    assert bench.book.now_ms >= fired_ms
    bench.look()
    bench.clock.advance(30)
    assert bench.look() == ["ended"]


def test_a_silence_ends_by_itself(bench: Bench) -> None:
    bench.fire()
    silence = bench.silence()
    assert bench.book.silences == [silence]
    assert bench.told() == []
    bench.restart()
    assert bench.book.is_silenced(bench.book.engine.firing[0])
    bench.clock.advance(60)
    assert bench.book.silences == []
    assert bench.told() == ["broker-gone firing"]


def test_a_silence_ends_by_hand(bench: Bench) -> None:
    bench.fire()
    bench.silence()
    bench.book.end_silence("works")
    assert bench.told() == ["broker-gone firing"]
    with pytest.raises(KeyError):
        bench.book.end_silence("works")


@pytest.mark.parametrize(
    ("more", "is_silenced"),
    [
        ({"alarm": "*"}, True),
        ({"alarm": "broker-gone"}, True),
        ({"alarm": "registry-*"}, False),
        ({"alarm": "broker"}, False),
        ({"labels": GONE}, True),
        ({"labels": (("broker", "c"),)}, False),
        ({"labels": (*GONE, ("site", "x"))}, False),
    ],
)
def test_a_silence_is_for_a_name_and_labels(bench: Bench, more: dict[str, Any], is_silenced: bool) -> None:
    bench.fire()
    bench.silence(**more)
    assert bench.book.is_silenced(bench.book.engine.firing[0]) is is_silenced


def test_so_many_silences_there_may_be(bench: Bench) -> None:
    for number in range(limits.ALARM_SILENCES_MAX):
        bench.silence(f"s{number}")
    with pytest.raises(TooManySilencesError):
        bench.silence("one-more")
    bench.silence("s0", reason="another")
    bench.book.check_invariants()
    # Those that are over make room.
    bench.clock.advance(60)
    bench.silence("one-more")
    assert [each.name for each in bench.book.silences] == ["one-more"]


def test_a_broker_that_is_gone_for_good_is_not_missed_any_more(bench: Bench) -> None:
    bench.book.missed.brokers = {"a", "b"}
    identity = bench.fire()
    event = bench.book.end(identity, by="ann")
    assert (event.alarm.ended_by, bench.book.missed.brokers) == ("ann", {"a"})


def test_an_acknowledgement_is_kept(bench: Bench) -> None:
    identity = bench.fire()
    bench.book.acknowledge(identity, by="ann", note="on it")
    bench.restart()
    acknowledged = bench.book.engine.firing[0].acknowledged
    assert acknowledged is not None
    assert acknowledged.by == "ann"


def test_the_file_is_read_as_it_was_written(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "alarms" / "serve.json"
    assert read_state(file).firing == []
    bench.fire()
    bench.silence()
    write_state(file, bench.book.state)
    assert msgspec.json.encode(read_state(file)) == bench.kept()


@pytest.mark.parametrize("content", [b"", b"{", b'{"firing": [1]}', b"\xff", b"[" * 100_000])
def test_a_damaged_file_is_put_aside(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "serve.json"
    file.write_bytes(content)
    with caplog.at_level(logging.ERROR):
        assert read_state(file).firing == []
    assert "put aside" in caplog.text
    assert (tmp_path / "serve.json.damaged").read_bytes() == content


def test_a_file_that_is_too_large_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "serve.json"
    state = BookState(ended=[])
    write_state(file, state)
    monkeypatch.setattr(limits, "ALARM_FILE_BYTES_MAX", len(file.read_bytes()))
    read_state(file)
    assert file.exists()
    monkeypatch.setattr(limits, "ALARM_FILE_BYTES_MAX", len(file.read_bytes()) - 1)
    read_state(file)
    assert not file.exists()


def test_alarms_of_an_older_file_are_decoded() -> None:
    """What a new version adds has to have a value for what an old one has written."""
    old = {
        "id": "1",
        "name": "lag",
        "labels": [["group", "g"]],
        "level": "warning",
        "owner": "us",
        "says": "",
        "what_to_do": "",
        "state": "firing",
        "value": 1,
        "since_ms": 1,
    }
    assert msgspec.convert(old, Alarm).labels == (("group", "g"),)
