"""Raw access: a log copied by its bytes is the same log."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from store_model import bodies_of, open_small, put, wait_flushed

from iotmq.errors import StoreCorruptError, StoreReadOnlyError
from iotmq.message.records.record import iter_records
from iotmq.store.replication.raw import wanted_bytes
from iotmq.store.store import Store


def fill(store: Store, *, seed: int, batches: int = 60) -> None:
    """Batches of all sizes to a few queues, over many segments, prepared transactions among them."""
    draw = random.Random(seed)
    for number in range(batches):
        bodies = [draw.randbytes(draw.choice((0, 10, 200, 1500))) for _ in range(draw.randint(1, 6))]
        put(
            store,
            draw.choice(("T", "U")),
            draw.randrange(3),
            *bodies,
            properties=b"TAGS\x01a\x02",
            sys_flag=4 if number % 10 == 9 else 0,
        )


def log_bytes(store: Store) -> bytes:
    """Every byte of the log, as a slave would ask for it."""
    position = store.min_position
    pieces: list[bytes] = []
    while view := store.read_raw(position, 1000):
        pieces.append(bytes(view))
        position += len(view)
    assert position == store.confirmed_position
    return b"".join(pieces)


def copy(master: Store, slave: Store, draw: random.Random, *, stop: int | None = None) -> None:
    """Feed a slave as the contract of append_raw says, in chunks of any size."""
    left = b""
    position = slave.appended_position
    while position + len(left) < (stop or master.confirmed_position):
        view = master.read_raw(position + len(left), draw.choice((1, 7, 100, 3000, 20_000)))
        left += view
        end_position = slave.append_raw(position, left)
        left = left[end_position - position :]
        position = end_position


def files_of(directory: Path, end_position: int) -> dict[str, bytes]:
    """The log's files up to its end; one made ahead, or the empty one at the end, does not count."""
    return {
        path.name: path.read_bytes()
        for path in sorted((directory / "commitlog").iterdir())
        if int(path.name) < end_position
    }


@pytest.mark.parametrize("seed", range(5))
def test_copy_is_identical_to_the_byte(tmp_path: Path, seed: int) -> None:
    master, slave = open_small(tmp_path / "master"), open_small(tmp_path / "slave")
    fill(master, seed=seed)
    copy(master, slave, random.Random(seed))
    assert slave.appended_position == slave.confirmed_position == master.appended_position
    assert log_bytes(slave) == log_bytes(master)
    for queue in master.queues():
        copied = slave.find_queue(queue.topic, queue.queue_id)
        assert copied is not None
        assert (copied.min_offset, copied.max_offset, copied.next_offset) == (
            0,
            queue.max_offset,
            queue.next_offset,
        )
        assert bodies_of(slave, queue.topic, queue.queue_id) == bodies_of(master, queue.topic, queue.queue_id)
    assert slave.check() == master.check() == []
    end_position = master.appended_position
    slave.close()
    master.close()
    assert files_of(tmp_path / "slave", end_position) == files_of(tmp_path / "master", end_position)


def test_copy_goes_on_after_a_restart_and_becomes_a_master(tmp_path: Path) -> None:
    master, slave = open_small(tmp_path / "master"), open_small(tmp_path / "slave")
    fill(master, seed=1)
    draw = random.Random(1)
    copy(master, slave, draw, stop=master.confirmed_position // 2)
    assert slave.check() == []
    slave.close()
    slave = open_small(tmp_path / "slave")
    fill(master, seed=2)
    copy(master, slave, draw)
    assert log_bytes(slave) == log_bytes(master)
    queue = master.queue("T", 0)
    assert put(slave, "T", 0, b"own").first_offset == queue.next_offset
    assert slave.check() == []
    slave.close()
    master.close()


def test_end_of_a_log_may_be_the_start_of_a_file(tmp_path: Path) -> None:
    master, slave = open_small(tmp_path / "master"), open_small(tmp_path / "slave")
    put(master, "T", 0, b"x" * 1900, b"y" * 1900)
    put(master, "T", 0, b"z" * 1900)
    blank_end = bytes(master.read_raw(0, 4096))
    assert len(blank_end) == 4096
    assert slave.append_raw(0, blank_end) == slave.confirmed_position == 4096
    assert slave.check() == []
    slave.close()
    slave = open_small(tmp_path / "slave")
    assert slave.appended_position == 4096
    assert slave.check() == []
    copy(master, slave, random.Random(0))
    assert bodies_of(slave, "T", 0) == bodies_of(master, "T", 0)
    assert slave.check() == []
    slave.close()
    master.close()


def test_under_sync_flush_the_copy_is_confirmed_by_the_flush(tmp_path: Path) -> None:
    master, slave = open_small(tmp_path / "master"), open_small(tmp_path / "slave", flush="sync")
    put(master, "T", 0, b"one", b"two")
    end_position = slave.append_raw(0, master.read_raw(0, 4096))
    assert slave.queue("T", 0).next_offset == 2
    wait_flushed(slave)
    assert slave.confirmed_position == end_position
    assert slave.queue("T", 0).max_offset == 2
    assert slave.check() == []
    slave.close()
    master.close()


def test_wrong_position_is_refused(tmp_path: Path) -> None:
    master, slave = open_small(tmp_path / "master"), open_small(tmp_path / "slave")
    end_position = put(master, "T", 0, b"x").end_position
    data = bytes(master.read_raw(0, 4096))
    for position in (1, 4096, -1):
        with pytest.raises(ValueError, match="the log ends at 0"):
            slave.append_raw(position, data)
    slave.append_raw(0, data)
    with pytest.raises(ValueError, match=f"the log ends at {end_position}"):
        slave.append_raw(0, data)
    assert slave.check() == []
    slave.close()
    master.close()


def test_garbage_is_refused_whole(tmp_path: Path) -> None:
    master, slave = open_small(tmp_path / "master"), open_small(tmp_path / "slave")
    first_end = put(master, "T", 0, b"good").end_position
    put(master, "T", 0, b"bad" * 50)
    data = bytes(master.read_raw(0, 4096))
    size = len(data)
    for at in (*range(first_end, first_end + 12), first_end + 20, first_end + 28, first_end + 91, size - 5):
        broken = bytearray(data)
        broken[at] ^= 0x81
        with pytest.raises(StoreCorruptError, match=f"position {first_end}"):
            slave.append_raw(0, broken)
        assert slave.appended_position == 0
        assert slave.queues() == [] or slave.queue("T", 0).next_offset == 0
        assert slave.check() == []
    with pytest.raises(StoreCorruptError, match=r"a blank of 99 bytes with 4096 left"):
        slave.append_raw(0, (99).to_bytes(4, "big") + 0xCBD43194.to_bytes(4, "big"))
    with pytest.raises(StoreCorruptError, match="a record of 4095 bytes with 4096 left"):
        slave.append_raw(0, (4095).to_bytes(4, "big") + data[4:])
    assert slave.append_raw(0, data) == len(data)
    assert slave.check() == []
    slave.close()
    master.close()


def test_a_partial_record_is_left_to_the_caller(tmp_path: Path) -> None:
    master, slave = open_small(tmp_path / "master"), open_small(tmp_path / "slave")
    end_position = put(master, "T", 0, b"x").end_position
    data = bytes(master.read_raw(0, 4096))
    for size in range(len(data)):
        assert slave.append_raw(0, data[:size]) == 0
        assert wanted_bytes(data[:size]) == (len(data) if size >= 8 else 0)
    assert slave.append_raw(0, memoryview(data)) == end_position
    assert slave.append_raw(end_position, b"") == end_position
    assert slave.check() == []
    slave.close()
    master.close()


def test_raw_reads_stay_within_what_is_asked_for(tmp_path: Path) -> None:
    store = open_small(tmp_path, flush="sync")
    appended = put(store, "T", 0, b"x" * 300)
    assert store.read_raw(0, 4096) == b""
    assert len(store.read_raw(0, 4096, end_position=appended.end_position)) == appended.end_position
    for position, end_position in ((0, appended.end_position + 1), (5, 4), (-1, 0), (9999, 9999)):
        with pytest.raises(ValueError, match="the log has no bytes"):
            store.read_raw(position, 4096, end_position=end_position)
    with pytest.raises(ValueError, match="0 at a time"):
        store.read_raw(0, 0, end_position=appended.end_position)
    wait_flushed(store)
    assert len(store.read_raw(0, 10)) == 10
    assert store.read_raw(appended.end_position, 10) == b""
    assert store.check() == []
    store.close()


def test_what_a_blank_holds_behind_its_header_is_not_copied(tmp_path: Path) -> None:
    slave = open_small(tmp_path / "slave")
    header = (4096).to_bytes(4, "big") + 0xCBD43194.to_bytes(4, "big")
    assert slave.append_raw(0, header + b"x" * 4087) == 0
    assert slave.append_raw(0, header + b"x" * 4088) == 4096
    assert bytes(slave.read_raw(0, 4096)) == header + bytes(4088)
    assert slave.check() == []
    slave.close()


def test_a_blank_without_disk_blocks_reads_as_zeros(tmp_path: Path) -> None:
    settings = {"segment_bytes": 1 << 20, "allocation_step_bytes": 4096, "record_bytes_max": 500_000}
    master, slave = open_small(tmp_path / "master", **settings), open_small(tmp_path / "slave", **settings)
    put(master, "T", 0, b"x" * 450_000)
    put(master, "T", 0, b"y" * 450_000)
    blank_position = put(master, "T", 0, b"z" * 450_000).start_position - 100_000
    assert bytes(master.read_raw(blank_position, 50_000)) == bytes(50_000)
    copy(master, slave, random.Random(3))
    assert log_bytes(slave) == log_bytes(master)
    used = sum(path.stat().st_blocks * 512 for path in (tmp_path / "master" / "commitlog").iterdir())
    assert used < 1_500_000
    assert slave.check() == master.check() == []
    slave.close()
    master.close()


def test_an_empty_log_may_begin_where_the_master_does(tmp_path: Path) -> None:
    master, slave = open_small(tmp_path / "master"), open_small(tmp_path / "slave")
    fill(master, seed=4)
    slave.start_at(8192)
    assert slave.min_position == slave.confirmed_position == slave.flushed_position == 8192
    assert slave.check() == []
    slave.close()
    slave = open_small(tmp_path / "slave")
    assert slave.appended_position == 8192
    copy(master, slave, random.Random(4))
    assert slave.appended_position == master.appended_position
    for queue in slave.queues():
        original = master.find_queue(queue.topic, queue.queue_id)
        assert original is not None
        assert queue.max_offset == original.max_offset
        assert (
            bodies_of(slave, queue.topic, queue.queue_id)
            == bodies_of(master, queue.topic, queue.queue_id)[queue.min_offset :]
        )
    with pytest.raises(ValueError, match="cannot begin at 0"):
        slave.start_at(0)
    assert slave.check() == []
    slave.close()
    master.close()


def test_waits_for_a_flushed_position(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    called: list[str] = []
    store.when_flushed(0, lambda: called.append("at once"))
    first = put(store, "T", 0, b"x").end_position
    second = put(store, "T", 0, b"x").end_position
    store.when_flushed(second, lambda: called.append("second"))
    store.when_flushed(first, lambda: called.append("first"))
    store.when_flushed(first, lambda: called.append("first again"))
    store.when_flushed(second + 1, lambda: called.append("later"))
    store.advance()
    assert called == ["at once"]
    wait_flushed(store)
    assert called == ["at once", "first", "first again", "second"]
    assert store.check() == []
    store.close()
    assert called[-1] == "later"
    store.when_flushed(second + 2, lambda: called.append("closed"))
    assert called[-1] == "closed"


def test_a_failed_flush_ends_every_wait(tmp_path: Path) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    store = open_small(tmp_path, sync_file=lambda descriptor: None)
    store._flusher._sync_file = fail
    end_position = put(store, "T", 0, b"x").end_position
    called: list[int] = []
    store.when_flushed(end_position, lambda: called.append(store.flushed_position))
    store._flusher.stop()
    store._flusher.flush()
    store.advance()
    assert called == [0]
    store.when_flushed(end_position, lambda: called.append(-1))
    assert called == [0, -1]
    with pytest.raises(StoreReadOnlyError):
        store.append_raw(end_position, b"")
    assert store.check() == []
    store.close()


def recent(store: Store, position: int, bytes_max: int) -> list[int] | None:
    """The positions of the records from one on, as far as they are given."""
    positions: list[int] = []
    while True:
        found = store.recent_records(position, bytes_max)
        if found is None:
            return None
        next_position, view = found
        positions += [record.position for record in iter_records(view)]
        assert len(view) <= max(bytes_max, 2_000), "one record at the least"
        if next_position == position:
            return positions
        position = next_position


@pytest.mark.parametrize("bytes_max", [1, 700, 5_000, 1 << 20])
def test_recent_records_are_whole_and_all_there_are(tmp_path: Path, bytes_max: int) -> None:
    store = open_small(tmp_path, hot_bytes=1 << 30)
    fill(store, seed=5)
    wait_flushed(store)
    positions = recent(store, 0, bytes_max)
    assert positions is not None
    assert len(positions) > 100
    for start in (1, len(positions) // 2, len(positions) - 1):
        assert recent(store, positions[start], bytes_max) == positions[start:]
    end_position = store.confirmed_position
    assert store.recent_records(end_position, bytes_max) == (end_position, b"")
    assert store.check() == []
    store.close()


def test_recent_records_begin_at_a_record_in_the_hot_part(tmp_path: Path) -> None:
    store = open_small(tmp_path, hot_bytes=6_000)
    fill(store, seed=6)
    wait_flushed(store)
    end_position = store.confirmed_position
    assert store.recent_records(0, 1_000) is None, "too far back"
    assert store.recent_records(end_position + 1, 1_000) is None, "not there yet"
    assert store.recent_records(-1, 1_000) is None
    found = [
        position
        for position in range(end_position - 3_000, end_position)
        if store.recent_records(position, 1 << 20) is not None
    ]
    assert found, "some records"
    for position in found:
        next_position, view = store.recent_records(position, 1 << 20) or (0, memoryview(b""))
        starts = [record.position for record in iter_records(view)]
        # The start of a record, or of the blank in front of one in the next file.
        assert not starts or starts[0] >= position
        assert next_position <= end_position
    assert store.check() == []
    store.close()
