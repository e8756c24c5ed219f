"""The replication port: who may connect, who counts as a slave, and which of several."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import soon
from manual_clock import ManualClock
from store_model import put

from iotmq import limits
from iotmq.master_slave.ha_server import HaListening, HaServer
from iotmq.message.hosts import encode_host
from iotmq.replication.rocketmq.ha_master import FRAME_HEADER, HEARTBEAT_S, REPORT, SILENCE_S
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

LOOPBACK = ("127.0.0.0/8",)
FALL_BEHIND = 1_000


class Bench:
    """A port over a log with one message."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.store = Store.open(
            directory, StoreSettings(segment_bytes=1 << 20), store_host=encode_host("127.0.0.1", 1)
        )
        put(self.store, "T", 0, b"x")
        self.peers: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def start(self, allow: tuple[str, ...] = LOOPBACK, **settings: int) -> None:
        networks = tuple(ipaddress.ip_network(text) for text in allow)
        self.server = HaServer(
            self.store,
            self.clock,
            HaListening(host="127.0.0.1", port=0, allow=networks, **settings),
            fall_behind_bytes=FALL_BEHIND,
        )
        await self.server.start()

    async def connect(self, position: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        self.peers.append((reader, writer))
        if position is not None:
            writer.write(REPORT.pack(position))
        return reader, writer

    async def stop(self) -> None:
        for _, writer in self.peers:
            writer.close()
        await self.server.stop()
        self.store.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    await bench.stop()


async def is_ended(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(10):
        try:
            return await reader.read(1) == b""
        except ConnectionError:
            return True


@pytest.mark.parametrize(
    ("allow", "expected"),
    [
        (("127.0.0.1",), True),
        (("10.0.0.0/8", "127.0.0.0/8"), True),
        (("::/0",), False),
        (("127.0.0.2/31",), False),
        ((), False),
    ],
)
async def test_only_addresses_that_are_allowed_may_connect(
    bench: Bench, allow: tuple[str, ...], expected: bool
) -> None:
    await bench.start(allow)
    reader, _ = await bench.connect(0)
    if expected:
        assert FRAME_HEADER.unpack(await reader.readexactly(FRAME_HEADER.size))[0] == 0
    else:
        assert await is_ended(reader)
    assert bench.server.strangers_count == (not expected)


async def test_a_mapped_address_is_the_one_it_stands_for(bench: Bench) -> None:
    await bench.start()
    assert bench.server._is_allowed("::ffff:127.0.0.1")
    assert not bench.server._is_allowed("::ffff:10.0.0.1")
    assert not bench.server._is_allowed("fe80::1%eth0")


async def test_connections_have_a_maximum(bench: Bench) -> None:
    assert HaListening(host="", port=0, allow=()).connections_max == limits.HA_CONNECTIONS_MAX
    await bench.start(connections_max=2)
    for _ in range(2):
        await bench.connect(0)
    await soon(lambda: len(bench.server._links) == 2, "two are connected")
    reader, _ = await bench.connect(0)
    assert await is_ended(reader)
    assert (len(bench.server._links), bench.server.crowded_count) == (2, 1)


async def test_a_slave_counts_from_its_first_report_and_until_it_is_gone(bench: Bench) -> None:
    await bench.start()
    told: list[int] = []
    bench.server.add_listener(lambda: told.append(bench.server.reported_position))
    end_position = bench.store.appended_position
    _, first = await bench.connect()
    await soon(lambda: len(bench.server._links) == 1, "it is connected")
    assert not bench.server.is_ok(end_position), "it has said nothing yet"
    assert bench.server.replication_state().followers == []
    first.write(REPORT.pack(end_position))
    await soon(lambda: told == [end_position], "it has reported")
    assert bench.server.is_ok(end_position + FALL_BEHIND - 1)
    assert not bench.server.is_ok(end_position + FALL_BEHIND)
    # The one that takes its place has nothing: what the other had says nothing of it.
    _, second = await bench.connect(0)
    await soon(lambda: len(bench.server._links) == 2, "the second is connected")
    await soon(lambda: len(bench.server.replication_state().followers) == 2, "and has reported")
    state = bench.server.replication_state()
    assert (state.mode, state.end, state.confirmed) == ("master_slave", end_position, end_position)
    assert {(each.position, each.behind_bytes, each.is_in_sync) for each in state.followers} == {
        (end_position, 0, True),
        (0, end_position, True),
    }
    first.close()
    await soon(lambda: told[-1] in (-1, 0), "the first is gone")
    await soon(lambda: told[-1] == 0, "the second counts")
    second.close()
    await soon(lambda: told[-1] == -1, "both are gone")
    assert not bench.server.is_ok(0)


async def test_a_quiet_slave_is_sent_heartbeats_and_a_silent_one_is_ended(bench: Bench) -> None:
    await bench.start()
    end_position = bench.store.appended_position
    reader, _ = await bench.connect(end_position)
    await soon(lambda: bench.server.reported_position == end_position, "it has reported")
    bench.clock.advance(HEARTBEAT_S)
    bench.server.look()
    async with asyncio.timeout(10):
        assert FRAME_HEADER.unpack(await reader.readexactly(FRAME_HEADER.size)) == (end_position, 0)
    bench.clock.advance(SILENCE_S)
    bench.server.look()
    assert await is_ended(reader)
    assert bench.server.refused_count == 1


async def test_a_log_in_memory_no_more_is_read_in_a_thread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.start()
    plans: list[object] = ["plan"]
    loaded: list[object] = []
    monkeypatch.setattr(bench.store, "plan_raw", lambda position, size: plans.pop() if plans else None)
    monkeypatch.setattr(bench.store, "load", loaded.append)
    reader, _ = await bench.connect(0)
    async with asyncio.timeout(10):
        position, size = FRAME_HEADER.unpack(await reader.readexactly(FRAME_HEADER.size))
    assert (position, size, loaded) == (0, bench.store.appended_position, ["plan"])


async def test_a_disk_that_refuses_ends_the_connection(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.start()

    def refuse(plan: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(bench.store, "plan_raw", lambda position, size: "plan")
    monkeypatch.setattr(bench.store, "load", refuse)
    reader, _ = await bench.connect(0)
    assert await is_ended(reader)
    assert bench.server.refused_count == 1
