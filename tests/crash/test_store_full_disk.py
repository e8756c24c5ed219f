"""A really full disk: a small tmpfs in a mount namespace of its own, and a child that would die of SIGBUS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ORACLES = str(Path(__file__).parents[1] / "oracles")

CHILD = r"""
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from store_model import bodies_of, open_small, put
from iotmq.clock import ManualClock
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
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
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


@pytest.mark.crash
@pytest.mark.parametrize("filled_by", ["others", "us"])
def test_full_disk_is_an_error_and_passes(tmp_path: Path, filled_by: str) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    namespace = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
    mount = f"mount -t tmpfs -o size=2m tmpfs {tmp_path}"
    if subprocess.run(
        [*namespace, "sh", "-c", mount], capture_output=True, timeout=60, check=False
    ).returncode:
        pytest.skip("no mount namespaces here")
    child = [sys.executable, "-c", CHILD, ORACLES, str(tmp_path), filled_by]
    result = subprocess.run(
        [*namespace, "sh", "-c", f'{mount} && exec "$@"', "sh", *child],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, f"{result.returncode}\n{result.stderr[-3000:]}"
    assert result.stdout.startswith("done")
