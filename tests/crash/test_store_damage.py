"""Bytes flipped, cut and overwritten in every file of a store: it starts, loses no more than what was hit,
says what that is, and serves nothing that does not prove itself.

IOTMQ_DAMAGE_ROUNDS=2000 tries that many random damages, IOTMQ_DAMAGE_SEED=N begins with another one; a
failure names its seed.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import slow_scan
from store_model import log_records, open_small, put, wait_flushed

from iotmq.message.records.record import iter_records
from iotmq.store.log.commit_log import CommitLog
from iotmq.store.log.segment import segment_name
from iotmq.store.projections.log_scan import scan
from iotmq.store.queues.reads import ReadStatus
from iotmq.store.recovery.damage import Loss
from iotmq.store.store import Store

ROUNDS = int(os.environ.get("IOTMQ_DAMAGE_ROUNDS", "40"))
SEED = int(os.environ.get("IOTMQ_DAMAGE_SEED", "1"))

SEGMENT_BYTES = 4096
PROPERTIES = b"TAGS\x01red\x02KEYS\x01k1\x02"

# Field -> (where it starts, bytes); those behind the body are counted from the end of the record.
HEAD_FIELDS = {
    "size": (0, 4), "magic": (4, 4), "body crc": (8, 4), "queue id": (12, 4), "flag": (16, 4),
    "queue offset": (20, 8), "position": (28, 8), "sys flag": (36, 4), "born time": (40, 8),
    "born host": (48, 8), "store time": (56, 8), "store host": (64, 8), "reconsume times": (72, 4),
    "prepared position": (76, 8), "body size": (84, 4), "body": (88, 10),
}  # fmt: skip
# Whatever is flipped there is noticed, and costs the record and nothing else.
PROVEN_FIELDS = {
    "size",
    "magic",
    "body crc",
    "position",
    "body size",
    "body",
    "topic size",
    "properties size",
}


class Stored(NamedTuple):
    """A record as it was before the damage."""

    topic: str
    queue_id: int
    offset: int
    position: int
    size: int
    body: bytes


class Data:
    """A directory with some records in it, and what they were."""

    def __init__(self, directory: Path, records: list[Stored]) -> None:
        self.directory = directory
        self.records = records

    def file_of(self, position: int) -> Path:
        return self.directory / "commitlog" / segment_name(position // SEGMENT_BYTES * SEGMENT_BYTES)

    def overwrite(self, position: int, data: bytes) -> None:
        with self.file_of(position).open("r+b") as file:
            file.seek(position % SEGMENT_BYTES)
            file.write(data)

    def flip(self, position: int, bits: int) -> None:
        with self.file_of(position).open("r+b") as file:
            file.seek(position % SEGMENT_BYTES)
            (byte,) = file.read(1)
            file.seek(position % SEGMENT_BYTES)
            file.write(bytes([byte ^ bits]))


def make(directory: Path, *, seed: int = 1, count: int = 60, is_clean: bool = True) -> Data:
    """Several queues, bodies of all sizes, batches, blanks at the ends of the segments."""
    source = random.Random(seed)
    store = open_small(directory)
    while store._log.appended_records < count:
        bodies = [
            b"%d " % source.randint(0, 1 << 60) + b"." * source.choice([0, 9, 100, 400, 900])
            for _ in range(source.randint(1, 4))
        ]
        put(store, f"topic{source.randint(0, 2)}", source.randint(0, 1), *bodies, properties=PROPERTIES)
    records = [
        Stored(r.topic, r.queue_id, r.queue_offset, r.position, r.size, r.body) for r in log_records(store)
    ]
    if is_clean:
        store.close()
        return Data(directory, records)
    wait_flushed(store)
    copy = directory.with_name(directory.name + "-killed")
    shutil.copytree(directory, copy)
    store.close()
    return Data(copy, records)


def served(store: Store) -> Iterator[Any]:
    """Every record that readers get; the offsets they cannot read are passed over, never stuck at."""
    for queue in store.queues():
        offset = queue.min_offset
        while offset < queue.max_offset:
            read = store.read(queue, offset, records_max=3, bytes_max=700)
            assert read.next_offset > offset
            assert (read.status == ReadStatus.FOUND) == (read.count > 0)
            for view in read.views:
                for record in iter_records(view):
                    assert record.queue_id == queue.queue_id
                    assert offset <= record.queue_offset < read.next_offset
                    yield record
            offset = read.next_offset


def assert_served(store: Store, data: Data, *, lost: set[int]) -> None:
    """Readers get every record but those at the positions `lost`, each in its place and as it was."""
    wanted = {(r.topic, r.queue_id, r.offset): r.body for r in data.records if r.position not in lost}
    assert {(r.topic, r.queue_id, r.queue_offset): r.body for r in served(store)} == wanted


def assert_nothing_invented(store: Store, data: Data, *, lost_max: int) -> None:
    """Whatever readers get was stored, in the order of its queue; hardly anything is missing."""
    bodies = {r.body: r for r in data.records}
    got = list(served(store))
    assert {record.body for record in got} <= bodies.keys()
    assert len({record.body for record in got}) >= len(bodies) - lost_max


def assert_goes_on(data: Data, store: Store) -> None:
    """Another start finds nothing to do, a rebuild from the log alone comes to the same, and appends work."""
    before = sorted((r.topic, r.queue_id, r.queue_offset, r.body) for r in served(store))
    ends = {(queue.topic, queue.queue_id): queue.next_offset for queue in store.queues()}
    assert store.check() == []
    store.close()
    for is_rebuilt in (False, True):
        if is_rebuilt:
            shutil.rmtree(data.directory / "consumequeue")
        store = open_small(data.directory)
        assert [each for each in store.recovery.damage if each.kind != "gap"] == []
        assert sorted((r.topic, r.queue_id, r.queue_offset, r.body) for r in served(store)) == before
        assert {(queue.topic, queue.queue_id): queue.next_offset for queue in store.queues()} == ends
        assert store.check() == []
        appended = put(store, "topic0", 0, b"new")
        assert appended.first_offset == ends["topic0", 0]
        ends["topic0", 0] += 1
        before = sorted([*before, ("topic0", 0, appended.first_offset, b"new")])
        store.close()


def losses(*records: Stored) -> tuple[Loss, ...]:
    """The records as ranges of offsets; they follow one another in their queues."""
    found: dict[tuple[str, int], list[int]] = {}
    for record in records:
        found.setdefault((record.topic, record.queue_id), []).append(record.offset)
    return tuple(
        sorted(Loss(topic, queue_id, min(all_), max(all_)) for (topic, queue_id), all_ in found.items())
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


def field_of(record: Stored, field: str) -> tuple[int, int]:
    if field in HEAD_FIELDS:
        return HEAD_FIELDS[field]
    topic_at = 88 + len(record.body)
    return {
        "topic size": (topic_at, 1),
        "topic": (topic_at + 1, len(record.topic)),
        "properties size": (topic_at + 1 + len(record.topic), 2),
        "properties": (topic_at + 3 + len(record.topic), len(PROPERTIES)),
    }[field]


@pytest.mark.damaged_store
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("number", [0, 31, -1])
@pytest.mark.parametrize("field", [*HEAD_FIELDS, "topic size", "topic", "properties size", "properties"])
def test_every_field_of_first_middle_and_last_record(
    directory: Path, field: str, number: int, is_clean: bool
) -> None:
    data = make(directory, is_clean=is_clean)
    source = random.Random(f"{field} {number}")
    record = data.records[number]
    at, size = field_of(record, field)
    for _ in range(3):
        data.flip(record.position + at + source.randrange(size), 1 << source.randrange(8))
    if is_clean:
        # So that every segment is looked at.
        (data.directory / "abort").touch()
        (data.directory / "checkpoint").unlink()
    store = open_small(data.directory)
    if field in PROVEN_FIELDS:
        # Without a checkpoint nobody can tell what never reached the disk from what was damaged there.
        is_tail = number == -1 and is_clean
        kinds = {each.kind for each in store.recovery.damage}
        assert kinds == ({"torn"} if is_tail else {"damaged"})
        if not is_tail:
            (damage,) = store.recovery.damage
            assert (damage.start_position, damage.end_position) == (
                record.position, record.position + record.size,
            )  # fmt: skip
            assert damage.lost == losses(record)
        assert_served(store, data, lost={record.position})
    else:
        assert_nothing_invented(store, data, lost_max=2)
    store.close()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("number", [0, 31, -1])
def test_a_repaired_log_is_like_any_other(directory: Path, number: int, is_clean: bool) -> None:
    data = make(directory, is_clean=is_clean)
    record = data.records[number]
    data.flip(record.position + 8, 1)
    if is_clean:
        (data.directory / "abort").touch()
        (data.directory / "checkpoint").rename(data.directory / "checkpoint.kept")
        if number == -1:
            (data.directory / "checkpoint.kept").rename(data.directory / "checkpoint")
    store = open_small(data.directory)
    assert_served(store, data, lost={record.position})
    assert_goes_on(data, store)


ENTRY_FIELDS = {"position": (0, 8), "size": (8, 4), "tags code": (12, 8)}


@pytest.mark.damaged_store
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("number", [0, 4, -1])
@pytest.mark.parametrize("field", ENTRY_FIELDS)
@pytest.mark.parametrize("seed", range(3))
def test_every_field_of_first_middle_and_last_queue_entry(
    directory: Path, field: str, number: int, is_clean: bool, seed: int
) -> None:
    """The log has the record, so nobody misses it; only a wrong tags code is believed."""
    data = make(directory, is_clean=is_clean)
    source = random.Random(f"{field} {number} {seed}")
    records = [record for record in data.records if (record.topic, record.queue_id) == ("topic1", 0)]
    offset = records[number].offset
    path = data.directory / "consumequeue" / "topic1" / "0" / segment_name(offset // 7 * 140)
    content = bytearray(path.read_bytes())
    at, size = ENTRY_FIELDS[field]
    content[offset % 7 * 20 + at + source.randrange(size)] ^= 1 << source.randrange(8)
    path.write_bytes(content)
    store = open_small(data.directory)
    assert_served(store, data, lost=set())
    assert store.unreadable_records() == []
    if field != "tags code":
        assert store.check() == []
    store.close()


@pytest.mark.damaged_store
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("cut_bytes", [0, 1, 20, 59, 120])
def test_queue_files_that_were_cut(directory: Path, is_clean: bool, cut_bytes: int) -> None:
    data = make(directory, is_clean=is_clean)
    for path in sorted((data.directory / "consumequeue" / "topic1" / "0").iterdir()):
        path.write_bytes(path.read_bytes()[:cut_bytes])
        store = open_small(data.directory)
        assert_served(store, data, lost=set())
        assert store.check() == []
        store.close()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("name", ["checkpoint", "consumequeue/.applied", "index.applied"])
def test_every_byte_of_the_small_files(directory: Path, name: str, is_clean: bool) -> None:
    """What they say is believed only when it proves itself, and can be done without."""
    data = make(directory, is_clean=is_clean)
    good = (data.directory / name).read_bytes()
    places = [*range(min(44, len(good))), *range(512, 532)] if name == "checkpoint" else range(len(good))
    kept = directory.with_name("kept")
    data.directory.rename(kept)
    for at in [*places, -1]:
        shutil.copytree(kept, data.directory)
        bad = bytearray(good)
        if at >= 0:
            bad[at] ^= 1 << at % 8
        (data.directory / name).write_bytes(bytes(bad) if at >= 0 else b"")
        store = open_small(data.directory)
        assert_served(store, data, lost=set())
        assert store.recovery.damage == ()
        assert store.check() == []
        store.close()
        shutil.rmtree(data.directory)


@pytest.mark.damaged_store
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_key_index_files(directory: Path, is_clean: bool, seed: int) -> None:
    """Nothing in them has a checksum, but a look-up believes only the record."""
    source = random.Random(seed)
    data = make(directory, is_clean=is_clean)
    for path in sorted((data.directory / "index").iterdir()):
        content = bytearray(path.read_bytes())
        for _ in range(3):
            content[source.randrange(len(content))] ^= 1 << source.randrange(8)
        path.write_bytes(content)
    store = open_small(data.directory)
    assert_served(store, data, lost=set())
    for topic in ("topic0", "topic1", "topic2"):
        wanted = {record.position for record in data.records if record.topic == topic}
        for view in store.query(topic, "k1"):
            assert next(iter_records(view)).position in wanted
    assert put(store, "topic0", 0, b"goes on", properties=PROPERTIES).count == 1
    store.close()


@pytest.mark.parametrize("what", ["missing", "empty", "cut", "another"])
@pytest.mark.parametrize("number", [0, 1, -1])
def test_segment_files(directory: Path, number: int, what: str) -> None:
    data = make(directory)
    paths = sorted((data.directory / "commitlog").iterdir())
    path = paths[number]
    start = int(path.name)
    if what == "missing" and number == 0:
        # Nobody can tell this from files that were deleted as too old.
        return
    kept = 0
    if what == "missing":
        path.unlink()
    elif what == "empty":
        path.write_bytes(b"")
    elif what == "cut":
        kept = 1500
        path.write_bytes(path.read_bytes()[:kept])
    else:
        path.write_bytes(paths[2].read_bytes())
    (data.directory / "abort").touch()
    store = open_small(data.directory)
    lost = {
        record.position
        for record in data.records
        if start <= record.position < start + SEGMENT_BYTES and record.position + record.size > start + kept
    }
    if number == 0:
        # Behind the checkpoint's file nothing is looked at before it is read.
        assert len(store.unreadable_records()) == 0
    assert_served(store, data, lost=lost)
    if number == -1:
        assert_goes_on(data, store)
    store.close()


test_segment_files = pytest.mark.damaged_store(test_segment_files)


@pytest.mark.damaged_store
@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_anything_anywhere(directory: Path, seed: int) -> None:
    """Some bytes of some files are overwritten: readers get hardly less than before, and nothing else."""
    source = random.Random(seed)
    data = make(directory, seed=seed, is_clean=source.random() < 0.5)
    if source.random() < 0.5:
        (data.directory / "abort").touch()
    paths = [path for path in sorted(data.directory.rglob("*")) if path.is_file() and path.name != "lock"]
    hits = source.randint(1, 3)
    for _ in range(hits):
        path = source.choice(paths)
        size = path.stat().st_size
        if size == 0:
            continue
        with path.open("r+b") as file:
            file.seek(source.randrange(size))
            file.write(source.choice([source.randbytes, bytes])(source.choice([1, 8, 100])))
            file.truncate(size)
    store = open_small(data.directory)
    bodies = {record.body for record in data.records}
    assert {record.body for record in served(store)} <= bodies
    assert len({record.body for record in served(store)}) >= len(bodies) - 12 * hits
    assert put(store, "topic0", 0, b"goes on").count == 1
    store.close()


@pytest.mark.parametrize("seed", range(SEED, SEED + max(1, ROUNDS // 4)))
def test_scan_finds_what_a_slow_one_finds(directory: Path, seed: int) -> None:
    source = random.Random(seed)
    data = make(directory, seed=seed)
    paths = sorted((data.directory / "commitlog").iterdir())
    for _ in range(source.randint(1, 6)):
        path = source.choice(paths)
        content = bytearray(path.read_bytes())
        size = source.choice([1, 1, 8, 500, 2000])
        at = source.randrange(len(content) - size)
        content[at : at + size] = source.choice([source.randbytes, bytes])(size)
        path.write_bytes(content)
    log = CommitLog(
        str(data.directory / "commitlog"),
        segment_bytes=SEGMENT_BYTES,
        allocation_step_bytes=4096,
        record_bytes_max=2048,
        store_host=bytes(8),
    )
    _, damaged, end = slow_scan.scan(data.directory / "commitlog")
    assert scan(log, 0) == (damaged, end)
