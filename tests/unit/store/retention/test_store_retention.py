"""Retention over real files: what is deleted, what readers then see, and what a restart makes of it."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from store_keeper import WAIT_S, Keeper
from store_model import bodies_of, open_small, put, records_of, wait_flushed

from iotmq.errors import StoreFullError
from iotmq.message.records.record import iter_records
from iotmq.store.log.segment import Segment, segment_name
from iotmq.store.queues.consume_queue import ConsumeQueue
from iotmq.store.queues.reads import ReadStatus
from iotmq.store.queues.residency import Window
from iotmq.store.recovery import checkpoint
from iotmq.store.retention import delete_thread
from iotmq.store.retention.delete_thread import Remover
from iotmq.store.tools.closed_check import ClosedCheck
from iotmq.store.tools.inspection import ClosedStore


@pytest.fixture
def keeper(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    keepers: list[Keeper] = []

    def make(**settings: Any) -> Keeper:
        keepers.append(Keeper(tmp_path / str(len(keepers)), **settings))
        return keepers[-1]

    yield make
    for keeper in keepers:
        wait_flushed(keeper.store)
        assert keeper.store.check() == []
        keeper.store.close()
        with ClosedStore(keeper.directory) as closed:
            check = ClosedCheck(closed, keeper.store.settings)
            check.run()
        assert (check.problems, check.notes) == ([], [])


Make = Callable[..., Keeper]


def test_expired_segments_go_and_readers_are_told(keeper: Make) -> None:
    k = keeper()
    k.fill(10)
    k.clock.advance(3601)
    k.fill(2)
    queue = k.store.queue("T", 0)
    k.delete_expired()
    assert k.store.min_position == 3 * 4096
    assert k.log_files()[0] == segment_name(3 * 4096)
    assert (queue.min_offset, queue.max_offset) == (9, 12)
    assert [r.queue_offset for r in records_of(k.store, "T", 0)] == [9, 10, 11]
    for offset in (0, 5, 8):
        read = k.store.read(queue, offset, records_max=5, bytes_max=9999)
        assert (read.status, read.next_offset, read.views) == (ReadStatus.OFFSET_TOO_SMALL, 9, [])
        assert (read.min_offset, read.max_offset) == (9, 12)
    assert k.store.read_record(0) is None
    assert (k.metric("deleted_segments_total"), k.metric("deleted_bytes_total")) == (3, 3 * 4096)
    assert k.metric("min_position_bytes") == 3 * 4096


def test_age_counts_from_the_last_record_of_a_file(keeper: Make) -> None:
    k = keeper()
    k.fill(2)
    k.clock.advance(3000)
    k.fill(2)  # The first of them fills segment 0.
    k.clock.advance(700)
    k.delete_expired()
    assert k.store.min_position == 0
    k.clock.advance(3000)
    k.delete_expired()
    assert k.store.min_position == 4096


def test_the_active_file_stays_however_old_and_full(keeper: Make) -> None:
    k = keeper()
    k.fill(2)
    k.clock.advance(1e6)
    k.disk.percent = 99
    k.delete_expired()
    assert (k.store.min_position, k.store.queue("T", 0).min_offset) == (0, 0)
    assert len(bodies_of(k.store, "T", 0)) == 2


def test_passes_come_at_their_interval_and_hour(keeper: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    k = keeper(retention_delay_ms=60_000, delete_files_max=2)
    hour = 15
    monkeypatch.setattr("iotmq.store.retention.apply.local_hour", lambda now_ms: hour)
    k.fill(18)
    wait_flushed(k.store)
    k.store.retain()
    k.clock.advance(3700)
    k.store.retain()
    assert k.store.min_position == 0, "it is not the hour"
    hour = 4
    k.clock.advance(9)
    k.store.retain()
    assert k.store.min_position == 0, "the next pass is a second away"
    k.clock.advance(1)
    k.store.retain()
    assert k.store.min_position == 2 * 4096
    k.clock.advance(10)
    k.settle()
    assert k.store.min_position == 4 * 4096


def test_first_pass_waits(keeper: Make) -> None:
    k = keeper(retention_delay_ms=60_000)
    k.fill(6)
    k.disk.percent = 99
    wait_flushed(k.store)
    k.clock.advance(59)
    k.store.retain()
    assert k.store.min_position == 0
    k.clock.advance(1)
    k.store.retain()
    assert k.store.min_position > 0
    k.settle()


def test_asking_goes_on_until_all_is_gone(keeper: Make) -> None:
    k = keeper(delete_files_max=2)
    k.fill(18)
    wait_flushed(k.store)
    k.clock.advance(3700)
    k.store.delete_expired()
    assert k.store.min_position == 2 * 4096
    for segments in (4, 5, 5):
        k.clock.advance(10)
        k.settle()
        assert k.store.min_position == segments * 4096
    k.fill(3)


def test_forced_deletion_takes_the_youngest_needed(keeper: Make, caplog: pytest.LogCaptureFixture) -> None:
    k = keeper()
    k.fill(30)
    wait_flushed(k.store)
    k.disk.total_bytes = 100_000
    k.disk.percent = 89
    with caplog.at_level(logging.WARNING):
        k.store.retain()
    # 4,000 bytes over: one file of 4,096.
    assert k.store.min_position == 4096
    assert "the disk is too full" in caplog.text
    k.disk.percent = 85
    k.settle()
    k.clock.advance(10)
    k.store.retain()
    assert k.store.min_position == 4096


def test_full_disk_refuses_and_takes_again_by_itself(keeper: Make, caplog: pytest.LogCaptureFixture) -> None:
    k = keeper()
    k.fill(1)
    k.disk.percent = 90.5
    with caplog.at_level(logging.WARNING):
        k.store.retain()
        k.store.retain()
    for _ in range(2):
        with pytest.raises(StoreFullError) as refused:
            k.fill(1)
    text = str(refused.value)
    assert "store.disk_full_percent = 90" in text
    assert "store.disk_force_percent = 85" in text
    assert str(k.directory) in text
    assert k.store.refusal == text
    assert (k.metric("refusing"), k.metric("refused_appends_total")) == (1, 2)
    assert k.metric("disk_used_ratio") == pytest.approx(0.905)
    # Reads go on.
    assert len(bodies_of(k.store, "T", 0)) == 1
    # Between the watermarks it stays refused,
    k.disk.percent = 85.1
    k.clock.advance(1)
    k.store.retain()
    with pytest.raises(StoreFullError):
        k.fill(1)
    # and a second later than the room is there it is not.
    k.disk.percent = 85
    k.clock.advance(1)
    with caplog.at_level(logging.WARNING):
        k.store.retain()
    k.fill(1)
    assert (k.store.refusal, k.metric("refusing")) == (None, 0)
    assert caplog.text.count("% full") == 1
    assert caplog.text.count("has room again") == 1
    # It is not refused again below full.
    k.disk.percent = 90
    k.clock.advance(10)
    k.store.retain()
    k.fill(1)


def test_a_disk_that_does_not_answer_changes_nothing(keeper: Make, caplog: pytest.LogCaptureFixture) -> None:
    k = keeper()
    k.disk.percent = 95
    k.store.retain()
    k.disk.error = OSError(5, "no answer")
    for _ in range(3):
        k.clock.advance(10)
        k.store.retain()
    assert caplog.text.count("cannot ask how full") == 1
    with pytest.raises(StoreFullError):
        k.fill(1)
    k.disk.error = None
    k.disk.percent = 10
    k.clock.advance(10)
    k.store.retain()
    k.fill(1)


def test_unflushed_records_are_never_deleted(keeper: Make) -> None:
    k = keeper()
    k.fill(9)
    k.clock.advance(1e6)
    k.store.delete_expired()
    assert k.store.min_position == 0
    wait_flushed(k.store)
    k.store.delete_expired()
    assert k.store.min_position == 2 * 4096
    k.settle()


def test_sync_flush(keeper: Make) -> None:
    k = keeper(flush="sync")
    k.fill(7)
    wait_flushed(k.store)
    k.clock.advance(1e6)
    k.fill(1)
    k.delete_expired()
    assert k.store.queue("T", 0).min_offset == 6
    assert len(bodies_of(k.store, "T", 0)) == 2


def test_protect_unconsumed(keeper: Make, caplog: pytest.LogCaptureFixture) -> None:
    k = keeper(protect_unconsumed=True)
    k.fill(12)
    queue = k.store.queue("T", 0)
    consumed = 4
    k.store.consumed_position = lambda: k.store.position_of(queue, consumed)
    k.clock.advance(4000)
    with caplog.at_level(logging.WARNING):
        k.delete_expired()
        assert k.store.min_position == 4096
        k.clock.advance(10)
        k.delete_expired()
    assert k.store.min_position == 4096
    assert k.metric("protected_segments") == 2
    assert caplog.text.count("are kept until the disk is 85 % full") == 1
    consumed = 6
    k.delete_expired()
    assert k.store.min_position == 2 * 4096
    # Everything consumed is no limit at all.
    consumed = 12
    assert k.store.consumed_position() is None
    k.delete_expired()
    assert (k.store.min_position, k.metric("protected_segments")) == (3 * 4096, 0)


def test_forced_deletion_does_not_ask_who_consumed(keeper: Make) -> None:
    k = keeper(protect_unconsumed=True)
    k.fill(12)
    wait_flushed(k.store)
    k.store.consumed_position = lambda: 0
    k.disk.percent = 86
    k.store.retain()
    assert k.store.min_position == 3 * 4096
    k.settle()


def test_consumers_are_not_asked_unless_told_to(keeper: Make) -> None:
    k = keeper()
    k.fill(6)
    k.store.consumed_position = lambda: 0
    k.clock.advance(4000)
    k.delete_expired()
    assert k.store.min_position == 4096


def test_queue_files_go_behind_the_log(keeper: Make) -> None:
    k = keeper(segment_bytes=1 << 16)
    k.fill(40, size=100)
    k.fill(60, size=1000, topic="Big")
    k.fill(3, size=100)
    k.clock.advance(4000)
    k.fill(60, size=1000, topic="Big")
    first, big = k.store.queue("T", 0), k.store.queue("Big", 0)
    assert len(k.queue_files("T")) == 7
    k.delete_expired()
    assert first.min_offset == 40
    # Offset 40 is in the file that starts with 35 (7 entries each).
    assert k.queue_files("T") == [segment_name(35 * 20), segment_name(42 * 20)]
    assert big.min_offset > 0
    assert k.queue_files("Big")[0] == segment_name(big.min_offset // 7 * 140)
    assert k.metric("deleted_queue_files_total") == 5 + big.min_offset // 7
    k.restart()
    assert k.store.recovery.was_clean
    first = k.store.queue("T", 0)
    assert (first.min_offset, first.max_offset) == (40, 43)
    k.fill(10, size=100)
    assert [r.queue_offset for r in records_of(k.store, "T", 0)] == list(range(40, 53))


def test_a_queue_with_nothing_left_goes_on_where_it_was(keeper: Make) -> None:
    k = keeper()
    k.fill(20, topic="Quiet", size=100)
    k.fill(10)
    k.clock.advance(4000)
    k.fill(2)
    k.delete_expired()
    quiet = k.store.queue("Quiet", 0)
    for _ in range(2):
        assert (quiet.min_offset, quiet.max_offset, quiet.next_offset) == (20, 20, 20)
        assert k.queue_files("Quiet") == [segment_name(14 * 20)]
        statuses = [
            k.store.read(quiet, offset, records_max=1, bytes_max=1).status for offset in (0, 19, 20, 21)
        ]
        assert statuses == [
            ReadStatus.OFFSET_TOO_SMALL,
            ReadStatus.OFFSET_TOO_SMALL,
            ReadStatus.OFFSET_OVERFLOW_ONE,
            ReadStatus.OFFSET_OVERFLOW_BADLY,
        ]
        assert k.store.offset_at_time(quiet, 0) == 20
        k.restart()
        assert k.store.recovery.was_clean
        quiet = k.store.queue("Quiet", 0)
    k.fill(1, topic="Quiet")
    assert [r.queue_offset for r in records_of(k.store, "Quiet", 0)] == [20]


def test_queues_rebuilt_from_a_trimmed_log_begin_with_fillers(keeper: Make) -> None:
    k = keeper()
    k.fill(10)
    k.clock.advance(4000)
    k.fill(2)
    k.delete_expired()
    k.store.close()
    for path in (k.directory / "consumequeue").glob("*/*/*"):
        path.unlink()
    (k.directory / "consumequeue" / ".applied").unlink()
    k.store = k.open_store()
    queue = k.store.queue("T", 0)
    assert (queue.min_offset, queue.max_offset) == (9, 12)
    data = (k.directory / "consumequeue" / "T" / "0" / segment_name(140)).read_bytes()
    assert data[:40] == bytes.fromhex("00000000000000007FFFFFFF0000000000000000") * 2
    assert k.store.check() == []
    k.fill(1)


def test_crash_between_log_and_queue_files(keeper: Make) -> None:
    """The log's files are gone and the queues' are not: the next start begins both at the same place."""
    k = keeper()
    k.fill(30)
    k.store.close()
    for number in range(6):
        (k.directory / "commitlog" / segment_name(number * 4096)).unlink()
    k.store = k.open_store()
    queue = k.store.queue("T", 0)
    assert (k.store.min_position, queue.min_offset) == (6 * 4096, 18)
    assert k.store.check() == []
    assert k.queue_files("T")[0] == segment_name(0)
    k.settle()
    assert k.queue_files("T")[0] == segment_name(14 * 20)


def test_checkpoint_older_than_the_log(keeper: Make) -> None:
    """Unclean start whose remembered queue position is before the log: the gap is not part of the queue."""
    k = keeper()
    k.fill(4)
    wait_flushed(k.store)
    k.store.write_checkpoint()
    k.fill(20)
    k.store.close()
    (k.directory / "abort").touch()
    state = (k.directory / "consumequeue" / ".applied").read_bytes()
    early = k.store._queues
    early.write_state((4096, 1, 4))
    assert (k.directory / "consumequeue" / ".applied").read_bytes() != state
    for number in range(5):
        (k.directory / "commitlog" / segment_name(number * 4096)).unlink()
    k.store = k.open_store()
    queue = k.store.queue("T", 0)
    assert (queue.min_offset, queue.max_offset) == (15, 24)
    assert [r.queue_offset for r in records_of(k.store, "T", 0)] == list(range(15, 24))


def test_views_of_deleted_segments_stay_valid(keeper: Make) -> None:
    k = keeper()
    k.fill(10, size=1000)
    queue = k.store.queue("T", 0)
    read = k.store.read(queue, 0, records_max=1, bytes_max=5000)
    before = bytes(read.views[0])
    k.clock.advance(4000)
    k.fill(3)
    k.delete_expired()
    assert segment_name(0) not in k.log_files()
    assert bytes(read.views[0]) == before
    assert next(iter_records(read.views[0])).body.startswith(b"00000000")
    remover = k.store._trimmer.remover
    assert remover.leaving_bytes == 4096
    del read
    gc.collect()
    dropped = threading.Event()
    remover._event.set()
    for _ in range(1000):
        if remover.leaving_bytes == 0:
            break
        dropped.wait(0.02)
    assert remover.leaving_bytes == 0


def test_cold_reads_keep_no_deleted_file(keeper: Make) -> None:
    k = keeper(hot_bytes=0)
    k.fill(10)
    wait_flushed(k.store)
    first = k.store._log.segment_list()[0]
    window = Window(first, 0, 4096)
    window.drop()
    queue = k.store.queue("T", 0)
    plan = k.store.plan_read(queue, 0, records_max=3, bytes_max=9999)
    if plan is None or not plan.windows:
        pytest.skip("this file system keeps everything in memory")
    k.store.load(plan)
    del plan, window, first
    assert k.store._cold_pages.held_bytes > 0
    k.clock.advance(4000)
    k.delete_expired()
    assert k.store._cold_pages.held_bytes == 0


def test_the_mapping_ends_in_the_removing_thread(tmp_path: Path) -> None:
    remover = Remover(0, pause_s=0)
    segments = [Segment(str(tmp_path / segment_name(n * 4096)), n * 4096, 4096) for n in range(3)]
    for segment in segments:
        segment.allocate(4096)
    remover.remove_segments(segments)
    assert remover.wait_idle(WAIT_S)
    assert (remover.removed_position, remover.removed_segments, remover.removed_bytes) == (
        3 * 4096,
        3,
        3 * 4096,
    )
    assert os.listdir(tmp_path) == []
    assert len(remover._held) == 3
    assert remover.leaving_bytes == 3 * 4096
    remover.stop()


def test_a_file_that_cannot_be_deleted_is_tried_again(
    keeper: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    k = keeper()
    k.fill(10)
    k.clock.advance(4000)
    k.fill(2)
    wait_flushed(k.store)
    failures = 0
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        nonlocal failures
        if failures < 3:
            failures += 1
            raise OSError(30, "read-only")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(delete_thread.Path, "unlink", refuse)
    monkeypatch.setattr(delete_thread, "RETRY_S", 0.001)
    k.delete_expired()
    assert failures == 3
    assert k.log_files()[0] == segment_name(3 * 4096)
    assert caplog.text.count("cannot delete") == 1
    assert k.metric("failed_deletions") == 0


def test_a_stop_deletes_what_it_began_to(keeper: Make) -> None:
    k = keeper(delete_pause_ms=60_000)
    k.fill(10)
    k.clock.advance(4000)
    k.fill(2)
    wait_flushed(k.store)
    k.store.delete_expired()
    k.restart()
    assert k.log_files()[0] == segment_name(3 * 4096)
    assert k.store.min_position == 3 * 4096


class Counting:
    """A projection that counts, and lags when told to."""

    name = "counting"

    def __init__(self, applied_position: int = 0) -> None:
        self.applied_position = applied_position
        self.trimmed: list[int] = []
        self.is_failing = False

    def apply(self, view: memoryview, start_position: int, end_position: int) -> None:
        if self.is_failing:
            raise RuntimeError("cannot")
        self.applied_position = end_position

    def trim(self, min_position: int) -> None:
        self.trimmed.append(min_position)
        if self.is_failing:
            raise RuntimeError("cannot")


def test_projections_are_trimmed_once_the_files_are_gone(keeper: Make) -> None:
    k = keeper()
    projection = Counting()
    k.store.add_projection(projection)
    k.store.retain()
    assert projection.trimmed == [0]
    k.fill(10)
    k.clock.advance(4000)
    k.fill(2)
    k.delete_expired()
    k.clock.advance(10)
    k.settle()
    assert projection.trimmed[-1] == 3 * 4096
    assert projection.trimmed == sorted(set(projection.trimmed))


def test_the_key_index_is_trimmed_behind_the_log(keeper: Make) -> None:
    k = keeper(index_slots=8, index_entries=6)
    for number in range(31):
        put(k.store, "T", 0, b"x" * 1000, properties=b"KEYS\x01k%d\x02" % number)
    files = sorted(os.listdir(k.directory / "index"))
    k.clock.advance(4000)
    k.delete_expired()
    assert k.store.queue("T", 0).min_offset > 20
    left = sorted(os.listdir(k.directory / "index"))
    assert 0 < len(left) < len(files)
    assert left == files[-len(left) :]
    k.restart()
    assert sorted(os.listdir(k.directory / "index")) == left


def test_what_a_projection_has_not_seen_is_kept_until_the_disk_is_too_full(keeper: Make) -> None:
    k = keeper()
    projection = Counting()
    k.store.add_projection(projection)
    k.fill(4)
    projection.is_failing = True
    k.fill(8)
    k.clock.advance(4000)
    k.delete_expired()
    assert k.store.min_position == 4096
    assert k.metric("protected_segments") == 2
    k.disk.percent = 100
    k.clock.advance(10)
    k.store.retain()
    assert k.store.min_position == 3 * 4096
    k.disk.percent = 10
    k.clock.advance(1)
    k.settle()
    projection.is_failing = False
    k.fill(1)


class Durable(Counting):
    """A projection whose disk state lags behind."""

    def __init__(self) -> None:
        super().__init__()
        self.durable_position = 0
        # When a sync is under way.
        self.syncing_position: int | None = None
        self.can_sync = True

    def sync(self) -> None:
        if not self.can_sync:
            raise OSError(5, "no")
        self.durable_position = self.applied_position

    def begin_sync(self) -> None:
        """Over by the next time it is asked for."""
        if not self.can_sync:
            raise OSError(5, "no")
        if self.syncing_position is not None:
            self.durable_position = self.syncing_position
        self.syncing_position = self.applied_position


def test_projections_are_on_the_disk_before_the_log_goes(keeper: Make) -> None:
    k = keeper()
    projection = Durable()
    k.store.add_projection(projection)
    k.fill(12)
    k.clock.advance(4000)
    projection.can_sync = False
    k.delete_expired()
    assert k.store.min_position == 0
    projection.can_sync = True
    k.clock.advance(1)
    k.store.retain()
    # It was begun, and nobody waits for it.
    assert (k.store.min_position, projection.durable_position) == (0, 0)
    k.clock.advance(1)
    k.settle()
    assert k.store.min_position == 3 * 4096
    assert projection.durable_position == k.store.appended_position


def test_queue_entries_are_on_the_disk_before_the_log_goes(keeper: Make) -> None:
    """Of a queue without a record in the log its files alone say where its offsets go on."""
    k = keeper()
    k.fill(2, topic="Quiet")
    k.fill(10)
    k.clock.advance(4000)
    k.fill(2)
    assert k.store._queues.read_state() == (0, 0, 0)
    wait_flushed(k.store)
    deleted: list[tuple[int, int, int] | None] = []
    unlink = Path.unlink

    def watch(path: Path, missing_ok: bool = False) -> None:
        deleted.append(k.store._queues.read_state())
        unlink(path, missing_ok=missing_ok)

    with mock.patch.object(Path, "unlink", watch):
        k.delete_expired()
    assert deleted == [(k.store.confirmed_position, 2, 14)] * 4


def test_a_checkpoint_that_fails_keeps_no_file_for_long(
    keeper: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk may be the reason: what is deleted is what makes room on it."""
    monkeypatch.setattr(delete_thread, "RETRY_S", 0.01)
    k = keeper()
    k.fill(12)
    k.clock.advance(4000)
    k.fill(2)
    full = OSError(28, "No space left on device")
    with mock.patch.object(checkpoint, "write_checkpoint", side_effect=full):
        k.delete_expired()
    assert k.store._checkpointer.has_failed
    assert k.metric("failed_deletions") == 0
    assert k.log_files()[0] == segment_name(k.store.min_position) == segment_name(3 * 4096)
    # The stop is not a clean one.
    k.restart()


def test_a_power_cut_in_one_queue_does_not_make_a_quiet_one_begin_again(keeper: Make) -> None:
    """Of what came after the checkpoint the disk may have any file and not the one before it."""
    k = keeper()
    k.fill(2, topic="Quiet")
    k.fill(10)
    k.clock.advance(4000)
    k.fill(2)
    k.delete_expired()
    state = k.store._queues.read_state()
    assert state is not None
    k.fill(20)
    k.store.close()
    (k.directory / "abort").touch()
    k.store._queues.write_state(state)
    second = k.directory / "consumequeue" / "T" / "0" / segment_name(14 * 20)
    second.write_bytes(bytes(7 * 20))
    k.store = k.open_store()
    assert k.store.queue("Quiet", 0).max_offset == 2
    assert k.store.queue("T", 0).max_offset == 32
    assert k.store.check() == []


def test_a_queue_file_stays_until_the_next_one_has_something_on_the_disk(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    positions = [put(store, "T", 0, b"x").start_position for _ in range(10)]
    end_position = store.appended_position
    store.close()
    queues = ConsumeQueue(str(tmp_path / "consumequeue"), entries_per_file=7)
    queues.rewind(end_position, 0)
    (queue,) = queues.queues()
    queue.trim(positions[7])
    assert (queue.min_offset, queue.max_offset) == (7, 10)
    # Were it gone, a power cut could leave a file without an entry, and the queue would begin at 0 again.
    assert queue.take_passed_files(positions[7]) == []
    assert queue.take_passed_files(positions[7] + 1) == [
        str(tmp_path / "consumequeue" / "T" / "0" / segment_name(0))
    ]


def test_a_projection_of_a_log_without_records_is_up_to_date(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    store.start_at(3 * 4096)
    projection = Durable()
    store.add_projection(projection)
    assert projection.applied_position == 3 * 4096
    assert store.check() == []
    store.close()


def ttl(milliseconds: object) -> bytes:
    return b"MSG_TTL_MS\x01%s\x02" % str(milliseconds).encode()


def test_records_past_their_time_to_live_are_passed_over(keeper: Make) -> None:
    k = keeper()
    put(k.store, "T", 0, b"a")
    put(k.store, "T", 0, b"b", b"c", properties=ttl(5000))
    put(k.store, "T", 0, b"d", properties=b"TAGS\x01x\x02" + ttl(20_000))
    put(k.store, "T", 0, b"e")
    queue = k.store.queue("T", 0)

    def bodies(offset: int = 0, **more: Any) -> list[bytes]:
        read = k.store.read(queue, offset, records_max=10, bytes_max=9999, **more)
        return [record.body for view in read.views for record in iter_records(view)]

    assert bodies() == [b"a", b"b", b"c", b"d", b"e"]
    k.clock.advance(4.999)
    assert bodies() == [b"a", b"b", b"c", b"d", b"e"]
    k.clock.advance(0.001)
    assert bodies() == [b"a", b"d", b"e"]
    assert k.metric("expired_reads_total") == 2
    read = k.store.read(queue, 1, records_max=1, bytes_max=9999)
    assert (read.status, read.count, read.next_offset, read.expired_count) == (ReadStatus.FOUND, 1, 4, 2)
    k.clock.advance(100)
    assert bodies() == [b"a", b"e"]
    # It still is in the log, for whoever asks for its position.
    entry = queue.entry(1)
    assert entry is not None
    assert k.store.read_record(entry[0]) is not None


def test_nothing_but_expired_records_moves_the_reader_on(keeper: Make) -> None:
    k = keeper()
    put(k.store, "T", 0, b"a", b"b", properties=ttl(1))
    k.clock.advance(1)
    read = k.store.read(k.store.queue("T", 0), 0, records_max=10, bytes_max=9999)
    assert (read.status, read.next_offset, read.views) == (ReadStatus.NO_MATCHED_MESSAGE, 2, [])


@pytest.mark.parametrize("value", ["", "0", "-1", "1x", " 5", "5.0", "1" * 16, "9" * 15])
def test_a_time_to_live_that_is_none(keeper: Make, value: str) -> None:
    k = keeper()
    put(k.store, "T", 0, b"a", properties=ttl(value))
    k.clock.advance(1e6)
    assert bodies_of(k.store, "T", 0) == [b"a"]


@pytest.mark.parametrize("is_crash", [False, True])
def test_queues_with_a_time_to_live_are_known_after_a_restart(keeper: Make, is_crash: bool) -> None:
    k = keeper()
    put(k.store, "T", 0, b"a", properties=ttl(1000))
    put(k.store, "Plain", 0, b"p", properties=b"MSG_REGION\x01r\x02GOOGLE\x01MSG_TTL_MS\x02")
    assert k.store.queue("T", 0).may_expire
    assert not k.store.queue("Plain", 0).may_expire
    if is_crash:
        wait_flushed(k.store)
        k.store.write_checkpoint()
        k.store.close()
        (k.directory / "abort").touch()
        k.store = k.open_store()
    else:
        k.restart()
    k.clock.advance(2)
    assert k.store.read(k.store.queue("T", 0), 0, records_max=1, bytes_max=1).count == 0
    assert bodies_of(k.store, "Plain", 0) == [b"p"]


def test_a_store_without_times_to_live_forgets_nothing_over_a_restart(keeper: Make) -> None:
    k = keeper()
    put(k.store, "T", 0, b"a")
    k.restart()
    assert not k.store.queue("T", 0).may_expire


def test_checkpoints_and_deletions_do_not_meet(keeper: Make) -> None:
    """Queue files deleted while they wait to be synced are no failure."""
    k = keeper(segment_bytes=4096, queue_file_entries=2)
    for _ in range(30):
        k.fill(6)
        k.clock.advance(4000)
        syncing = threading.Thread(target=k.store.write_checkpoint)
        syncing.start()
        k.delete_expired()
        syncing.join(WAIT_S)
    assert not k.store._checkpointer.has_failed
    assert k.store.queue("T", 0).min_offset >= 30 * 6 - 3


@pytest.mark.slow
def test_writer_and_allocator_go_on_while_the_front_goes(keeper: Make) -> None:
    k = keeper()
    for round_number in range(60):
        k.fill(7, size=900 + round_number)
        k.store._allocator.request()
        k.clock.advance(4000)
        wait_flushed(k.store)
        k.store.delete_expired()
    k.settle()
    assert k.store.min_position > 0
    assert len(k.log_files()) < 10


def test_a_closed_store_retains_nothing(tmp_path: Path) -> None:
    k = Keeper(tmp_path)
    k.fill(9)
    k.clock.advance(4000)
    wait_flushed(k.store)
    k.store.close()
    k.store.delete_expired()
    assert k.store.min_position == 0


def test_what_others_keep_stays_until_the_disk_is_full(keeper: Make) -> None:
    k = keeper()
    k.fill(12)
    kept_position: int | None = 0
    k.store.kept_position = lambda: kept_position
    k.clock.advance(4000)
    k.delete_expired()
    assert k.store.min_position == 0
    assert k.metric("protected_segments") == 0, "it is not for want of consumers"
    kept_position = 2 * 4096 - 1
    k.delete_expired()
    assert k.store.min_position == 4096
    kept_position = 2 * 4096
    k.delete_expired()
    assert k.store.min_position == 2 * 4096
    k.disk.percent = 86
    k.clock.advance(11)
    k.store.retain()
    assert k.store.min_position == 3 * 4096, "a disk too full waits for nobody"
    k.disk.percent = 10
    kept_position = None
    k.settle()
