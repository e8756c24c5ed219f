"""A scan of old records beside hot traffic: the loop never waits for the disk, and the tail stays in memory.

IOTMQ_COLD_SCAN_MB is the size of the scanned log (default 192).
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iotmq.broker.broker import Broker
from iotmq.broker.settings import BrokerSettings
from iotmq.message.hosts import encode_host
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.store.queues.residency import Window
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = encode_host("127.0.0.1", 10911)
SCANNED_BYTES = int(os.environ.get("IOTMQ_COLD_SCAN_MB", "192")) << 20
HOT_BYTES = 4 << 20
COLD_BYTES_MAX = 16 << 20
# Far above what a turn of the loop takes, and far below what the disk takes for the scan's pulls if the loop
# waits for each: for slow machines with other work.
P99_MAX_S = 0.05

SEND = {"a": "pg", "b": "hot", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
PULL = {
    "consumerGroup": "g",
    "queueId": "0",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subscription": "*",
    "subVersion": "0",
}


def fill(store: Store) -> None:
    queue = store.queue("old", 0)
    many = encode_batch([(os.urandom(4000), b"", 0)] * 64)
    while store.appended_position < SCANNED_BYTES + HOT_BYTES:
        store.append(queue, many, born_timestamp_ms=1, born_host=HOST)


def log_out(store: Store) -> None:
    """Have everything but the hot end of the log on the disk and out of memory."""
    for segment in store._log.segment_list():
        with Path(segment.path).open("rb") as file:
            os.fdatasync(file.fileno())
        end = min(segment.allocated_bytes, store.confirmed_position - HOT_BYTES - segment.start_position)
        end -= (
            end % 32768
        )  # pieces in which the log has its pages made: the kernel lets go of whole ones alone
        if end > 0:
            window = Window(segment, 0, end)
            window.drop()
            assert window.absent_pages() * 4096 >= end * 0.99, "the page cache was not dropped"


async def ask(connection: ClientConnection, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
    return await connection.request(Command.request(code, ext, body), timeout_s=30)


async def scan(connection: ClientConnection, end_offset: int) -> int:
    """Pull the old topic from its first record to its last; returns how many came."""
    offset = records = 0
    while offset < end_offset:
        ext = {"topic": "old", "queueOffset": str(offset), "maxMsgNums": "65536", "sysFlag": "4"}
        response = await ask(
            connection, RequestCode.PULL_MESSAGE, {**PULL, **ext, "maxMsgBytes": str(1 << 20)}
        )
        assert response.code == 0, response
        records += int(response.ext["nextBeginOffset"]) - offset
        offset = int(response.ext["nextBeginOffset"])
    return records


async def hot_traffic(connection: ClientConnection, *, until: Any) -> list[float]:
    """Send a record and pull it, over and over; the seconds of each round."""
    rounds: list[float] = []
    offset = 0
    while not until():
        began_s = time.perf_counter()
        sent = await ask(connection, RequestCode.SEND_MESSAGE_V2, SEND, b"x" * 100)
        assert sent.code == 0, sent
        ext = {"topic": "hot", "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "6"}
        pulled = await ask(connection, RequestCode.PULL_MESSAGE, {**PULL, **ext})
        assert pulled.code == 0, pulled
        offset = int(pulled.ext["nextBeginOffset"])
        rounds.append(time.perf_counter() - began_s)
        await asyncio.sleep(0.001)
    return rounds


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Removed at once: pytest would keep gigabytes of several runs."""
    yield tmp_path / "data"
    shutil.rmtree(tmp_path / "data", ignore_errors=True)


@pytest.mark.timeout(600)
async def test_hot_traffic_goes_on_during_a_cold_scan(directory: Path) -> None:
    store = Store.open(
        directory,
        StoreSettings(segment_bytes=64 << 20, hot_bytes=HOT_BYTES, cold_bytes_max=COLD_BYTES_MAX),
        store_host=HOST,
    )
    await asyncio.to_thread(fill, store)
    broker = Broker(BrokerSettings(listen_port=0, registries=()), store, directory=directory, store_host=HOST)
    await broker.start()
    broker.topics.ensure("old", queues=1)
    broker.topics.ensure("hot", queues=1)
    await asyncio.to_thread(log_out, store)
    hot = await ClientConnection.connect("127.0.0.1", broker.port)
    cold = await ClientConnection.connect("127.0.0.1", broker.port)
    end_offset = store.queue("old", 0).max_offset
    alone = await hot_traffic(hot, until=iter([*[False] * 100, True]).__next__)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    began_s = time.perf_counter()
    scanning = asyncio.create_task(scan(cold, end_offset))
    beside = await hot_traffic(hot, until=scanning.done)
    scan_s = time.perf_counter() - began_s
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - before
    assert await scanning == end_offset
    metrics = {metric.name: metric.value for metric in (*store.metrics(), *broker.metrics())}
    p99_alone, p99 = sorted(alone)[len(alone) * 99 // 100], sorted(beside)[len(beside) * 99 // 100]
    print(
        f"scan of {SCANNED_BYTES >> 20} MiB in {scan_s:.1f} s; hot rounds: {len(beside)}, "
        f"p99 {p99 * 1000:.1f} ms, longest {max(beside) * 1000:.1f} ms (alone {p99_alone * 1000:.1f} ms); "
        f"major faults on the loop {faults}"
    )
    assert metrics["iotmq_store_cold_loaded_bytes_total"] >= SCANNED_BYTES * 0.9
    assert metrics["iotmq_broker_cold_reads_total"] >= SCANNED_BYTES / (8 << 20)
    # Of the scan's own doing; what memory pressure took away in between does not count against it.
    assert faults <= SCANNED_BYTES >> 25
    assert p99 < max(P99_MAX_S, 5 * p99_alone)
    # What it brought in is gone again, and the tail is where it was.
    assert metrics["iotmq_store_cold_held_bytes"] <= COLD_BYTES_MAX + (8 << 20)
    resident_bytes = 0
    for segment in store._log.segment_list():
        if segment.allocated_bytes:
            absent = Window(segment, 0, segment.allocated_bytes).absent_pages() * 4096
            resident_bytes += segment.allocated_bytes - absent
    assert resident_bytes <= COLD_BYTES_MAX + HOT_BYTES + (32 << 20)
    await hot.close()
    await cold.close()
    await broker.stop()
    assert store.check() == []
    store.close()
