"""Logs of members over real stores: epochs, copies, cuts, and starts in between."""

from __future__ import annotations

import gc
import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from manual_clock import ManualClock
from store_model import HOST, SMALL, bodies_of, put, wait_flushed

from iotmq.errors import StoreCorruptError, StoreError
from iotmq.replicated.member_file import CONFIRMED_NAME, MemberFile
from iotmq.replicated.member_log import DIVERGED_DIRECTORY, EPOCH_TOPIC
from iotmq.replicated.member_store import MemberStore, open_member_store
from iotmq.replication.cluster_state import MemberAddress
from iotmq.replication.epochs import EpochStart, common_point
from iotmq.store.settings import StoreSettings


def open_member(directory: Path, member: int, *, boot_id: str = "boot", **more: int) -> MemberStore:
    settings = StoreSettings(
        **{**SMALL, **more},
        flush_interval_ms=3_600_000,
        checkpoint_interval_ms=3_600_000,  # type: ignore[arg-type]
    )
    return open_member_store(
        directory,
        settings,
        cluster="C",
        broker="b",
        member=member,
        acknowledge_flushed=False,
        store_host=HOST,
        boot_id=boot_id,
        clock=ManualClock(),
    )


def copy(master: MemberStore, follower: MemberStore, *, stop: int | None = None) -> None:
    """Send a follower what it has not got, in pieces."""
    while (position := follower.log.end) < min(stop or master.log.end, master.log.end):
        end = master.log.piece_end(position, 3_000)
        view = master.store.read_raw(position, end - position, end_position=master.log.end)
        assert len(view) == end - position
        follower.log.append_copy(position, end, bytes(view))


def confirm(member: MemberStore, position: int) -> None:
    if position > member.file.confirmed:
        member.file.note_confirmed(position)
    assert member.confirm(position) == position


def log_bytes(member: MemberStore) -> bytes:
    position, data = 0, b""
    while position < member.log.end:
        end = member.log.piece_end(position, 4096)
        data += member.store.read_raw(position, end - position, end_position=member.log.end)
        position = end
    return data


def test_epochs_are_found_again_confirmed_or_not(tmp_path: Path) -> None:
    member = open_member(tmp_path, 1)
    member.log.append_epoch(3, member.file.identity)
    first_end = put(member.store, "T", 0, b"one").end_position
    confirm(member, first_end)
    member.log.append_epoch(5, member.file.identity)
    put(member.store, "T", 0, b"two")
    epochs = list(member.log.epochs)
    assert epochs == [EpochStart(3, 0), EpochStart(5, first_end)]
    member.close()
    # As if the file were one from before: the log knows better.
    member = open_member(tmp_path, 1)
    assert list(member.log.epochs) == epochs
    member.file.note_epochs([])
    member.close()
    member = open_member(tmp_path, 1)
    assert list(member.log.epochs) == epochs
    assert member.store.confirmed_position == first_end
    member.close()


def test_members_of_a_state_that_is_older_than_the_log_are_not_remembered(tmp_path: Path) -> None:
    member = open_member(tmp_path, 2)
    before, now = (MemberAddress(1, "a:1"),), (MemberAddress(1, "a:1"), MemberAddress(2, "a:2"))
    member.note_members(before, 3)
    assert member.file.members == before
    member.log.append_epoch(4, member.file.identity)
    member.note_members(now, 4)
    member.note_members(before, 3)
    assert member.file.members == now
    member.close()


def test_epochs_of_a_beginning_that_was_deleted_are_known_from_the_file(tmp_path: Path) -> None:
    member = open_member(tmp_path, 1)
    member.store.start_at(8192)
    member.file.note_epochs([EpochStart(2, 100)])
    member.close()
    member = open_member(tmp_path, 1)
    assert member.log.oldest == 8192
    assert list(member.log.epochs) == [EpochStart(2, 100)]
    member.close()


def test_a_copy_has_the_same_epochs(tmp_path: Path) -> None:
    master, follower = open_member(tmp_path / "1", 1), open_member(tmp_path / "2", 2)
    for epoch in range(1, 6):
        master.log.append_epoch(epoch, master.file.identity)
        for number in range(5):
            put(master.store, "T", number % 2, b"x" * 300)
    copy(master, follower)
    assert follower.log.epochs == master.log.epochs
    assert follower.file.epochs == master.file.epochs
    assert log_bytes(follower) == log_bytes(master)
    master.close()
    follower.close()


def test_the_blank_at_the_end_of_a_file_is_sent_whole(tmp_path: Path) -> None:
    large = {"segment_bytes": 1 << 20, "record_bytes_max": 300_000}
    master, follower = open_member(tmp_path / "1", 1, **large), open_member(tmp_path / "2", 2, **large)
    for _ in range(8):
        put(master.store, "T", 0, b"x" * 250_000)
    assert master.log.end > 1 << 20, "the first file ends in a blank that takes no blocks"
    while (position := follower.log.end) < master.log.end:
        end = master.log.piece_end(position, 65_536)
        content = b"".join(master.log.read_piece(position, end))
        assert len(content) == end - position
        follower.log.append_copy(position, end, content)
    for member in (master, follower):
        confirm(member, member.log.end)
        assert member.store.check() == []
    master.close()
    follower.close()


def test_what_is_not_in_memory_is_told_before_it_is_read(tmp_path: Path) -> None:
    member = open_member(tmp_path, 1, hot_bytes=0)
    for number in range(100):
        put(member.store, "T", 0, b"%d" % number * 500)
    confirm(member, member.log.end)
    wait_flushed(member.store)
    member.close()
    # With the mappings of its files: pages that are mapped stay.
    del member
    gc.collect()
    for path in (tmp_path / "commitlog").iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    member = open_member(tmp_path, 1, hot_bytes=0)
    plan = member.log.cold_read(0, 4096)
    if plan is None:
        pytest.skip("this file system keeps in memory what it is told to drop")
    assert not member.log.is_at_hand(0, 4096)
    member.store.load(plan)
    assert member.log.is_at_hand(0, 4096)
    member.close()


def test_a_piece_that_ends_inside_a_record_is_refused(tmp_path: Path) -> None:
    master, follower = open_member(tmp_path / "1", 1), open_member(tmp_path / "2", 2)
    end = put(master.store, "T", 0, b"one").end_position
    data = bytes(master.store.read_raw(0, end, end_position=end))
    with pytest.raises(StoreCorruptError, match="ends inside a record"):
        follower.log.append_copy(0, end - 3, data[:-3])
    follower.log.append_copy(0, end, data)
    master.close()
    follower.close()


def test_what_is_cut_is_kept_aside_and_reported(tmp_path: Path) -> None:
    member = open_member(tmp_path, 1)
    member.log.append_epoch(1, member.file.identity)
    confirmed = member.log.end
    confirm(member, confirmed)
    member.log.append_epoch(2, member.file.identity)
    put(member.store, "T", 0, b"nobody has acknowledged this")
    member.log.cut(confirmed)
    assert list(member.log.epochs) == [EpochStart(1, 0)]
    kept = list((tmp_path / DIVERGED_DIRECTORY).glob("*.bin"))
    assert len(kept) == 1
    assert b"nobody has acknowledged this" in kept[0].read_bytes()
    assert len(list((tmp_path / DIVERGED_DIRECTORY).glob("*.json"))) == 1
    member.close()
    member = open_member(tmp_path, 1)
    assert list(member.log.epochs) == [EpochStart(1, 0)]
    member.close()


def test_a_log_that_lost_what_was_confirmed_has_a_new_incarnation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    member = open_member(tmp_path / "1", 1)
    put(member.store, "T", 0, b"one")
    shutil.copytree(tmp_path / "1" / "commitlog", tmp_path / "older")
    end = put(member.store, "T", 0, b"two" * 100).end_position
    confirm(member, end)
    identity = member.file.identity
    member.close()
    # An older image of the log.
    shutil.rmtree(tmp_path / "1" / "commitlog")
    shutil.copytree(tmp_path / "older", tmp_path / "1" / "commitlog")
    (tmp_path / "1" / "checkpoint").unlink()
    again = open_member(tmp_path / "1", 1)
    assert again.file.identity != identity
    assert again.file.identity.member == 1
    assert again.file.confirmed <= again.log.end < end
    assert "has lost what was confirmed" in caplog.text
    again.close()


@pytest.mark.parametrize("body", [b"not JSON", b'{"incarnation": "\xff"}'])
def test_records_that_begin_no_epoch_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    member = open_member(tmp_path, 1)
    put(member.store, EPOCH_TOPIC, 0, body)
    member.log.append_epoch(1, member.file.identity)
    member.close()
    member = open_member(tmp_path, 1)
    assert [start.epoch for start in member.log.epochs] == [1]
    assert "begins no epoch" in caplog.text
    member.close()


@pytest.mark.parametrize("seed", range(10))
def test_members_that_change_roles_end_with_the_same_log(tmp_path: Path, seed: int) -> None:
    """Masters change, processes are killed, tails are cut; what was confirmed stays, in order."""
    draw = random.Random(seed)
    runs = {1: 0, 2: 0}

    def directory(number: int) -> Path:
        return tmp_path / f"{number}.{runs[number]}"

    members = {number: open_member(directory(number), number) for number in runs}
    master = 1
    epoch = confirmed = 0
    acknowledged: list[bytes] = []
    pending: list[tuple[int, bytes]] = []

    def lead(number: int) -> None:
        """Begin an epoch, and have the other follow from the common point."""
        nonlocal master, epoch
        master, epoch = number, epoch + 1
        leader, follower = members[number], members[3 - number]
        leader.log.append_epoch(epoch, leader.file.identity)
        point = common_point(leader.log.epochs, leader.log.end, follower.log.epochs, follower.log.end) or 0
        assert point >= confirmed, "a follower would lose what was confirmed"
        if point < follower.log.end:
            follower.log.cut(point)
        pending[:] = [(end, body) for end, body in pending if end <= leader.log.end and end <= kept_end]

    kept_end = 0
    lead(1)
    for number in range(120):
        leader, follower = members[master], members[3 - master]
        action = draw.choices(("append", "copy", "confirm", "change", "kill"), (60, 20, 15, 5, 5))[0]
        if action == "append":
            body = b"%d " % number + b"x" * draw.choice((0, 100, 900))
            pending.append((put(leader.store, "T", 0, body).end_position, body))
        elif action == "copy":
            copy(leader, follower, stop=draw.choice((None, follower.log.end + 1)))
        elif action == "confirm":
            confirmed = max(confirmed, min(follower.log.end, leader.log.end))
            for member in (leader, follower):
                confirm(member, confirmed)
            acknowledged += [body for end, body in pending if end <= confirmed]
            pending = [(end, body) for end, body in pending if end > confirmed]
        elif action == "change":
            kept_end = follower.log.end
            lead(3 - master)
        else:
            victim = draw.choice((1, 2))
            old = directory(victim)
            wait_flushed(members[victim].store)
            runs[victim] += 1
            shutil.copytree(old, directory(victim))
            members[victim].close()
            members[victim] = open_member(directory(victim), victim)
            if members[victim].store.confirmed_position < confirmed:
                confirm(members[victim], confirmed)
    copy(members[master], members[3 - master])
    end = members[master].log.end
    acknowledged += [body for _, body in pending]
    assert log_bytes(members[1]) == log_bytes(members[2])
    assert members[1].log.epochs == members[2].log.epochs
    for member in members.values():
        confirm(member, end)
        assert bodies_of(member.store, "T", 0) == acknowledged
        assert member.store.check() == []
        member.close()


def test_a_directory_is_let_go_when_the_disk_does_not_take_the_last_word(tmp_path: Path) -> None:
    member = open_member(tmp_path, 1)
    member.log.append_epoch(1, member.file.identity)
    confirm(member, member.log.end)
    # As if the disk were full.
    (tmp_path / CONFIRMED_NAME).mkdir()
    with pytest.raises(StoreError, match="cannot write"):
        member.close()
    (tmp_path / CONFIRMED_NAME).rmdir()
    member = open_member(tmp_path, 1)
    assert [start.epoch for start in member.log.epochs] == [1]
    member.close()


def test_a_directory_is_let_go_when_opening_fails_behind_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = open_member(tmp_path, 1)
    member.log.append_epoch(1, member.file.identity)
    member.file.note_epochs([])
    member.close()

    def refuse(file: MemberFile, epochs: Iterable[EpochStart]) -> None:
        raise StoreError("no room")

    monkeypatch.setattr(MemberFile, "note_epochs", refuse)
    with pytest.raises(StoreError, match="no room"):
        open_member(tmp_path, 1)
    monkeypatch.undo()
    member = open_member(tmp_path, 1)
    assert [start.epoch for start in member.log.epochs] == [1]
    member.close()


def test_what_was_lost_is_not_forgotten_by_an_opening_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = open_member(tmp_path / "run", 1)
    for number in range(5):
        put(member.store, "T", 0, b"%d" % number * 300)
    confirm(member, member.log.end)
    member.file.save()
    shutil.copytree(tmp_path / "run", tmp_path / "crashed")
    identity, middle = member.file.identity, member.log.end // 2
    member.close()
    with open(min((tmp_path / "crashed" / "commitlog").iterdir()), "r+b") as segment:
        segment.seek(middle)
        segment.write(b"\xee" * 40)

    def refuse(file: MemberFile, *, confirmed: int) -> None:
        raise StoreError("no room")

    monkeypatch.setattr(MemberFile, "renew", refuse)
    with pytest.raises(StoreError, match="no room"):
        open_member(tmp_path / "crashed", 1)
    monkeypatch.undo()
    again = open_member(tmp_path / "crashed", 1)
    assert again.file.identity != identity
    again.close()


def test_of_a_piece_that_ends_inside_a_record_the_epochs_before_are_known(tmp_path: Path) -> None:
    master, follower = open_member(tmp_path / "1", 1), open_member(tmp_path / "2", 2)
    master.log.append_epoch(1, master.file.identity)
    put(master.store, "T", 0, b"one")
    data = log_bytes(master)
    with pytest.raises(StoreCorruptError, match="inside a record"):
        follower.log.append_copy(0, len(data) - 1, data[:-1])
    assert list(follower.log.epochs) == list(follower.file.epochs) == [EpochStart(1, 0)]
    copy(master, follower)
    assert log_bytes(follower) == data
    master.close()
    follower.close()


def test_a_log_is_cut_where_a_record_ends_or_not_at_all(tmp_path: Path) -> None:
    member = open_member(tmp_path, 1)
    first_end = put(member.store, "T", 0, b"one").end_position
    put(member.store, "T", 0, b"two")
    data = log_bytes(member)
    for position in (1, first_end - 1, first_end + 1, len(data) - 1):
        with pytest.raises(StoreCorruptError, match="no record ends"):
            member.log.cut(position)
    assert log_bytes(member) == data
    assert not (tmp_path / DIVERGED_DIRECTORY).exists()
    member.log.cut(first_end)
    assert log_bytes(member) == data[:first_end]
    member.close()
