"""What no crash leaves in a data directory, but a bad disk or a stranger may: it is refused or put right."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from store_model import SMALL, bodies_of, open_small, put, wait_flushed

from iotmq.errors import StoreCorruptError
from iotmq.limits import QUEUE_OFFSET_MAX
from iotmq.message.records.record import encode_record
from iotmq.store.files.flushed_position import write_flushed_mark
from iotmq.store.files.state_record import encode_state, read_state
from iotmq.store.log.segment import POSITION_MAX, segment_name
from iotmq.store.queues.consume_queue import ConsumeQueue
from iotmq.store.queues.queue_begins import QueueBegins, encode_begins
from iotmq.store.recovery.checkpoint import Checkpoint, write_checkpoint

SEGMENT_BYTES = int(SMALL["segment_bytes"])


def filled(directory: Path, count: int = 20) -> list[bytes]:
    """A clean store of `count` records; their bodies."""
    store = open_small(directory)
    bodies = [b"%03d" % number + bytes(200) for number in range(count)]
    for body in bodies:
        put(store, "T", 0, body)
    store.close()
    return bodies


def record_at(position: int, offset: int) -> bytes:
    return encode_record(topic="T", body=b"x", queue_id=0, queue_offset=offset, position=position)


# Offsets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [QUEUE_OFFSET_MAX + 1, (1 << 58) + 7, (1 << 59) + 7, (1 << 62) + 5, -1])
@pytest.mark.parametrize("begins_at", [0, SEGMENT_BYTES])
def test_records_of_an_offset_past_all_limits_have_no_entry(
    tmp_path: Path, offset: int, begins_at: int
) -> None:
    queues = ConsumeQueue(str(tmp_path), entries_per_file=7)
    queues.rewind(begins_at, begins_at)
    data = record_at(begins_at, offset)
    # Two in a row would be believed if they could be.
    data += record_at(begins_at + len(data), offset + 1)
    data += record_at(begins_at + len(data), 0)
    queues.apply(data, begins_at, begins_at + len(data))
    queue = queues.queue("T", 0)
    assert (queue.min_offset, queue.max_offset) == (0, 1)


def test_the_largest_offset_is_taken_when_the_next_record_confirms_it(tmp_path: Path) -> None:
    queues = ConsumeQueue(str(tmp_path), entries_per_file=7)
    queues.rewind(0, 0)
    data = record_at(0, QUEUE_OFFSET_MAX - 1)
    data += record_at(len(data), QUEUE_OFFSET_MAX)
    queues.apply(data, 0, len(data))
    queue = queues.queue("T", 0)
    assert (queue.min_offset, queue.max_offset) == (QUEUE_OFFSET_MAX - 1, QUEUE_OFFSET_MAX + 1)


def test_the_first_record_of_a_log_without_its_beginning_has_room_for_those_before_it(tmp_path: Path) -> None:
    position = 92 * 1000
    for offset, max_offset in ((1000, 1001), (1001, 0)):
        queues = ConsumeQueue(str(tmp_path / str(offset)), entries_per_file=7)
        queues.rewind(position, position)
        data = record_at(position, offset)
        queues.apply(data, position, position + len(data))
        assert queues.queue("T", 0).max_offset == max_offset


@pytest.mark.parametrize("offset", [QUEUE_OFFSET_MAX + 1, 1 << 62, -5])
def test_a_queue_does_not_begin_past_all_offsets(tmp_path: Path, offset: int) -> None:
    bodies = filled(tmp_path)
    begins = QueueBegins(0, [("T", 0, offset), ("U", 0, offset)])
    (tmp_path / "consumequeue.begins").write_bytes(encode_begins(begins))
    store = open_small(tmp_path)
    assert bodies_of(store, "T", 0) == bodies
    put(store, "U", 0, b"u")
    assert store.queue("U", 0).max_offset == 1
    assert store.check() == []
    store.close()


# Files of queues ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [7 * 20 + 1, 8 * 20 - 3, 7 * 20 + 4096])
def test_a_queue_file_without_whole_entries_is_filled_again(tmp_path: Path, size: int) -> None:
    bodies = filled(tmp_path)
    directory = tmp_path / "consumequeue" / "T" / "0"
    os.truncate(directory / sorted(os.listdir(directory))[-1], size)
    store = open_small(tmp_path)
    for number in range(20):
        put(store, "T", 0, b"%d" % number)
    assert bodies_of(store, "T", 0) == bodies + [b"%d" % number for number in range(20)]
    assert store.check() == []
    store.close()


@pytest.mark.parametrize("name", [segment_name(15), "9" * 20, str(1 << 63).zfill(20), segment_name(1 << 61)])
def test_a_queue_with_a_file_that_begins_at_no_entry_is_filled_again(tmp_path: Path, name: str) -> None:
    bodies = filled(tmp_path)
    directory = tmp_path / "consumequeue" / "T" / "0"
    (directory / sorted(os.listdir(directory))[-1]).rename(directory / name)
    store = open_small(tmp_path)
    assert bodies_of(store, "T", 0) == bodies
    assert store.check() == []
    store.close()


@pytest.mark.parametrize("name", [str(1 << 31), "9" * 30, "007", "٣"])
def test_what_is_no_queue_id_is_left_alone(tmp_path: Path, name: str) -> None:
    bodies = filled(tmp_path)
    (tmp_path / "consumequeue" / "T" / name).mkdir()
    (tmp_path / "consumequeue" / "T" / name / segment_name(0)).write_bytes(bytes(140))
    store = open_small(tmp_path)
    assert bodies_of(store, "T", 0) == bodies
    assert [queue.queue_id for queue in store.queues()] == [0]
    store.close()


# The log --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start_position", [POSITION_MAX + 1, (1 << 63) - 4096, 1 << 63, 10**20 - 1])
def test_a_log_file_past_all_positions_is_refused(tmp_path: Path, start_position: int) -> None:
    filled(tmp_path)
    (tmp_path / "commitlog" / f"{start_position:020d}").write_bytes(bytes(SEGMENT_BYTES))
    with pytest.raises(StoreCorruptError, match="begins past all positions"):
        open_small(tmp_path)


@pytest.mark.parametrize("mark", ["consumequeue/.applied", "index.applied"])
@pytest.mark.parametrize("back_bytes", [1, 100, 400, 1900])
def test_a_mark_in_the_middle_of_a_record_costs_no_record(tmp_path: Path, mark: str, back_bytes: int) -> None:
    bodies = filled(tmp_path)
    path = tmp_path / mark
    magic = path.read_bytes()[:8]
    count = 3 if mark.startswith("consumequeue") else 4
    state = read_state(str(path), magic, count=count)
    assert state is not None
    path.write_bytes(encode_state(magic, state.numbers[0] - back_bytes, *state.numbers[1:]))
    (tmp_path / "abort").touch()
    for number in range(2):
        store = open_small(tmp_path)
        assert store.recovery.damage == ()
        put(store, "T", 0, b"%d" % number)
        wait_flushed(store)
        bodies.append(b"%d" % number)
        assert bodies_of(store, "T", 0) == bodies
        assert store.check() == []
        store.close()


def test_a_log_file_without_room_for_a_record_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "commitlog" / segment_name(1)).write_bytes(b"")
    os.truncate(tmp_path / "commitlog" / segment_name(0), 1)
    with pytest.raises(StoreCorruptError, match="no room for a record"):
        open_small(tmp_path)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("rest_bytes", range(10))
def test_a_log_known_to_end_where_no_blank_has_room_goes_on_in_the_next_file(
    tmp_path: Path, rest_bytes: int, is_clean: bool
) -> None:
    bodies = filled(tmp_path, 5)
    position = 2 * SEGMENT_BYTES - rest_bytes
    write_checkpoint(tmp_path / "checkpoint", Checkpoint(1, 1, 1, position))
    write_flushed_mark(tmp_path / "checkpoint", position)
    if not is_clean:
        (tmp_path / "abort").touch()
    for number in range(3):
        store = open_small(tmp_path)
        put(store, "T", 0, b"%d" % number + bytes(300))
        wait_flushed(store)
        bodies.append(b"%d" % number + bytes(300))
        assert bodies_of(store, "T", 0) == bodies
        assert store.check() == []
        store.close()


@pytest.mark.damaged_store
def test_a_record_that_ends_with_its_file_is_given_to_nobody(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    body = b"x" * (SEGMENT_BYTES // 2 - 92)
    for _ in range(4):
        put(store, "T", 0, body)
    entries = [store.queue("T", 0).entry(offset) for offset in range(4)]
    store.close()
    # The first file's last record, stretched over the blank behind it: it ends where the next file begins.
    last = max(entry for entry in entries if entry is not None and entry[0] < SEGMENT_BYTES)
    size = SEGMENT_BYTES - last[0]
    path = tmp_path / "commitlog" / segment_name(0)
    data = bytearray(path.read_bytes())
    data[last[0] :] = encode_record(
        topic="T",
        body=b"y" * (size - 92),
        queue_id=0,
        queue_offset=entries.index(last),
        position=last[0],
    )
    path.write_bytes(data)
    entry_path = tmp_path / "consumequeue" / "T" / "0" / segment_name(0)
    queue_data = bytearray(entry_path.read_bytes())
    struct.pack_into(">I", queue_data, 20 * entries.index(last) + 8, size)
    entry_path.write_bytes(queue_data)
    store = open_small(tmp_path)
    read = store.read(store.find_queue("T", 0), 0, records_max=10, bytes_max=1 << 20)
    assert all(bytes(view).find(b"y" * 20) < 0 for view in read.views)
    assert read.count >= len(entries) - 1 - entries.index(last)
    store.close()
