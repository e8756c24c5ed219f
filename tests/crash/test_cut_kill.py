"""kill -9 at every place of a cut: the log ends there, or where a later record ended; nothing is damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from store_model import bodies_of, log_records, open_small, put

from iotmq.store import fail_points

ORACLES = str(Path(__file__).parents[1] / "oracles")

# Confirms two records, appends over several segments, and cuts all but the confirmed ones.
CHILD = r"""
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from store_model import open_small, put, wait_flushed

store = open_small(Path(sys.argv[2]), flush=sys.argv[3], confirmed_limit=0)
confirmed = put(store, "T", 0, b"first", b"second").end_position
store.raise_confirmed_limit(confirmed)
wait_flushed(store)
for number in range(12):
    put(store, "T", 0, b"tail %d " % number + b"x" * 900)
wait_flushed(store, store.appended_position)
print(confirmed, flush=True)
store.cut(confirmed)
store.close()
"""


@pytest.mark.crash
@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("name", [name for name in fail_points.NAMES if name.startswith("cut")])
def test_a_kill_during_a_cut_leaves_a_whole_log(tmp_path: Path, name: str, flush: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", CHILD, ORACLES, str(tmp_path), flush],
        env={**os.environ, fail_points.VARIABLE: name},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == -signal.SIGKILL, result.stderr[-3000:]
    confirmed = int(result.stdout)
    store = open_small(tmp_path, flush=flush, confirmed_limit=confirmed)
    assert store.recovery.damage == ()
    assert bodies_of(store, "T", 0) == [b"first", b"second"]
    tail = [record.body for record in log_records(store, confirmed)]
    assert all(body.startswith(b"tail %d " % number) for number, body in enumerate(tail))
    if name == "cut-done":
        assert tail == []
    # It is cut again, as a follower would that asks its master once more.
    store.cut(confirmed)
    end_position = put(store, "T", 0, b"third").end_position
    store.raise_confirmed_limit(end_position)
    store.close()
    store = open_small(tmp_path, flush=flush, confirmed_limit=end_position)
    assert bodies_of(store, "T", 0) == [b"first", b"second", b"third"]
    assert store.check() == []
    store.close()
