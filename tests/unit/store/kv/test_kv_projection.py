"""The key-value database, and what every projection in it gets: position, format, rewinding, durability."""

from __future__ import annotations

import logging
import random
import shutil
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from file_size_limit import files_end_at
from store_model import open_small, put

from iotmq.errors import StoreCorruptError, StoreError, StoreFullError
from iotmq.message.records.record import iter_records
from iotmq.store.kv import kv_projection
from iotmq.store.kv.kv import DAMAGED_DIRECTORY, KeyValueStore
from iotmq.store.kv.kv_projection import MARKER_KEY, KeyValueProjection, after_prefix, read_marker
from iotmq.store.projections.projection import DurableProjection, RewindableProjection
from iotmq.store.store import Store

# More than `files_end_at(4096)` lets a database write.
NAMES = [b"%032x" % hash_ for hash_ in random.Random(1).sample(range(1 << 60), 200)]


class BodyCollector:
    """Body -> position of the last record that has it."""

    def __init__(self) -> None:
        self.found: dict[bytes, int] = {}

    @property
    def count(self) -> int:
        return len(self.found)

    def collect(self, view: memoryview) -> None:
        for record in iter_records(view):
            self.found[b"b" + record.body] = record.position

    def items(self) -> tuple[list[bytes], list[bytes]]:
        return list(self.found), [b"%d" % position for position in self.found.values()]

    def clear(self) -> None:
        self.found.clear()


def open_key_values(directory: Path, **more: Any) -> KeyValueStore:
    return KeyValueStore(directory / "kv", cache_bytes=1 << 20, write_buffer_bytes=1 << 20, **more)


def bodies(key_values: KeyValueStore, *, format_version: int = 1) -> KeyValueProjection:
    return KeyValueProjection(key_values, "bodies", format_version=format_version, collector=BodyCollector())


def stored(projection: KeyValueProjection) -> dict[bytes, int]:
    """What the database has, without what is only collected."""
    return {key[1:]: int(value) for key, value in projection._space.scan(b"b", b"c")}


@pytest.fixture
def key_values(tmp_path: Path) -> Iterator[KeyValueStore]:
    key_values = open_key_values(tmp_path)
    yield key_values
    key_values.close()


def test_a_write_is_seen_whole_and_in_the_order_of_keys(key_values: KeyValueStore) -> None:
    space = key_values.space("numbers")
    space.write([b"c", b"a", b"b"], [b"3", b"1", b"2"])
    assert list(space.scan(b"")) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    assert list(space.scan(b"b", b"c")) == [(b"b", b"2")]
    space.write([b"d"], [b"4"], removed_keys=[b"a"], removed_ranges=[(b"b", b"c")])
    assert list(space.scan(b"")) == [(b"c", b"3"), (b"d", b"4")]
    assert space.get(b"d") == b"4"
    assert space.get(b"a") is None


def test_column_families_are_apart_and_can_be_removed(tmp_path: Path) -> None:
    key_values = open_key_values(tmp_path)
    for name in ("one", "two"):
        key_values.space(name).write([b"k"], [name.encode()])
    assert key_values.names() == ["one", "two"]
    key_values.remove("one")
    key_values.remove("never there")
    assert key_values.names() == ["two"]
    assert key_values.space("one").get(b"k") is None
    assert key_values.clear("two").get(b"k") is None
    key_values.close()
    key_values = open_key_values(tmp_path)
    assert key_values.names() == ["one", "two"]
    key_values.close()


def test_read_only_changes_nothing_and_refuses_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no"):
        open_key_values(tmp_path, is_read_only=True)
    key_values = open_key_values(tmp_path)
    key_values.space("one").write([b"k"], [b"v"])
    key_values.space("one").flush(wait=True)
    key_values.close()
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kv").glob("*.sst")}
    key_values = open_key_values(tmp_path, is_read_only=True)
    assert key_values.space("one").get(b"k") == b"v"
    with pytest.raises(StoreError, match="has no two"):
        key_values.space("two")
    with pytest.raises(StoreError):
        key_values.space("one").write([b"k"], [b"w"])
    key_values.close()
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kv").glob("*.sst")} == before


def test_a_second_owner_is_refused_and_the_database_is_left_alone(tmp_path: Path) -> None:
    key_values = open_key_values(tmp_path)
    with pytest.raises(StoreError, match="lock"):
        open_key_values(tmp_path)
    key_values.close()
    assert not (tmp_path / DAMAGED_DIRECTORY).exists()
    open_key_values(tmp_path).close()


@pytest.mark.parametrize("damage", ["CURRENT", "MANIFEST", "missing table", "torn options file"])
def test_a_damaged_database_is_moved_aside_or_read_past(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    key_values = open_key_values(tmp_path)
    key_values.space("one").write([b"k"], [b"v"])
    key_values.space("one").flush(wait=True)
    key_values.close()
    directory = tmp_path / "kv"
    if damage == "CURRENT":
        (directory / "CURRENT").write_bytes(b"nonsense\n")
    elif damage == "MANIFEST":
        for path in directory.glob("MANIFEST-*"):
            path.write_bytes(b"\xff" * 100)
    elif damage == "missing table":
        for path in directory.glob("*.sst"):
            path.unlink()
    else:
        (directory / "rocksdict-config.json").write_bytes(b"{")
    if damage == "torn options file":
        key_values = open_key_values(tmp_path)
        assert key_values.space("one").get(b"k") == b"v"
    else:
        with pytest.raises(StoreError):
            open_key_values(tmp_path, is_read_only=True)
        (tmp_path / DAMAGED_DIRECTORY).mkdir()
        key_values = open_key_values(tmp_path)
        assert "damaged and starts over" in caplog.text
        assert key_values.names() == []
        assert (tmp_path / DAMAGED_DIRECTORY / "IDENTITY").exists()
        assert key_values.space("one").get(b"k") is None
    key_values.close()


def test_a_damaged_block_is_an_error_and_never_a_short_answer(tmp_path: Path) -> None:
    key_values = open_key_values(tmp_path)
    keys = [b"%06d" % number for number in range(5000)]
    key_values.space("one").write(keys, [b"v" * 40] * len(keys))
    key_values.space("one").flush(wait=True)
    key_values.close()
    (table,) = (tmp_path / "kv").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[len(data) // 3] ^= 0xFF
    table.write_bytes(data)
    key_values = open_key_values(tmp_path)
    space = key_values.space("one")
    with pytest.raises(StoreCorruptError, match="checksum"):
        list(space.scan(b""))
    with pytest.raises(StoreCorruptError, match="checksum"):
        deque(map(space.get, keys), maxlen=0)
    key_values.close()


@pytest.mark.parametrize(
    ("prefix", "after"),
    [(b"", None), (b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", None), (b"a\x00", b"a\x01")],
)
def test_after_prefix(prefix: bytes, after: bytes | None) -> None:
    assert after_prefix(prefix) == after


def test_marker_says_position_and_format() -> None:
    marker = struct.pack(">8sIQ", b"iotmqKV1", 7, 1 << 40)
    assert read_marker(marker) == read_marker(marker, 7) == 1 << 40
    assert read_marker(marker, 8) is None
    assert read_marker(marker[:-1]) is None
    assert read_marker(b"X" + marker[1:]) is None
    assert read_marker(None) is None


# With a store --------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_small(tmp_path)
    yield store
    assert store.check() == []
    store.close()


def test_data_and_position_are_written_together_and_read_back(store: Store, tmp_path: Path) -> None:
    projection = bodies(store.key_values())
    assert isinstance(projection, RewindableProjection)
    assert isinstance(projection, DurableProjection)
    store.add_projection(projection)
    first = put(store, "T", 0, b"x", b"y")
    assert projection.applied_position == first.end_position
    assert projection.written_position == 0
    assert stored(projection) == {}
    projection.write_out()
    assert stored(projection) == {b"x": first.positions()[0], b"y": first.positions()[1]}
    assert read_marker(projection._space.get(MARKER_KEY), 1) == first.end_position
    second = put(store, "T", 0, b"x")
    store.close()
    assert projection.durable_position == second.end_position
    again = open_small(tmp_path)
    projection = bodies(again.key_values())
    assert projection.applied_position == second.end_position
    assert stored(projection) == {b"x": second.start_position, b"y": first.positions()[1]}
    again.close()


def test_a_projection_added_late_goes_through_the_log(store: Store) -> None:
    put(store, "T", 0, *(b"%d" % number + b"x" * 700 for number in range(20)))
    projection = bodies(store.key_values())
    store.add_projection(projection)
    assert projection._collector.count == 20
    projection.sync()
    assert projection.durable_position == store.confirmed_position
    assert len(stored(projection)) == 20


def test_pending_keys_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_projection, "PENDING_KEYS_MAX", 10)
    projection = bodies(store.key_values())
    store.add_projection(projection)
    for number in range(50):
        put(store, "T", 0, b"%d" % number)
        assert projection._collector.count <= 10
    assert len(stored(projection)) == 40


def test_pending_log_is_bounded_and_brought_to_the_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_projection, "PENDING_LOG_BYTES_MAX", 2000)
    monkeypatch.setattr(kv_projection, "FLUSH_LOG_BYTES", 4000)
    projection = bodies(store.key_values())
    store.add_projection(projection)
    for _ in range(50):
        put(store, "T", 0, b"same", b"x" * 300)
        assert projection.applied_position - projection.written_position <= 3000
    # The flushes ran behind; the last may still do so.
    while projection._flushing_position is not None:
        projection._flush_when_due()
    assert projection.written_position - projection.durable_position < 4000


def test_a_refusing_database_leaves_the_projection_behind_and_appends_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    projection = bodies(store.key_values())
    store.add_projection(projection)
    monkeypatch.setattr(kv_projection, "PENDING_KEYS_MAX", 1)
    put(store, "T", 0, b"x")

    def refuse(*_arguments: object, **_more: object) -> None:
        raise StoreError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(projection._space, "write", refuse)
        position = projection.applied_position
        for _ in range(3):
            put(store, "T", 0, b"y")
        assert projection.applied_position == position
        assert projection._collector.count == 1
        assert caplog.text.count("projection bodies stopped") == 1
    put(store, "T", 0, b"z")
    assert projection.applied_position == store.confirmed_position
    projection.sync()
    assert stored(projection).keys() == {b"x", b"y", b"z"}


def test_after_a_full_disk_it_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """RocksDB takes no more writes after one that met a full disk, until it is opened again."""
    monkeypatch.setattr(kv_projection, "REOPEN_S", 0.0)
    monkeypatch.setattr(kv_projection, "PENDING_KEYS_MAX", 1)
    store = open_small(
        tmp_path, segment_bytes=1 << 20, allocation_step_bytes=1 << 18, queue_file_entries=5000
    )
    first, second = (
        bodies(store.key_values()),
        KeyValueProjection(store.key_values(), "others", format_version=1, collector=BodyCollector()),
    )
    for projection in (first, second):
        store.add_projection(projection)
    put(store, "T", 0, *NAMES)
    with files_end_at(4096):
        with pytest.raises(StoreFullError):
            first.sync()
        for number in range(3):
            put(store, "T", 0, b"meanwhile %d" % number)
    assert first.applied_position < store.confirmed_position
    assert first._collector.count <= 200
    for number in range(4):
        put(store, "T", 0, b"after %d" % number)
    wanted = {*NAMES, *(b"meanwhile %d" % n for n in range(3)), *(b"after %d" % n for n in range(4))}
    for projection in (first, second):
        assert projection.applied_position == store.confirmed_position
        projection.sync()
        assert projection.durable_position == store.confirmed_position
        assert set(stored(projection)) == wanted
    assert store.check() == []
    assert "projection bodies stopped" in caplog.text
    store.close()


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, KeyValueProjection]]:
    """A store of NAMES; in the end they must be in the database."""
    monkeypatch.setattr(kv_projection, "REOPEN_S", 0.0)
    store = open_small(tmp_path, segment_bytes=1 << 20, allocation_step_bytes=1 << 18)
    projection = bodies(store.key_values())
    store.add_projection(projection)
    put(store, "T", 0, *NAMES)
    yield store, projection
    assert set(stored(projection)) == {*NAMES}
    assert store.check() == []
    store.close()


def retain_after_refusal(store: Store, projection: KeyValueProjection) -> None:
    """A write was refused; the projection goes on when the store deletes."""
    assert projection.durable_position < store.confirmed_position
    with pytest.raises(StoreError, match="goes on from"):
        projection.begin_sync()
    store.retain()


def test_after_a_full_disk_it_goes_on_without_another_record(
    filled: tuple[Store, KeyValueProjection],
) -> None:
    """Nothing is appended before something was deleted, and nothing deleted before this is on the disk."""
    store, projection = filled
    with files_end_at(4096), pytest.raises(StoreFullError):
        projection.sync()
    retain_after_refusal(store, projection)
    assert projection.applied_position == store.confirmed_position
    projection.begin_sync()
    projection.sync()
    assert projection.durable_position == store.confirmed_position


def test_a_flush_that_fails_with_nobody_waiting_is_noticed(
    filled: tuple[Store, KeyValueProjection],
) -> None:
    """Otherwise it would count as under way for ever, and with it all that may be deleted after it."""
    store, projection = filled
    with files_end_at(4096):
        projection.begin_sync()

        def is_refused() -> bool:
            try:
                projection.begin_sync()
            except StoreFullError:
                return True
            return False

        eventually(is_refused, "the flush has failed")
    retain_after_refusal(store, projection)
    projection.begin_sync()

    def is_durable() -> bool:
        projection.begin_sync()
        return projection.durable_position == store.confirmed_position

    eventually(is_durable, "it is on the disk")


def test_a_closed_database_says_so(tmp_path: Path) -> None:
    key_values = open_key_values(tmp_path)
    space = key_values.space("one")
    key_values.close()
    key_values.close()
    for use in (
        lambda: space.get(b"x"),
        lambda: space.write([b"x"], [b"y"]),
        lambda: space.flush(wait=True),
        lambda: list(space.scan(b"")),
        lambda: key_values.space("two"),
    ):
        with pytest.raises(StoreError, match="closed"):
            use()
    assert space.buffered_bytes == 0


def test_a_space_is_valid_again_also_when_the_first_try_to_reopen_failed(
    key_values: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = key_values.space("one")
    space.write([b"x"], [b"y"])

    def refuse() -> None:
        raise StoreFullError("No space left")

    with monkeypatch.context() as patch:
        patch.setattr(key_values, "_open", refuse)
        for _ in range(2):
            with pytest.raises(StoreFullError):
                key_values.reopen()
            with pytest.raises(StoreError, match="closed"):
                space.get(b"x")
    key_values.reopen()
    assert space.get(b"x") == b"y"
    assert key_values.space("one") is space


def test_another_format_starts_over(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    put(store, "T", 0, b"x", b"y")
    key_values = store.key_values()
    projection = bodies(key_values)
    store.add_projection(projection)
    projection.sync()
    store._dispatch.projections.remove(projection)
    changed = bodies(key_values, format_version=2)
    assert "another format" in caplog.text
    assert changed.applied_position == 0
    assert stored(changed) == {}
    store.add_projection(changed)
    changed.write_out()
    assert stored(changed).keys() == {b"x", b"y"}


def test_a_log_that_ends_earlier_makes_it_start_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_small(tmp_path)
    store.add_projection(bodies(store.key_values()))
    put(store, "T", 0, b"kept")
    cut = store.appended_position
    put(store, "T", 0, b"lost")
    store.close()
    log = next((tmp_path / "commitlog").iterdir())
    data = log.read_bytes()
    log.write_bytes(data[:cut] + bytes(len(data) - cut))
    # With it the start would know that there was more, and go on behind it.
    (tmp_path / "checkpoint").unlink()
    store = open_small(tmp_path)
    projection = bodies(store.key_values())
    assert stored(projection).keys() == {b"kept", b"lost"}
    store.add_projection(projection)
    assert "starts over" in caplog.text
    projection.write_out()
    assert stored(projection).keys() == {b"kept"}
    assert store.check() == []
    store.close()


def test_a_log_that_begins_later_is_safe_from_then_on(store: Store) -> None:
    projection = bodies(store.key_values())
    store.add_projection(projection)
    put(store, "T", 0, b"x")
    assert projection.durable_position == 0
    projection.trim(1)
    assert projection.durable_position == projection.applied_position > 0


@pytest.mark.parametrize("lost", ["directory", "column family"])
def test_deleted_it_comes_back_from_the_log(tmp_path: Path, lost: str) -> None:
    store = open_small(tmp_path)
    store.add_projection(bodies(store.key_values()))
    put(store, "T", 0, b"x", b"y")
    store.close()
    if lost == "directory":
        shutil.rmtree(tmp_path / "kv")
    else:
        key_values = open_key_values(tmp_path)
        key_values.remove("bodies")
        key_values.close()
    store = open_small(tmp_path)
    projection = bodies(store.key_values())
    store.add_projection(projection)
    projection.write_out()
    assert stored(projection).keys() == {b"x", b"y"}
    assert store.check() == []
    store.close()


def test_a_crash_takes_it_back_to_a_position_and_the_log_brings_it_forward(tmp_path: Path) -> None:
    """The copy of a directory in use is what kill -9 leaves: no file is being written at that moment."""
    store = open_small(tmp_path / "before")
    projection = bodies(store.key_values())
    store.add_projection(projection)
    put(store, "T", 0, b"on the disk")
    projection.sync()
    durable_position = projection.durable_position
    put(store, "T", 0, b"written")
    projection.write_out()
    put(store, "T", 0, b"collected")
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    store.close()
    store = open_small(tmp_path / "after")
    projection = bodies(store.key_values())
    assert projection.applied_position == durable_position
    assert stored(projection).keys() == {b"on the disk"}
    store.add_projection(projection)
    projection.write_out()
    assert stored(projection).keys() == {b"on the disk", b"written", b"collected"}
    assert store.check() == []
    store.close()


def test_a_store_without_such_a_projection_does_not_load_the_database(tmp_path: Path) -> None:
    """Memory at rest: the library alone costs about 9 MB."""
    program = (
        "import sys; from pathlib import Path; from iotmq.store.settings import StoreSettings;"
        "from iotmq.store.store import Store;"
        f"Store.open(Path({str(tmp_path)!r}), StoreSettings(), store_host=bytes(8)).close();"
        "assert 'rocksdict' not in sys.modules; import iotmq.assembly, iotmq.commands.cli;"
        "assert 'rocksdict' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert not (tmp_path / "kv").exists()


def test_a_long_catch_up_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from iotmq.store.projections import catch_up

    times_s = iter((0.0, 1.0, 5.0, 6.0, 7.0))
    monkeypatch.setattr(catch_up.time, "monotonic", lambda: next(times_s))
    report = catch_up.CatchUpReport("bodies", 1_000_000, 11_000_000)
    with caplog.at_level(logging.INFO):
        for position in (2_000_000, 6_000_000, 7_000_000, 11_000_000):
            report(position)
    assert [record.getMessage() for record in caplog.records] == [
        "projection bodies has caught up 50% of 10 MB in 5 s",
        "projection bodies has caught up 100% of 10 MB in 7 s",
    ]
