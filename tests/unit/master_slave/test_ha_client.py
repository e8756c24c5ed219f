"""A slave's connection to its master: what it takes, what ends it, and when it reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import soon
from manual_clock import ManualClock
from store_model import put

from iotmq.master_slave.ha_client import HaClient
from iotmq.message.hosts import encode_host
from iotmq.replication.rocketmq.ha_master import FRAME_HEADER, REPORT
from iotmq.replication.rocketmq.ha_slave import FRAME_BYTES_MAX, REPORT_S, SILENCE_S
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store
from iotmq.supervised import end

WITHIN_S = 10.0


def store_of(directory: Path) -> Store:
    return Store.open(directory, StoreSettings(segment_bytes=1 << 20), store_host=encode_host("127.0.0.1", 1))


class Bench:
    """A slave, and a master that does what a test says."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.store = store_of(directory)
        self.grown = 0
        self.accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.writers: list[asyncio.StreamWriter] = []

    def grew(self) -> None:
        self.grown += 1

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        await self.accepted.put((reader, writer))

    async def start(self) -> None:
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        self.client = HaClient(self.store, self.clock, appended=self.grew, retry_s=0.01)
        self.client.follow(self.server.sockets[0].getsockname()[:2])
        self.work = asyncio.ensure_future(self.client.follow_repeatedly())

    async def master(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
        """The next connection of the slave, with its first report."""
        async with asyncio.timeout(WITHIN_S):
            reader, writer = await self.accepted.get()
            return reader, writer, await reported(reader)

    async def stop(self) -> None:
        await end([self.work])
        for writer in self.writers:
            writer.close()
        self.server.close()
        assert self.store.check() == []
        self.store.close()


async def reported(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(WITHIN_S):
        (position,) = REPORT.unpack(await reader.readexactly(REPORT.size))
    return int(position)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "slave")
    await bench.start()
    yield bench
    await bench.stop()


def log_of(directory: Path) -> bytes:
    """The bytes of a log with one message."""
    store = store_of(directory)
    put(store, "T", 0, b"x" * 1_000)
    data = bytes(store.read_raw(0, 1 << 20))
    store.close()
    return data


async def test_a_log_is_taken_in_any_pieces_and_reported(bench: Bench, tmp_path: Path) -> None:
    data = log_of(tmp_path / "master")
    reader, writer, asked = await bench.master()
    assert asked == 1, "the first byte of a log is known"
    for at in range(1, len(data), 100):
        piece = data[at : at + 100]
        writer.write(FRAME_HEADER.pack(at, len(piece)) + piece)
    while (position := await reported(reader)) < len(data):
        assert position == 1, "nothing is whole yet"
    assert (bench.store.appended_position, bench.grown) == (len(data), 1)
    assert bench.store.queue("T", 0).max_offset == 1


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (FRAME_HEADER.pack(7, 0), "a frame for position 7, but 1 comes next"),
        (FRAME_HEADER.pack(1, FRAME_BYTES_MAX + 1), "the maximum is"),
        (FRAME_HEADER.pack(1, -1), "the maximum is"),
        (FRAME_HEADER.pack(1, 500) + b"\xff" * 500, "the log does not take what the master sent"),
    ],
)
async def test_what_cannot_be_ends_the_connection_and_it_is_tried_again(
    bench: Bench, caplog: pytest.LogCaptureFixture, sent: bytes, words: str
) -> None:
    for _ in range(2):
        _, writer, _ = await bench.master()
        writer.write(sent)
    await bench.master()
    assert words in caplog.text
    assert (bench.store.appended_position, bench.grown) == (0, 0)


async def test_it_reports_when_nothing_moves_and_leaves_a_master_that_is_silent(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    reader, _, _ = await bench.master()
    link = bench.client._link
    assert link is not None
    bench.clock.advance(REPORT_S - 0.1)
    link.look()
    bench.clock.advance(0.1)
    link.look()
    assert await reported(reader) == 1
    bench.clock.advance(SILENCE_S)
    link.look()
    assert await reader.read() == b"", "one report, and the end"
    await soon(lambda: "the master says nothing" in caplog.text, "it says why")
    await bench.master()


async def test_a_master_that_does_not_listen_is_tried_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.master()
    bench.server.close()
    for writer in bench.writers:
        writer.close()
    await soon(lambda: "no connection to 127.0.0.1" in caplog.text, "it says so")
    assert not bench.client.is_connected


async def test_a_master_that_moves_while_the_former_address_is_tried_is_followed_to_the_new_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.master()
    former: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    is_trying, goes_on = asyncio.Event(), asyncio.Event()

    async def wait_for_the_disk() -> bool:
        is_trying.set()
        await goes_on.wait()
        return True

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await former.put(writer)

    monkeypatch.setattr(bench.client, "_is_all_confirmed", wait_for_the_disk)
    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        bench.client.follow(server.sockets[0].getsockname()[:2])
        await is_trying.wait()
        bench.client.follow(bench.server.sockets[0].getsockname()[:2])
        goes_on.set()
        await bench.master()
        while not former.empty():
            former.get_nowait().close()
