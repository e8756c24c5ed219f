"""Compare the logs of members in this process, and ask a member for checksums of its log."""

from __future__ import annotations

import argparse
import asyncio
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from eventually import soon
from member_site import ACCOUNTS, SEGMENT_BYTES, MakeSite, Site, send

from iotmq import limits
from iotmq.commands.replication import _verify
from iotmq.config.config import Config
from iotmq.errors import BrokerError
from iotmq.member.log_checksums import STEP_BYTES, LogChecksum
from iotmq.member.log_comparison import DIFFERENCES_MAX, LogComparison
from iotmq.member.peers import PeerConnector
from iotmq.member.wire import Introduction
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.replication.settings import ReplicationSettings

FAST = 10**9


def connector_of(site: Site, **keys: str) -> PeerConnector:
    members = tuple(f"{n}=127.0.0.1:{p}" for n, p in site.ports.items())
    introduction = Introduction(cluster="DefaultCluster", broker="b", segment_bytes=SEGMENT_BYTES)
    return PeerConnector(ReplicationSettings(members=members, **keys), introduction)


async def compare(site: Site, **options: Any) -> LogComparison:
    statuses = [site.status(number) for number in site.members]
    comparison = LogComparison(
        connector_of(site),
        sorted(site.members),
        positions=range(
            max(status["oldest"] for status in statuses if status),
            min(status["confirmed"] for status in statuses if status),
        ),
        bytes_per_s=FAST,
        **options,
    )
    await asyncio.wait_for(comparison.run(), 60)
    return comparison


async def filled(site: Site, bodies: list[bytes]) -> int:
    """Start all members and send; return the position up to which all have confirmed it."""
    master = await site.start_all()
    await site.in_sync(len(site.members))
    connection = await site.connect(master)
    for body in bodies:
        assert (await send(connection, body)).code == ResponseCode.SUCCESS
    end = (site.status(master) or {})["end"]
    await soon(lambda: all((site.status(n) or {})["confirmed"] == end for n in site.members), "all confirmed")
    return int(end)


def log_file(site: Site, number: int, position: int) -> tuple[Path, int]:
    start = position - position % SEGMENT_BYTES
    return site.directory / str(number) / "commitlog" / f"{start:020}", position - start


async def changed(site: Site, number: int, change: Callable[[], None]) -> None:
    """Change the files of a member while it is stopped."""
    await site.stop(number)
    change()
    await site.start(number)
    await site.in_sync(len(site.ports))


def overwrite(site: Site, number: int, position: int, data: bytes) -> Callable[[], None]:
    def write() -> None:
        path, at = log_file(site, number, position)
        with path.open("r+b") as file:
            file.seek(at)
            assert file.read(len(data)) != data
            file.seek(at)
            file.write(data)

    return write


def position_of(site: Site, number: int, offset: int) -> int:
    run = site.run(number)
    queue = run.opened.store.find_queue("T", 0)
    assert queue is not None
    entry = queue.entry(offset)
    assert entry is not None
    return entry[0]


async def test_members_with_the_same_log_are_found_equal_whatever_stands_behind_a_blank(
    make: MakeSite,
) -> None:
    site = make()
    # Each file of the log ends in a blank, and pieces end inside of files and records.
    await filled(site, [bytes([number]) * 700_000 for number in range(14)])
    follower = next(number for number, member in site.members.items() if not member.broker)
    behind = SEGMENT_BYTES - 1_000
    assert position_of(site, follower, 5) >= SEGMENT_BYTES > position_of(site, follower, 4) + 701_000 + 1_000
    await changed(site, follower, overwrite(site, follower, behind, b"what another broker left"))
    progress: list[int] = []
    for piece_bytes in (1, 100_000, 3_000_000, 64 * 2**20):
        comparison = await compare(site, piece_bytes=piece_bytes, progress=progress.append)
        assert comparison.differences == []
        assert progress[-1] == comparison._positions.stop
    assert comparison.deleted_bytes == 0


@pytest.mark.parametrize("is_master", [False, pytest.param(True, marks=pytest.mark.damaged_store)])
async def test_a_record_that_differs_is_found_with_the_member_most_contradict(
    make: MakeSite, is_master: bool
) -> None:
    site = make()
    await filled(site, [b"%03d" % number for number in range(200)])
    master = await site.master()
    hurt = next(number for number in site.members if (number == master) is is_master)
    position = position_of(site, hurt, 123)
    change = overwrite(site, hurt, position + 90, b"?")
    if is_master:
        # A disk that changes what it had, while the member serves.
        change()
    else:
        # Its start finds that, and writes a marker over it.
        await changed(site, hurt, change)
    others = tuple(number for number in site.members if number != hurt)
    (difference,) = (await compare(site)).differences
    assert difference.start_position == position
    assert difference.end_position == position_of(site, others[0], 124)
    assert difference.in_minority() == (hurt,)
    found = {opinion.members: opinion.found for opinion in difference.opinions}
    assert found[others].startswith("record of T/0, offset 123 (CRC-32 ")
    kind = "damage" if is_master else "marker of lost records of T/0, offset 123"
    assert found[hurt,].startswith(f"{kind} (CRC-32 ")


async def test_logs_that_differ_in_many_records_are_not_searched_without_end(make: MakeSite) -> None:
    site = make(2)
    await filled(site, [b"%03d" % number for number in range(100)])
    hurt = next(number for number, member in site.members.items() if not member.broker)
    positions = [position_of(site, hurt, offset) for offset in range(0, 100, 2)]

    def change() -> None:
        for position in positions:
            overwrite(site, hurt, position + 90, b"?")()

    await changed(site, hurt, change)
    differences = (await compare(site)).differences
    assert [each.start_position for each in differences[:DIFFERENCES_MAX]] == positions[:DIFFERENCES_MAX]
    assert len(differences) < len(positions)
    assert differences[-1].start_position <= positions[-1] < differences[-1].end_position
    assert all(each.in_minority() == () for each in differences), "two members are of no one's opinion"


async def test_a_member_without_records_at_a_place_is_compared_by_bytes(make: MakeSite) -> None:
    site = make()
    await filled(site, [b"%03d" % number for number in range(50)])
    # The first member, which is asked where records end, has the size of one wrong.
    position = position_of(site, 1, 20)
    await changed(site, 1, overwrite(site, 1, position, b"\xff"))
    (difference,) = (await compare(site)).differences
    assert (difference.start_position, difference.in_minority()) == (position, (1,))


async def ask(site: Site, number: int, **fields: int) -> LogChecksum:
    ext = {"bytesPerSecond": str(FAST), **{name: str(value) for name, value in fields.items()}}
    answer = await connector_of(site).request(number, RequestCode.GET_LOG_CHECKSUM, ext, timeout_s=10.0)
    return msgspec.json.decode(answer.body_bytes(), type=LogChecksum)


async def test_a_checksum_is_that_of_the_bytes_of_whole_records(make: MakeSite) -> None:
    site = make(1)
    await site.start_all(replication={"in_sync_min": 1})
    connection = await site.connect(1)
    for number in range(50):
        assert (await send(connection, bytes([number]) * 100_000)).code == ResponseCode.SUCCESS
    status = site.status(1)
    assert status is not None
    end = status["confirmed"]
    data = log_file(site, 1, 0)[0].read_bytes()
    first, second = position_of(site, 1, 0), position_of(site, 1, 1)
    one = await ask(site, 1, position=first, end=end, bytesMax=second - first)
    assert (one.end, one.count, one.crc32) == (second, 1, zlib.crc32(data[first:second]))
    assert one.found is not None
    assert (one.found.topic, one.found.queue_id, one.found.offset) == ("T", 0, 0)
    two_short = await ask(site, 1, position=first, end=end, bytesMax=2 * (second - first) - 1)
    assert (two_short.end, two_short.count) == (second, 1)
    many = await ask(site, 1, position=0, end=end, bytesMax=limits.REPLICATION_CHECKSUM_BYTES_MAX)
    # Longer than one step: the file's records, and the header of the blank at its end.
    assert STEP_BYTES < many.end < many.next_position == SEGMENT_BYTES
    assert many.crc32 == zlib.crc32(data[: many.end])
    exact = await ask(site, 1, position=5, end=STEP_BYTES + 7)
    assert exact.crc32 == zlib.crc32(data[5 : STEP_BYTES + 7])


async def test_what_cannot_be_asked_is_refused(make: MakeSite) -> None:
    site = make(1)
    await site.start_all(replication={"in_sync_min": 1})
    status = site.status(1)
    assert status is not None
    end = status["confirmed"]
    largest = limits.REPLICATION_CHECKSUM_BYTES_MAX
    await ask(site, 1, position=0, end=end, bytesMax=largest)
    for fields in (
        {"position": 0, "end": end, "bytesMax": largest + 1},
        {"position": 0, "end": end + 1},
        {"position": end, "end": end},
        {"position": 0, "end": end, "bytesPerSecond": limits.REPLICATION_CHECKSUM_BYTES_PER_S_MIN - 1},
        {"position": 0, "end": end, "bytesPerSecond": limits.REPLICATION_CHECKSUM_BYTES_PER_S_MAX + 1},
        {"position": 1, "end": end, "bytesMax": 1},
        {"position": 0},
    ):
        with pytest.raises(BrokerError):
            await ask(site, 1, **fields)
    for rate in (limits.REPLICATION_CHECKSUM_BYTES_PER_S_MIN, limits.REPLICATION_CHECKSUM_BYTES_PER_S_MAX):
        await ask(site, 1, position=0, end=end, bytesPerSecond=rate)


async def test_only_some_checksums_are_computed_at_once(make: MakeSite) -> None:
    site = make(1)
    await site.start_all(replication={"in_sync_min": 1})
    connection = await site.connect(1)
    for _ in range(3):
        assert (await send(connection, b"x" * 1_000_000)).code == ResponseCode.SUCCESS
    status = site.status(1)
    assert status is not None
    # Each takes three seconds at the slowest rate.
    fields = {"position": "0", "end": str(status["confirmed"]), "bytesPerSecond": str(2**20)}
    asker = await site.connect(1)
    waiting = [
        asker.request(Command.request(RequestCode.GET_LOG_CHECKSUM, fields), 30.0)
        for _ in range(limits.REPLICATION_CHECKSUMS_MAX)
    ]
    other = await site.connect(1)
    refused = await other.request(Command.request(RequestCode.GET_LOG_CHECKSUM, fields))
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert not any(each.done() for each in waiting)
    # Sends go on meanwhile, and what was asked by a connection that has ended is not computed.
    assert (await send(connection, b"y")).code == ResponseCode.SUCCESS
    asker.abort("gone")
    await asyncio.gather(*waiting, return_exceptions=True)
    run = site.run(1)
    await soon(lambda: not run.driver._checksums._tasks, "nothing is computed")
    assert (await ask(site, 1, position=0, end=status["confirmed"])).crc32


async def test_checksums_are_for_administrators_where_access_is_controlled(
    make: MakeSite, tmp_path: Path
) -> None:
    accounts = tmp_path / "accounts.yml"
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    site = make(1)
    own = {"access_key": "members", "secret_key": "abcdefgh"}
    controlled = {"acl_enabled": True, "acl_file": str(accounts)}
    await site.start_all(broker=controlled, replication={**own, "in_sync_min": 1})
    status = site.status(1)
    assert status is not None
    fields = {"position": "0", "end": str(status["confirmed"]), "bytesPerSecond": str(FAST)}
    for keys in ({}, {"access_key": "services", "secret_key": "12345678"}):
        with pytest.raises(BrokerError) as refused:
            await connector_of(site, **keys).request(1, RequestCode.GET_LOG_CHECKSUM, fields, timeout_s=5.0)
        assert refused.value.code == ResponseCode.NO_PERMISSION
    answer = await connector_of(site, **own).request(1, RequestCode.GET_LOG_CHECKSUM, fields, timeout_s=5.0)
    assert answer.body_bytes()


async def test_operators_are_told_what_was_compared(
    make: MakeSite, capsys: pytest.CaptureFixture[str]
) -> None:
    site = make()
    end = await filled(site, [b"%03d" % number for number in range(20)])
    options = argparse.Namespace(bytes_per_s=FAST, is_json=False)
    assert await _verify(options, Config(), connector_of(site)) == 0
    assert f"members 1, 2, 3: {end:,} bytes, positions 0..{end}, in " in capsys.readouterr().out
    await site.stop(next(number for number, member in site.members.items() if not member.broker))
    options.is_json = True
    assert await _verify(options, Config(), connector_of(site)) == 1, "a member is missing"
    report = json.loads(capsys.readouterr().out)
    assert (len(report["members"]), len(report["missing"]), report["differences"]) == (2, 1, [])
