"""kill -9 at every named place of the store: what was acknowledged is there, and everything agrees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from store_model import ListModel, log_records, open_small, put, records_of

from iotmq.store import fail_points

# Appends batches, with restarts between, and prints a line for each that is acknowledged.
CHILD = r"""
import random, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from eventually import eventually
from store_model import open_small, put, wait_flushed
from manual_clock import ManualClock

directory, flush = Path(sys.argv[2]), sys.argv[3]
source = random.Random(7)
clock = ManualClock()
for life in range(4):
    store = open_small(
        directory, clock=clock, flush=flush, retention_hours=1, retention_interval_ms=1000, delete_pause_ms=0,
        retention_delay_ms=0, delete_hour=";".join("%02d" % hour for hour in range(24)),
    )
    for _ in range(25):
        topic, queue_id = "topic%d" % source.randint(0, 2), source.randint(0, 1)
        first = store.queue(topic, queue_id).next_offset
        count = source.randint(1, 9)
        bodies = [b"%s %d %d " % (topic.encode(), queue_id, first + n) + b"." * source.randint(0, 300)
                  for n in range(count)]
        keys = b"UNIQ_KEY\x01%s%d-%d\x02KEYS\x01device%d all\x02" % (topic.encode(), queue_id, first, life)
        put(store, topic, queue_id, *bodies, properties=keys)
        if source.random() < 0.3:
            store._log.make_room_ahead()
        if flush == "sync":
            wait_flushed(store)
        sys.stdout.write("%s %d %d\n" % (topic, queue_id, first + count))
        sys.stdout.flush()
        if source.random() < 0.4:
            wait_flushed(store)
        if source.random() < 0.3:
            store.write_checkpoint()
    if life == 2:
        clock.advance(7200)
        while store.min_position == 0:
            # Nothing is deleted while room is being made ahead in another thread, which wants its turn.
            ahead = store._allocator
            is_made = lambda: ahead.is_failing or not ahead._is_requested
            eventually(is_made, "room is made ahead", step_s=0.001)
            clock.advance(2)
            store.retain()
        store._trimmer.remover.wait_idle(20)
    store.close()
"""
ORACLES = str(Path(__file__).parents[1] / "oracles")

# The first time, and one in the middle of things; `recovery-...` come once in each of four lives.
PLACES = [
    # Those of a cut are in test_cut_kill.py, those of a copy in tests/interop/test_member_copies.py.
    *((name, 1) for name in fail_points.NAMES if not name.startswith(("queues-half", "cut", "copy"))),
    *((name, 2) for name in fail_points.NAMES if name.startswith(("recovery", "close", "abort"))),
    *(
        (name, 7)
        for name in fail_points.NAMES
        if name.startswith(("segment-", "queue-", "flush", "index-file-", "index-st"))
    ),
    ("batch-between-records", 31),
    ("index-between-keys", 100),
    ("batch-before-size", 32),
    ("batch-before-size", 77),
    ("checkpoint-queues-synced", 9),
    ("checkpoint-written", 9),
]


def run_child(directory: Path, flush: str, place: str) -> tuple[int, dict[tuple[str, int], int]]:
    """(exit code, acknowledged end offset of every queue)"""
    result = subprocess.run(
        [sys.executable, "-c", CHILD, ORACLES, str(directory), flush],
        env={**os.environ, fail_points.VARIABLE: place},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    ends: dict[tuple[str, int], int] = {}
    for line in result.stdout.splitlines():
        topic, queue_id, end = line.split()
        ends[topic, int(queue_id)] = int(end)
    assert result.returncode in (0, -signal.SIGKILL), result.stderr[-3000:]
    return result.returncode, ends


def check_directory(directory: Path, flush: str, ends: dict[tuple[str, int], int]) -> None:
    for life in range(2):
        store = open_small(directory, flush=flush)
        assert store.recovery.was_clean or life == 0
        for queue in store.queues():
            records = records_of(store, queue.topic, queue.queue_id)
            for offset, record in enumerate(records, queue.min_offset):
                assert record.body.startswith(b"%s %d %d " % (queue.topic.encode(), queue.queue_id, offset))
        for (topic, queue_id), end in ends.items():
            assert store.queue(topic, queue_id).max_offset >= end
        assert store.check() == []
        put(store, "topic0", 0, b"topic0 0 %d " % store.queue("topic0", 0).next_offset)
        store.close()


@pytest.mark.crash
@pytest.mark.parametrize(("name", "count"), PLACES, ids=[f"{name}-{count}" for name, count in PLACES])
def test_kill_at(tmp_path: Path, name: str, count: int) -> None:
    # A sync flush passes most of its places in compiled code.
    flush = "sync" if (len(name) + count) % 2 and not name.startswith("flush") else "async"
    code, ends = run_child(tmp_path, flush, f"{name}:{count}")
    assert code == -signal.SIGKILL, f"the process never came to {name} for the {count}th time"
    check_directory(tmp_path, flush, ends)


@pytest.mark.crash
@pytest.mark.parametrize("count", [1, 3])
def test_kill_while_the_queues_are_cleared(tmp_path: Path, count: int) -> None:
    store = open_small(tmp_path)
    model = ListModel()
    for n in range(12):
        elements = [(b"topic%d %d %d " % (n % 3, 0, n // 3), b"")]
        appended = put(store, f"topic{n % 3}", 0, elements[0][0])
        model.add(f"topic{n % 3}", 0, elements, appended)
    store.close()
    (tmp_path / "consumequeue" / ".applied").unlink()
    code, _ = run_child(tmp_path, "async", f"queues-half-cleared:{count}")
    assert code == -signal.SIGKILL
    store = open_small(tmp_path)
    model.assert_same(store)
    store.close()


@pytest.mark.crash
def test_no_part_of_a_batch_is_seen_after_a_kill_inside_it(tmp_path: Path) -> None:
    code, ends = run_child(tmp_path, "async", "batch-before-size:20")
    assert code == -signal.SIGKILL
    store = open_small(tmp_path)
    assert sum(1 for _ in log_records(store)) == sum(ends.values())
    assert store.check() == []
    store.close()


@pytest.mark.parametrize("text", ["nowhere", "flush-done:x", "flush-done:-1"])
def test_unknown_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="IOTMQ_FAIL_POINT"):
        fail_points._parse(text)


def test_off_unless_asked_for() -> None:
    assert not fail_points.IS_ON
    for name in fail_points.NAMES:
        fail_points.reach(name)
