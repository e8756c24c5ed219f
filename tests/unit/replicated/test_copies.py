"""Copies of a member's data, made while it is in use and put in the place of what another member had."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from eventually import eventually
from last_values import LastValues
from manual_clock import ManualClock
from store_model import HOST, SMALL, bodies_of, put

from iotmq import limits
from iotmq.errors import StoreCorruptError, StoreError, StoreFullError
from iotmq.replicated import incoming_copy
from iotmq.replicated.hot_copy import CopiedFile, CopyList, HotCopy, remove_copies
from iotmq.replicated.incoming_copy import IncomingCopy, finish_copy, kept_directories, lock_directory
from iotmq.replicated.member_file import FILE_NAME
from iotmq.replicated.member_store import MemberStore, open_member_store
from iotmq.replication.epochs import EpochStart, common_point
from iotmq.store.settings import StoreSettings

SETTINGS = {
    **SMALL,
    "flush_interval_ms": 3_600_000,
    "checkpoint_interval_ms": 3_600_000,
    "retention_delay_ms": 0,
    "retention_hours": 1,
    "delete_pause_ms": 0,
}
FIRST_BODIES = [b"%d" % number * 200 for number in range(60)]
ONLY_ONCE = "OnlyOnce"


def open_member(directory: Path, member: int, clock: ManualClock | None = None) -> MemberStore:
    return open_member_store(
        directory,
        StoreSettings(**SETTINGS),  # type: ignore[arg-type]
        cluster="C",
        broker="b",
        member=member,
        acknowledge_flushed=False,
        store_host=HOST,
        boot_id="boot",
        clock=clock or ManualClock(),
    )


def confirm_all(member: MemberStore) -> None:
    if member.log.end > member.file.confirmed:
        member.file.note_confirmed(member.log.end)
    assert member.confirm(member.log.end) == member.log.end


def put_value(member: MemberStore, queue: int, body: bytes) -> None:
    put(member.store, "T", queue, body, properties=b"MQTT_TOPIC\x01t%d\x02" % queue)


def master_without_beginning(directory: Path) -> tuple[MemberStore, LastValues]:
    """A master whose log no longer begins at 0; what retention has deleted is in its database alone."""
    clock = ManualClock()
    master = open_member(directory, 1, clock)
    values = LastValues.add_to(master.store)
    master.log.append_epoch(1, master.file.identity)
    put(master.store, ONLY_ONCE, 3, b"gone")
    put(master.store, "T", 9, b"gone", properties=b"MQTT_TOPIC\x01old\x02")
    for body in FIRST_BODIES[:40]:
        put_value(master, 0, body)
    confirm_all(master)
    clock.advance(7_200)
    for body in FIRST_BODIES[40:]:
        put_value(master, 0, body)
    master.log.append_epoch(2, master.file.identity)
    confirm_all(master)
    master.store.request_flush()
    eventually(lambda: master.store.flushed_position == master.log.end, "all is flushed")

    def is_deleted() -> bool:
        master.store.delete_expired()
        return master.store.gone_position > 0

    eventually(is_deleted, "the oldest files are deleted")
    assert master.log.oldest > 0
    (directory / "config").mkdir()
    (directory / "config" / "topics.json").write_text('{"master": true}')
    (directory / "config" / "plain_acl.yml").write_text("accounts: []")
    return master, values


def begin(master: MemberStore) -> tuple[HotCopy, CopyList]:
    hot = HotCopy(master, master.store.directory / "copies" / "0")
    hot.prepare()
    content = hot.list_files()
    # As over the wire.
    return hot, msgspec.json.decode(msgspec.json.encode(content), type=CopyList)


def take(hot: HotCopy, incoming: IncomingCopy, bytes_max: int = 1000) -> None:
    for number, at, size in incoming.pieces(bytes_max):
        data, checksum = hot.read(number, at, size)
        incoming.check(number, at, data, checksum)
        incoming.write(number, at, [data[:300], data[300:]])


def copy_to(directory: Path, master: MemberStore) -> Path | None:
    hot, content = begin(master)
    incoming = IncomingCopy(directory, content)
    take(hot, incoming)
    kept = incoming.install()
    incoming.close()
    hot.close()
    return kept


def follow(master: MemberStore, follower: MemberStore) -> None:
    """Do what a master and its follower do after a copy."""
    point = common_point(master.log.epochs, master.log.end, follower.log.epochs, follower.log.end)
    assert point == follower.log.end
    while (position := follower.log.end) < master.log.end:
        end = master.log.piece_end(position, 3_000)
        view = master.store.read_raw(position, end - position, end_position=master.log.end)
        follower.log.append_copy(position, end, bytes(view))
    confirm_all(follower)


def test_a_new_member_begins_with_a_copy_and_follows_from_there(tmp_path: Path) -> None:
    master, values = master_without_beginning(tmp_path / "1")
    follower = open_member(tmp_path / "2", 2)
    old = follower.file.identity
    follower.file.promise(2)
    follower.close()
    hot, content = begin(master)
    # The copy is what it was when it was begun, while the master goes on, into further files.
    for number in range(30):
        put_value(master, 1, b"later %d" % number * 50)
    confirm_all(master)
    incoming = IncomingCopy(tmp_path / "2", content)
    take(hot, incoming)
    assert incoming.copied_bytes == incoming.total_bytes == sum(file.size for file in content.files)
    assert incoming.install() is None, "there was nothing to keep"
    incoming.close()
    hot.close()
    assert not (tmp_path / "1" / "copies" / "0").exists()
    assert not (tmp_path / "2" / "copy").exists()
    follower = open_member(tmp_path / "2", 2)
    assert follower.file.identity.member == 2
    assert follower.file.identity != old
    assert follower.file.promised_epoch == 2
    assert follower.file.confirmed == follower.log.end == content.confirmed
    assert follower.log.oldest == master.log.oldest
    assert follower.log.epochs == [start for start in master.log.epochs if start.position < content.confirmed]
    copied_values = LastValues.add_to(follower.store)
    follow(master, follower)
    assert copied_values.places() == values.places()
    assert copied_values.find(b"old") is not None, "it is in the database alone"
    for queue in (0, 1):
        assert bodies_of(follower.store, "T", queue) == bodies_of(master.store, "T", queue)
    # A queue of which the log has nothing left goes on where it was.
    assert follower.store.queue(ONLY_ONCE, 3).max_offset == 1
    assert follower.store.check() == master.store.check() == []
    assert json.loads((tmp_path / "2" / "config" / "topics.json").read_text()) == {"master": True}
    assert not (tmp_path / "2" / "config" / "plain_acl.yml").exists(), "accounts are no part of a copy"
    follower.close()
    follower = open_member(tmp_path / "2", 2)
    assert follower.store.check() == []
    follower.close()
    master.close()


def test_what_was_confirmed_is_kept_when_a_copy_takes_its_place(tmp_path: Path) -> None:
    master, _ = master_without_beginning(tmp_path / "1")
    follower = open_member(tmp_path / "2", 2)
    put(follower.store, "Own", 0, b"confirmed once")
    confirm_all(follower)
    incarnation = follower.file.identity.incarnation
    follower.close()
    tables = tmp_path / "2" / "config"
    tables.mkdir()
    (tables / "topics.json").write_text("old")
    (tables / "plain_acl.yml").write_text("own accounts")
    kept = copy_to(tmp_path / "2", master)
    assert kept == tmp_path / "2" / "replaced" / incarnation
    assert kept_directories(tmp_path / "2") == [kept]
    assert (kept / "config" / "topics.json").read_text() == "old"
    assert (tables / "plain_acl.yml").read_text() == "own accounts"
    # It is a data directory of its own.
    old = open_member(kept, 2)
    assert bodies_of(old.store, "Own", 0) == [b"confirmed once"]
    assert old.file.identity.incarnation == incarnation
    old.close()
    follower = open_member(tmp_path / "2", 2)
    assert follower.log.oldest == master.log.oldest
    assert follower.store.find_queue("Own", 0) is None
    assert follower.store.check() == []
    follower.close()
    master.close()


def test_retention_holds_back_what_a_copy_has(tmp_path: Path) -> None:
    master, _ = master_without_beginning(tmp_path / "1")
    oldest = master.log.oldest
    hot, content = begin(master)
    assert hot.held_position == oldest
    master.store.held_position = lambda: hot.held_position
    master.store._clock.advance(7_200)  # type: ignore[attr-defined]
    put_value(master, 0, b"x" * 1_000)
    confirm_all(master)
    master.store.request_flush()
    eventually(lambda: master.store.flushed_position == master.log.end, "all is flushed")
    master.store.delete_expired()
    assert master.log.oldest == oldest
    incoming = IncomingCopy(lock_and_make(tmp_path / "2"), content)
    take(hot, incoming)
    incoming.close()
    hot.close()
    master.store.held_position = None
    master.store.delete_expired()
    assert master.log.oldest > oldest
    master.close()


def lock_and_make(directory: Path) -> Path:
    lock_directory(directory).release()
    return directory


def test_a_copy_has_no_piece_that_is_not_in_its_list(tmp_path: Path) -> None:
    master, _ = master_without_beginning(tmp_path / "1")
    hot, content = begin(master)
    last = len(content.files) - 1
    size = content.files[last].size
    data, checksum = hot.read(last, 0, size)
    assert (len(data), checksum) == (size, zlib.crc32(data))
    for number, at, count in (
        (-1, 0, 1),
        (last + 1, 0, 1),
        (last, -1, 1),
        (last, 0, 0),
        (last, 0, size + 1),
        (last, size, 1),
        (0, 0, limits.COPY_PIECE_BYTES_MAX + 1),
    ):
        with pytest.raises(ValueError, match="has"):
            hot.read(number, at, count)
    log_file = next(n for n, file in enumerate(content.files) if file.name.startswith("commitlog/"))
    os.unlink(tmp_path / "1" / content.files[log_file].name)
    with pytest.raises(FileNotFoundError):
        hot.read(log_file, 0, 1)
    hot.close()
    master.close()


def test_a_piece_of_the_largest_size_is_read(tmp_path: Path) -> None:
    master, _ = master_without_beginning(tmp_path / "1")
    (tmp_path / "1" / "config" / "large.json").write_bytes(b"x" * (limits.COPY_PIECE_BYTES_MAX + 1))
    hot, content = begin(master)
    number = next(n for n, file in enumerate(content.files) if file.name == "config/large.json")
    assert hot.read(number, 1, limits.COPY_PIECE_BYTES_MAX)[0] == b"x" * limits.COPY_PIECE_BYTES_MAX
    with pytest.raises(ValueError, match="has no"):
        hot.read(number, 0, limits.COPY_PIECE_BYTES_MAX + 1)
    hot.close()
    master.close()


def test_copies_that_a_killed_master_has_left_are_deleted(tmp_path: Path) -> None:
    master, _ = master_without_beginning(tmp_path / "1")
    begin(master)
    master.close()
    assert (tmp_path / "1" / "copies").is_dir()
    remove_copies(tmp_path / "1")
    assert not (tmp_path / "1" / "copies").exists()
    assert open_and_check(tmp_path / "1") == []


def open_and_check(directory: Path, member: int = 1) -> list[str]:
    opened = open_member(directory, member)
    problems = opened.store.check()
    opened.close()
    return problems


def a_list(**changes: object) -> CopyList:
    fields: dict[str, object] = {
        "oldest": 4096,
        "confirmed": 9_000,
        "epochs": (EpochStart(1, 0), EpochStart(2, 5_000)),
        "files": (
            CopiedFile("commitlog/00000000000000004096", 4096, 4096),
            CopiedFile("commitlog/00000000000000008192", 808, 4096),
            CopiedFile("kv/000012.sst", 10, 10),
            CopiedFile("config/topics.json", 10, 10),
            CopiedFile("consumequeue.begins", 10, 10),
        ),
        **changes,
    }
    return CopyList(**fields)  # type: ignore[arg-type]


def with_file(file: CopiedFile) -> CopyList:
    return a_list(files=(*a_list().files, file))


def test_a_list_of_a_master_is_taken(tmp_path: Path) -> None:
    IncomingCopy(tmp_path, a_list()).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        with_file(CopiedFile("../outside", 1, 1)),
        with_file(CopiedFile("/etc/outside", 1, 1)),
        with_file(CopiedFile("kv/../../outside", 1, 1)),
        with_file(CopiedFile("kv/..", 1, 1)),
        with_file(CopiedFile("kv/.", 1, 1)),
        with_file(CopiedFile("kv/a/b", 1, 1)),
        with_file(CopiedFile("kv/a\0", 1, 1)),
        with_file(CopiedFile("kv/a\n", 1, 1)),
        with_file(CopiedFile("", 1, 1)),
        with_file(CopiedFile("replication", 1, 1)),
        with_file(CopiedFile("swap", 1, 1)),
        with_file(CopiedFile("config/plain_acl.yml", 1, 1)),
        with_file(CopiedFile("config/topics.json", 1, 1)),
        with_file(CopiedFile("commitlog/1", 1, 1)),
        with_file(CopiedFile("commitlog/00000000000000016384", 0, 4096)),
        with_file(CopiedFile("kv/large", 2, 1)),
        with_file(CopiedFile("kv/negative", -1, 1)),
        a_list(oldest=-1),
        a_list(oldest=9_001),
        a_list(oldest=0),
        a_list(confirmed=20_000),
        a_list(confirmed=8_999),
        a_list(epochs=(EpochStart(1, 5_000), EpochStart(2, 5_000))),
        a_list(epochs=(EpochStart(1, 9_000),)),
        a_list(epochs=(EpochStart(1, -1),)),
        a_list(files=a_list().files[1:]),
        a_list(files=tuple(CopiedFile(f"kv/{n}", 0, 0) for n in range(limits.COPY_FILES_MAX + 1))),
    ],
)
def test_a_list_that_no_master_sends_is_refused(tmp_path: Path, content: CopyList) -> None:
    with pytest.raises(StoreCorruptError, match="no copy"):
        IncomingCopy(tmp_path, content)
    assert list(tmp_path.iterdir()) == []


def test_as_many_files_as_a_copy_may_have_are_taken(tmp_path: Path) -> None:
    files = tuple(CopiedFile(f"kv/{n}", 0, 0) for n in range(limits.COPY_FILES_MAX))
    IncomingCopy(tmp_path, a_list(oldest=0, confirmed=0, epochs=(), files=files)).close()


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="same version on all members"):
        IncomingCopy(tmp_path, a_list(format=2))


def test_a_copy_for_which_there_is_no_room_is_refused(tmp_path: Path) -> None:
    large = CopiedFile("kv/large", 2**60, 2**60)
    with pytest.raises(StoreFullError, match="give it room"):
        IncomingCopy(tmp_path, with_file(large))
    assert list(tmp_path.iterdir()) == []


def test_a_piece_that_changed_on_its_way_is_refused(tmp_path: Path) -> None:
    incoming = IncomingCopy(tmp_path, a_list())
    with pytest.raises(StoreCorruptError, match="did not arrive as it was sent"):
        incoming.check(0, 0, b"x" * 4096, zlib.crc32(b"y" * 4096))
    incoming.close()
    assert list(tmp_path.iterdir()) == []


class StoppedError(Exception):
    """The process ends here."""


def stop_at(monkeypatch: pytest.MonkeyPatch, place: str, count: int) -> Callable[[], bool]:
    """End at the COUNT-th time that a place is reached; tells whether that has happened."""
    left = count

    def reach(name: str) -> None:
        nonlocal left
        if name == place:
            left -= 1
            if left == 0:
                raise StoppedError

    monkeypatch.setattr(incoming_copy.fail_points, "reach", reach)
    return lambda: left <= 0


PLACES = ("copy-half", "copy-whole", "copy-moving-out", "copy-moved-out", "copy-moving-in", "copy-moved-in")


@pytest.mark.parametrize("has_confirmed", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_a_process_that_ends_anywhere_leaves_the_old_data_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, has_confirmed: bool
) -> None:
    master, values = master_without_beginning(tmp_path / "1")
    count = 0
    while True:
        count += 1
        directory = tmp_path / f"2-{count}"
        follower = open_member(directory, 2)
        put(follower.store, "Own", 0, b"old")
        if has_confirmed:
            confirm_all(follower)
        incarnation = follower.file.identity.incarnation
        follower.close()
        with monkeypatch.context() as patch:
            is_stopped = stop_at(patch, place, count)
            try:
                copy_to(directory, master)
            except StoppedError:
                pass
        if not is_stopped():
            break
        remove_copies(tmp_path / "1")
        finish_copy(directory)
        assert not (directory / "copy").exists()
        follower = open_member(directory, 2)
        is_old = place in ("copy-half", "copy-whole")
        assert (follower.file.identity.incarnation == incarnation) == is_old
        if is_old:
            assert follower.log.oldest == 0
            follower.close()
            continue
        copied = LastValues.add_to(follower.store)
        follow(master, follower)
        assert copied.places() == values.places()
        assert follower.store.check() == []
        follower.close()
        assert [path.name for path in kept_directories(directory)] == [incarnation] * has_confirmed
        if has_confirmed:
            old = open_member(directory / "replaced" / incarnation, 2)
            assert bodies_of(old.store, "Own", 0) == [b"old"]
            old.close()
    assert count > (4 if place in ("copy-moving-out", "copy-moving-in") else 1), "the place was reached"
    master.close()


def test_nothing_is_done_in_a_directory_without_a_copy(tmp_path: Path) -> None:
    assert finish_copy(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()


def test_a_damaged_swap_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "swap").write_bytes(b"?")
    with pytest.raises(StoreCorruptError, match="damaged"):
        finish_copy(tmp_path)


def test_a_member_without_a_file_takes_no_copy(tmp_path: Path) -> None:
    master, _ = master_without_beginning(tmp_path / "1")
    with pytest.raises(StoreError, match=f"{FILE_NAME} is not there"):
        copy_to(lock_and_make(tmp_path / "2"), master)
    master.close()
