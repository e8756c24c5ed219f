"""Power cuts at any moment of a seeded workload: the store starts on whatever the disk may hold then, has all
that was durable, invents nothing, and agrees with itself.

In a share of the workloads retention deletes the log's oldest files, one at a time and with everything else
in between; in another share the store is a copy of a second one, made of its bytes as replication makes it.

IOTMQ_CRASH_STATES=5000 tries that many states, IOTMQ_CRASH_SEED=N begins with another workload. A failure
names the workload and the state; `run(seed, only=(life, state))` repeats it.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from crash_model import WAYS, DiskRecorder, Note, PowerCut, Sync
from last_values import LastValues
from manual_clock import ManualClock
from store_model import BORN_HOST, log_records, open_small, records_of
from store_trim_machine import Disk, SteppedRemover

from iotmq.message.records.record import decode_record, encode_batch, property_value
from iotmq.store.projections.projection import DurableProjection
from iotmq.store.store import Store

STATES = int(os.environ.get("IOTMQ_CRASH_STATES", "100"))
SEED = int(os.environ.get("IOTMQ_CRASH_SEED", "1"))
STATES_PER_LIFE = 10
LIVES = 2
STEPS = 40
# In the syncs of one flush: large batches in small files would make for longer and longer flushes.
APPENDS_IN_SYNCS_MAX = 20

# In the memory of the machine, where there is room: what counts as synced is the model's business.
FAST = Path("/dev/shm")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    if not (FAST.is_dir() and os.access(FAST, os.W_OK) and shutil.disk_usage(FAST).free > 1 << 28):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="iotmq-crash-", dir=FAST))
    yield path
    shutil.rmtree(path)


class Workload(NamedTuple):
    """What is the same in all lives of one seed."""

    settings: dict[str, Any]
    has_retention: bool
    # The store that the recorded one is a copy of; no power cut reaches it.
    master: Store | None
    # Whether it has a projection in the key-value database.
    has_values: bool


class Life:
    """One run of a store, from its start to the power cut, recorded."""

    def __init__(self, directory: Path, source: random.Random, workload: Workload) -> None:
        self.directory = directory
        self.source = source
        self.has_values = workload.has_values
        self.settings = workload.settings
        self.has_retention = workload.has_retention
        self.master = workload.master
        self.clock = ManualClock()
        self.disk = Disk()
        self.recorder = DiskRecorder(directory)
        self.store: Store | None = None
        self.queue_count = source.choice((2, 5, 45))
        self.has_failures = source.random() < 0.4
        # In the syncs of one flush; set when it begins.
        self.appends_left = 0
        # Records a batch at most has, and bytes a body.
        self.records_max = source.choice((1, 5, 30)) if self.queue_count < 45 else 3
        self.bytes_max = source.choice((10, 300, 1500))

    def run(self) -> None:
        with self.recorder.watching():
            self.open()
            for _ in range(STEPS):
                self.step()
            if self.source.random() < 0.3:
                self.close()
        if self.store is not None:
            end = len(self.recorder.operations)
            self.store.close()
            # Nothing of it belongs to the record, which did not see all of it.
            del self.recorder.operations[end:]

    def step(self) -> None:
        choice = self.source.random()
        store = self.store
        assert store is not None
        if self.has_retention and self.source.random() < 0.25:
            self.trim()
        elif choice < 0.55:
            self.append()
        elif choice < 0.70:
            self.flush()
        elif choice < 0.80:
            with self.syncing(), contextlib.suppress(OSError):
                store.write_checkpoint()
        elif choice < 0.88:
            store._log.make_room_ahead()
        elif choice < 0.95:
            self.recorder.look()
        elif store.failure is None or choice < 0.99:
            self.close()
            self.open()
        else:
            # Goes on without a restart: reads, and syncs that say that all is well.
            self.flush()

    def open(self) -> None:
        self.store = open_small(
            self.directory,
            clock=self.clock,
            sync_file=self.recorder.sync_file,
            read_usage=self.disk,
            **self.settings,
        )
        if self.has_values:
            LastValues.add_to(self.store)
        # The threads do nothing by themselves; what they would do is done in `step`.
        make_quiet(self.store)
        self.remover = SteppedRemover(self.store.min_position, pause_s=0)
        self.store._trimmer.remover = self.remover
        self.recorder.look()
        self.recorder.note(("opened", dict(stored(self.store))))
        self.note_durable()

    def close(self) -> None:
        assert self.store is not None
        self.store.close()
        self.recorder.look()
        self.note_durable()
        self.store = None

    def append(self) -> None:
        store, source = self.store, self.source
        assert store is not None
        if store.failure is not None:
            # Only a restart helps; what waits in the page cache is still there then.
            self.close()
            self.open()
            return
        if self.master is not None:
            if source.random() < 0.7:
                self.put(self.master)
            if store.appended_position < self.master.appended_position:
                self.copy(self.master)
            return
        batch = self.put(store)
        # Noted before it is seen: parts of it may be on the disk from the first store on.
        self.recorder.note(("appended", batch))
        if source.random() < 0.7:
            self.look_at_last(batch[0][0])

    def put(self, store: Store) -> list[tuple[int, bytes]]:
        """Append a batch; the records and where they are."""
        source = self.source
        number = source.randrange(self.queue_count)
        queue = store.queue(f"topic{number // 3}", number % 3)
        elements = [
            (
                source.randbytes(source.randint(0, self.bytes_max)),
                source.choice(
                    (
                        b"",
                        b"TAGS\x01a\x02",
                        b"KEYS\x01k%d\x02x\x01" % number + b"v" * 90,
                        b"MQTT_TOPIC\x01d/%d\x02" % number,
                    )
                ),
                0,
            )
            for _ in range(source.randint(1, self.records_max))
        ]
        appended = store.append(
            queue, encode_batch(elements), born_timestamp_ms=source.randint(1, 1 << 40), born_host=BORN_HOST
        )
        return [(position, record_bytes(store, position)) for position in appended.positions()]

    def copy(self, master: Store) -> None:
        """Take some of the master's bytes that are missing here: enough for one record or blank, or more."""
        store = self.store
        assert store is not None
        position = store.appended_position
        wanted_bytes = self.source.choice((1, 3000, 20000))
        data = b""
        while position + len(data) < master.appended_position:
            data += master.read_raw(position + len(data), max(wanted_bytes - len(data), 500))
            if len(data) < wanted_bytes:
                continue
            end_position = store.append_raw(position, data)
            if end_position > position:
                break
        else:
            end_position = store.append_raw(position, data)
        batch = [
            (record.position, record_bytes(store, record.position))
            for record in log_records(store, position)
            if record.position < end_position
        ]
        self.recorder.note(("appended", batch))
        if batch and self.source.random() < 0.7:
            self.look_at_last(batch[-1][0])

    def look_at_last(self, position: int) -> None:
        """See a record that was just written: all of it, and before that all but its size."""
        assert self.store is not None
        segment = self.store._log.segments_between(position, position + 1)[0]
        at = position - segment.start_position
        self.recorder.look(hidden=(Path(segment.path), at, 4), has_names_changed=False)

    def trim(self) -> None:
        """Let retention have some of the oldest files, and the removing thread get so far."""
        store, source = self.store, self.source
        assert store is not None
        for projection in store._projections:
            if isinstance(projection, DurableProjection):
                # In place of the thread that would bring it to the disk until the next pass.
                projection.sync()
        self.clock.advance(120)
        if source.random() < 0.6:
            self.disk.excess_bytes = source.choice((1, 6000, 20000))
        store.retain()
        self.disk.excess_bytes = 0
        # Noted before the first file goes.
        self.recorder.note(("trimmed", store.min_position))
        self.recorder.look()
        self.remover.step(source.choice((0, 1, 2, 20)))
        self.recorder.look()

    def flush(self) -> None:
        assert self.store is not None
        with self.syncing():
            self.store._flusher.flush()
        self.note_durable()
        if self.source.random() < 0.8:
            self.store.advance()

    @contextlib.contextmanager
    def syncing(self) -> Iterator[None]:
        """Syncs inside may fail, and others do things during them."""
        self.appends_left = APPENDS_IN_SYNCS_MAX
        self.recorder.is_failing = self.has_failures and self.source.random() < 0.1
        self.recorder.on_sync = self.meanwhile
        yield
        self.recorder.is_failing = False
        self.recorder.on_sync = None

    def meanwhile(self) -> None:
        """What the owner does while a sync is under way in another thread."""
        assert self.store is not None
        if self.appends_left and self.store.failure is None and self.source.random() < 0.3:
            self.appends_left -= 1
            self.append()

    def note_durable(self) -> None:
        assert self.store is not None
        self.recorder.note(("durable", self.store.flushed_position))


def make_quiet(store: Store) -> None:
    for part in (store._flusher, store._allocator):
        part.request = lambda: None  # type: ignore[method-assign]


def record_bytes(store: Store, position: int) -> bytes:
    size = int.from_bytes(store._log.view(position, position + 4), "big")
    return bytes(store._log.view(position, position + size))


def stored(store: Store) -> list[tuple[int, bytes]]:
    return [(record.position, record_bytes(store, record.position)) for record in log_records(store)]


class Expected:
    """What may and must be found after a power cut at a moment of a life."""

    def __init__(self, before: Expected | None, notes: list[Any]) -> None:
        self.durable_position: int = before.durable_position if before else 0
        # Retention had the log begin here at most.
        self.trimmed_position: int = before.trimmed_position if before else 0
        # Queue -> the offset behind the last durable record, be it stored still or not.
        self.ends: dict[tuple[str, int], int] = dict(before.ends) if before else {}
        # position -> what may stand there, in order
        self.possible: dict[int, list[bytes]] = dict(before.possible) if before else {}
        for what, value in notes:
            if what == "opened":
                self._take_ends()
                # Whatever was lost then must never come back.
                self.possible = {position: [data] for position, data in value.items()}
            elif what == "appended":
                for position, data in value:
                    self.possible[position] = [data]
            elif what == "trimmed":
                self.trimmed_position = value
            else:
                self.durable_position = value
        self._take_ends()

    def _take_ends(self) -> None:
        for position, (data,) in self.possible.items():
            if position < self.durable_position:
                record = decode_record(data)
                queue = record.topic, record.queue_id
                self.ends[queue] = max(self.ends.get(queue, 0), record.queue_offset + 1)

    def check(self, store: Store, values: LastValues | None) -> None:
        # Power cuts damage nothing that was on the disk: there is only what never quite came there.
        assert {damage.kind for damage in store.recovery.damage} <= {"torn"}
        found = stored(store)
        for position, data in found:
            assert data in self.possible.get(position, []), f"the record at {position} was never appended"
        assert store.min_position <= self.trimmed_position
        positions = {position for position, _ in found}
        kept = [position for position in sorted(self.possible) if position >= store.min_position]
        for position in kept:
            assert position in positions or position >= self.durable_position, (
                f"the record at {position} is lost; durable was {self.durable_position}, "
                f"the log is {store.min_position}..{store.appended_position}"
            )
        assert kept[: len(found)] == [position for position, _ in found]
        for queue in store.queues():
            records = records_of(store, queue.topic, queue.queue_id)
            assert [record.queue_offset for record in records] == list(
                range(queue.min_offset, queue.max_offset)
            )
            wanted = [
                record
                for record in log_records(store)
                if (record.topic, record.queue_id) == (queue.topic, queue.queue_id)
            ]
            assert [record.position for record in records] == [record.position for record in wanted]
        # No offset may ever mean two records.
        for (topic, queue_id), end_offset in self.ends.items():
            queue = store.queue(topic, queue_id)
            assert queue.max_offset >= end_offset, f"{queue} ends before {end_offset}"
        if values is not None:
            # What RocksDB synced is not seen here, so its files may hold less than a power cut leaves.
            wanted_places = {
                mqtt_topic: record.position
                for record in log_records(store)
                if (mqtt_topic := property_value(record.properties, b"MQTT_TOPIC")) is not None
            }
            places = values.places()
            assert {topic: at for topic, at in places.items() if at >= store.min_position} == wanted_places
        assert store.check() == []


def check_copy(store: Store, master: Store) -> None:
    """Whether the store has the master's bytes, blanks included."""
    position = store.min_position
    while position < store.appended_position:
        data = bytes(store.read_raw(position, 1 << 20, end_position=store.appended_position))
        wanted = bytes(master.read_raw(position, len(data)))
        size = min(len(data), len(wanted))
        assert data[:size] == wanted[:size], f"the copy differs from its master behind {position}"
        position += size


def check_state(directory: Path, expected: Expected, workload: Workload) -> None:
    settings = workload.settings
    store = open_small(directory, **settings)
    expected.check(store, LastValues.add_to(store) if workload.has_values else None)
    if workload.master is not None:
        check_copy(store, workload.master)
    store.close()
    found = None
    for _ in range(2):
        store = open_small(directory, **settings)
        assert store.recovery.was_clean
        assert store.check() == []
        assert found in (None, stored(store))
        queue = store.queue("topic0", 0)
        store.append(queue, encode_batch([(b"after", b"", 0)]), born_timestamp_ms=0, born_host=BORN_HOST)
        found = stored(store)
        store.close()


def settings_of(source: random.Random) -> dict[str, Any]:
    segment_bytes = source.choice((4096, 8192, 16384))
    return {
        "flush": source.choice(("sync", "async")),
        "segment_bytes": segment_bytes,
        "record_bytes_max": 2048,
        "queue_file_entries": source.choice((7, 60, 300)),
        "allocation_step_bytes": source.choice((4096, 8192)),
    }


@contextlib.contextmanager
def workload_of(root: Path, source: random.Random) -> Iterator[Workload]:
    settings = settings_of(source)
    has_values = source.random() < 0.2
    has_retention, is_copy = source.choice(((False, False), (True, False), (False, True), (True, True)))
    if has_retention:
        settings |= {"retention_delay_ms": 0, "delete_pause_ms": 0}
    master = None
    if is_copy:
        master = open_small(root, **{**settings, "flush": "async"}, sync_file=lambda descriptor: None)
        make_quiet(master)
    try:
        yield Workload(settings, has_retention, master, has_values)
    finally:
        if master is not None:
            master.close()
            shutil.rmtree(root)


def run(root: Path, seed: int, states: int, *, only: tuple[int, int] | None = None) -> int:
    """Live, cut, start, check; LIVES lives one after another, each on a state the last one left."""
    source = random.Random(seed)
    with workload_of(root / f"{seed}-master", source) as workload:
        return run_lives(root, seed, states, workload, only)


def run_lives(root: Path, seed: int, states: int, workload: Workload, only: tuple[int, int] | None) -> int:
    directory = root / f"{seed}-0"
    directory.mkdir()
    expected: Expected | None = None
    tried = 0
    for number in range(LIVES):
        life = Life(directory, random.Random(seed * 1000 + number), workload)
        life.run()
        shutil.rmtree(directory)
        operations = life.recorder.operations
        interesting = [
            at + 1
            for at, each in enumerate(operations)
            if at >= life.recorder.start and isinstance(each, (Sync, Note))
        ]
        for state in range(states):
            chance = random.Random((seed * 1000 + number) * 1000 + state)
            moment = (
                chance.randint(life.recorder.start, len(operations))
                if chance.random() < 0.5
                else chance.choice(interesting)
            )
            way = chance.choice(WAYS)
            cut = PowerCut(life.recorder, moment, chance, way)
            notes = [each.what for each in operations[:moment] if isinstance(each, Note)]
            coming = next((each.what for each in operations[moment:] if isinstance(each, Note)), None)
            if coming is not None and coming[0] == "appended":
                # The power may go while it is being written.
                notes.append(coming)
            allowed = Expected(expected, notes)
            if only in (None, (number, state)):
                target = root / f"{seed}-{number}-{state}"
                cut.materialise(target)
                try:
                    check_state(target, allowed, workload)
                except BaseException as error:
                    error.add_note(
                        f"run({seed}, {states}, only=({number}, {state})): cut before operation {moment} of "
                        f"{len(operations)}, way {way!r}, journaled {cut.is_journaled}, "
                        f"{workload}"
                    )
                    raise
                shutil.rmtree(target)
                tried += 1
        # The next life begins in the last state of this one.
        directory = root / f"{seed}-{number + 1}"
        cut.materialise(directory)
        expected = allowed
    shutil.rmtree(directory)
    return tried


@pytest.mark.crash
@pytest.mark.timeout(max(120, STATES))
def test_power_cuts(directory: Path) -> None:
    tried = 0
    seed = SEED
    while tried < STATES:
        tried += run(directory, seed, STATES_PER_LIFE)
        seed += 1
