"""Copies of a master's data over the native protocol, from both ends."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from eventually import soon
from manual_clock import ManualClock
from store_model import HOST, SMALL, bodies_of, put

from iotmq import limits
from iotmq.addresses import address_text
from iotmq.errors import RequestError
from iotmq.member.copy_download import CopyDownload, CopyError
from iotmq.member.copying import COPY_CODES, IDLE_S, Copies
from iotmq.member.copying_member import Copying
from iotmq.member.peers import PeerConnector
from iotmq.member.wire import Introduction, decode_begin_copy, encode_begin_copy
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.server import RemotingServer, ServerConnection, absent_connection
from iotmq.replicated.hot_copy import HotCopy
from iotmq.replicated.member_store import MemberStore, open_member_store
from iotmq.replication.cluster_state import Identity
from iotmq.replication.settings import ReplicationSettings
from iotmq.store.settings import StoreSettings

INTRODUCTION = Introduction(cluster="C", broker="b", segment_bytes=4096)


def open_member(directory: Path, member: int) -> MemberStore:
    return open_member_store(
        directory,
        StoreSettings(**SMALL, flush_interval_ms=3_600_000, checkpoint_interval_ms=3_600_000),  # type: ignore[arg-type]
        cluster="C",
        broker="b",
        member=member,
        acknowledge_flushed=False,
        store_host=HOST,
        boot_id="boot",
        clock=ManualClock(),
    )


class Master:
    """Member 1, which listens and serves copies."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.opened = open_member(directory, 1)
        self.copies = Copies(self.opened, clock=self.clock)
        self.server = RemotingServer(self)

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        assert request.code in COPY_CODES
        member = 0
        if request.code == RequestCode.BEGIN_COPY:
            introduction, identity = decode_begin_copy(request)
            assert introduction == INTRODUCTION
            member = identity.member
        return self.copies.handle(connection, request, member=member)

    def connection_lost(self, connection: ServerConnection) -> None:
        self.copies.connection_lost(connection)

    @property
    def connector(self) -> PeerConnector:
        address = address_text("127.0.0.1", self.server.port)
        return PeerConnector(ReplicationSettings(members=(f"1={address}",)), INTRODUCTION)

    async def connect(self) -> ClientConnection:
        return await self.connector.connect(1, timeout_s=3.0)


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Master]:
    master = Master(tmp_path / "1")
    master.opened.log.append_epoch(1, master.opened.file.identity)
    for number in range(40):
        put(master.opened.store, "T", 0, b"%d" % number * 300)
    master.opened.file.note_confirmed(master.opened.log.end)
    master.opened.confirm(master.opened.log.end)
    await master.server.start()
    yield master
    await master.copies.stop()
    await master.server.stop()
    master.opened.close()


@pytest.fixture
def follower(tmp_path: Path) -> tuple[Path, Identity]:
    opened = open_member(tmp_path / "2", 2)
    identity = opened.file.identity
    opened.close()
    return tmp_path / "2", identity


def download(master: Master, follower: tuple[Path, Identity], *, bytes_per_s: int = 0) -> CopyDownload:
    directory, identity = follower
    return CopyDownload(master.connector, directory, 1, identity, bytes_per_s=bytes_per_s, clock=master.clock)


async def begin(master: Master, member: int) -> tuple[ClientConnection, Command]:
    connection = await master.connect()
    answer = await connection.request(encode_begin_copy(Identity(member, "x"), INTRODUCTION))
    return connection, answer


def a_read(file: int = 0, at: int = 0, size: int = 1) -> Command:
    return Command.request(RequestCode.READ_COPY, {"file": str(file), "at": str(at), "size": str(size)})


async def test_a_copy_is_taken_and_the_log_let_go(master: Master, follower: tuple[Path, Identity]) -> None:
    taking = download(master, follower)
    assert "asks for it" in taking.progress
    assert await taking.run() is None
    assert taking.copied_bytes == taking.total_bytes > 0
    assert "put in place" in taking.progress
    await soon(lambda: master.copies.held_position is None, "the log is let go")
    await soon(lambda: list((follower[0].parent / "1" / "copies").iterdir()) == [], "nothing is left of it")
    opened = open_member(follower[0], 2)
    assert bodies_of(opened.store, "T", 0) == bodies_of(master.opened.store, "T", 0)
    assert opened.store.check() == []
    opened.close()


async def test_the_master_that_ends_meanwhile_leaves_everything_as_it_was(
    master: Master, follower: tuple[Path, Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = HotCopy.read
    loop = asyncio.get_running_loop()

    def read_and_end(hot: HotCopy, number: int, at: int, size: int) -> tuple[bytes, int]:
        if number == 3:
            asyncio.run_coroutine_threadsafe(master.copies.stop(), loop)
        return read(hot, number, at, size)

    monkeypatch.setattr(HotCopy, "read", read_and_end)
    with pytest.raises(CopyError, match="has not become whole"):
        await download(master, follower).run()
    assert not (follower[0] / "copy").exists()
    opened = open_member(follower[0], 2)
    assert opened.file.identity == follower[1]
    opened.close()


async def test_a_piece_that_is_damaged_on_its_way_ends_the_copy(
    master: Master, follower: tuple[Path, Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = HotCopy.read

    def read_wrongly(hot: HotCopy, number: int, at: int, size: int) -> tuple[bytes, int]:
        data, checksum = read(hot, number, at, size)
        return bytes(len(data)), checksum

    monkeypatch.setattr(HotCopy, "read", read_wrongly)
    with pytest.raises(Exception, match="did not arrive as it was sent"):
        await download(master, follower).run()
    assert not (follower[0] / "copy").exists()


async def test_a_copy_is_as_slow_as_it_is_told(
    master: Master, follower: tuple[Path, Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def note(delay_s: float) -> None:
        slept.append(delay_s)
        master.clock.advance(delay_s)
        await sleep(0)

    monkeypatch.setattr("iotmq.member.copy_download.asyncio.sleep", note)
    taking = download(master, follower, bytes_per_s=10_000)
    await taking.run()
    assert sum(slept) == pytest.approx(taking.total_bytes / 10_000)
    assert taking.remaining_s == 0


async def test_so_many_members_take_copies_at_a_time(master: Master) -> None:
    connections = []
    for member in range(2, 2 + limits.REPLICATION_COPIES_MAX):
        connection, answer = await begin(master, member)
        assert answer.code == ResponseCode.SUCCESS
        connections.append(connection)
    connection, answer = await begin(master, 100)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    connection.abort("refused")
    # The one that begins anew gives up its former copy for it.
    again, answer = await begin(master, 2)
    assert answer.code == ResponseCode.SUCCESS
    assert (await connections[0].request(a_read())).code == ResponseCode.SYSTEM_ERROR
    for connection in (*connections, again):
        connection.abort("done")
    await soon(lambda: master.copies.held_position is None, "all copies end with their connections")


async def test_so_many_reads_wait(master: Master, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    connection, _ = await begin(master, 2)
    event = asyncio.Event()

    async def wait(copies: Copies, call: Callable[[], object]) -> object:
        await event.wait()
        return call()

    monkeypatch.setattr(Copies, "_in_thread", wait)
    waiting = [connection.request(a_read(), 20.0) for _ in range(limits.COPY_READS_MAX)]
    refused = await connection.request(a_read())
    assert refused.code == ResponseCode.SYSTEM_BUSY
    event.set()
    assert {(await answer).code for answer in waiting} == {ResponseCode.SUCCESS}
    connection.abort("done")
    await soon(lambda: master.copies.held_position is None, "it ends")


@pytest.mark.parametrize(
    "request_",
    [
        a_read(file=-1),
        a_read(file=10_000),
        a_read(size=0),
        a_read(size=limits.COPY_PIECE_BYTES_MAX + 1),
        a_read(at=2**62),
        Command.request(RequestCode.READ_COPY, {"file": "../../etc/passwd", "at": "0", "size": "1"}),
        Command.request(RequestCode.READ_COPY),
    ],
    ids=str,
)
async def test_nothing_outside_the_list_is_read(master: Master, request_: Command) -> None:
    connection, _ = await begin(master, 2)
    assert (await connection.request(request_)).code == ResponseCode.SYSTEM_ERROR
    assert (await connection.request(a_read())).code == ResponseCode.SUCCESS
    connection.abort("done")


async def test_a_connection_without_a_copy_reads_nothing(master: Master) -> None:
    connection = await master.connect()
    assert (await connection.request(a_read())).code == ResponseCode.SYSTEM_ERROR
    other, _ = await begin(master, 2)
    assert (await connection.request(a_read())).code == ResponseCode.SYSTEM_ERROR
    connection.abort("done")
    other.abort("done")


async def test_a_copy_of_which_nothing_is_read_ends(master: Master) -> None:
    connection, _ = await begin(master, 2)
    master.clock.advance(IDLE_S - 1)
    master.copies.expire()
    assert (await connection.request(a_read())).code == ResponseCode.SUCCESS
    assert master.copies.held_position == 0
    master.clock.advance(IDLE_S)
    master.copies.expire()
    assert master.copies.held_position is None
    await soon(lambda: connection.is_closed, "its connection is closed")


def test_a_request_for_a_copy_comes_back_as_it_was() -> None:
    identity = Identity(3, "abc")
    assert decode_begin_copy(encode_begin_copy(identity, INTRODUCTION)) == (INTRODUCTION, identity)
    with pytest.raises(RequestError, match="invalid request for a copy"):
        decode_begin_copy(Command.request(RequestCode.BEGIN_COPY, None, b"{}"))


async def test_without_a_data_directory_of_its_own_nothing_is_copied(
    master: Master, follower: tuple[Path, Identity]
) -> None:
    shutil.rmtree(follower[0])
    with pytest.raises(Exception, match="is not there"):
        await download(master, follower).run()


async def test_a_member_that_takes_a_copy_says_how_far_it_is_to_those_who_may_ask(
    master: Master, follower: tuple[Path, Identity]
) -> None:
    may_ask = False

    def check(connection: ServerConnection, request: Command) -> None:
        if not may_ask:
            raise RequestError(ResponseCode.NO_PERMISSION, "not you")

    copying = Copying(download(master, follower), {"member": 2}, check_member=check)
    request = Command.request(RequestCode.GET_MEMBER_STATUS)
    with pytest.raises(RequestError, match="not you"):
        copying.handle(absent_connection(), request)
    may_ask = True
    answer = copying.handle(absent_connection(), request)
    assert answer is not None
    assert b'"role":"copying"' in answer.body_bytes()


async def test_the_directory_of_a_copy_is_gone_when_serving_copies_has_ended(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of one of which a piece is read at that time, and that takes a while to delete."""
    reads, may_read, closed = threading.Event(), threading.Event(), []
    read, close = HotCopy.read, HotCopy.close

    def read_slowly(hot: HotCopy, number: int, at: int, size: int) -> tuple[bytes, int]:
        reads.set()
        assert may_read.wait(30)
        return read(hot, number, at, size)

    def close_slowly(hot: HotCopy) -> None:
        time.sleep(0.1)
        close(hot)
        closed.append(hot)

    monkeypatch.setattr(HotCopy, "read", read_slowly)
    monkeypatch.setattr(HotCopy, "close", close_slowly)
    connection, _ = await begin(master, 2)
    connection.request(a_read()).cancel()
    await soon(reads.is_set, "a piece is read")
    stopping = asyncio.ensure_future(master.copies.stop())
    await soon(lambda: master.copies._copies[0].is_ended, "it is to end")
    may_read.set()
    await stopping
    assert len(closed) == 1
    assert list((master.opened.store.directory / "copies").iterdir()) == []
    connection, answer = await begin(master, 2)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert master.copies.held_position is None
