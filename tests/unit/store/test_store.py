"""The store as its owner sees it: refusals, projections, watching, size on disk, the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from file_size_limit import files_end_at
from manual_clock import ManualClock
from store_model import BORN_HOST, HOST, batch, bodies_of, open_small, put, wait_flushed

from iotmq.errors import StoreCorruptError, StoreError, StoreFullError
from iotmq.message.records.record import iter_records
from iotmq.store.projections.projection import RewindableProjection
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store


class Bodies:
    """A projection that keeps every body, with the positions it was called for."""

    name = "bodies"

    def __init__(self, applied_position: int = 0) -> None:
        self.applied_position = applied_position
        self.bodies: list[bytes] = []
        self.ranges: list[tuple[int, int]] = []
        self.error: Exception | None = None

    def apply(self, view: memoryview, start_position: int, end_position: int) -> None:
        if self.error is not None:
            raise self.error
        assert len(view) == end_position - start_position
        self.bodies += [record.body for record in iter_records(view)]
        self.ranges.append((start_position, end_position))
        self.applied_position = end_position


class RewindableBodies(Bodies):
    def rewind(self, position: int, min_position: int) -> None:
        self.applied_position = position


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    store = open_small(tmp_path, clock=clock)
    yield store
    assert store.check() == []
    store.close()


def test_fresh_directory_with_sixteen_queues_is_small(tmp_path: Path) -> None:
    store = Store.open(tmp_path, StoreSettings(), store_host=HOST)
    for queue_id in range(16):
        put(store, "T", queue_id, b"x")
    store._log.make_room_ahead()
    size = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*"))
    assert size < 32 << 20
    assert store.check() == []
    store.close()


@pytest.mark.damaged_store
@pytest.mark.parametrize("far_bytes", [0, 200, 3_000_000])
@pytest.mark.parametrize("on_disk", [True, False], ids=["disk", "memory"])
def test_a_check_finds_bytes_behind_the_end_of_the_log(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, far_bytes: int, on_disk: bool
) -> None:
    directory = tmp_path_factory.mktemp("store") if on_disk else tmp_path
    store = Store.open(directory, StoreSettings(), store_host=HOST)
    put(store, "T", 0, b"x")
    assert store.check() == []
    end = store.appended_position
    segment = store._log.segment_list()[0]
    assert end + far_bytes < segment.allocated_bytes
    with Path(segment.path).open("r+b") as file:
        file.seek(end + far_bytes)
        file.write(b"\1")
    assert store.check() == [f"there are bytes behind the end of the log at {end}"]
    store.close()


def test_full_disk_refuses_before_anything_is_visible(store: Store, clock: ManualClock) -> None:
    put(store, "T", 0, b"before")
    store._allocator.stop()
    before = store.appended_position
    with files_end_at(1000):
        for _ in range(2):
            with pytest.raises(StoreFullError, match=r"cannot take disk blocks: .*File too large"):
                put(store, "T", 0, *(b"x" * 1900 for _ in range(9)))
        assert store.appended_position == before
        assert store.queue("T", 0).next_offset == 1
        assert store.check() == []
        assert bodies_of(store, "T", 0) == [b"before"]
        # Within the same second nobody asks the disk again, even for what would fit.
        with pytest.raises(StoreFullError):
            put(store, "T", 0, b"small")
        clock.advance(1)
        put(store, "T", 0, b"small")
    put(store, "T", 0, *(b"x" * 1900 for _ in range(9)))
    assert store.queue("T", 0).max_offset == 11
    metrics = {metric.name: metric.value for metric in store.metrics()}
    assert metrics["iotmq_store_refused_appends_total"] == 3


def test_full_disk_for_a_queue_file_refuses_too(tmp_path: Path, clock: ManualClock) -> None:
    store = open_small(tmp_path, clock=clock, segment_bytes=1 << 20, queue_file_entries=1000)
    end_position = put(store, "T", 0, b"before").end_position
    with files_end_at(4096), pytest.raises(StoreFullError):
        put(store, "U", 0, b"x")
    assert store.appended_position == end_position
    assert store.check() == []
    clock.advance(1)
    assert put(store, "U", 0, b"x").first_offset == 0
    assert store.check() == []
    store.close()


def test_projection_catches_up_and_stays_up_to_date(store: Store) -> None:
    put(store, "T", 0, *(b"%d" % n + b"x" * 700 for n in range(20)))
    projection = Bodies()
    store.add_projection(projection)
    put(store, "T", 1, *(b"%d" % n + b"y" * 700 for n in range(20)))
    assert [body[-1:] for body in projection.bodies] == [b"x"] * 20 + [b"y"] * 20
    assert projection.applied_position == store.confirmed_position
    # Ranges never reach into a blank or over the end of a segment.
    assert all(start // 4096 == (end - 1) // 4096 for start, end in projection.ranges)


def test_projection_starts_where_it_stopped(store: Store) -> None:
    put(store, "T", 0, b"old")
    projection = Bodies(store.confirmed_position)
    put(store, "T", 0, b"new")
    store.add_projection(projection)
    assert projection.bodies == [b"new"]


def test_projection_sees_only_what_is_confirmed(tmp_path: Path) -> None:
    store = open_small(tmp_path, flush="sync")
    projection = Bodies()
    store.add_projection(projection)
    put(store, "T", 0, b"x")
    assert projection.bodies == []
    wait_flushed(store)
    assert projection.bodies == [b"x"]
    store.close()


def test_projection_ahead_of_the_log_goes_back_or_is_refused(store: Store) -> None:
    put(store, "T", 0, b"x")
    with pytest.raises(StoreCorruptError, match="projection bodies has applied up to 5000, but the log ends"):
        store.add_projection(Bodies(5000))
    projection = RewindableBodies(5000)
    assert isinstance(projection, RewindableProjection)
    store.add_projection(projection)
    assert projection.applied_position == store.confirmed_position


def test_failing_projection_does_not_fail_the_append(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    failing, working = Bodies(), Bodies()
    store.add_projection(failing)
    store.add_projection(working)
    failing.error = RuntimeError("broken")
    for _ in range(3):
        put(store, "T", 0, b"x")
    assert working.bodies == [b"x"] * 3
    assert [record.message for record in caplog.records] == ["projection bodies stopped at 0"]
    assert store.check() == [f"projection bodies has applied 0 of {store.confirmed_position}"]
    failing.error = None
    put(store, "T", 0, b"x")
    assert failing.bodies == [b"x"] * 4


def test_positions_before_and_after(store: Store) -> None:
    assert store.min_position == store.confirmed_position == store.appended_position == 0
    put(store, "T", 0, b"x")
    assert store.confirmed_position == store.appended_position == 93
    assert store.advance() == 93


def test_closed_store_refuses(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    queue = store.queue("T", 0)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="the store is closed"):
        store.append(queue, batch(b"x"), born_timestamp_ms=0, born_host=BORN_HOST)


def test_metrics_are_numbers_with_units(store: Store) -> None:
    put(store, "T", 0, b"x", b"y")
    metrics = {metric.name: metric for metric in store.metrics()}
    assert metrics["iotmq_store_records_total"].value == 2
    assert metrics["iotmq_store_records_total"].kind == "counter"
    assert metrics["iotmq_store_appended_position_bytes"].value == store.appended_position
    assert metrics["iotmq_store_appended_position_bytes"].kind == "gauge"
    assert metrics["iotmq_store_read_only"].value == 0


def test_record_limit_that_no_segment_can_hold_is_lowered(tmp_path: Path) -> None:
    store = open_small(tmp_path, record_bytes_max=1 << 20)
    put(store, "T", 0, bytes(4096 - 8 - 92))
    assert store.check() == []
    store.close()
