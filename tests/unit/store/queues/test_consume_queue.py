"""Queue entries: format, files, gaps, going back, and the memory of what was on the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from manual_clock import ManualClock
from store_model import batch, bodies_of, open_small, put

from iotmq.errors import StoreCorruptError, StoreError
from iotmq.limits import QUEUES_PER_TOPIC_MAX
from iotmq.message.records.record import encode_record
from iotmq.message.tags import tag_hash
from iotmq.store.log.segment import segment_name
from iotmq.store.queues.consume_queue import ConsumeQueue
from iotmq.store.store import Store

FILLER = bytes.fromhex("00000000000000007FFFFFFF0000000000000000")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_small(tmp_path)
    yield store
    assert store.check() == []
    store.close()


def queues_of(directory: Path, entries_per_file: int = 7) -> ConsumeQueue:
    queues = ConsumeQueue(str(directory), entries_per_file=entries_per_file)
    queues.rewind(0, 0)
    return queues


def apply(queues: ConsumeQueue, position: int, topic: str, queue_id: int, *offsets: int) -> int:
    """Apply records with these queue offsets, the first at `position`; returns the end."""
    data = b""
    for offset in offsets:
        data += encode_record(
            topic=topic, body=b"x", queue_id=queue_id, queue_offset=offset, position=position + len(data)
        )
    queues.apply(data, position, position + len(data))
    queues.check_invariants()
    return position + len(data)


def test_entry_is_the_golden_one(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    record = encode_record(
        topic="T", body=b"hello", properties=b"TAGS\x01TagA\x02KEYS\x01k1\x02", position=4096
    )
    queues.apply(record, 4096, 4096 + len(record))
    data = (tmp_path / "T" / "0" / segment_name(0)).read_bytes()
    assert data[:20] == bytes.fromhex("000000000000100000000073000000000027A807")
    assert len(data) == 7 * 20
    assert queues.queue("T", 0).entry(0) == (4096, 115, tag_hash("TagA"))


def test_records_find_their_queues(store: Store) -> None:
    for number in range(200):
        put(store, f"topic{number % 40}", number % 3, b"%d" % number)
    for number in range(40):
        bodies = [body for queue_id in range(3) for body in bodies_of(store, f"topic{number}", queue_id)]
        assert sorted(bodies) == sorted(b"%d" % n for n in range(200) if n % 40 == number)


def test_topics_that_hash_alike_in_part_stay_apart(store: Store) -> None:
    names = ["a", "aa", "a" * 8, "a" * 9, "a" * 16, "aaaaaaab", "baaaaaaa", "a" * 127, "a" * 126 + "b"]
    for number, name in enumerate(names):
        put(store, name, number % 2, name.encode())
        put(store, name, 2, name.encode() * 2)
    for number, name in enumerate(names):
        assert bodies_of(store, name, number % 2) == [name.encode()]
        assert bodies_of(store, name, 2) == [name.encode() * 2]


def test_handle_is_the_same_every_time(store: Store) -> None:
    assert store.find_queue("T", 0) is None
    queue = store.queue("T", 0)
    assert store.queue("T", 0) is store.find_queue("T", 0) is queue
    assert (queue.topic, queue.queue_id, queue.min_offset, queue.max_offset) == ("T", 0, 0, 0)
    assert store.queues() == [queue]


def test_handle_costs_no_disk(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    store.queue("T", 0)
    assert os.listdir(tmp_path / "consumequeue") == [".applied"]
    store.close()


@pytest.mark.parametrize("topic", ["", ".", "..", ".hidden", "a/b", "a\0b", "a b", "a\n", "café", "a\x7f"])
def test_topic_that_cannot_be_a_directory_is_refused(store: Store, topic: str) -> None:
    with pytest.raises(StoreError, match="topic"):
        store.queue(topic, 0)


@pytest.mark.parametrize("queue_id", [-1, QUEUES_PER_TOPIC_MAX])
def test_queue_id_outside_its_range_is_refused(store: Store, queue_id: int) -> None:
    store.queue("T", QUEUES_PER_TOPIC_MAX - 1)
    with pytest.raises(StoreError, match="queue id"):
        store.queue("T", queue_id)


def test_record_with_an_impossible_topic_is_passed_over(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    end = apply(queues, 0, "../../etc", 0, 0)
    end = apply(queues, end, "T", -1, 0)
    assert queues.queues() == []
    assert queues.ignored_count == 2
    assert queues.applied_position == end


def test_files_follow_each_other(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    apply(queues, 0, "T", 0, *range(20))
    assert sorted(os.listdir(tmp_path / "T" / "0")) == [segment_name(n * 140) for n in range(3)]
    assert [queues.queue("T", 0).entry(offset)[0] for offset in range(20)] == [93 * n for n in range(20)]  # type: ignore[index]


def test_queue_file_starts_with_one_page(tmp_path: Path) -> None:
    queues = queues_of(tmp_path, entries_per_file=300_000)
    apply(queues, 0, "T", 0, *range(204))
    path = tmp_path / "T" / "0" / segment_name(0)
    assert path.stat().st_size == 6_000_000
    assert path.stat().st_blocks * 512 == 4096
    apply(queues, 93 * 204, "T", 0, *range(204, 300))
    assert path.stat().st_blocks * 512 == 8192


def test_batch_applied_twice_counts_once(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    for _ in range(2):
        apply(queues, 0, "T", 0, 0, 1, 2)
    assert queues.queue("T", 0).max_offset == 3
    assert queues.ignored_count == 3


def test_queue_whose_log_was_trimmed_starts_with_fillers(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    apply(queues, 1000, "T", 0, 17, 18)
    queue = queues.queue("T", 0)
    assert (queue.min_offset, queue.max_offset) == (17, 19)
    data = (tmp_path / "T" / "0" / segment_name(14 * 20)).read_bytes()
    assert data[:60] == FILLER * 3
    assert queue.entry(17) == (1000, 93, 0)
    with pytest.raises(IndexError):
        queue.entry(16)


def test_gap_inside_a_file_is_filled(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    apply(queues, 0, "T", 0, 0, 5, 6)
    queue = queues.queue("T", 0)
    assert [queue.entry(offset)[1] for offset in range(6)] == [93] + [0x7FFFFFFF] * 4 + [93]  # type: ignore[index]


def test_gaps_in_a_file_that_much_is_written_to(tmp_path: Path) -> None:
    queues = queues_of(tmp_path, entries_per_file=9_000)
    offsets = [*range(4_000), 8_499, 8_500, *range(9_100, 9_110)]
    apply(queues, 0, "T", 0, *offsets)
    queue = queues.queue("T", 0)
    found = [offset for offset in range(9_110) if queue.entry(offset)[1] == 93]  # type: ignore[index]
    assert found == offsets
    assert all(queue.entry(offset)[1] in (93, 0x7FFFFFFF) for offset in range(9_110))  # type: ignore[index]


def test_wide_gap_leaves_out_whole_files(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    apply(queues, 0, "T", 0, 0, 5_000_003, 5_000_004)
    queue = queues.queue("T", 0)
    assert queue.max_offset == 5_000_005
    assert len(os.listdir(tmp_path / "T" / "0")) == 2
    assert queue.entry(1000) is None
    assert queue.next_file_offset(1000) == 5_000_003 - 5_000_003 % 7
    assert queue.entry(5_000_004) == (186, 93, 0)
    apply(queues, 279, "T", 0, *range(5_000_005, 5_000_030))
    assert queue.max_offset == 5_000_030


def test_rewind_forgets_from_a_position_on(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    apply(queues, 0, "T", 0, *range(20))
    apply(queues, 20 * 93, "U", 0, 0)
    queues.rewind(9 * 93, 0)
    assert queues.queue("T", 0).max_offset == queues.queue("T", 0).next_offset == 9
    assert queues.queue("U", 0).max_offset == 0
    assert sorted(os.listdir(tmp_path / "T" / "0")) == [segment_name(0), segment_name(140)]
    assert (tmp_path / "T" / "0" / segment_name(140)).read_bytes()[40:] == bytes(100)
    apply(queues, 9 * 93, "T", 0, 9)
    assert queues.queue("T", 0).entry(9) == (837, 93, 0)


def test_reopened_queue_ends_at_the_first_entry_that_is_none(tmp_path: Path) -> None:
    apply(queues_of(tmp_path), 0, "T", 0, *range(20))
    path = tmp_path / "T" / "0" / segment_name(280)
    data = bytearray(path.read_bytes())
    data[20:60] = bytes(40)
    data[60:80] = (1 << 41).to_bytes(8, "big") + data[8:20]
    path.write_bytes(data)
    queues = ConsumeQueue(str(tmp_path), entries_per_file=7)
    queues.rewind(1 << 40, 0)
    assert queues.queue("T", 0).max_offset == 15
    assert path.read_bytes()[20:] == bytes(120)


def test_min_offset_follows_the_log(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    apply(queues, 0, "T", 0, *range(20))
    for min_position, offset in ((0, 0), (1, 1), (93, 1), (94, 2), (93 * 19, 19), (93 * 20, 20)):
        queues.trim(min_position)
        assert queues.queue("T", 0).min_offset == offset


def test_min_offset_steps_over_fillers(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    apply(queues, 0, "T", 0, 0, 6, 7, 30, 31)
    for min_position, offset in ((1, 6), (94, 7), (93 * 3, 30)):
        queues.trim(min_position)
        assert queues.queue("T", 0).min_offset == offset


def test_bytes_that_are_no_records_are_refused(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    with pytest.raises(StoreCorruptError, match="not a record"):
        queues.apply(b"x" * 100, 0, 100)
    with pytest.raises(ValueError, match="10 bytes for"):
        queues.apply(b"x" * 10, 0, 100)
    assert queues.applied_position == 0


def test_watched_queues_are_reported_once(store: Store) -> None:
    store.queue("T", 0).watched = True
    store.queue("T", 1).watched = True
    for queue_id in (0, 1, 2, 0):
        put(store, "T", queue_id, b"x")
    assert store.take_dispatched() == [store.queue("T", 0), store.queue("T", 1)]
    assert store.take_dispatched() == []
    store.queue("T", 1).watched = False
    for queue_id in (0, 1):
        put(store, "T", queue_id, b"x")
    assert store.take_dispatched() == [store.queue("T", 0)]


def test_state_survives_and_a_torn_one_does_not(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    assert queues.read_state() is None
    end = apply(queues, 0, "T", 0, 0, 1)
    queues.write_state(queues.state())
    assert queues.read_state() == (end, 1, 2)
    path = tmp_path / ".applied"
    good = path.read_bytes()
    for bad in (b"", good[:-1], good + b"x", good[:20] + b"\1" + good[21:], bytes(len(good))):
        path.write_bytes(bad)
        assert queues.read_state() is None


def test_only_files_written_since_are_synced(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    synced: list[int] = []

    def sync_file(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)

    apply(queues, 0, "T", 0, *range(20))
    queues.sync(queues.take_dirty(), sync_file)
    assert len(synced) == 3
    assert queues.take_dirty() == []
    apply(queues, 93 * 20, "T", 0, 20)
    queues.sync(queues.take_dirty(), sync_file)
    assert synced[3:] == [(tmp_path / "T" / "0" / segment_name(280)).stat().st_ino]


def test_many_queues_are_synced_at_once(tmp_path: Path) -> None:
    queues = queues_of(tmp_path)
    end = 0
    for number in range(100):
        end = apply(queues, end, "T", number, 0)
    synced: list[int] = []
    queues.sync(queues.take_dirty(), synced.append)
    assert synced == []


@pytest.mark.slow
def test_thousand_queues_in_turn(tmp_path: Path) -> None:
    store = open_small(tmp_path, segment_bytes=1 << 20, queue_file_entries=300_000, clock=ManualClock())
    for _ in range(3):
        for number in range(1000):
            put(store, f"topic{number // 10}", number % 10, b"x", b"y")
    assert all(queue.max_offset == 6 for queue in store.queues())
    assert len(store.queues()) == 1000
    assert (
        sum(path.stat().st_blocks * 512 for path in (tmp_path / "consumequeue").glob("*/*/*")) == 4096 * 1000
    )
    assert store.check() == []
    store.close()


def test_large_batch_spans_many_files(store: Store) -> None:
    store.append(store.queue("T", 0), batch(b"x") * 100, born_timestamp_ms=0, born_host=bytes(8))
    assert bodies_of(store, "T", 0) == [b"x"] * 100


@pytest.mark.parametrize("entries", [3, 5, 7, 11])
def test_files_of_another_length_are_followed_by_files_of_the_new_one(tmp_path: Path, entries: int) -> None:
    bodies: list[bytes] = []
    for file_entries in (7, entries, 4):
        store = open_small(tmp_path, queue_file_entries=file_entries)
        for _ in range(17):
            bodies.append(b"%d" % len(bodies))
            put(store, "T", 0, bodies[-1])
        assert bodies_of(store, "T", 0) == bodies
        assert store.check() == []
        store.close()
    store = open_small(tmp_path, queue_file_entries=4)
    assert store.recovery.queues_from_position == store.appended_position, "no queue was filled again"
    assert bodies_of(store, "T", 0) == bodies
    store.close()


@pytest.mark.parametrize("entries_per_file", [9_000, 300_000])
def test_a_queue_that_much_is_written_to(tmp_path: Path, entries_per_file: int) -> None:
    """Pages of its files are made many at a time, before the entries and never over them."""
    bodies = [b"%d" % number for number in range(20_000)]
    sizes = {"queue_file_entries": entries_per_file, "segment_bytes": 1 << 20}
    at = 0
    for some in (1, 3_000, 3_277, 1, 276, 13_445):
        store = open_small(tmp_path, **sizes)
        for start in range(at, at + some, 1_000):
            put(store, "T", 0, *bodies[start : min(start + 1_000, at + some)])
        at += some
        assert store.check() == []
        store.close()
    assert at == len(bodies)
    store = open_small(tmp_path, **sizes)
    assert bodies_of(store, "T", 0) == bodies
    store.close()
