"""A stream that runs for long under a steady load: its memory and its broker's stay flat, and no row is lost.

IOTMQ_SOAK_SECONDS is for how long; `make spark-soak` has half an hour.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from eventually import eventually
from gateway_process import ROOT, GatewayProcess
from log_reader import read_topic, stored_count

from iotmq.client import Message, SyncClient, SyncProducer
from iotmq.client.transport.settings import ClientSettings

SOAK_S = float(os.environ.get("IOTMQ_SOAK_SECONDS", "15"))
SAMPLE_S = max(0.5, SOAK_S / 120)
RATE = 1_000
STEP_S = 0.1
# Of the samples: Java compiles and loads what it needs, caches fill.
WARM_UP = 0.25
# What the medians of the first and the last third may differ by: a share, and bytes. A short run is over
# before all is warm.
SHARE, BYTES = (0.05, 24 << 20) if SOAK_S >= 300 else (0.25, 128 << 20)
STREAM = ROOT / "tests" / "oracles" / "spark_soak_stream.py"

pytestmark = [pytest.mark.spark_long, pytest.mark.timeout(240 + 2 * int(SOAK_S))]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path / "data", "store.hot_bytes=8388608") as running:
        for topic in ("readings", "copies"):
            words = ["topic", "create", topic, "--queues", "4", "--registry", running.registry]
            subprocess.run([sys.executable, "-m", "iotmq", "admin", *words], check=True, timeout=60)
        yield running


def own_bytes(pid: int) -> int:
    """Memory that is a process's own; 0 of one that has ended."""
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    except OSError:
        return 0
    return 0 if found is None else int(found[1]) * 1024


def of_session(session: int) -> set[int]:
    """The processes of a session, which its leader began."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(words[3]) == session:
                found.add(int(entry.name))
    return found


class Load:
    """A thread that stores so many numbers a second."""

    def __init__(self, registry: str) -> None:
        self._registry = registry
        self._is_ending = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> int:
        """End it; how many it has stored."""
        self._is_ending.set()
        self._thread.join(60.0)
        assert not self._thread.is_alive()
        return self.count

    def _run(self) -> None:
        settings = ClientSettings(registries=(self._registry,))
        began_s = time.monotonic()
        with SyncClient(settings) as client, SyncProducer(client, "load") as producer:
            while not self._is_ending.wait(STEP_S):
                due = int((time.monotonic() - began_s) * RATE)
                for first in range(self.count, due, 100):
                    numbers = range(first, min(first + 100, due))
                    producer.send_batch(
                        [Message("readings", b"%d" % n, key=f"pump-{n % 97}") for n in numbers]
                    )
                    self.count = numbers[-1] + 1


def test_a_stream_under_steady_load_takes_no_more_memory_and_copies_each_row_once(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    words = [str(STREAM), gateway.registry, "readings", "copies", str(tmp_path / "checkpoint"), str(SAMPLE_S)]
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            start_new_session=True,
        )  # fmt: skip
    samples: list[dict[str, int]] = []
    assert driver.stdout is not None
    assert driver.stdin is not None
    try:
        load = Load(gateway.registry)
        ends_s = None
        for line in driver.stdout:
            said = json.loads(line)
            assert "failed" not in said, said["failed"]
            # Java starts, and the first batches are slow.
            ends_s = ends_s or time.monotonic() + SOAK_S
            known = {said["driver"], said["java"]}
            samples.append(
                {
                    "Java's heap in use": said["heap"],
                    "Java": own_bytes(said["java"]),
                    "driver": own_bytes(said["driver"]),
                    "Python workers": sum(own_bytes(pid) for pid in of_session(driver.pid) - known),
                    "gateway": gateway.memory_bytes(),
                }
            )
            if time.monotonic() >= ends_s:
                break
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-4000:]
        count = load.end()
        eventually(lambda: stored_count(gateway.registry, "copies") >= count, "all rows", within_s=90.0)
        driver.stdin.close()
        # What it tells meanwhile is nobody's any more.
        driver.stdout.read()
        assert driver.wait(60.0) == 0
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        driver.stdout.close()
    queues = read_topic(gateway.registry, "copies").values()
    copies = Counter(int(message.body) for queue in queues for message in queue)
    assert set(copies.values()) == {1}
    assert set(copies) == set(range(count))
    print(f"\n{count:,} rows copied once in {said['batch'] + 1:,} batches, {len(samples)} samples")
    warm = samples[int(len(samples) * WARM_UP) :]
    third = len(warm) // 3
    assert third >= 3, "too few samples"
    grown = {}
    for name in warm[0]:
        parts = (warm[:third], warm[-third:])
        first, last = (statistics.median(each[name] for each in part) for part in parts)
        print(f"{name}: {first / 2**20:.1f} MiB in the first third, {last / 2**20:.1f} MiB in the last one")
        if last > first * (1 + SHARE) + BYTES:
            grown[name] = (first, last)
    assert not grown
