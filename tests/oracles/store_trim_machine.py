"""A log that is trimmed all the time, against a list: what is left reads as if nothing had happened."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from manual_clock import ManualClock
from store_model import BORN_HOST, ListModel, Stored, log_records, open_small, wait_flushed

from iotmq.message.records.record import encode_batch, iter_records
from iotmq.store.queues.reads import ReadStatus
from iotmq.store.retention.decide import DiskUsage
from iotmq.store.retention.delete_thread import Remover
from iotmq.store.store import Store

TOPICS = ("a", "telemetry", "%RETRY%group")

bodies = st.one_of(st.binary(max_size=40), st.integers(0, 1600).map(lambda size: b"b" * size))
# A time to live in ms of the clock the machine moves, 0 for none.
lives_ms = st.sampled_from((0, 0, 0, 500, 5000))
elements = st.lists(st.tuples(bodies, lives_ms), min_size=1, max_size=8)


class Disk:
    """As full as needed for so many bytes to have to go."""

    def __init__(self) -> None:
        self.excess_bytes = 0

    def __call__(self, path: Path) -> DiskUsage:
        return DiskUsage(str(path), 85_000_000 + self.excess_bytes, 100_000_000)


class SteppedRemover(Remover):
    """Deletes only when told to, so that a crash can come before any deletion."""

    def step(self, count: int) -> None:
        for _ in range(min(count, len(self._removals))):
            removal = self._removals.popleft()
            self._remove(removal)
            del removal
            self._drop_held()

    def stop(self) -> None:
        self.step(len(self._removals))

    def _add(self, removals: Iterable[Any]) -> None:
        self._removals += list(removals)


class TrimMachine(RuleBasedStateMachine):
    """The list keeps everything ever appended; the store a tail of it, which only time and trims shorten."""

    @initialize(
        flush=st.sampled_from(("async", "sync")),
        segment_bytes=st.sampled_from((4096, 5000, 12288)),
        queue_file_entries=st.sampled_from((2, 7, 50)),
    )
    def open(self, flush: str, segment_bytes: int, queue_file_entries: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="iotmq-trim-"))
        self.generation = 0
        self.clock = ManualClock()
        self.disk = Disk()
        self.settings = {
            "flush": flush,
            "segment_bytes": segment_bytes,
            "queue_file_entries": queue_file_entries,
            "retention_delay_ms": 0,
            "retention_hours": 1,
            "delete_pause_ms": 0,
            "delete_hour": ";".join(f"{hour:02}" for hour in range(24)),
        }
        self.model = ListModel()
        self.stored_ms: dict[int, int] = {}
        self.min_position = 0
        # Below it the disk was the reason, not the age.
        self.forced_position = 0
        self.store = self.open_store()
        for topic in TOPICS:
            self.append_much(topic, 9, 700)

    @property
    def directory(self) -> Path:
        return self.root / str(self.generation)

    def open_store(self) -> Store:
        # No power is lost here, and what a process that died had written is in the page cache.
        store = open_small(
            self.directory, clock=self.clock, read_usage=self.disk, sync_file=lambda _: None, **self.settings
        )
        self.remover = SteppedRemover(store.min_position, pause_s=0)
        store._trimmer.remover = self.remover
        return store

    def teardown(self) -> None:
        if hasattr(self, "store"):
            wait_flushed(self.store)
            self._assert_same()
            self.store.close()
            shutil.rmtree(self.root)

    @rule(topic=st.sampled_from(TOPICS), queue_id=st.integers(0, 1), elements=elements)
    def append(self, topic: str, queue_id: int, elements: list[tuple[bytes, int]]) -> None:
        batch = [(body, b"MSG_TTL_MS\x01%d\x02" % life_ms if life_ms else b"") for body, life_ms in elements]
        appended = self.store.append(
            self.store.queue(topic, queue_id),
            encode_batch((body, properties, 0) for body, properties in batch),
            born_timestamp_ms=1,
            born_host=BORN_HOST,
        )
        self.model.add(topic, queue_id, batch, appended)
        self.stored_ms.update(dict.fromkeys(appended.positions(), appended.store_timestamp_ms))

    @rule(seconds=st.sampled_from((0.2, 1, 10)))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def flush(self) -> None:
        wait_flushed(self.store)

    @rule()
    def write_checkpoint(self) -> None:
        self.store.write_checkpoint()

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(4, 30), body_bytes=st.integers(300, 1500))
    def append_much(self, topic: str, count: int, body_bytes: int) -> None:
        for _ in range(count):
            self.append(topic, 0, [(b"m" * body_bytes, 0)])

    @rule(hours=st.integers(0, 2), count=st.integers(0, 10))
    def grow_old(self, hours: int, count: int) -> None:
        """A pass some time later; only what is old enough may be missing afterwards."""
        wait_flushed(self.store)
        self.clock.advance(10 + hours * 3600)
        oldest_ms = self.clock.now_ms() - 3_600_000
        self.store.retain()
        self._note_trim()
        assert all(
            stored_ms < oldest_ms
            for position, stored_ms in self.stored_ms.items()
            if self.forced_position <= position < self.store.min_position
        )
        self.remover.step(count)

    @rule(excess_bytes=st.integers(1, 20_000))
    def fill_disk(self, excess_bytes: int) -> None:
        wait_flushed(self.store)
        self.clock.advance(10)
        self.disk.excess_bytes = excess_bytes
        self.store.retain()
        self.disk.excess_bytes = 0
        self._note_trim()
        self.forced_position = self.store.min_position

    @rule(count=st.integers(1, 10))
    def remove_files(self, count: int) -> None:
        """The removing thread gets so far; the store learns it with its next pass."""
        self.remover.step(count)

    @rule(
        topic=st.sampled_from(TOPICS),
        offset=st.integers(0, 60),
        records_max=st.integers(1, 40),
        bytes_max=st.integers(0, 3000),
    )
    def read(self, topic: str, offset: int, records_max: int, bytes_max: int) -> None:
        queue = self.store.find_queue(topic, 0)
        if queue is None:
            return
        ever = self._of(topic, 0)[: queue.max_offset]
        kept = [r for r in ever if r.position >= self.begin(topic)]
        assert queue.min_offset == (kept[0].offset if kept else queue.max_offset)
        read = self.store.read(queue, offset, records_max=records_max, bytes_max=bytes_max)
        got = [record for view in read.views for record in iter_records(view)]
        if queue.max_offset == 0:
            assert (read.status, read.next_offset) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0)
        elif offset < queue.min_offset:
            assert (read.status, read.next_offset) == (ReadStatus.OFFSET_TOO_SMALL, queue.min_offset)
        elif offset >= queue.max_offset:
            assert read.status in (ReadStatus.OFFSET_OVERFLOW_ONE, ReadStatus.OFFSET_OVERFLOW_BADLY)
        else:
            wanted = [r for r in ever[offset : read.next_offset] if not self._has_expired(r)]
            assert [(r.queue_offset, r.body) for r in got] == [(r.offset, r.body) for r in wanted]
            assert read.next_offset > offset
            assert read.status == (ReadStatus.FOUND if got else ReadStatus.NO_MATCHED_MESSAGE)
            if not got:
                assert read.next_offset == queue.max_offset
        if not got:
            assert read.views == []

    @rule(topic=st.sampled_from(TOPICS), offset=st.integers(0, 60))
    def find_position(self, topic: str, offset: int) -> None:
        queue = self.store.find_queue(topic, 0)
        if queue is None:
            return
        kept = [
            r.position
            for r in self._of(topic, 0)[: queue.max_offset]
            if r.position >= self.begin(topic) and r.offset >= offset
        ]
        assert self.store.position_of(queue, offset) == (kept[0] if kept else None)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = self.open_store()
        assert self.store.recovery.was_clean
        self._assert_same()

    @rule(loses_queues=st.booleans())
    def die(self, loses_queues: bool) -> None:
        """kill -9 with the files as they are: some deletions happened, some did not."""
        before = self.directory
        self.generation += 1
        shutil.copytree(before, self.directory)
        if loses_queues:
            shutil.rmtree(self.directory / "consumequeue")
        self.store.close()
        shutil.rmtree(before)
        self.store = self.open_store()
        # What was not deleted yet is there again.
        assert self.store.min_position <= self.min_position
        self.min_position = self.store.min_position
        self._assert_same()

    @rule()
    def lose_queues(self) -> None:
        """What is derived is derived again, from what is left of the log."""
        wait_flushed(self.store)
        self.store.close()
        shutil.rmtree(self.directory / "consumequeue")
        self.store = self.open_store()
        self._assert_same()

    @invariant()
    def never_back(self) -> None:
        if hasattr(self, "store"):
            assert self.store.min_position >= self.min_position
            self.store._queues.check_invariants()

    def begin(self, topic: str) -> int:
        """The position readers of a topic begin at."""
        return self.store.min_position

    def _note_trim(self) -> None:
        assert self.store.min_position >= self.min_position
        self.min_position = self.store.min_position

    def _of(self, topic: str, queue_id: int) -> list[Stored]:
        return [r for r in self.model.records if (r.topic, r.queue_id) == (topic, queue_id)]

    def _has_expired(self, record: Stored) -> bool:
        if not record.properties:
            return False
        life_ms = int(record.properties[11:-1])
        return self.stored_ms[record.position] + life_ms <= self.clock.now_ms()

    def _assert_same(self) -> None:
        wait_flushed(self.store)
        kept = [r for r in self.model.records if r.position >= self.store.min_position]
        assert [
            (r.topic, r.queue_id, r.queue_offset, r.body, r.properties, r.position)
            for r in log_records(self.store)
        ] == kept
        for queue in self.store.queues():
            assert queue.next_offset == queue.max_offset == len(self._of(queue.topic, queue.queue_id))
        assert self.store.check() == []
