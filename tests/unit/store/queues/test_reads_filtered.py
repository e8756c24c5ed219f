"""Reading through a filter that looks at records: what comes, where the next read goes on, what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from iotmq import limits
from iotmq.broker.filters.property_filter import PropertyFilter
from iotmq.broker.filters.sql import parse_sql
from iotmq.message.hosts import encode_host
from iotmq.message.properties import encode_properties
from iotmq.message.records.record import encode_batch, iter_records
from iotmq.store.log.commit_log import Appended
from iotmq.store.queues.reads import Read, ReadStatus
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = encode_host("127.0.0.1", 10911)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path, StoreSettings(segment_bytes=16 << 20), store_host=HOST)
    yield store
    assert store.check() == []
    store.close()


def put(store: Store, *numbers: int, pad: str = "") -> None:
    elements = [
        (str(number).encode(), encode_properties({"n": str(number), "pad": pad}), 0) for number in numbers
    ]
    appended = store.append(store.queue("T", 0), encode_batch(elements), born_timestamp_ms=1, born_host=HOST)
    assert isinstance(appended, Appended)


def read(store: Store, expression: str, offset: int = 0, *, records_max: int = 1_000) -> Read:
    return store.read(
        store.find_queue("T", 0),
        offset,
        records_max=records_max,
        bytes_max=1 << 20,
        tags=PropertyFilter(parse_sql(expression)),
    )


def numbers(read: Read) -> list[int]:
    return [int(record.body) for view in read.views for record in iter_records(view)]


def test_only_what_passes_comes_and_the_next_read_goes_on_behind_all(store: Store) -> None:
    put(store, *range(20))
    result = read(store, "n between 5 and 7 or n = 18")
    assert (result.status, numbers(result), result.next_offset) == (ReadStatus.FOUND, [5, 6, 7, 18], 20)


def test_a_full_answer_ends_behind_its_last_record(store: Store) -> None:
    put(store, *range(20))
    result = read(store, "n >= 5", records_max=2)
    assert (numbers(result), result.next_offset) == ([5, 6], 7)


def test_nothing_passes(store: Store) -> None:
    put(store, 1, 2, 3)
    result = read(store, "n > 3")
    assert (result.status, result.next_offset, result.views) == (ReadStatus.NO_MATCHED_MESSAGE, 3, [])


def test_a_read_looks_at_so_many_entries(store: Store) -> None:
    put(store, *range(limits.PULL_SCAN_ENTRIES_MIN + 10))
    result = read(store, "n < 0", records_max=10)
    assert result.next_offset == limits.PULL_SCAN_ENTRIES_MIN
    queue = store.find_queue("T", 0)
    few = store.read(
        queue, 0, records_max=10, bytes_max=1 << 20, tags=PropertyFilter(parse_sql("n < 0")), entries_max=7
    )
    assert few.next_offset == 7


def test_a_read_stops_when_its_filter_has_worked_enough(store: Store) -> None:
    """Each of these looks through 30 KB sixty times."""
    pad = "x" * 30_000
    for number in range(0, 20, 4):
        put(store, *range(number, number + 4), pad=pad)
    expression = " OR ".join([f"pad CONTAINS 'y{number}'" for number in range(60)])
    result = read(store, expression)
    assert result.status == ReadStatus.NO_MATCHED_MESSAGE
    each_bytes = 61 * 30_000
    assert 1 <= result.next_offset <= limits.FILTER_WORK_BYTES_MAX // each_bytes + 1
    # The next read goes on from there and costs no more.
    assert read(store, expression, result.next_offset).next_offset == result.next_offset * 2


def test_one_filter_serves_any_number_of_reads(store: Store) -> None:
    put(store, *range(20), pad="x" * 3_000)
    wanted = PropertyFilter(parse_sql("n = 3 OR pad CONTAINS 'y'"))
    queue = store.find_queue("T", 0)
    for _ in range(200):
        found = store.read(queue, 0, records_max=10, bytes_max=1 << 20, tags=wanted)
        assert numbers(found) == [3]
