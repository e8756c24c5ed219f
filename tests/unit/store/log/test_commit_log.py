"""The log: layout, limits, segment ends, batches that are all or nothing."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from manual_clock import ManualClock
from store_model import BORN_HOST, HOST, batch, log_records, open_small, put

from iotmq.errors import RecordTooLargeError, StoreCorruptError, StoreError
from iotmq.limits import BATCH_RECORDS_MAX, PROPERTIES_BYTES_MAX, RECORD_BYTES_MAX, TOPIC_BYTES_MAX
from iotmq.message.errors import MessageFormatError
from iotmq.message.records.record import encode_batch, encode_record
from iotmq.store.log.segment import segment_name
from iotmq.store.queues.residency import Window
from iotmq.store.recovery.damage import Loss
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

# Fixed bytes of a record with IPv4 hosts, without topic.
FIXED = 91


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_small(tmp_path)
    yield store
    assert store.check() == []
    store.close()


def log_bytes(store: Store, position: int, size: int) -> bytes:
    path = Path(store._log.directory) / segment_name(position // 4096 * 4096)
    with path.open("rb") as file:
        file.seek(position % 4096)
        return file.read(size)


def fill_up_to(store: Store, left: int) -> None:
    """Leave so many bytes of the first segment."""
    put(store, "T", 0, bytes(2048 - FIXED - 1), bytes(2048 - left - FIXED - 1))


def test_golden_record(store: Store) -> None:
    """Fields of the format's worked example, which stands at position 4096 with queue offset 3."""
    store._clock = ManualClock(1_700_000_000_005)
    for body in (b"x" * 1300, b"x" * 1300, b"x" * 1100):
        put(store, "T", 2, body)
    appended = store.append(
        store.queue("T", 2),
        encode_batch([(b"hello", b"TAGS\x01TagA\x02", 0)]),
        born_timestamp_ms=1_700_000_000_000,
        born_host=b"\x7f\0\0\1" + (5000).to_bytes(4, "big"),
        batch_properties=b"KEYS\x01k1\x02",
    )
    assert (appended.start_position, appended.first_offset) == (4096, 3)
    assert log_bytes(store, 4096, 115) == bytes.fromhex(
        "00000073daa320a73610a686000000020000000000000000000000030000000000001000000000000000018bcfe56800"
        "7f000001000013880000018bcfe568057f00000100002a9f0000000000000000000000000000000568656c6c6f015400"
        "12544147530154616741024b455953016b3102"
    )


def test_blank_ends_a_segment(store: Store) -> None:
    fill_up_to(store, 100)
    appended = put(store, "T", 0, b"y" * 100)
    assert log_bytes(store, 4096 - 100, 8) == bytes.fromhex("00000064CBD43194")
    assert appended.start_position == 4096


@pytest.mark.parametrize(("left", "position"), [(8, 4096 - 200), (7, 4096)])
def test_last_eight_bytes_stay_free(store: Store, left: int, position: int) -> None:
    """A record that leaves exactly 8 bytes fits; one that leaves 7 goes to the next segment."""
    fill_up_to(store, 200)
    assert put(store, "T", 0, b"y" * (200 - left - FIXED - 1)).start_position == position


def test_record_that_fills_a_segment(store: Store) -> None:
    for _ in range(3):
        put(store, "T", 0, b"x" * (2048 - FIXED - 1))
    assert [r.position for r in log_records(store)] == [0, 4096, 8192]


def test_batch_crosses_segments_and_knows_its_positions(store: Store) -> None:
    appended = put(store, "T", 0, *(b"x" * size for size in (900, 1900, 1500, 10, 1950, 1950, 1950)))
    assert appended.positions() == [r.position for r in log_records(store)]
    assert [r.queue_offset for r in log_records(store)] == list(range(7))
    assert appended.end_position == store.appended_position
    assert appended.count == 7


def test_first_record_of_a_batch_may_open_a_segment(store: Store) -> None:
    put(store, "T", 0, b"x" * 1900)
    put(store, "T", 0, b"x" * 1900)
    appended = put(store, "T", 0, b"y" * 300, b"z" * 300)
    assert appended.positions() == [4096, 4096 + 392]


def test_large_first_record(tmp_path: Path) -> None:
    """Past a page the first record is built on the heap instead of the stack."""
    store = open_small(tmp_path, segment_bytes=1 << 20, record_bytes_max=1 << 18)
    bodies = [os.urandom(100_000), os.urandom(5_000), os.urandom(4096 - 92), os.urandom(4096 - 91)]
    for body in bodies:
        put(store, "T", 0, body, b"next")
    assert [r.body for r in log_records(store)][::2] == bodies
    assert store.check() == []
    store.close()


def test_element_and_batch_properties_are_joined(store: Store) -> None:
    for properties in (b"", b"a\x01b", b"a\x01b\x02"):
        put(store, "T", 0, b"x", properties=properties, batch_properties=b"c\x01d\x02")
    put(store, "T", 0, b"x", properties=b"a\x01b")
    assert [r.properties for r in log_records(store)] == [
        b"c\x01d\x02",
        b"a\x01b\x02c\x01d\x02",
        b"a\x01b\x02c\x01d\x02",
        b"a\x01b",
    ]


def test_fields_of_a_record(store: Store) -> None:
    store.append(
        store.queue("T", 7),
        encode_batch([(b"x", b"", -5)]),
        born_timestamp_ms=-1,
        born_host=BORN_HOST,
        sys_flag=1 | 8,
        reconsume_times=3,
        prepared_position=1 << 40,
    )
    record = next(log_records(store))
    assert (record.queue_id, record.flag, record.sys_flag) == (7, -5, 9)
    assert (record.born_timestamp_ms, record.born_host, record.store_host) == (-1, BORN_HOST, HOST)
    assert (record.reconsume_times, record.prepared_position) == (3, 1 << 40)
    assert record.store_timestamp_ms == store._clock.now_ms()


def test_long_hosts_set_their_bits(store: Store) -> None:
    born_host = bytes(range(16)) + (1).to_bytes(4, "big")
    # The caller's idea of the bits does not count.
    store.append(store.queue("T", 0), batch(b"x"), born_timestamp_ms=0, born_host=born_host, sys_flag=32)
    record = next(log_records(store))
    assert (record.sys_flag, record.born_host) == (16, born_host)


def test_store_host_may_be_long(tmp_path: Path) -> None:
    host = bytes(20)
    store = Store.open(tmp_path, StoreSettings(), store_host=host)
    put(store, "T", 0, b"x")
    record = next(log_records(store))
    assert (record.sys_flag, record.store_host) == (32, host)
    assert store.offset_at_time(store.queue("T", 0), 0) == 0
    assert store.check() == []
    store.close()


@pytest.mark.parametrize("host", [b"", b"1234567", bytes(9), bytes(21)])
def test_hosts_of_other_sizes_are_refused(store: Store, host: bytes) -> None:
    with pytest.raises(ValueError, match="a host has 8 or 20 bytes"):
        store.append(store.queue("T", 0), batch(b"x"), born_timestamp_ms=0, born_host=host)


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_is_a_batch(store: Store, buffer: Any) -> None:
    store.append(store.queue("T", 0), buffer(batch(b"a", b"b")), born_timestamp_ms=0, born_host=BORN_HOST)
    assert [r.body for r in log_records(store)] == [b"a", b"b"]


def broken_batches() -> list[tuple[str, bytes]]:
    good = batch(b"good")
    return [
        ("empty", b""),
        ("cut in the head", good + good[:10]),
        ("cut in the body", good + good[:-1]),
        ("size too large", good + struct.pack(">i", 1000) + good[4:]),
        ("size too small", good + struct.pack(">i", 21) + good[4:]),
        ("size negative", good + struct.pack(">i", -1) + good[4:]),
        ("body size negative", good + good[:16] + struct.pack(">i", -1) + good[20:]),
        ("body size too large", good + good[:16] + struct.pack(">i", 0x7FFFFFFF) + good[20:]),
        ("properties size wrong", good + good[:-2] + b"\0\1"),
        ("properties size negative", good + good[:-2] + b"\xff\xff"),
    ]


@pytest.mark.parametrize(("what", "data"), broken_batches(), ids=[what for what, _ in broken_batches()])
def test_broken_batch_leaves_no_trace(store: Store, what: str, data: bytes) -> None:
    put(store, "T", 0, b"before")
    end_position = store.appended_position
    with pytest.raises(MessageFormatError):
        store.append(store.queue("T", 0), data, born_timestamp_ms=0, born_host=BORN_HOST)
    assert store.appended_position == end_position
    assert put(store, "T", 0, b"after").first_offset == 1


def test_batch_count_limit(tmp_path: Path) -> None:
    store = open_small(tmp_path, segment_bytes=1 << 20, queue_file_entries=300_000)
    element = batch(b"")
    queue = store.queue("T", 0)
    with pytest.raises(MessageFormatError, match="more than 65536"):
        store.append(queue, element * (BATCH_RECORDS_MAX + 1), born_timestamp_ms=0, born_host=BORN_HOST)
    assert store.appended_position == 0
    appended = store.append(queue, element * BATCH_RECORDS_MAX, born_timestamp_ms=0, born_host=BORN_HOST)
    assert appended.count == queue.max_offset == BATCH_RECORDS_MAX
    assert store.check() == []
    store.close()


def test_record_size_limit(store: Store) -> None:
    size = 2048 - FIXED - 1
    assert put(store, "T", 0, b"x" * size).count == 1
    with pytest.raises(RecordTooLargeError, match=r"2049 bytes; store\.record_bytes_max is 2048"):
        put(store, "T", 0, b"fits", b"x" * (size + 1))
    assert store.queue("T", 0).next_offset == 1


def test_default_record_limit_is_four_mebibytes(tmp_path: Path) -> None:
    store = open_small(tmp_path, segment_bytes=1 << 24, record_bytes_max=RECORD_BYTES_MAX)
    put(store, "T", 0, bytes(RECORD_BYTES_MAX - FIXED - 1))
    with pytest.raises(RecordTooLargeError):
        put(store, "T", 0, bytes(RECORD_BYTES_MAX - FIXED))
    assert store.check() == []
    store.close()


def test_properties_limit_counts_both_parts_and_the_separator(tmp_path: Path) -> None:
    store = open_small(tmp_path, segment_bytes=1 << 20, record_bytes_max=1 << 17)
    element = b"a\x01" + b"b" * 1000
    shared = b"c\x01" + b"d" * (PROPERTIES_BYTES_MAX - len(element) - 1 - 2)
    put(store, "T", 0, b"x", properties=element, batch_properties=shared)
    with pytest.raises(RecordTooLargeError, match="properties"):
        put(store, "T", 0, b"x", properties=element, batch_properties=shared + b"d")
    assert len(next(log_records(store)).properties) == PROPERTIES_BYTES_MAX
    assert store.check() == []
    store.close()


def test_topic_limit(store: Store) -> None:
    put(store, "T" * TOPIC_BYTES_MAX, 0, b"x")
    with pytest.raises(StoreError, match="1 to 127 bytes"):
        store.queue("T" * (TOPIC_BYTES_MAX + 1), 0)


@pytest.mark.parametrize("transaction", [4, 12])
def test_prepared_and_rolled_back_records_take_no_offset(store: Store, transaction: int) -> None:
    put(store, "T", 0, b"a")
    appended = put(store, "T", 0, b"b", b"c", sys_flag=transaction)
    assert appended.first_offset == 0
    assert put(store, "T", 0, b"d").first_offset == 1
    assert [r.queue_offset for r in log_records(store)] == [0, 0, 0, 1]
    assert store.queue("T", 0).max_offset == 2


def test_committed_transaction_takes_an_offset(store: Store) -> None:
    put(store, "T", 0, b"a", sys_flag=8)
    assert store.queue("T", 0).max_offset == 1


def test_read_record_wants_the_exact_position(store: Store) -> None:
    positions = put(store, "T", 0, b"a" * 50, b"b" * 50).positions()
    assert bytes(store.read_record(positions[1]))[88:138] == b"b" * 50  # type: ignore[arg-type]
    for position in (-1, 1, positions[1] - 1, store.appended_position, 1 << 60):
        assert store.read_record(position) is None


def test_read_record_does_not_serve_a_copy_of_a_record(store: Store) -> None:
    """A record inside another's body has everything but the right position."""
    inner = encode_record(topic="T", body=b"inner", position=0)
    position = put(store, "T", 0, inner).start_position
    assert store.read_record(position + 88) is None


def test_log_view_stays_inside_what_is_stored(store: Store) -> None:
    put(store, "T", 0, b"x")
    end = store.appended_position
    assert len(store._log.view(0, end)) == end
    for start, stop in ((0, end + 1), (-1, end), (5000, 5001)):
        with pytest.raises(ValueError, match=r"not stored|no bytes"):
            store._log.view(start, stop)


def test_first_segment_is_allocated_step_by_step(tmp_path: Path) -> None:
    store = open_small(tmp_path, segment_bytes=1 << 30, allocation_step_bytes=1 << 20)
    put(store, "T", 0, b"x")
    blocks = os.stat(tmp_path / "commitlog" / segment_name(0)).st_blocks * 512
    assert 1 << 20 <= blocks <= 3 << 20
    store.close()


def test_an_append_has_a_few_pages_made_and_not_the_kernels_read_ahead(tmp_path: Path) -> None:
    """Where read-ahead is 8 MiB its first byte in a page took 2 to 25 ms."""
    store = Store.open(tmp_path, StoreSettings(segment_bytes=64 << 20), store_host=HOST)
    for number in range(1, 4):
        put(store, "T", 0, bytes(30_000))
        (segment,) = store._log.segments_between(0, 1)
        made = segment.allocated_bytes // 4096 - Window(segment, 0, segment.allocated_bytes).absent_pages()
        assert number * 30_000 // 4096 < made <= number * 30_000 // 4096 + 2 * 8
    assert store.check() == []
    store.close()


def test_a_file_the_writer_is_done_with_is_read_in_the_kernels_own_way(store: Store) -> None:
    while len(store._log.segment_list()) < 4:
        put(store, "T", 0, bytes(1000))
    store._log.make_room_ahead()
    done = store._log.segments_between(0, store.appended_position)[:-1]
    assert done
    assert not any(segment.is_paged_singly for segment in done)
    assert all(segment.is_paged_singly for segment in store._log.segment_list()[len(done) :])


def test_segment_made_ahead_is_removed_on_close(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    put(store, "T", 0, b"x")
    store._log.make_room_ahead()
    assert len(store._log.segment_list()) == 2
    assert store.check() == []
    store.close()
    assert os.listdir(tmp_path / "commitlog") == [segment_name(0)]


def test_missing_segment_is_a_damaged_range(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    for _ in range(6):
        put(store, "T", 0, b"x" * 1900)
    store.close()
    (tmp_path / "commitlog" / segment_name(4096)).unlink()
    store = open_small(tmp_path)
    (damage,) = store.recovery.damage
    assert (damage.start_position, damage.end_position) == (4096, 8192)
    assert damage.lost == (Loss("T", 0, 2, 3),)
    assert len(list(log_records(store))) == 5
    assert store.check() == []
    store.close()


@pytest.mark.slow
def test_thousands_of_missing_segments_are_refused(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    put(store, "T", 0, b"x")
    store.close()
    (tmp_path / "commitlog" / segment_name(4096 * 1026)).touch()
    with pytest.raises(StoreCorruptError, match=r"no file holds the positions 4096\.\.4202496"):
        open_small(tmp_path)
    (tmp_path / "commitlog" / segment_name(4096 * 1026)).rename(
        tmp_path / "commitlog" / segment_name(4096 * 1025)
    )
    store = open_small(tmp_path)
    assert len(os.listdir(tmp_path / "commitlog")) == 1
    assert store.check() == []
    store.close()


def test_changed_segment_size_keeps_old_files(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    for _ in range(5):
        put(store, "T", 0, b"x" * 1900)
    store.close()
    store = open_small(tmp_path, segment_bytes=10_000)
    for _ in range(9):
        put(store, "T", 0, b"y" * 1900)
    assert len(list(log_records(store))) == 14
    assert store.check() == []
    store.close()
    store = open_small(tmp_path, segment_bytes=4096)
    put(store, "T", 0, b"z")
    assert store.queue("T", 0).max_offset == 15
    assert store.check() == []
    store.close()
