"""kill -9 of a process whose projection is being written and flushed: the log brings it back to the truth."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from last_values import LastValues
from store_model import log_records, open_small

from iotmq.message.records.record import property_value
from iotmq.store.kv.kv_projection import MARKER_KEY, read_marker

CHILD = r"""
import random, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from last_values import LastValues
from store_model import BORN_HOST, HOST
from iotmq.message.records.record import encode_batch
from iotmq.store.kv import kv_projection
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

source = random.Random(int(sys.argv[3]))
# Everything happens all the time: writes, flushes behind them, and reads between.
kv_projection.PENDING_KEYS_MAX = source.randint(1, 200)
kv_projection.FLUSH_LOG_BYTES = source.choice((1, 50_000, 1 << 30))
store = Store.open(
    Path(sys.argv[2]),
    StoreSettings(
        segment_bytes=1 << 20, record_bytes_max=8192, allocation_step_bytes=65536,
        kv_write_buffer_bytes=1 << 20,
    ),
    store_host=HOST,
)
LastValues.add_to(store)
for number in range(1 << 40):
    queue = store.queue("T", number % 3)
    store.append(
        queue,
        encode_batch(
            (b"%d" % number, b"MQTT_TOPIC\x01dev/%d\x02" % source.randint(0, 3000), 0)
            for _ in range(source.randint(1, 50))
        ),
        born_timestamp_ms=0,
        born_host=BORN_HOST,
    )
    if number % 50 == 0:
        print(number, flush=True)
"""

ROUNDS = int(os.environ.get("IOTMQ_CRASH_ROUNDS", "3"))
ORACLES = str(Path(__file__).parents[1] / "oracles")
SIZES = {"segment_bytes": 1 << 20, "record_bytes_max": 8192, "allocation_step_bytes": 65536}


def run_and_kill(directory: Path, seed: int, lines_wanted: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, ORACLES, str(directory), str(seed)], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        descriptor = child.stdout.fileno()
        lines = 0
        while lines < lines_wanted:
            assert select.select([descriptor], [], [], 60)[0], "the writer stopped writing"
            piece = os.read(descriptor, 65536)
            assert piece, "the writer ended by itself"
            lines += piece.count(b"\n")
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL


@pytest.mark.crash
def test_last_values_are_those_of_the_log_after_any_kill(tmp_path: Path) -> None:
    source = random.Random(20_261_120)
    for round_number in range(ROUNDS):
        run_and_kill(tmp_path, round_number, source.randint(1, 30))
        store = open_small(tmp_path, **SIZES)
        values = LastValues.add_to(store)
        last: dict[bytes, int] = {}
        for record in log_records(store):
            topic = property_value(record.properties, b"MQTT_TOPIC")
            assert topic is not None
            last[topic] = record.position
        assert values.places() == last
        space = store.key_values().space("last")
        assert read_marker(space.get(MARKER_KEY)) == store.confirmed_position
        assert store.check() == []
        assert not (tmp_path / "kv.damaged").exists()
        store.close()
