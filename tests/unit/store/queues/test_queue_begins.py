"""Queues whose files are lost after retention has deleted their records go on where they were."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from unittest import mock

import pytest
from store_keeper import Keeper
from store_model import SMALL, bodies_of, open_small, put, wait_flushed

from iotmq.store.queues.queue_begins import BEGINS_NAME, BeginsFile, QueueBegins, decode_begins, encode_begins
from iotmq.store.store import Store
from iotmq.store.tools.closed_check import ClosedCheck
from iotmq.store.tools.inspection import ClosedStore
from iotmq.store.tools.rebuild import QUEUES, rebuild

BEGINS = QueueBegins(4096, [("T", 0, 5), ("t" * 255, 1023, 1 << 40)])
# How many records the queues had that have none left: some of a file of entries, all of it, and more.
FILE_ENTRIES = int(SMALL["queue_file_entries"])
IDLE = {"Idle": 3, "Full": FILE_ENTRIES, "Long": FILE_ENTRIES + 2}


@pytest.fixture
def trimmed(tmp_path: Path) -> Keeper:
    """A closed store whose log has lost its front, and with it every record of some queues."""
    k = Keeper(tmp_path / "data")
    for topic, count in IDLE.items():
        k.fill(count, topic=topic)
    k.fill(4, topic="Busy")
    k.clock.advance(3601)
    k.fill(4, topic="Busy")
    k.delete_expired()
    assert k.store.min_position > 0
    check_ends(k.store)
    k.store.close()
    return k


def reopened(k: Keeper) -> Store:
    k.store = k.open_store()
    return k.store


def check_ends(store: Store) -> None:
    for topic, end in IDLE.items():
        queue = store.find_queue(topic, 0)
        assert queue is not None
        assert (queue.min_offset, queue.max_offset, queue.next_offset) == (end, end, end)
    busy = store.find_queue("Busy", 0)
    assert busy is not None
    assert busy.max_offset == 8
    assert store.check() == []


def lose_queue_files(directory: Path) -> None:
    shutil.rmtree(directory / "consumequeue")


def test_what_the_file_says_is_read_as_written() -> None:
    assert decode_begins(encode_begins(BEGINS)) == BEGINS
    assert decode_begins(encode_begins(QueueBegins(0, []))) == QueueBegins(0, [])


def test_a_damaged_file_says_nothing() -> None:
    data = encode_begins(BEGINS)
    for at in range(len(data)):
        assert decode_begins(data[:at]) is None
        assert decode_begins(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None


def test_a_file_of_a_log_that_ends_before_it_is_deleted(tmp_path: Path) -> None:
    file = BeginsFile(tmp_path / "begins")
    assert file.read(4096) is None
    file.write(BEGINS)
    assert file.read(4096) == BEGINS
    assert file.read(4095) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_clean", [True, False])
def test_offsets_go_on_without_queue_files(trimmed: Keeper, is_clean: bool) -> None:
    lose_queue_files(trimmed.directory)
    if not is_clean:
        (trimmed.directory / "abort").touch()
    store = reopened(trimmed)
    check_ends(store)
    for topic, end in IDLE.items():
        assert put(store, topic, 0, b"next").first_offset == end
        assert bodies_of(store, topic, 0) == [b"next"]
    assert store.check() == []
    store.close()


def test_such_a_queue_takes_no_file_before_its_next_record(
    trimmed: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    lose_queue_files(trimmed.directory)
    for _ in range(3):
        caplog.clear()
        store = reopened(trimmed)
        check_ends(store)
        store.close()
        assert not (trimmed.directory / "consumequeue" / "Idle").exists()
    # Nothing is missed for it.
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_its_first_file_is_filled_up_to_its_next_record(trimmed: Keeper) -> None:
    lose_queue_files(trimmed.directory)
    store = reopened(trimmed)
    for topic in IDLE:
        put(store, topic, 0, b"next")
    store.close()
    for is_clean in (True, False):
        if not is_clean:
            (trimmed.directory / "abort").touch()
        store = reopened(trimmed)
        for topic, end in IDLE.items():
            queue = store.queue(topic, 0)
            assert (queue.min_offset, queue.max_offset) == (end, end + 1)
            assert bodies_of(store, topic, 0) == [b"next"]
        assert store.check() == []
        store.close()
    with ClosedStore(trimmed.directory) as closed:
        check = ClosedCheck(closed, trimmed.store.settings)
        check.run()
        assert (check.problems, check.notes) == ([], [])
        assert {queue.topic: queue.end_offset() for queue in closed.queues()} == {
            "Busy": 8,
            **{topic: end + 1 for topic, end in IDLE.items()},
        }


def test_queues_rebuilt_by_hand_go_on_where_they_were(trimmed: Keeper) -> None:
    rebuild(trimmed.directory, trimmed.store.settings, [QUEUES])
    check_ends(reopened(trimmed))
    trimmed.store.close()


def test_the_next_deletion_remembers_what_was_lost_and_found(trimmed: Keeper) -> None:
    lose_queue_files(trimmed.directory)
    reopened(trimmed)
    trimmed.clock.advance(3601)
    trimmed.fill(4, topic="Other")
    trimmed.delete_expired()
    trimmed.store.close()
    lose_queue_files(trimmed.directory)
    store = reopened(trimmed)
    busy = store.find_queue("Busy", 0)
    assert busy is not None
    assert busy.max_offset == 8
    assert store.queue("Idle", 0).next_offset == IDLE["Idle"]
    store.close()


def test_a_trimmed_log_without_the_file_gets_it_at_the_start(trimmed: Keeper) -> None:
    (trimmed.directory / BEGINS_NAME).unlink()
    reopened(trimmed).close()
    lose_queue_files(trimmed.directory)
    check_ends(reopened(trimmed))
    trimmed.store.close()


def test_queues_found_in_order_know_better(trimmed: Keeper) -> None:
    begins = BeginsFile(trimmed.directory / BEGINS_NAME)
    begins.write(QueueBegins(4096, [(topic, 0, end + 50) for topic, end in {**IDLE, "Busy": 8}.items()]))
    check_ends(reopened(trimmed))
    trimmed.store.close()


@pytest.mark.damaged_store
def test_a_log_that_has_lost_its_end_as_well_gives_no_offset_twice(trimmed: Keeper) -> None:
    begins = BeginsFile(trimmed.directory / BEGINS_NAME).read(1 << 20)
    assert begins is not None
    offsets = [
        (topic, queue_id, 50 if topic == "Busy" else offset) for topic, queue_id, offset in begins.offsets
    ]
    BeginsFile(trimmed.directory / BEGINS_NAME).write(begins._replace(offsets=offsets))
    lose_queue_files(trimmed.directory)
    (first,) = (offset for topic, _, offset in begins.offsets if topic == "Busy")
    for end in (50, 51, 52):
        store = reopened(trimmed)
        queue = store.queue("Busy", 0)
        assert (queue.min_offset, queue.max_offset, queue.next_offset) == (first, end, end)
        # What the log has is read as before.
        assert store.read(queue, first, records_max=8 - first, bytes_max=1 << 20).count == 8 - first
        assert put(store, "Busy", 0, b"next").first_offset == end
        store.close()


def test_a_topic_that_was_removed_starts_over_from_0(trimmed: Keeper) -> None:
    store = reopened(trimmed)
    assert store.remove_queues({"Idle"}) == {"Idle"}
    store.close()
    lose_queue_files(trimmed.directory)
    store = reopened(trimmed)
    assert store.find_queue("Idle", 0) is None
    assert put(store, "Idle", 0, b"anew").first_offset == 0
    assert store.queue("Full", 0).next_offset == IDLE["Full"]
    store.close()


def test_a_log_copied_from_elsewhere_forgets_the_former_one(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    BeginsFile(tmp_path / BEGINS_NAME).write(QueueBegins(0, [("T", 0, 7)]))
    store.start_at(8 * 4096)
    assert not (tmp_path / BEGINS_NAME).exists()
    store.close()


def test_a_disk_that_refuses_the_file_is_still_given_room(tmp_path: Path) -> None:
    k = Keeper(tmp_path)
    k.fill(4)
    k.clock.advance(3601)
    k.fill(4)
    full = OSError(28, "No space left on device")
    with mock.patch("iotmq.store.queues.queue_begins.replace_file", side_effect=full):
        k.delete_expired()
    assert k.store.min_position > 0
    assert not (tmp_path / BEGINS_NAME).exists()
    k.store.close()


def test_a_log_that_was_replaced_is_not_told_of_the_former_one(trimmed: Keeper) -> None:
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(trimmed.directory / name)
    store = reopened(trimmed)
    assert store.queue("Idle", 0).next_offset == 0
    put(store, "Idle", 0, b"x" * 500)
    wait_flushed(store)
    store.close()
    assert not (trimmed.directory / BEGINS_NAME).exists()
