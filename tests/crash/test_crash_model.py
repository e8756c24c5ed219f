"""Power cuts at any moment of a seeded workload: the store starts on whatever the disk may hold then, has all
that was durable, invents nothing, and agrees with itself.

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
from typing import Any

import pytest
from crash_model import WAYS, DiskRecorder, Note, PowerCut, Sync
from store_model import BORN_HOST, log_records, open_small, records_of

from iotmq.message.record import encode_batch, property_value
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


class Life:
    """One run of a store, from its start to the power cut, recorded."""

    def __init__(self, directory: Path, source: random.Random, settings: dict[str, Any]) -> None:
        self.directory = directory
        self.source = source
        self.settings = settings
        self.recorder = DiskRecorder(directory)
        self.store: Store | None = None
        self.records: dict[int, bytes] = {}
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
            # Nothing of it reaches the record.
            self.store.close()

    def step(self) -> None:
        choice = self.source.random()
        store = self.store
        assert store is not None
        if choice < 0.55:
            self.append()
        elif choice < 0.70:
            self.flush()
        elif choice < 0.80:
            with self.syncing(), contextlib.suppress(OSError):
                store._checkpointer.write()
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
        self.store = open_small(self.directory, sync_file=self.recorder.sync_file, **self.settings)
        # The threads do nothing by themselves; what they would do is done in `step`.
        for part in (self.store._flusher, self.store._allocator):
            part.request = lambda: None  # type: ignore[attr-defined]
        self.recorder.look()
        self.records = dict(stored(self.store))
        self.recorder.note(("opened", dict(self.records)))
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
        batch = []
        for position in appended.positions():
            data = record_bytes(store, position)
            self.records[position] = data
            batch.append((position, data))
        # Noted before it is seen: parts of it may be on the disk from the first store on.
        self.recorder.note(("appended", batch))
        if source.random() < 0.7:
            segment = store._log.segments_between(appended.start_position, appended.start_position + 1)[0]
            at = appended.start_position - segment.start_position
            self.recorder.look(hidden=(Path(segment.path), at, 4), has_names_changed=False)

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


def record_bytes(store: Store, position: int) -> bytes:
    size = int.from_bytes(store._log.view(position, position + 4), "big")
    return bytes(store._log.view(position, position + size))


def stored(store: Store) -> list[tuple[int, bytes]]:
    return [(record.position, record_bytes(store, record.position)) for record in log_records(store)]


class Expected:
    """What may and must be found after a power cut at a moment of a life."""

    def __init__(self, before: Expected | None, notes: list[Any]) -> None:
        self.durable_position = before.durable_position if before else 0
        # position -> what may stand there, in order
        self.possible: dict[int, list[bytes]] = dict(before.possible) if before else {}
        for what, value in notes:
            if what == "opened":
                # Whatever was lost then must never come back.
                self.possible = {position: [data] for position, data in value.items()}
            elif what == "appended":
                for position, data in value:
                    self.possible[position] = [data]
            else:
                self.durable_position = value

    def check(self, store: Store) -> None:
        # Power cuts damage nothing that was on the disk: there is only what never quite came there.
        assert {damage.kind for damage in store.recovery.damage} <= {"torn"}
        found = stored(store)
        for position, data in found:
            assert data in self.possible.get(position, []), f"the record at {position} was never appended"
        positions = {position for position, _ in found}
        for position in self.possible:
            assert position in positions or position >= self.durable_position, (
                f"the record at {position} is lost; durable was {self.durable_position}, "
                f"the log is {store.min_position}..{store.appended_position}"
            )
        assert sorted(self.possible)[: len(found)] == [position for position, _ in found]
        for queue in store.queues():
            records = records_of(store, queue.topic, queue.queue_id)
            assert [record.queue_offset for record in records] == list(range(queue.max_offset))
            wanted = [
                record
                for record in log_records(store)
                if (record.topic, record.queue_id) == (queue.topic, queue.queue_id)
            ]
            assert [record.position for record in records] == [record.position for record in wanted]
        if store.settings.latest_enabled:
            # What RocksDB synced is not seen here, so its files may hold less than a power cut leaves.
            wanted_places = {
                mqtt_topic: record.position
                for record in log_records(store)
                if (mqtt_topic := property_value(record.properties, b"MQTT_TOPIC")) is not None
            }
            assert {
                place.mqtt_topic.encode(): place.position for place, _ in store.latest_records()
            } == wanted_places
        assert store.check() == []


def check_state(directory: Path, expected: Expected, settings: dict[str, Any]) -> None:
    store = open_small(directory, **settings)
    expected.check(store)
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
        "latest_enabled": source.random() < 0.2,
    }


def run(root: Path, seed: int, states: int, *, only: tuple[int, int] | None = None) -> int:
    """Live, cut, start, check; LIVES lives one after another, each on a state the last one left."""
    source = random.Random(seed)
    settings = settings_of(source)
    directory = root / f"{seed}-0"
    directory.mkdir()
    expected: Expected | None = None
    tried = 0
    for number in range(LIVES):
        life = Life(directory, random.Random(seed * 1000 + number), settings)
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
                    check_state(target, allowed, settings)
                except BaseException as error:
                    error.add_note(
                        f"run({seed}, {states}, only=({number}, {state})): cut before operation {moment} of "
                        f"{len(operations)}, way {way!r}, journaled {cut.is_journaled}, {settings}"
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
