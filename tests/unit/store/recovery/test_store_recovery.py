"""Starting again: after a clean stop, after a crash, with files missing, torn, or left by another broker."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from manual_clock import ManualClock
from store_model import bodies_of, log_records, open_small, put, wait_flushed

from iotmq.errors import StoreError
from iotmq.store.files.flushed_position import write_flushed_mark
from iotmq.store.log.segment import segment_name
from iotmq.store.recovery import recovery
from iotmq.store.recovery.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from iotmq.store.recovery.damage import Loss
from iotmq.store.store import Store


def crash(store: Store, directory: Path) -> Path:
    """The directory as a killed process leaves it."""
    copy = directory.with_name(directory.name + "x")
    shutil.copytree(directory, copy)
    store.close()
    return copy


def overwrite(directory: Path, position: int, data: bytes) -> None:
    path = directory / "commitlog" / segment_name(position // 4096 * 4096)
    with path.open("r+b") as file:
        file.seek(position % 4096)
        file.write(data)


def put_many(store: Store, count: int, *, size: int = 700) -> list[int]:
    return [put(store, "T", n % 2, b"%04d" % n + b"x" * size).start_position for n in range(count)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_fresh_directory(directory: Path) -> None:
    store = open_small(directory)
    assert store.recovery == (True, 0, 0, 0, ())
    assert store.check() == []
    store.close()


def test_clean_stop_checks_only_the_last_three_segments(directory: Path) -> None:
    store = open_small(directory)
    put_many(store, 30)
    store.close()
    store = open_small(directory)
    segments = store._log.segment_list()
    assert len(segments) > 4
    assert store.recovery.checked_from_position == segments[-3].start_position
    assert store.recovery.queues_from_position == store.appended_position
    assert store.check() == []
    store.close()


def test_crash_checks_from_the_checkpoint_on(directory: Path) -> None:
    store = open_small(directory)
    put_many(store, 20)
    wait_flushed(store)
    store.write_checkpoint()
    position = store.appended_position
    put_many(store, 20)
    directory = crash(store, directory)
    store = open_small(directory)
    assert not store.recovery.was_clean
    assert store.recovery.checked_from_position == position // 4096 * 4096
    assert store.recovery.queues_from_position == position
    assert store.queue("T", 0).max_offset == 20
    assert store.check() == []
    store.close()


def test_crash_far_into_a_file_checks_only_what_follows_the_checkpoint(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "CHECKED_AGAIN_BYTES_MAX", 1000)
    store = open_small(directory, segment_bytes=1 << 20)
    put_many(store, 10)
    wait_flushed(store)
    store.write_checkpoint()
    position = store.appended_position
    put_many(store, 10)
    directory = crash(store, directory)
    store = open_small(directory, segment_bytes=1 << 20)
    assert store.recovery.checked_from_position == store.recovery.queues_from_position == position
    assert store.queue("T", 0).max_offset == 10
    assert store.check() == []
    store.close()


def test_a_file_that_ends_before_its_checkpoint_is_checked_from_its_start(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "CHECKED_AGAIN_BYTES_MAX", 1000)
    store = open_small(directory, segment_bytes=1 << 20)
    positions = put_many(store, 10)
    wait_flushed(store)
    store.write_checkpoint()
    end = store.appended_position
    directory = crash(store, directory)
    log = directory / "commitlog" / segment_name(0)
    log.write_bytes(log.read_bytes()[: positions[5] + 10])
    store = open_small(directory, segment_bytes=1 << 20)
    assert store.recovery.checked_from_position == 0
    (damage,) = store.recovery.damage
    assert (damage.start_position, damage.end_position) == (positions[5], end)
    assert store.appended_position == end
    assert store.check() == []
    store.close()


def test_crash_without_checkpoint_goes_through_everything(directory: Path) -> None:
    store = open_small(directory)
    put_many(store, 20)
    directory = crash(store, directory)
    store = open_small(directory)
    assert store.recovery == (False, 0, store.appended_position, 0, ())
    assert store.queue("T", 1).max_offset == 10
    assert store.check() == []
    store.close()


@pytest.mark.parametrize(
    ("log_ms", "queue_ms", "segment"), [(12_000, 12_000, 2), (12_000, 9_999, 1), (4_000, 4_000, 0)]
)
def test_times_of_another_brokers_checkpoint(
    directory: Path, log_ms: int, queue_ms: int, segment: int
) -> None:
    """Segments began at 3, 6, 9 and 12 s: the last one that began 3 s before the smaller time."""
    clock = ManualClock(3_000)
    store = open_small(directory, clock=clock)
    for _ in range(4):
        put(store, "T", 0, b"x" * 1900, b"y" * 1900)
        clock.advance(3)
    directory = crash(store, directory)
    (directory / "checkpoint").write_bytes(struct.pack(">qqq", log_ms, queue_ms, 0) + bytes(4072))
    store = open_small(directory)
    assert store.recovery.checked_from_position == segment * 4096
    assert store.check() == []
    store.close()


@pytest.mark.parametrize(
    ("at", "damage"),
    [
        (0, b"\0\0\0\0"),
        (0, b"\x7f\xff\xff\xff"),
        (0, b"\xff\xff\xff\xff"),
        (3, b"\x01"),
        (4, b"\xda\xa3\x20\xa6"),
        (8, b"\xff"),
        (28, b"\xff"),
        (84, b"\xff"),
        (88, b"?"),
        (788, b"?"),
        (792, b"\x02"),
        (792, b"\0"),
        (793, b"/"),
        (795, b"\x01"),
    ],
)
def test_log_ends_before_a_record_that_does_not_prove_itself(directory: Path, at: int, damage: bytes) -> None:
    """Nothing behind it does, so it is a torn tail."""
    store = open_small(directory)
    positions = put_many(store, 8)
    directory = crash(store, directory)
    overwrite(directory, positions[7] + at, damage)
    store = open_small(directory)
    assert [record.position for record in log_records(store)] == positions[:7]
    assert store.recovery.end_position == positions[7]
    assert store.check() == []
    # What stood behind is gone for good: new records do not run into old ones.
    assert put(store, "T", 1, b"0000" + b"y" * 700).start_position == positions[7]
    assert store.queue("T", 1).max_offset == 4
    directory = crash(store, directory)
    store = open_small(directory)
    assert len(list(log_records(store))) == 8
    assert store.check() == []
    store.close()


def test_segments_behind_the_end_are_removed(directory: Path) -> None:
    store = open_small(directory)
    positions = put_many(store, 20)
    directory = crash(store, directory)
    for position in positions[2:]:
        overwrite(directory, position, bytes(4))
    store = open_small(directory)
    assert store.appended_position == positions[2]
    assert sorted(path.name for path in (directory / "commitlog").iterdir())[0] == segment_name(0)
    assert put_many(store, 20)[0] == positions[2]
    assert store.check() == []
    store.close()


def test_killed_between_blank_and_first_record_of_the_next_segment(directory: Path) -> None:
    store = open_small(directory)
    positions = put_many(store, 6)
    directory = crash(store, directory)
    assert positions[5] == 4096
    overwrite(directory, 4096, bytes(1000))
    store = open_small(directory)
    assert store.appended_position == store.confirmed_position == 4096
    assert store.check() == []
    directory = crash(store, directory)
    # The same with the empty file not even made.
    (directory / "commitlog" / segment_name(4096)).unlink()
    store = open_small(directory)
    assert put_many(store, 1) == [4096]
    assert store.check() == []
    store.close()


def test_half_a_batch_is_never_seen(directory: Path) -> None:
    """Killed before the first record's size was stored: the rest of the batch stands there in vain."""
    store = open_small(directory)
    before = put(store, "T", 0, b"before").end_position
    put(store, "T", 0, b"a", b"b", b"c")
    directory = crash(store, directory)
    overwrite(directory, before, bytes(4))
    # Entries are made after the append.
    path = directory / "consumequeue" / "T" / "0" / segment_name(0)
    path.write_bytes(path.read_bytes()[:20] + bytes(120))
    store = open_small(directory)
    assert bodies_of(store, "T", 0) == [b"before"]
    assert [(each.kind, each.lost) for each in store.recovery.damage] == [("torn", ())]
    assert store.check() == []
    store.close()


@pytest.mark.parametrize("was_clean", [True, False])
def test_deleted_queues_are_rebuilt(directory: Path, was_clean: bool) -> None:
    store = open_small(directory)
    put_many(store, 30)
    wait_flushed(store)
    store.write_checkpoint()
    before = [bodies_of(store, "T", n) for n in range(2)]
    if was_clean:
        store.close()
    else:
        directory = crash(store, directory)
    shutil.rmtree(directory / "consumequeue")
    store = open_small(directory)
    assert store.recovery.queues_from_position == 0
    assert [bodies_of(store, "T", n) for n in range(2)] == before
    assert store.check() == []
    store.close()


@pytest.mark.parametrize("was_clean", [True, False])
def test_one_deleted_queue_is_noticed(directory: Path, was_clean: bool) -> None:
    """Otherwise its next record would be given an offset that is taken."""
    store = open_small(directory)
    put_many(store, 30)
    wait_flushed(store)
    store.write_checkpoint()
    if was_clean:
        store.close()
    else:
        directory = crash(store, directory)
    shutil.rmtree(directory / "consumequeue" / "T" / "1")
    store = open_small(directory)
    assert store.queue("T", 1).next_offset == 15
    assert store.check() == []
    store.close()


def test_shortened_queue_is_noticed_after_a_clean_stop(directory: Path) -> None:
    store = open_small(directory)
    put_many(store, 30)
    store.close()
    path = directory / "consumequeue" / "T" / "0" / segment_name(280)
    path.write_bytes(bytes(140))
    store = open_small(directory)
    assert store.queue("T", 0).next_offset == 15
    assert store.check() == []
    store.close()


def test_what_the_checkpoint_covers_is_not_given_out_again(directory: Path) -> None:
    """Positions and offsets below it were seen by others: the log goes on behind them, whatever is lost."""
    store = open_small(directory)
    positions = put_many(store, 10)
    wait_flushed(store)
    store.write_checkpoint()
    end = store.appended_position
    directory = crash(store, directory)
    for position in positions[7:]:
        overwrite(directory, position, bytes(4))
    store = open_small(directory)
    checkpoint = read_checkpoint(directory / "checkpoint")
    assert checkpoint is not None
    assert checkpoint.position == end == store.appended_position
    (damage,) = store.recovery.damage
    assert (damage.start_position, damage.end_position) == (positions[7], end)
    assert damage.lost == (Loss("T", 0, 4, 4), Loss("T", 1, 3, 4))
    put(store, "U", 0, *(b"x" * n for n in range(200, 220)))
    put(store, "T", 0, b"next")
    for _ in range(2):
        directory = crash(store, directory)
        store = open_small(directory)
        assert store.queue("U", 0).max_offset == 20
        assert store.queue("T", 0).max_offset == 6
        assert store.queue("T", 1).max_offset == 5
        assert store.check() == []
        shutil.rmtree(directory / "consumequeue")
    store.close()


def test_checkpoint_of_a_trimmed_log(directory: Path) -> None:
    store = open_small(directory)
    put_many(store, 30)
    store.close()
    (directory / "abort").touch()
    (directory / "commitlog" / segment_name(0)).unlink()
    write_checkpoint(directory / "checkpoint", Checkpoint(0, 0, 0, 10))
    write_flushed_mark(directory / "checkpoint", 10)
    store = open_small(directory)
    assert store.recovery.checked_from_position == store.min_position == 4096
    assert store.queue("T", 0).min_offset > 0
    assert store.check() == []
    store.close()


def test_recovered_log_counts_as_flushed(directory: Path) -> None:
    synced: list[int] = []
    store = open_small(directory)
    put_many(store, 12)
    directory = crash(store, directory)
    store = open_small(directory, flush="sync", sync_file=synced.append)
    assert len(synced) >= 3
    assert store.confirmed_position == store.flushed_position == store.appended_position > 0
    store.close()


def test_failed_start_leaves_the_directory_to_others(directory: Path) -> None:
    store = open_small(directory)
    put_many(store, 1)
    store.close()

    def sync_file(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(StoreError, match=f"cannot open {directory}"):
        open_small(directory, sync_file=sync_file)
    store = open_small(directory)
    assert store.queue("T", 0).max_offset == 1
    assert store.check() == []
    store.close()


def test_full_segments_hold_no_descriptors(directory: Path) -> None:
    def open_segments() -> int:
        links = (path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
        return sum(1 for link in links if str(link).startswith(f"{directory}/commitlog/"))

    store = open_small(directory)
    put_many(store, 40)
    wait_flushed(store)
    assert open_segments() <= 2
    store.close()
    store = open_small(directory)
    assert open_segments() <= 1
    assert store.check() == []
    store.close()


@pytest.mark.parametrize("is_log_cut", [False, True])
def test_entry_torn_in_its_position_is_not_taken_for_an_old_one(directory: Path, is_log_cut: bool) -> None:
    """Entry 51 stands across two sectors; when only the second reached the disk its position reads 0."""
    settings = {"queue_file_entries": 60, "segment_bytes": 16384}
    store = open_small(directory, **settings)
    put(store, "T", 0, *(b"%d" % n for n in range(40)))
    wait_flushed(store)
    store.write_checkpoint()
    put(store, "T", 0, *(b"%d" % n for n in range(40, 56)))
    last_position = put(store, "T", 0, b"x").start_position
    directory = crash(store, directory)
    path = directory / "consumequeue" / "T" / "0" / segment_name(0)
    data = bytearray(path.read_bytes())
    data[40 * 20 : 1024] = bytes(1024 - 40 * 20)
    path.write_bytes(data)
    if is_log_cut:
        with (directory / "commitlog" / segment_name(0)).open("r+b") as file:
            file.truncate(last_position)
    store = open_small(directory, **settings)
    assert bodies_of(store, "T", 0) == [b"%d" % n for n in range(56)] + [b"x"] * (not is_log_cut)
    assert store.check() == []
    store.close()
