"""A really full disk: a small tmpfs in a mount namespace of its own, and a child that would die of SIGBUS."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_disk import run_on_small_disk

CHILD = r"""
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from store_model import bodies_of, fill_disk, open_small, put
from manual_clock import ManualClock
from iotmq.errors import StoreFullError

root, filled_by = Path(sys.argv[2]), sys.argv[3]
clock = ManualClock()
settings = dict(
    segment_bytes=1 << 18, record_bytes_max=1 << 16, queue_file_entries=5000, allocation_step_bytes=1 << 16,
    flush_interval_ms=5,
)
store = open_small(root / "data", clock=clock, **settings)
put(store, "T", 0, b"first")
ballast = root / "ballast"
if filled_by == "others":
    fill_disk(ballast)
count, refused = 1, 0
while refused < 3:
    try:
        bodies = (b"%d" % n + b"x" * (count * 37 % 900) for n in range(20))
        put(store, "T%d" % (count % 3), count % 5, *bodies)
        count += 1
    except StoreFullError as error:
        refused += 1
        assert "No space left" in str(error), error
        clock.advance(1)
problems = store.check()
assert problems == [], problems
assert bodies_of(store, "T", 0)[:1] == [b"first"]
end = store.appended_position
# A stop and a start need no room that is not there already.
store.close()
assert not (root / "data" / "abort").exists()
store = open_small(root / "data", clock=clock, **settings)
assert (store.recovery.was_clean, store.appended_position) == (True, end)
assert store.check() == []
if filled_by == "others":
    ballast.unlink()
    for _ in range(50):
        put(store, "T0", 0, b"there is room again" * 50)
    assert store.appended_position > end
    assert store.check() == []
store.close()
print("done", count)
"""


RETAINING_CHILD = r"""
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from eventually import eventually
from store_model import bodies_of, fill_disk, open_small, put, wait_flushed
from manual_clock import ManualClock
from iotmq.errors import StoreFullError
from iotmq.store.log.segment import segment_name

root, filled_by = Path(sys.argv[2]), sys.argv[3]
clock = ManualClock()
settings = dict(
    segment_bytes=1 << 16, record_bytes_max=1 << 14, queue_file_entries=500, allocation_step_bytes=1 << 14,
    flush_interval_ms=5, retention_delay_ms=0, delete_pause_ms=0,
)
store = open_small(root / "data", clock=clock, **settings)


def look():
    # Ten seconds of a broker's life.
    wait_flushed(store)
    # Nothing is deleted while room is made ahead, which takes a moment and not ten seconds.
    ahead = store._allocator
    eventually(lambda: ahead.is_failing or not ahead._is_requested, "room is made ahead", step_s=0.002)
    clock.advance(10)
    store.retain()
    assert store._trimmer.remover.wait_idle(20)
    # The blocks come back with the last reference, a moment after the name has gone.
    eventually(lambda: store._trimmer.remover.leaving_bytes == 0, "the blocks come back", step_s=0.002)
    store.retain()


def metric(name):
    (value,) = (m.value for m in store.metrics() if m.name == "iotmq_store_" + name)
    return value


def put_some(count):
    for number in range(count):
        put(store, "T%d" % (number % 3), 0, *(b"x" * 500 for _ in range(10)))


put_some(20)
look()
assert (store.min_position, store.refusal) == (0, None)
if filled_by == "us":
    # Far more than the disk holds, without anybody's help: the oldest goes in time, or, when files made ahead
    # come at a bad moment, records are refused until it has gone.
    rounds = refused = 0
    while store.appended_position <= 4 * (2 << 20):
        rounds += 1
        assert rounds < 1500
        try:
            put_some(5)
        except StoreFullError:
            refused += 1
        look()
        assert metric("disk_used_ratio") < 0.95, metric("disk_used_ratio")
    assert refused < rounds // 2, (refused, rounds)
    assert store.min_position > 0
    assert not (root / "data" / "commitlog" / segment_name(0)).exists()
else:
    ballast = root / "ballast"
    fill_disk(ballast)
    look()
    # Everything but the file in use went for nothing: the others have it all.
    assert metric("refusing") == 1
    try:
        put_some(1)
        raise SystemExit("taken by a full disk")
    except StoreFullError as error:
        assert "store.disk_full_percent = 90" in str(error), error
        assert str(root) in str(error), error
    ballast.unlink()
    clock.advance(1)
    store.retain()
    assert store.refusal is None
    put_some(20)
problems = store.check()
assert problems == [], problems
end, start = store.appended_position, store.min_position
store.close()
store = open_small(root / "data", clock=clock, **settings)
assert (store.recovery.was_clean, store.min_position, store.appended_position) == (True, start, end)
assert store.check() == []
assert bodies_of(store, "T0", 0)
store.close()
print("done")
"""


@pytest.mark.crash
@pytest.mark.parametrize("filled_by", ["others", "us"])
def test_full_disk_is_an_error_and_passes(tmp_path: Path, filled_by: str) -> None:
    run_on_small_disk(CHILD, tmp_path, filled_by)


@pytest.mark.crash
@pytest.mark.parametrize("filled_by", ["others", "us"])
def test_store_keeps_a_small_disk_from_filling_or_takes_records_again_by_itself(
    tmp_path: Path, filled_by: str
) -> None:
    run_on_small_disk(RETAINING_CHILD, tmp_path, filled_by)
