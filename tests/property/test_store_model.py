"""The store against a list: whatever is appended, in whatever order, with restarts and crashes between."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from store_model import BORN_HOST, ListModel, log_records, open_small, wait_flushed

from iotmq.message.records.record import encode_batch, iter_records
from iotmq.store.files.flushed_position import write_flushed_mark
from iotmq.store.log.segment import segment_name
from iotmq.store.queues.reads import ReadStatus

TOPICS = ("a", "telemetry", "%RETRY%group", "T" * 127)

bodies = st.one_of(st.binary(max_size=40), st.integers(0, 1600).map(lambda size: b"b" * size))
properties = st.sampled_from((b"", b"TAGS\x01TagA\x02", b"KEYS\x01k1\x02TAGS\x01B", b"a\x01" + b"v" * 200))
elements = st.lists(st.tuples(bodies, properties), min_size=1, max_size=12)


class StoreMachine(RuleBasedStateMachine):
    """Rules are what an owner, and fate, may do to a store."""

    @initialize(flush=st.sampled_from(("async", "sync")), segment_bytes=st.sampled_from((4096, 5000, 16384)))
    def open(self, flush: str, segment_bytes: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="iotmq-store-"))
        self.generation = 0
        self.settings = {"flush": flush, "segment_bytes": segment_bytes}
        self.model = ListModel()
        self.store = open_small(self.directory, **self.settings)

    @property
    def directory(self) -> Path:
        return self.root / str(self.generation)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            wait_flushed(self.store)
            self.model.assert_same(self.store)
            self.store.close()
            shutil.rmtree(self.root)

    @rule(topic=st.sampled_from(TOPICS), queue_id=st.integers(0, 2), elements=elements)
    def append(self, topic: str, queue_id: int, elements: list[tuple[bytes, bytes]]) -> None:
        appended = self.store.append(
            self.store.queue(topic, queue_id),
            encode_batch((body, properties, 0) for body, properties in elements),
            born_timestamp_ms=1,
            born_host=BORN_HOST,
        )
        self.model.add(topic, queue_id, elements, appended)

    @rule()
    def flush(self) -> None:
        wait_flushed(self.store)

    @rule()
    def write_checkpoint(self) -> None:
        self.store.write_checkpoint()

    @rule(
        topic=st.sampled_from(TOPICS),
        offset=st.integers(0, 40),
        records_max=st.integers(1, 40),
        bytes_max=st.integers(0, 3000),
    )
    def read(self, topic: str, offset: int, records_max: int, bytes_max: int) -> None:
        queue = self.store.find_queue(topic, 0)
        if queue is None:
            return
        stored = [r for r in self.model.records if (r.topic, r.queue_id) == (topic, 0)][: queue.max_offset]
        read = self.store.read(queue, offset, records_max=records_max, bytes_max=bytes_max)
        got = [record for view in read.views for record in iter_records(view)]
        assert (read.status == ReadStatus.FOUND) == (offset < len(stored))
        assert read.count == len(got) <= records_max
        assert [r.body for r in got] == [r.body for r in stored[offset : offset + read.count]]
        assert read.count <= 1 or sum(r.size for r in got) <= bytes_max
        if got:
            assert read.next_offset == offset + len(got)
            more = stored[offset + len(got) : offset + len(got) + 1]
            assert not more or len(got) == records_max or sum(r.size for r in got) + 91 <= bytes_max + 5000

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = open_small(self.directory, **self.settings)
        assert self.store.recovery.was_clean
        self.model.assert_same(self.store)

    @rule()
    def die(self) -> None:
        """kill -9: files as they are, nothing closed; the page cache has everything."""
        self._die()
        self.store = open_small(self.directory, **self.settings)
        assert not self.store.recovery.was_clean
        self.model.assert_same(self.store)

    @rule(share=st.integers(0, 1000), damage=st.sampled_from(("truncate", "zero", "garbage", "hole")))
    def lose_power(self, share: int, damage: str) -> None:
        """Whatever had not been flushed may be anything from some position on."""
        flushed_position = self.store.flushed_position
        unflushed_bytes = self.store.appended_position - flushed_position
        # Drawn as a share, because under sync flush the thread decides how much there is.
        cut = flushed_position + unflushed_bytes * share // 1001
        segments = [
            (segment.start_position, segment.size_bytes) for segment in self.store._log.segment_list()
        ]
        for start, size in segments:
            if start <= cut < start + size:
                # Disks lose sectors.
                cut = max(flushed_position, start + (cut - start) // 512 * 512)
        synced = self.store._queues.read_state()
        self._die()
        # The flush thread may have come further meanwhile; the power went before that.
        write_flushed_mark(self.directory / "checkpoint", flushed_position)
        if synced is not None:
            self._damage_entries(synced[0], damage)
        for start, size in segments:
            path = self.directory / "commitlog" / segment_name(start)
            if start + size <= cut or not path.exists():
                continue
            at = max(0, cut - start)
            with path.open("r+b") as file:
                if damage == "truncate":
                    file.truncate(at)
                elif damage == "hole":
                    file.truncate(at)
                    file.truncate(size)
                else:
                    file.seek(at)
                    file.write((b"\xa5" if damage == "garbage" else b"\0") * (size - at))
        self.store = open_small(self.directory, **self.settings)
        # Records that end before the cut are untouched. The one across it has kept at least its body
        # if it was accepted: topic and properties have no checksum in this format.
        sizes = {record.position: record.size for record in log_records(self.store)}
        whole = [
            r for r in self.model.records if r.position in sizes and r.position + sizes[r.position] <= cut
        ]
        assert [r.position for r in whole] == [r.position for r in self.model.records[: len(whole)]]
        assert len(whole) >= sum(1 for r in self.model.records if r.position < flushed_position)
        found = list(log_records(self.store))
        assert len(whole) <= len(found) <= len(whole) + 1
        for record, model in zip(found, self.model.records, strict=False):
            assert record.body == model.body
        assert self.store.check() == []
        if len(found) > len(whole):
            # Its fields may be anything now, so it cannot be part of the model: start afresh.
            self.store.close()
            self.generation += 1
            self.model = ListModel()
            self.store = open_small(self.directory, **self.settings)
        else:
            del self.model.records[len(whole) :]
            self.model.assert_same(self.store)

    @invariant()
    def positions_are_ordered(self) -> None:
        if hasattr(self, "store"):
            assert self.store.min_position <= self.store.confirmed_position <= self.store.appended_position
            assert self.store.flushed_position <= self.store.appended_position
            self.store._queues.check_invariants()
            if self.settings["flush"] == "async":
                assert self.store.confirmed_position == self.store.appended_position

    def _damage_entries(self, synced_position: int, damage: str) -> None:
        """Queue entries that no checkpoint has covered may be anything too."""
        for path in (self.directory / "consumequeue").glob("*/*/*"):
            data = path.read_bytes()
            kept = 0
            while kept < len(data):
                entry = data[kept : kept + 20]
                position, size = int.from_bytes(entry[:8], "big"), int.from_bytes(entry[8:12], "big")
                if size == 0 or position >= synced_position:
                    break
                kept += 20
            filling = b"\xa5" if damage == "garbage" else b"\0"
            path.write_bytes(
                data[:kept] if damage == "truncate" else data[:kept] + filling * (len(data) - kept)
            )

    def _die(self) -> None:
        before = self.directory
        self.generation += 1
        shutil.copytree(before, self.directory)
        self.store.close()
        shutil.rmtree(before)


StoreMachine.TestCase.settings = settings(max_examples=settings().max_examples // 5, stateful_step_count=25)
TestStoreModel = StoreMachine.TestCase
