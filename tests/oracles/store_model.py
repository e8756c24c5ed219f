"""What a store must do, written as a list: the slow twin of the log and its queues."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from eventually import eventually
from manual_clock import ManualClock

from iotmq.clock import Clock
from iotmq.message.records.record import decode_record, encode_batch, iter_records
from iotmq.store.log.commit_log import Appended
from iotmq.store.queues.reads import ReadStatus
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = b"\x7f\x00\x00\x01" + (10911).to_bytes(4, "big")
BORN_HOST = b"\x0a\x00\x00\x07" + (40000).to_bytes(4, "big")
WAIT_S = 60.0

# Small enough that a few records fill a segment, a few entries a queue file, and a few keys one of the index.
SMALL = {
    "segment_bytes": 4096,
    "record_bytes_max": 2048,
    "queue_file_entries": 7,
    "allocation_step_bytes": 4096,
    "index_slots": 16,
    "index_entries": 32,
}


def open_small(
    directory: Path,
    *,
    clock: Clock | None = None,
    sync_file: Any = None,
    read_usage: Any = None,
    confirmed_limit: int | None = None,
    **settings: Any,
) -> Store:
    """A store of tiny files; nothing is flushed or checkpointed unless asked for."""
    quiet = {"flush_interval_ms": 3_600_000, "checkpoint_interval_ms": 3_600_000}
    more = {} if sync_file is None else {"sync_file": sync_file}
    if read_usage is not None:
        more["read_usage"] = read_usage
    return Store.open(
        directory,
        StoreSettings(**{**SMALL, **quiet, **settings}),
        store_host=HOST,
        clock=clock or ManualClock(),
        confirmed_limit=confirmed_limit,
        **more,
    )


def fill_disk(file: Path) -> None:
    """Take all the room there is on its disk."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass


def batch(*bodies: bytes, properties: bytes = b"", flag: int = 0) -> bytes:
    return encode_batch((body, properties, flag) for body in bodies)


def put(
    store: Store, topic: str, queue_id: int, *bodies: bytes, properties: bytes = b"", **more: Any
) -> Appended:
    """Append one batch the usual way."""
    return store.append(
        store.queue(topic, queue_id),
        batch(*bodies, properties=properties),
        born_timestamp_ms=1_600_000_000_000,
        born_host=BORN_HOST,
        **more,
    )


def wait_flushed(store: Store, position: int | None = None) -> None:
    """Flush, and confirm, at least up to `position` (default: everything appended)."""
    wanted = store.appended_position if position is None else position
    flushed = threading.Event()
    store.on_flushed = flushed.set
    while store.flushed_position < wanted:
        flushed.clear()
        store.request_flush()
        if store.flushed_position < wanted:
            assert flushed.wait(WAIT_S), "no flush came"
    store.on_flushed = None
    store.advance()


def wait_allocated(store: Store) -> None:
    """Let the thread that makes room ahead finish: a log that is growing is not trimmed at that moment."""
    eventually(lambda: not store._allocator._is_requested, "room was made ahead")


def bodies_of(store: Store, topic: str, queue_id: int) -> list[bytes]:
    """Every body of a queue, read in small pieces."""
    return [record.body for record in records_of(store, topic, queue_id)]


def records_of(store: Store, topic: str, queue_id: int) -> list[Any]:
    """Every record of a queue, read in small pieces; offsets are checked to be dense."""
    queue = store.find_queue(topic, queue_id)
    if queue is None:
        return []
    records: list[Any] = []
    offset = queue.min_offset
    while offset < queue.max_offset:
        read = store.read(queue, offset, records_max=3, bytes_max=700)
        assert read.status == ReadStatus.FOUND
        got = [record for view in read.views for record in iter_records(view)]
        assert len(got) == read.count > 0
        assert [record.queue_offset for record in got] == list(range(offset, read.next_offset))
        records += got
        offset = read.next_offset
    return records


def log_records(store: Store, position: int | None = None) -> Iterator[Any]:
    """Every record of the log in order (from the one at `position` on), found by its position alone."""
    position = store.min_position if position is None else position
    log = store._log
    while position < store.appended_position:
        start, end = log.records(position, store.appended_position, 1)
        if start == end:
            return
        yield decode_record(log.view(start, end))
        position = end


class Stored(NamedTuple):
    """One record as the model knows it."""

    topic: str
    queue_id: int
    offset: int
    body: bytes
    properties: bytes
    position: int


class ListModel:
    """The log as a list of records."""

    def __init__(self) -> None:
        self.records: list[Stored] = []

    def next_offset(self, topic: str, queue_id: int) -> int:
        return sum(1 for record in self.records if (record.topic, record.queue_id) == (topic, queue_id))

    def add(self, topic: str, queue_id: int, elements: list[tuple[bytes, bytes]], appended: Appended) -> None:
        """Take in a batch the store has appended, after checking where it says it went."""
        offset = self.next_offset(topic, queue_id)
        positions = appended.positions()
        assert appended.first_offset == offset
        assert appended.count == len(elements) == len(positions)
        assert positions[0] == appended.start_position
        for (body, properties), position in zip(elements, positions, strict=True):
            self.records.append(Stored(topic, queue_id, offset, body, properties, position))
            offset += 1

    def assert_same(self, store: Store) -> None:
        """The store holds exactly the model's records, in the log and in every queue."""
        assert [
            (r.topic, r.queue_id, r.queue_offset, r.body, r.properties, r.position)
            for r in log_records(store)
        ] == self.records
        keys = {(record.topic, record.queue_id) for record in self.records}
        for topic, queue_id in keys:
            wanted = [r.body for r in self.records if (r.topic, r.queue_id) == (topic, queue_id)]
            assert bodies_of(store, topic, queue_id) == wanted
        for queue in store.queues():
            if (queue.topic, queue.queue_id) not in keys:
                assert queue.max_offset == queue.next_offset == 0
        assert store.check() == []
