"""Hiding the records of a topic, and forgetting queues the log has nothing of any more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from eventually import eventually
from manual_clock import ManualClock
from store_model import bodies_of, open_small, put, wait_allocated, wait_flushed
from store_trim_machine import SteppedRemover

from iotmq.message.records.record import decode_record
from iotmq.store.queues.reads import ReadStatus
from iotmq.store.store import Store


def open_expiring(directory: Path, clock: ManualClock) -> Store:
    """A store that deletes without delay or pause all that is an hour old."""
    return open_small(
        directory,
        clock=clock,
        retention_delay_ms=0,
        retention_hours=1,
        delete_pause_ms=0,
        delete_files_max=1000,
    )


def expire(store: Store, clock: ManualClock) -> None:
    """Let all that is stored expire but one more record of U."""
    clock.advance(7_200)
    put(store, "U", 0, b"last")
    wait_flushed(store)
    wait_allocated(store)
    store.delete_expired()


def read_status(store: Store, topic: str, queue_id: int, offset: int) -> ReadStatus:
    queue = store.find_queue(topic, queue_id)
    return store.read(queue, offset, records_max=10, bytes_max=1 << 20).status


def test_a_hidden_record_is_not_read_and_its_offset_is_not_used_again(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    put(store, "T", 0, b"one", b"two")
    put(store, "T", 1, b"three")
    put(store, "U", 0, b"another's")
    store.hide_topics({"T": store.appended_position})
    assert read_status(store, "T", 0, 0) == ReadStatus.OFFSET_TOO_SMALL
    put(store, "T", 0, b"new")
    assert bodies_of(store, "T", 0) == [b"new"]
    assert bodies_of(store, "T", 1) == []
    assert bodies_of(store, "U", 0) == [b"another's"]
    queue = store.queue("T", 0)
    assert (queue.first_offset, queue.min_offset, queue.max_offset) == (2, 2, 3)
    assert store.check() == []
    store.close()


def test_records_under_way_to_the_disk_are_hidden_too(tmp_path: Path) -> None:
    store = open_small(tmp_path, flush="sync")
    put(store, "T", 0, b"under way")
    store.hide_topics({"T": store.appended_position})
    put(store, "T", 0, b"after")
    wait_flushed(store)
    store.advance()
    assert bodies_of(store, "T", 0) == [b"after"]
    assert store.check() == []
    store.close()


def test_records_on_the_disk_and_not_in_their_queue_yet_are_hidden_too(tmp_path: Path) -> None:
    store = open_small(tmp_path, flush="sync")
    put(store, "T", 0, b"flushed")
    store.request_flush()
    eventually(lambda: store.flushed_position == store.appended_position, "it is on the disk")
    store.hide_topics({"T": store.appended_position})
    store.advance()
    assert bodies_of(store, "T", 0) == []
    assert store.check() == []
    store.close()


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_hiding_again_after_a_start_gives_the_same_queue(tmp_path: Path, is_rebuilt: bool) -> None:
    store = open_small(tmp_path)
    put(store, "T", 0, b"old", b"older")
    position = store.appended_position
    store.hide_topics({"T": position})
    put(store, "T", 0, b"new")
    store.close()
    if is_rebuilt:
        (tmp_path / "consumequeue" / ".applied").unlink()
    store = open_small(tmp_path)
    assert bodies_of(store, "T", 0) == [b"old", b"older", b"new"]
    store.hide_topics({"T": position})
    assert bodies_of(store, "T", 0) == [b"new"]
    assert store.check() == []
    store.close()


def test_queues_are_forgotten_when_the_log_has_nothing_of_them_and_begin_at_0_again(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_expiring(tmp_path, clock)
    put(store, "T", 0, b"old")
    put(store, "T", 3, b"old")
    store.hide_topics({"T": store.appended_position})
    assert store.remove_queues({"T"}) == set()
    for _ in range(40):
        put(store, "U", 0, *(b"x" * 1_500 for _ in range(4)))
    expire(store, clock)
    assert store._trimmer.remover.wait_idle(20.0)
    store.retain()
    assert store.remove_queues({"T"}) == {"T"}
    assert store.find_queue("T", 0) is None
    assert not (tmp_path / "consumequeue" / "T").exists()
    put(store, "T", 0, b"new")
    assert store.queue("T", 0).min_offset == 0
    assert bodies_of(store, "T", 0) == [b"new"]
    assert store.check() == []
    store.close()
    store = open_small(tmp_path, clock=clock)
    assert bodies_of(store, "T", 0) == [b"new"]
    assert store.find_queue("T", 3) is None
    assert store.check() == []
    store.close()


def test_a_crash_right_after_queues_were_forgotten_costs_no_other_queue_its_offsets(tmp_path: Path) -> None:
    """A start that misses queue files fills all of them from the log, where a quiet queue has nothing."""
    clock = ManualClock()
    store = open_small(
        tmp_path / "data", clock=clock, retention_delay_ms=0, retention_hours=1, delete_pause_ms=0,
        delete_files_max=1000, checkpoint_interval_ms=3_600_000,
    )  # fmt: skip
    put(store, "T", 0, b"old")
    put(store, "Quiet", 0, b"old", b"older")
    store.hide_topics({"T": store.appended_position})
    for _ in range(40):
        put(store, "U", 0, *(b"x" * 1_500 for _ in range(4)))
    clock.advance(7_200)
    put(store, "U", 0, b"last")
    wait_flushed(store)
    wait_allocated(store)
    store.write_checkpoint()
    store.delete_expired()
    assert store._trimmer.remover.wait_idle(20.0)
    store.retain()
    assert store.remove_queues({"T"}) == {"T"}
    # The files of U that retention gave up.
    assert store._trimmer.remover.wait_idle(20.0)
    shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    store.close()
    (tmp_path / "crashed" / "abort").touch()
    store = open_small(tmp_path / "crashed", clock=clock)
    quiet = store.find_queue("Quiet", 0)
    assert quiet is not None
    assert (quiet.min_offset, quiet.max_offset) == (2, 2)
    assert store.find_queue("T", 0) is None
    assert store.check() == []
    store.close()


def test_a_position_the_log_has_passed_hides_nothing_more(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    put(store, "T", 0, b"a", b"b")
    store.hide_topics({"T": 0})
    assert store.queue("T", 0).first_offset == 0
    assert bodies_of(store, "T", 0) == [b"a", b"b"]
    store.close()


def test_a_queue_somebody_waits_for_is_not_forgotten(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    store.queue("T", 0).watched = True
    assert store.remove_queues({"T"}) == set()
    store.queue("T", 0).watched = False
    assert store.remove_queues({"T"}) == {"T"}
    store.close()


def test_hidden_records_are_not_found_by_key(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    put(store, "T", 0, b"old", properties=b"KEYS\x01k\x02")
    put(store, "U", 0, b"another's", properties=b"KEYS\x01k\x02")
    store.hide_topics({"T": store.appended_position})
    assert store.query("T", "k") == []
    put(store, "T", 0, b"new", properties=b"KEYS\x01k\x02")
    assert [decode_record(view).body for view in store.query("T", "k")] == [b"new"]
    assert [decode_record(view).body for view in store.query("U", "k")] == [b"another's"]
    store.close()


def test_queues_stay_until_the_files_of_their_records_are_gone_for_good(tmp_path: Path) -> None:
    """A crash before that takes the log's start back, and the records would have no queue."""
    clock = ManualClock()
    store = open_expiring(tmp_path, clock)
    remover = store._trimmer.remover = SteppedRemover(store.min_position, pause_s=0)
    put(store, "T", 0, b"old")
    store.hide_topics({"T": store.appended_position})
    for _ in range(10):
        put(store, "U", 0, *(b"x" * 1_500 for _ in range(4)))
    expire(store, clock)
    assert store.min_position > store.gone_position == 0
    assert store.remove_queues({"T"}) == set()
    remover.step(100)
    assert store.gone_position == store.min_position
    assert store.remove_queues({"T"}) == {"T"}
    assert store.check() == []
    store.close()
