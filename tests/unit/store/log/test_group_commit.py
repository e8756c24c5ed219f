"""Group commit: syncs that need no GIL, and everything around them that does."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from store_model import WAIT_S, bodies_of, open_small, put

from iotmq.errors import StoreReadOnlyError
from iotmq.store.log.group_commit import ASKED, FAILED, STOPPED, TIMED_OUT, GroupCommit
from iotmq.store.log.segment import Segment
from iotmq.store.store import Store


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    segment = Segment(str(tmp_path / "00000000000000004096"), 4096, 8192, keep_descriptor=True)
    segment.allocate(8192)
    return segment


def confirm_all(store: Store) -> None:
    """Advance, as the owner does, until everything appended is confirmed."""
    flushed = threading.Event()
    store.on_flushed = flushed.set
    while store.advance() < store.appended_position:
        assert flushed.wait(WAIT_S), "no flush came"
        flushed.clear()


def test_without_a_file_it_asks(segment: Segment) -> None:
    commit = GroupCommit(4096, 7)
    assert commit.wait(0.0) == TIMED_OUT
    commit.request(5000, 8)
    assert commit.wait(10.0) == ASKED
    assert commit.flushed() == (4096, 7)
    commit.set_flushed(5000, 8, segment)
    assert commit.flushed() == (5000, 8)
    assert commit.wait(0.0) == TIMED_OUT


def test_syncs_what_is_asked_inside_its_file_and_no_further(segment: Segment) -> None:
    commit = GroupCommit(4096, 0)
    commit.set_flushed(4096, 0, segment)
    commit.request(6000, 1)
    commit.request(5000, 1)
    assert commit.wait(0.0) == TIMED_OUT
    assert commit.flushed() == (6000, 1)
    assert commit.flushes == 1
    assert commit.flush_s > 0
    commit.request(4096 + 8192, 2)
    assert commit.wait(0.0) == TIMED_OUT
    commit.request(4096 + 8192 + 1, 3)
    assert commit.wait(10.0) == ASKED
    assert commit.flushed() == (4096 + 8192, 2)


def test_a_failed_sync_moves_nothing(segment: Segment) -> None:
    commit = GroupCommit(4096, 0)
    commit.set_flushed(4096, 0, segment)
    segment.release_descriptor()
    commit.request(5000, 1)
    assert commit.wait(0.0) == FAILED
    assert commit.error == errno.EBADF
    assert commit.flushed() == (4096, 0)


def test_waits_end_with_a_flush_and_with_the_stop(segment: Segment) -> None:
    commit = GroupCommit(4096, 0)
    seen: list[int] = []
    outcomes: list[int] = []

    def listen() -> None:
        position = 4096
        while (position := commit.wait_flushed(position)) >= 0:
            seen.append(position)
            commit.stop()

    def work() -> None:
        while (outcome := commit.wait(WAIT_S)) != STOPPED:
            outcomes.append(outcome)
            commit.set_flushed(5000, 1, segment)

    threads = [threading.Thread(target=target) for target in (listen, work)]
    for thread in threads:
        thread.start()
    commit.request(5000, 1)
    for thread in threads:
        thread.join(WAIT_S)
    assert (seen, outcomes) == ([5000], [ASKED])
    assert commit.wait_flushed(0) == -1
    assert commit.wait(WAIT_S) == STOPPED


def test_many_small_commits_over_many_files(tmp_path: Path) -> None:
    store = open_small(tmp_path, flush="sync")
    expected = []
    for number in range(60):
        body = b"%d" % number + b"x" * 700
        expected.append(body)
        put(store, "T", 0, body)
        if number % 3 == 0:
            confirm_all(store)
    confirm_all(store)
    assert store.flushed_position == store.appended_position
    assert bodies_of(store, "T", 0) == expected
    assert store.check() == []
    store.close()
    again = open_small(tmp_path, flush="sync")
    assert again.recovery.was_clean
    assert bodies_of(again, "T", 0) == expected
    assert again.check() == []
    again.close()


def test_a_sync_that_fails_stops_the_store(tmp_path: Path) -> None:
    store = open_small(tmp_path, flush="sync")
    first_end = put(store, "T", 0, b"safe").end_position
    confirm_all(store)
    (active,) = store._log.segments_between(0, 1)
    told = threading.Event()
    store.on_flushed = told.set
    # What the flush thread has is closed under it: the next sync is EBADF.
    active.release_descriptor()
    put(store, "T", 0, b"not safe")
    assert told.wait(WAIT_S)
    assert store.failure is not None
    assert "Bad file descriptor" in store.failure
    assert store.advance() == store.flushed_position == first_end
    with pytest.raises(StoreReadOnlyError, match="a flush failed"):
        put(store, "T", 0, b"refused")
    assert bodies_of(store, "T", 0) == [b"safe"]
    assert store.check() == []
    store.close()
