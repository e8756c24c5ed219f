"""Old log files go while messages in them wait: they are copied on, and never lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from manual_clock import ManualClock
from timer_bench import TimerBench

from iotmq.message.records.record import encode_batch
from iotmq.store.retention.decide import DiskUsage

Opener = Callable[..., TimerBench]
DAY_S = 86_400.0


@pytest.fixture
async def opened(tmp_path: Path) -> Any:
    clock = ManualClock()
    benches: list[TimerBench] = []

    def opener(**settings: Any) -> TimerBench:
        bench = TimerBench(
            tmp_path,
            clock,
            segment_bytes=65_536,
            record_bytes_max=16_384,
            retention_hours=24,
            delete_hour="00;01;02;03;04;05;06;07;08;09;10;11;12;13;14;15;16;17;18;19;20;21;22;23",
            delete_pause_ms=0,
            **settings,
        )
        benches.append(bench)
        return bench

    yield opener
    for bench in benches:
        bench.close()


def fill(bench: TimerBench, segments: int) -> None:
    """Other messages, until the log is so many files longer."""
    until = bench.store.appended_position + segments * 65_536
    queue = bench.store.queue("other", 0)
    while bench.store.appended_position < until:
        bench.store.append(
            queue, encode_batch([(b"x" * 1_000, b"", 0)] * 10), born_timestamp_ms=0, born_host=bytes(8)
        )


async def retained(bench: TimerBench, what: Callable[[], bool]) -> None:
    """Retention and copying, as the broker runs them, until something is so."""

    def look() -> bool:
        bench.clock.advance(11)
        bench.store.retain()
        bench.delays.roll()
        bench.store.request_flush()
        bench.writer.confirm()
        return what()

    await soon(look, "retention has done it")


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_what_waits_longer_than_the_log_keeps_is_copied_on(opened: Opener, flush: str) -> None:
    bench = opened(flush=flush)
    for number in range(300):
        bench.put(b"%d" % number, in_ms=int(10 * DAY_S * 1000) + number, key=f"k{number}")
    bench.put(b"level", level=5)
    await bench.flushed()
    bench.pass_time(DAY_S / 2)
    await bench.flushed()
    bench.deliver()
    assert bench.bodies() == [b"level"]
    for _ in range(3):
        fill(bench, 3)
        await bench.flushed()
        end_position = bench.store.appended_position
        bench.clock.advance(DAY_S * 1.5)
        fill(bench, 1)
        await bench.flushed()
        await retained(bench, lambda end=end_position: bench.store.min_position > end - 2 * 65_536)
        first_position = bench.index.first_position()
        assert first_position is not None
        assert first_position >= bench.store.min_position
    assert bench.index.count == 300
    assert bench.delays._rolls.moved_count >= 300
    # The keys are still known.
    bench.timers.cancel("T", "k7", lambda result: None)
    await bench.flushed()
    bench.pass_time(10 * DAY_S)
    for _ in range(3):
        await bench.flushed()
        bench.deliver()
    assert [body for body in bench.bodies() if body != b"level"] == [
        b"%d" % number for number in range(300) if number != 7
    ]
    assert bench.timers.skipped_count == 0


async def test_a_file_stays_until_the_copies_are_on_the_disk(opened: Opener) -> None:
    bench = opened(flush_interval_ms=3_600_000, flush_thorough_interval_ms=3_600_000)
    bench.put(b"one", in_ms=int(100 * DAY_S * 1000))
    fill(bench, 3)
    await bench.flushed()
    bench.clock.advance(2 * DAY_S)
    bench.store.retain()
    assert bench.store.wanted_position > 0
    bench.delays.roll()
    assert bench.delays._rolls.moved_count == 1
    if bench.store.flushed_position < bench.store.appended_position:
        assert bench.delays._rolls.held_position() == 0
    await bench.flushed()
    held = bench.delays._rolls.held_position()
    assert held is not None
    assert held >= 2 * 65_536
    await retained(bench, lambda: bench.store.min_position > 0)
    assert bench.store.wanted_position == 0


async def test_a_disk_that_is_too_full_for_senders_takes_copies_that_make_room(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = opened()
    bench.put(b"one", in_ms=int(100 * DAY_S * 1000))
    fill(bench, 4)
    await bench.flushed()
    full = [95]
    monkeypatch.setattr(bench.store._trimmer, "_read_usage", lambda path: DiskUsage(str(path), full[0], 100))
    bench.clock.advance(61)
    bench.store.retain()
    assert bench.store.refusal is not None
    await retained(bench, lambda: bench.store.min_position > 0)
    assert bench.store.refusal is not None
    full[0] = 50
    await retained(bench, lambda: bench.store.refusal is None)
    bench.pass_time(100 * DAY_S)
    assert bench.bodies() == [b"one"]


async def test_a_level_moved_on_keeps_its_time_and_lets_its_offset_go(opened: Opener) -> None:
    bench = opened()
    bench.levels.delays_ms[4] = int(40 * DAY_S * 1000)
    bench.put(b"level", level=5, key="k")
    due_ms = bench.index.waiting(timers_max=1)[0].due_ms
    fill(bench, 3)
    await bench.flushed()
    assert bench.delays.offsets.progress()[4] == (0, 1)
    bench.clock.advance(2 * DAY_S)
    await retained(bench, lambda: bench.store.min_position > 0)
    assert bench.delays.offsets.progress()[4] == (1, 1)
    (timer,) = bench.index.waiting(timers_max=2)
    assert (timer.due_ms, timer.kind) == (due_ms, 0)
    bench.pass_time(37 * DAY_S)
    assert bench.bodies() == []
    bench.pass_time(1 * DAY_S)
    assert bench.bodies() == [b"level"]
