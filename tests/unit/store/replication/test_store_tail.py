"""What is appended and not confirmed: seen by nobody, numbered, and cut off again."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from store_model import bodies_of, open_small, put, wait_flushed

from iotmq.errors import StoreCorruptError, StoreReadOnlyError
from iotmq.store.files.flushed_position import read_flushed_mark
from iotmq.store.recovery.checkpoint import read_checkpoint
from iotmq.store.replication.tail import is_boundary, piece_end, positions_of
from iotmq.store.store import Store


class Seen:
    """A projection of its own file: which records it was given."""

    name = "seen"

    def __init__(self, applied_position: int = 0) -> None:
        self.applied_position = applied_position

    def apply(self, view: memoryview, start_position: int, end_position: int) -> None:
        self.applied_position = end_position


def confirm(store: Store, position: int) -> None:
    store.raise_confirmed_limit(position)
    assert store.advance() == position


def next_offset(store: Store, topic: str, queue_id: int) -> int:
    queue = store.find_queue(topic, queue_id)
    return 0 if queue is None else queue.next_offset


def test_nothing_past_the_limit_is_seen(tmp_path: Path) -> None:
    store = open_small(tmp_path, confirmed_limit=0)
    seen = Seen()
    store.add_projection(seen)
    first = put(store, "T", 0, b"one", b"two")
    put(store, "T", 0, b"three")
    assert store.advance() == seen.applied_position == 0
    assert bodies_of(store, "T", 0) == []
    confirm(store, first.end_position)
    assert bodies_of(store, "T", 0) == [b"one", b"two"]
    assert seen.applied_position == first.end_position
    assert next_offset(store, "T", 0) == 3
    assert store.check() == []
    store.close()


def test_a_lower_limit_takes_nothing_back(tmp_path: Path) -> None:
    store = open_small(tmp_path, confirmed_limit=0)
    end_position = put(store, "T", 0, b"one").end_position
    confirm(store, end_position)
    store.raise_confirmed_limit(0)
    assert store.advance() == end_position
    store.close()


def test_confirmed_is_what_both_the_disk_and_the_limit_allow(tmp_path: Path) -> None:
    store = open_small(tmp_path, confirmed_limit=0, flush="sync")
    first = put(store, "T", 0, b"one").end_position
    second = put(store, "T", 0, b"two").end_position
    wait_flushed(store)
    assert store.confirmed_position == 0
    confirm(store, first)
    third = put(store, "T", 0, b"three").end_position
    store.raise_confirmed_limit(third)
    wait_flushed(store)
    assert store.confirmed_position == third > second
    store.close()


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_cut_tail_is_gone_and_its_offsets_are_given_again(tmp_path: Path, flush: str) -> None:
    store = open_small(tmp_path, confirmed_limit=0, flush=flush)
    kept = put(store, "T", 0, b"kept").end_position
    wait_flushed(store)
    confirm(store, kept)
    for number in range(12):
        # Over several segments, and queues that were not there before.
        put(store, "T", 0, b"x" * 900)
        put(store, "new", number % 2, b"y" * 400)
    wait_flushed(store)
    store.cut(kept)
    assert store.appended_position == store.flushed_position == store.confirmed_position == kept
    assert next_offset(store, "T", 0) == 1
    assert next_offset(store, "new", 0) == 0
    end_position = put(store, "T", 0, b"other").end_position
    wait_flushed(store)
    confirm(store, end_position)
    assert bodies_of(store, "T", 0) == [b"kept", b"other"]
    assert store.check() == []
    store.close()
    store = open_small(tmp_path, confirmed_limit=end_position, flush=flush)
    assert store.recovery.was_clean
    assert store.recovery.damage == ()
    assert bodies_of(store, "T", 0) == [b"kept", b"other"]
    assert store.check() == []
    store.close()


def test_part_of_a_tail_can_be_kept(tmp_path: Path) -> None:
    store = open_small(tmp_path, confirmed_limit=0)
    put(store, "T", 0, b"a" * 1000)
    second = put(store, "T", 0, b"b" * 1000)
    put(store, "T", 0, b"c" * 1000)
    put(store, "T", 0, b"d" * 1000)
    store.cut(second.end_position)
    assert next_offset(store, "T", 0) == 2
    confirm(store, second.end_position)
    assert bodies_of(store, "T", 0) == [b"a" * 1000, b"b" * 1000]
    store.close()


def test_a_log_is_cut_at_the_end_of_a_segment(tmp_path: Path) -> None:
    store = open_small(tmp_path, confirmed_limit=0)
    while store.appended_position < 3 * 4096:
        put(store, "T", 0, b"x" * 900)
    store.cut(4096)
    assert store.appended_position == 4096
    end_position = put(store, "T", 0, b"next").end_position
    confirm(store, end_position)
    assert store.check() == []
    assert bodies_of(store, "T", 0)[-1] == b"next"
    store.close()


def test_only_the_unconfirmed_ends_of_records_can_be_cut_at(tmp_path: Path) -> None:
    store = open_small(tmp_path, confirmed_limit=0)
    first = put(store, "T", 0, b"one").end_position
    second = put(store, "T", 0, b"two").end_position
    confirm(store, first)
    for position in (0, first - 1, first + 1, second - 1, second + 1):
        with pytest.raises(ValueError, match="cannot be cut"):
            store.cut(position)
    store.cut(second)
    assert store.appended_position == second
    store.cut(first)
    assert store.appended_position == first
    store.close()


def test_a_tail_is_numbered_on_behind_after_a_start(tmp_path: Path) -> None:
    store = open_small(tmp_path, confirmed_limit=0)
    confirmed = put(store, "T", 0, b"one").end_position
    confirm(store, confirmed)
    put(store, "T", 0, b"two", b"three")
    put(store, "U", 1, b"first")
    put(store, "T", 0, b"prepared", sys_flag=4)
    store.close()
    store = open_small(tmp_path, confirmed_limit=confirmed)
    assert store.recovery.was_clean
    assert store.recovery.queues_from_position == confirmed, "the queues were made again"
    assert store.confirmed_position == confirmed
    assert bodies_of(store, "T", 0) == [b"one"]
    assert (next_offset(store, "T", 0), next_offset(store, "U", 1)) == (3, 1)
    appended = put(store, "T", 0, b"four")
    assert appended.first_offset == 3
    confirm(store, appended.end_position)
    assert bodies_of(store, "T", 0) == [b"one", b"two", b"three", b"four"]
    assert bodies_of(store, "U", 1) == [b"first"]
    assert store.check() == []
    store.close()


def test_what_queues_have_was_confirmed_whatever_limit_is_remembered(tmp_path: Path) -> None:
    store = open_small(tmp_path, confirmed_limit=0)
    end_position = put(store, "T", 0, b"one", b"two").end_position
    confirm(store, end_position)
    store.close()
    store = open_small(tmp_path, confirmed_limit=0)
    assert store.confirmed_position == end_position
    store.close()


def test_what_a_projection_has_was_confirmed_whatever_limit_is_remembered(tmp_path: Path) -> None:
    store = open_small(tmp_path, confirmed_limit=0)
    first = put(store, "T", 0, b"one").end_position
    second = put(store, "T", 0, b"two").end_position
    confirm(store, first)
    store.add_projection(Seen(second))
    assert store.confirmed_position == second
    assert bodies_of(store, "T", 0) == [b"one", b"two"]
    with pytest.raises(StoreCorruptError, match="seen has applied"):
        store.add_projection(Seen(second + 1))
    store.close()


def test_a_cut_withdraws_what_was_said_to_be_on_the_disk(tmp_path: Path) -> None:
    store = open_small(tmp_path, confirmed_limit=0)
    kept = put(store, "T", 0, b"kept").end_position
    confirm(store, kept)
    put(store, "T", 0, b"x" * 1500)
    wait_flushed_position = put(store, "T", 0, b"x" * 1500).end_position
    wait_flushed(store, wait_flushed_position)
    assert read_flushed_mark(tmp_path / "checkpoint") == wait_flushed_position
    store.cut(kept)
    assert read_flushed_mark(tmp_path / "checkpoint") == kept
    checkpoint = read_checkpoint(tmp_path / "checkpoint")
    assert checkpoint is not None
    assert checkpoint.position is not None
    assert checkpoint.position <= kept
    # As a kill leaves it: nothing is taken for damage, and nothing comes back.
    shutil.copytree(tmp_path, tmp_path.with_name("killed"))
    store.close()
    killed = open_small(tmp_path.with_name("killed"), confirmed_limit=kept)
    assert killed.recovery.damage == ()
    assert killed.appended_position == kept
    assert killed.check() == []
    killed.close()


@pytest.mark.damaged_store
def test_a_disk_that_refuses_a_cut_ends_appends(tmp_path: Path) -> None:
    failing = False

    def sync_file(_: int) -> None:
        if failing:
            raise OSError(5, "Input/output error")

    store = open_small(tmp_path, confirmed_limit=0, sync_file=sync_file)
    put(store, "T", 0, b"one")
    second = put(store, "T", 0, b"two")
    wait_flushed(store)
    failing = True
    with pytest.raises(StoreReadOnlyError, match="cannot cut the log"):
        store.cut(second.start_position)
    with pytest.raises(StoreReadOnlyError):
        put(store, "T", 0, b"three")
    store.close()


def test_pieces_are_whole_records_of_one_segment(tmp_path: Path) -> None:
    store = open_small(tmp_path, confirmed_limit=0)
    # Records begin and end there; a blank stands in front of a segment's end.
    boundaries = {0, 4096, 8192, 12288}
    while store.appended_position < 3 * 4096:
        appended = put(store, "T", 0, b"x" * 700)
        boundaries |= {appended.start_position, appended.end_position}
    position = 0
    while position < store.appended_position:
        for bytes_max in (1, 900, 2000, 10_000):
            end_position = piece_end(store.log, position, bytes_max)
            assert end_position in boundaries
            assert position < end_position <= position // 4096 * 4096 + 4096
            one_record = piece_end(store.log, position, 1)
            assert end_position == one_record or end_position - position <= bytes_max
        position = end_position
    for position in range(store.appended_position + 1):
        assert is_boundary(store.log, 0, position) == (position in boundaries)
    store.close()


def test_positions_of_a_topic_are_found(tmp_path: Path) -> None:
    store = open_small(tmp_path, confirmed_limit=0)
    positions = []
    for number in range(20):
        put(store, "other", number % 3, b"x" * 300)
        if number % 4 == 0:
            positions.append(put(store, "T", 0, b"y").start_position)
    end_position = store.appended_position
    assert positions_of(store.log, b"T", 0, end_position) == positions
    assert positions_of(store.log, b"T", positions[1], positions[3]) == positions[1:3]
    assert positions_of(store.log, b"nothing", 0, end_position) == []
    store.close()


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_appends_confirmations_cuts_and_starts(tmp_path: Path, seed: int) -> None:
    """The slow twin is a list of (position behind it, queue, body)."""
    draw = random.Random(seed)
    flush = draw.choice(("async", "sync"))
    store = open_small(tmp_path / "0", confirmed_limit=0, flush=flush)
    records: list[tuple[int, int, bytes]] = []
    confirmed = starts = 0
    for number in range(150):
        action = draw.choices(("append", "confirm", "cut", "start", "kill"), (60, 25, 8, 4, 3))[0]
        if action == "append":
            queue_id = draw.randrange(3)
            body = b"%d " % number + b"x" * draw.choice((0, 50, 700, 1500))
            appended = put(store, "T", queue_id, body)
            assert appended.first_offset == sum(queue == queue_id for _, queue, _ in records)
            records.append((appended.end_position, queue_id, body))
        elif action == "confirm" and records:
            confirmed = max(confirmed, draw.choice(records)[0])
            store.raise_confirmed_limit(confirmed)
            wait_flushed(store)
        elif action == "cut":
            position = draw.choice([confirmed, *(end for end, _, _ in records if end >= confirmed)])
            store.cut(position)
            records = [record for record in records if record[0] <= position]
        elif action == "start":
            store.close()
            store = open_small(tmp_path / str(starts), confirmed_limit=confirmed, flush=flush)
        elif action == "kill":
            # What a killed process leaves is what the page cache has.
            shutil.copytree(tmp_path / str(starts), tmp_path / str(starts + 1))
            store.close()
            starts += 1
            store = open_small(tmp_path / str(starts), confirmed_limit=confirmed, flush=flush)
        assert store.confirmed_position == confirmed
        assert store.appended_position == (records[-1][0] if records else 0)
        assert store.recovery.damage == ()
        for queue_id in range(3):
            shown = [body for end, queue, body in records if queue == queue_id and end <= confirmed]
            assert bodies_of(store, "T", queue_id) == shown
            assert next_offset(store, "T", queue_id) == sum(queue == queue_id for _, queue, _ in records)
    assert store.check() == []
    store.close()
