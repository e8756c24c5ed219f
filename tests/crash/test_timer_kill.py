"""kill -9 of a process whose messages wait, fall due, are cancelled and copied on: none is early or lost.

What the child was told to store, and what it was told to cancel, it prints once it is acknowledged; the
parent holds it to that. Times are real here and short.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from timer_bench import TimerBench
from timer_oracle import check_index

from iotmq.clock import SystemClock
from iotmq.message.records.record import property_value

CHILD = r"""
import asyncio, random, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from timer_bench import TimerBench
from iotmq.broker.writing.message_writer import StoredBatch
from iotmq.clock import SystemClock
from iotmq.store.kv import kv_projection, timer_index
from iotmq.store.retention import apply as trimming
from iotmq.store import store as store_module
from iotmq.store.retention.decide import DiskUsage

directory, seed, mode = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
source = random.Random(seed)
timer_index.PENDING_KEYS_MAX = source.choice((3, 100, 1_024))
trimming.SOON_S = 0.01
kv_projection.FLUSH_LOG_BYTES = source.choice((1, 50_000, 1 << 30))


def usage(path):
    "Above so many files the disk counts as too full, whatever their age."
    files = len(list((directory / "commitlog").glob("0*")))
    return DiskUsage(str(path), 86 if mode == "roll" and files > 6 else 10, 100)


real_open = store_module.Store.open.__func__
store_module.Store.open = classmethod(lambda cls, *a, **k: real_open(cls, *a, **{**k, "read_usage": usage}))


async def main():
    bench = TimerBench(
        directory, SystemClock(), retention_delay_ms=0, retention_interval_ms=10, delete_pause_ms=0,
        segment_bytes=131_072, record_bytes_max=16_384, flush=sys.argv[5], flush_interval_ms=5,
        checkpoint_interval_ms=50,
    )
    loop = asyncio.get_running_loop()
    bench.store.on_flushed = bench.writer.on_flushed
    number = seed * 1_000_000
    names = []

    def told(word, name):
        def done(result):
            if isinstance(result, StoredBatch):
                print(word, name, flush=True)
        return done

    while True:
        for _ in range(source.randint(1, 30)):
            number += 1
            kind = source.random()
            if kind < 0.25:
                in_ms, name = 3_600_000 + source.randint(0, 10_000), f"far{number}"
            else:
                in_ms, name = source.randint(0, 400), f"near{number}"
            due_ms = bench.clock.now_ms() + in_ms
            body = f"{name} {due_ms}".encode() + bytes(source.choice((0, 0, 2_000)))
            bench.timers.schedule(
                "T", 0, body, b"UNIQ_KEY\x01%s\x02" % name.encode(), due_ms=due_ms,
                done=told("stored", name),
            )
            names.append(name)
            if kind < 0.05:
                chosen = source.choice(names[-200:])
                print("cancelling", chosen, flush=True)
                bench.timers.cancel("T", chosen, told("cancelled", chosen))
        bench.store.retain()
        bench.delays.roll()
        if source.random() < 0.05:
            data = bench.delays.offsets.take_unsaved()
            if data is not None:
                bench.delays.offsets.write(data)
        await asyncio.sleep(0.002)


asyncio.run(main())
"""

ROUNDS = int(os.environ.get("IOTMQ_CRASH_ROUNDS", "3"))
SEED = int(os.environ.get("IOTMQ_CRASH_SEED", "20261120"))
ORACLES = str(Path(__file__).parents[1] / "oracles")


def run_and_kill(directory: Path, seed: int, mode: str, flush: str, lines_wanted: int) -> list[str]:
    """The lines of a child that was killed after so many of them."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, ORACLES, str(directory), str(seed), mode, flush], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        descriptor = child.stdout.fileno()
        text = b""
        while text.count(b"\n") < lines_wanted:
            assert select.select([descriptor], [], [], 60)[0], "the child stopped"
            piece = os.read(descriptor, 65_536)
            if not piece:
                # At a fail point; any other end shows in the return code.
                break
            text += piece
        child.send_signal(signal.SIGKILL)
        text += child.stdout.read()
    assert child.returncode == -signal.SIGKILL
    # The last line may have been cut.
    return text.decode().split("\n")[:-1]


@pytest.mark.crash
@pytest.mark.parametrize(
    ("mode", "flush"), [("plain", "async"), ("plain", "sync"), ("roll", "async"), ("roll", "sync")]
)
def test_after_any_kill_all_that_waits_comes_once_and_never_early(
    tmp_path: Path, mode: str, flush: str
) -> None:
    source = random.Random(SEED)
    told = Told()
    for round_number in range(ROUNDS):
        lines = run_and_kill(tmp_path, round_number, mode, flush, source.randint(10, 3_000))
        told.take(lines)
        asyncio.run(check(tmp_path, told))


@pytest.mark.crash
@pytest.mark.parametrize(
    "point",
    [
        "segment-created",
        "batch-between-records",
        "batch-before-size",
        "flush-begun",
        "flush-done",
        "checkpoint-queues-synced",
        "queue-state-written",
        "checkpoint-written",
        "segment-deleted",
    ],
)
def test_a_process_that_dies_at_a_named_place_leaves_every_waiting_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    source = random.Random(SEED + len(point))
    monkeypatch.setenv("IOTMQ_FAIL_POINT", f"{point}:{source.randint(1, 3)}")
    lines = run_and_kill(tmp_path, 1, "roll", "async", lines_wanted=1_000_000)
    monkeypatch.delenv("IOTMQ_FAIL_POINT")
    told = Told()
    told.take(lines)
    asyncio.run(check(tmp_path, told))


class Told:
    """What the children said, by the names of messages. A cancellation that was begun may be stored."""

    def __init__(self) -> None:
        self.stored: set[str] = set()
        self.cancelling: set[str] = set()
        self.cancelled: set[str] = set()

    def take(self, lines: list[str]) -> None:
        for line in lines:
            word, name = line.split()
            getattr(self, word).add(name)


async def check(directory: Path, told: Told) -> None:
    """Open it as the next process would, let everything near fall due, and look at every message."""
    bench = TimerBench(
        directory,
        SystemClock(),  # type: ignore[arg-type]
        segment_bytes=131_072,
        record_bytes_max=16_384,
    )
    check_index(bench.store, bench.index)
    near_ms = 600
    deadline_s = time.monotonic() + 20
    while bench.index.next_due_ms < bench.clock.now_ms() + near_ms and time.monotonic() < deadline_s:
        bench.deliver()
        await asyncio.sleep(0.01)
    waiting = {name_of(one.body) for one in check_index(bench.store, bench.index)}
    assert all(name.startswith("far") for name in waiting)
    delivered: dict[str, int] = {}
    for record in bench.records():
        name = name_of(record.body)
        due_ms = int(record.body.split(b" ")[1].rstrip(b"\0"))
        assert record.store_timestamp_ms >= due_ms, "delivered before its time"
        assert property_value(record.properties, b"UNIQ_KEY") == name.encode()
        delivered[name] = delivered.get(name, 0) + 1
    assert max(delivered.values(), default=1) == 1
    assert not waiting & delivered.keys()
    assert not told.cancelled & (waiting | delivered.keys())
    far = {name for name in told.stored if name.startswith("far")}
    assert far - told.cancelling <= waiting
    queue = bench.store.queue("T", 0)
    if queue.min_offset == 0:
        assert told.stored - far - told.cancelling <= delivered.keys()
    assert bench.timers.skipped_count == 0
    assert not (directory / "kv.damaged").exists()
    bench.close()


def name_of(body: bytes) -> str:
    return body.split(b" ")[0].decode()
