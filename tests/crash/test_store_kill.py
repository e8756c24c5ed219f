"""kill -9 of a process that writes through the store: nothing acknowledged is lost, offsets stay dense."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from store_model import open_small, records_of

CHILD = r"""
import json, random, sys, threading
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from store_model import BORN_HOST, HOST, batch
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

directory, flush, seed = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
source = random.Random(seed)
store = Store.open(
    directory,
    StoreSettings(
        flush=flush, flush_interval_ms=2, checkpoint_interval_ms=5, **json.loads(sys.argv[5])
    ),
    store_host=HOST,
)
flushed = threading.Event()
store.on_flushed = flushed.set
waiting = []
while True:
    flushed.clear()
    for _ in range(source.randint(1, 8)):
        queue = store.queue("topic%d" % source.randint(0, 3), source.randint(0, 1))
        count = source.randint(1, 20)
        name = b"%s %d " % (queue.topic.encode(), queue.queue_id)
        first = queue.next_offset
        bodies = [name + b"%d " % (first + n) + b"." * source.randint(0, 300) for n in range(count)]
        appended = store.append(queue, batch(*bodies), born_timestamp_ms=0, born_host=BORN_HOST)
        waiting.append((appended.end_position, queue, appended.first_offset, count))
    confirmed = store.advance()
    while confirmed < waiting[0][0]:
        flushed.wait()
        flushed.clear()
        confirmed = store.advance()
    lines = []
    while waiting and waiting[0][0] <= confirmed:
        _, queue, first, count = waiting.pop(0)
        lines.append("%s %d %d %d\n" % (queue.topic, queue.queue_id, first, count))
    sys.stdout.write("".join(lines))
    sys.stdout.flush()
"""

SIZES = {
    "segment_bytes": 65536,
    "record_bytes_max": 8192,
    "queue_file_entries": 500,
    "allocation_step_bytes": 16384,
}
ROUNDS = int(os.environ.get("IOTMQ_CRASH_ROUNDS", "6"))
ORACLES = str(Path(__file__).parents[1] / "oracles")


def run_and_kill(
    directory: Path, flush: str, seed: int, lines_wanted: int
) -> list[tuple[str, int, int, int]]:
    """Start a writer, kill it once it has acknowledged so many batches; what it acknowledged."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, ORACLES, str(directory), flush, str(seed), json.dumps(SIZES)],
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        descriptor = child.stdout.fileno()
        data = b""
        while data.count(b"\n") < lines_wanted:
            assert select.select([descriptor], [], [], 60)[0], "the writer stopped writing"
            piece = os.read(descriptor, 65536)
            assert piece, "the writer ended by itself"
            data += piece
        child.send_signal(signal.SIGKILL)
        data += child.stdout.read()
    assert child.returncode == -signal.SIGKILL
    # The last line may be cut, by the kill: whoever did not get it whole was not acknowledged.
    whole = data[: data.rfind(b"\n") + 1].decode().splitlines()
    fields = (line.split() for line in whole)
    return [(topic, int(queue_id), int(first), int(count)) for topic, queue_id, first, count in fields]


@pytest.mark.crash
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_nothing_acknowledged_is_lost(tmp_path: Path, flush: str) -> None:
    """Async holds too: the pages belong to the kernel, not to the process."""
    source = random.Random(20_241_120)
    ends: dict[tuple[str, int], int] = {}
    for round_number in range(ROUNDS):
        for topic, queue_id, first, count in run_and_kill(
            tmp_path, flush, round_number, source.randint(1, 400)
        ):
            key = (topic, queue_id)
            # Records of batches nobody heard of may stand between, but none that were heard of is gone.
            assert first >= ends.get(key, 0)
            ends[key] = first + count
        store = open_small(tmp_path, flush=flush, **SIZES)
        assert not store.recovery.was_clean
        for (topic, queue_id), end in ends.items():
            records = records_of(store, topic, queue_id)
            assert len(records) >= end
            for offset, record in enumerate(records):
                assert record.body.startswith(b"%s %d %d " % (topic.encode(), queue_id, offset))
            ends[topic, queue_id] = len(records)
        assert store.check() == []
        store.close()
