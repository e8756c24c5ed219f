"""The key index on a really full disk (a small tmpfs): no SIGBUS, and it catches up once there is room."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_disk import run_on_small_disk

CHILD = r"""
import os, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from store_model import fill_disk, open_small, put
from manual_clock import ManualClock
from iotmq.errors import StoreFullError
from iotmq.message.records.record import decode_record

root, entries = Path(sys.argv[2]), int(sys.argv[3])
clock = ManualClock()
settings = dict(
    segment_bytes=1 << 18, record_bytes_max=1 << 16, queue_file_entries=5000, allocation_step_bytes=1 << 16,
    index_slots=entries // 4, index_entries=entries,
)
store = open_small(root / "data", clock=clock, **settings)
put(store, "T", 0, b"first", properties=b"KEYS\x01k0\x02")
ballast = root / "ballast"
fill_disk(ballast)
count, refused, was_behind = 1, 0, False
while refused < 3:
    try:
        properties = b"KEYS\x01" + b" ".join(b"k%d-%d" % (count, n) for n in range(40)) + b"\x02"
        put(store, "T", 0, b"%d" % count, properties=properties)
        count += 1
    except StoreFullError:
        refused += 1
        clock.advance(1)
    was_behind |= store._index.applied_position < store.confirmed_position
# A large file has its blocks ahead, and the log fills up first.
assert was_behind == (entries == 64)
# Everything but the index is as it should be, and what the index has is found.
assert all("index" in problem for problem in store.check()), store.check()
assert len(store.query("T", "k0")) == 1
# A stop and a start need no room.
store.close()
assert not (root / "data" / "abort").exists()
store = open_small(root / "data", clock=clock, **settings)
assert store.recovery.was_clean
assert len(store.query("T", "k0")) == 1
ballast.unlink()
put(store, "T", 0, b"last", properties=b"KEYS\x01last\x02")
assert store.check() == []
for n in range(1, count):
    (view,) = store.query("T", "k%d-39" % n)
    assert decode_record(view).body == b"%d" % n
assert len(store.query("T", "last")) == 1
store.close()
print("done", count)
"""


@pytest.mark.crash
@pytest.mark.parametrize("entries", [64, 100_000])
def test_index_that_a_full_disk_leaves_behind_catches_up(tmp_path: Path, entries: int) -> None:
    run_on_small_disk(CHILD, tmp_path, str(entries))
