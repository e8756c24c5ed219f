"""Reading the files of a log without a broker, and without Spark's JVM."""

from __future__ import annotations

import json
import os
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from manual_clock import ManualClock
from pyspark.sql.types import StructType
from store_model import SMALL, open_small, put

from iotmq.bridge.cluster import TopicMissingError
from iotmq.bridge.options.reading import parse_options
from iotmq.bridge.plan import DataLossError
from iotmq.bridge.rows import COLUMNS, default_schema
from iotmq.bridge.segments import files as segment_files
from iotmq.bridge.segments.reader import SegmentReader
from iotmq.bridge.segments.record_picker import RecordPicker, end_of_records
from iotmq.bridge.source import IotmqDataSource
from iotmq.errors import ConfigError, StoreError
from iotmq.message.properties import encode_properties
from iotmq.message.records.record import encode_record
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store
from iotmq.store.tools.repair import repair

PLACES = (
    StructType()
    .add("topic", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("value", "binary")
)
Place = tuple[str, int, int]
SETTINGS = StoreSettings(**SMALL)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of these tests have 4 KiB; they are cut where minPartitions says so."""
    monkeypatch.setattr(segment_files, "PART_BYTES_MIN", 512)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_small(tmp_path / "data", clock=ManualClock(1_000))
    yield store
    store.close()


def reader(path: Path, schema: StructType = PLACES, **options: str) -> SegmentReader:
    given = {"path": str(path), "subscribe": "T", **options}
    if "subscribePattern" in options or "assign" in options:
        del given["subscribe"]
    found = IotmqDataSource(given).reader(schema)
    assert isinstance(found, SegmentReader)
    return found


def rows(path: Path, schema: StructType = PLACES, **options: str) -> list[dict[str, Any]]:
    source = reader(path, schema, **options)
    return [
        row
        for partition in source.partitions()
        for batch in source.read(partition)
        for row in batch.to_pylist()
    ]


def places(path: Path, **options: str) -> list[Place]:
    return [(row["topic"], row["partition"], row["offset"]) for row in rows(path, **options)]


def fill(store: Store, count: int = 120) -> list[Place]:
    """Records of three topics in turn, over several files; returns those of T."""
    found = []
    for number in range(count):
        put(store, "T", number % 3, b"body %d" % number)
        found.append(("T", number % 3, number // 3))
        if number % 2:
            put(store, "other", 0, bytes(100))
        put(store, "%RETRY%g", 0, b"again")
    return found


def log_files(directory: Path) -> list[Path]:
    return sorted((directory / "commitlog").iterdir())


@pytest.mark.parametrize("parts", ["1", "3", "40"])
def test_every_record_of_a_topic_comes_once_in_the_order_of_the_log(
    store: Store, tmp_path: Path, parts: str
) -> None:
    wanted = fill(store)
    assert len(log_files(tmp_path / "data")) > 4
    assert places(tmp_path / "data", minPartitions=parts) == wanted
    assert places(tmp_path / "data" / "commitlog", minPartitions=parts) == wanted
    source = reader(tmp_path / "data", minPartitions=parts)
    assert len(source.partitions()) >= int(parts) // 2


def test_a_live_log_is_read_up_to_what_is_whole(store: Store, tmp_path: Path) -> None:
    fill(store, 10)
    source = reader(tmp_path / "data")
    planned = source.partitions()
    fill(store, 60)
    read = [row for part in planned for batch in source.read(part) for row in batch.to_pylist()]
    assert len(read) == 10
    assert len(rows(tmp_path / "data")) == 70


def test_rows_have_the_same_columns_as_from_a_broker(store: Store, tmp_path: Path) -> None:
    properties = encode_properties(
        {"KEYS": "k", "MQTT_TOPIC": "d/1", "MQTT_CLIENT_ID": "c", "TAGS": "t", "x": "y"}
    )
    put(store, "T", 1, zlib.compress(b"packed"), properties=properties, sys_flag=1)
    schema = StructType()
    for name, column in COLUMNS.items():
        schema.add(name, column.spark_type)
    (row,) = rows(tmp_path / "data", schema)
    assert row["value"] == b"packed"
    assert (row["key"], row["mqtt_topic"], row["client_id"], row["tags"]) == ("k", "d/1", "c", "t")
    assert (row["topic"], row["partition"], row["offset"], row["position"]) == ("T", 1, 0, 0)
    assert dict(row["properties"])["x"] == "y"
    assert row["broker"] is None
    assert row["timestamp"].timestamp() == 1.0
    assert set(rows(tmp_path / "data", default_schema(with_properties=False))[0]) == set(
        default_schema(with_properties=False).fieldNames()
    )


def test_patterns_never_match_topics_of_brokers(store: Store, tmp_path: Path) -> None:
    fill(store, 6)
    put(store, "RMQ_SYS_TRANS_HALF_TOPIC", 0, b"half")
    found = {topic for topic, _queue, _offset in places(tmp_path / "data", subscribePattern=".*")}
    assert found == {"T", "other"}
    assert {place[0] for place in places(tmp_path / "data", subscribe="T,other")} == {"T", "other"}
    with pytest.raises(ConfigError, match="halves of transactions"):
        reader(tmp_path / "data", subscribe="RMQ_SYS_TRANS_HALF_TOPIC")


def test_prepared_and_rolled_back_records_are_no_rows(store: Store, tmp_path: Path) -> None:
    for state in (4, 12, 8, 0):
        put(store, "T", 0, b"state %d" % state, sys_flag=state)
    assert [row["value"] for row in rows(tmp_path / "data")] == [b"state 8", b"state 0"]


def test_expired_records_are_passed_over_as_by_a_broker(store: Store, tmp_path: Path) -> None:
    """They are stored at 1,000 ms, and the files are read at 6,000 or 6,001 ms."""
    for number, time_to_live in enumerate(["5000", "5001", "5002", "", "0", "x"]):
        properties = encode_properties({"MSG_TTL_MS": time_to_live} if time_to_live else {"a": "b"})
        put(store, "T", 0, b"%d" % number, properties=properties)

    def read_at(now_ms: int, **options: str) -> list[int]:
        plain = parse_options({"path": str(tmp_path / "data"), "subscribe": "T", **options}, streaming=False)
        source = SegmentReader(plain, PLACES, clock=ManualClock(now_ms))
        return [
            row["offset"]
            for partition in source.partitions()
            for batch in pickle.loads(pickle.dumps(source)).read(partition)
            for row in batch.to_pylist()
        ]

    assert read_at(5_999) == [0, 1, 2, 3, 4, 5]
    assert read_at(6_000) == [1, 2, 3, 4, 5]
    assert read_at(6_001) == [2, 3, 4, 5]
    assert read_at(6_001, includeExpired="true") == [0, 1, 2, 3, 4, 5]


def test_queues_offsets_and_times_narrow_the_read(store: Store, tmp_path: Path) -> None:
    wanted = fill(store, 30)
    data = tmp_path / "data"
    assert places(data, assign='{"T": [1]}') == [place for place in wanted if place[1] == 1]
    starts = '{"T": {"0": 5, "1": -2, "2": 9}}'
    ends = '{"T": {"0": 7, "1": 1, "2": -1}}'
    assert sorted(places(data, startingOffsets=starts, endingOffsets=ends)) == [
        *(("T", 0, 5), ("T", 0, 6), ("T", 1, 0), ("T", 2, 9))
    ]
    with pytest.raises(ConfigError, match="no number for topic 'T' queue 2"):
        places(data, startingOffsets='{"T": {"0": 5, "1": 0}}')


def test_times_narrow_the_read_and_leave_whole_files_out(tmp_path: Path) -> None:
    clock = ManualClock(0)
    store = open_small(tmp_path, clock=clock)
    for _number in range(100):
        clock.advance(1.0)
        put(store, "T", 0, bytes(100))
    stored = [
        row["timestamp"].timestamp() * 1000 for row in rows(tmp_path, default_schema(with_properties=False))
    ]
    assert stored == sorted(stored)
    middle, late = int(stored[50]), int(stored[60])
    assert [place[2] for place in places(tmp_path, startingTimestamp=str(middle))] == list(range(50, 100))
    assert [place[2] for place in places(tmp_path, endingTimestamp=str(late))] == list(range(60))
    both = {"startingTimestamp": str(middle), "endingTimestamp": str(late)}
    assert [place[2] for place in places(tmp_path, **both)] == list(range(50, 60))
    per_queue = json.dumps({"T": {"0": middle}})
    assert places(tmp_path, startingOffsetsByTimestamp=per_queue)[0][2] == 50
    planned = reader(tmp_path, startingTimestamp=str(middle)).partitions()
    assert planned[0].value.file.start_position > 0
    with pytest.raises(ConfigError, match="lies before"):
        reader(tmp_path, startingTimestamp=str(late), endingTimestamp=str(middle))
    store.close()


def test_records_of_a_deleted_topic_are_gone_and_those_of_a_new_one_are_not(
    store: Store, tmp_path: Path
) -> None:
    put(store, "T", 0, b"old")
    deleted_at = store.appended_position
    put(store, "T", 0, b"new")
    config = tmp_path / "data" / "config"
    config.mkdir(exist_ok=True)
    table = {"deletedTopics": {"T": {"position": deleted_at, "version": 1}}}
    (config / "deletedTopics.json").write_text(json.dumps(table))
    assert [row["value"] for row in rows(tmp_path / "data")] == [b"new"]
    (config / "deletedTopics.json").write_text("{")
    with pytest.raises(ConfigError, match=r"deletedTopics\.json is damaged"):
        rows(tmp_path / "data")


def test_a_topic_that_the_data_directory_does_not_know_is_an_error(store: Store, tmp_path: Path) -> None:
    fill(store, 3)
    with pytest.raises(TopicMissingError, match="'nope'"):
        places(tmp_path / "data", subscribe="nope")
    # A log alone knows no topics.
    assert places(tmp_path / "data" / "commitlog", subscribe="nope") == []


def damage(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_a_torn_tail_is_the_end(store: Store, tmp_path: Path) -> None:
    wanted = fill(store, 40)
    store.close()
    last = log_files(tmp_path / "data")[-1]
    with last.open("rb") as file:
        end = end_of_records(file.read(), start_position=int(last.name))
    assert end
    damage(last, end, b"\0\0\1\0\xda\xa3\x20\xa7 and half a record")
    assert places(tmp_path / "data") == wanted
    # The body of the last record, too, may have been lost.
    damage(last, end - 16, b"\xff")
    found = places(tmp_path / "data")
    assert found == wanted[: len(found)]
    assert len(found) >= len(wanted) - 1


@pytest.mark.parametrize("parts", ["1", "17"])
def test_a_record_that_fails_its_crc_names_file_and_position(
    store: Store, tmp_path: Path, parts: str, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = fill(store, 60)
    store.close()
    second = log_files(tmp_path / "data")[1]
    at = second.read_bytes().index(b"body ")
    number = int(second.read_bytes()[at + 5 : at + 7])
    damage(second, at, b"B")
    position = int(second.name) + at - 88
    with pytest.raises(
        DataLossError, match=rf"{second.name} position {position}: the body does not match its CRC"
    ):
        places(tmp_path / "data", minPartitions=parts)
    found = places(tmp_path / "data", minPartitions=parts, failOnDataLoss="false")
    assert found == wanted[:number] + wanted[number + 1 :]
    assert f"position {position}" in caplog.text


@pytest.mark.parametrize("parts", ["1", "17"])
def test_bytes_that_are_no_record_are_an_error_up_to_the_next_one(
    store: Store, tmp_path: Path, parts: str, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = fill(store, 60)
    store.close()
    second = log_files(tmp_path / "data")[1]
    data = second.read_bytes()
    at = data.index(b"body ")
    number = int(data[at + 5 : at + 7])
    damage(second, at - 88, bytes(8))
    with pytest.raises(
        DataLossError, match=f"{second.name} position {int(second.name) + at - 88}: no record up to"
    ):
        places(tmp_path / "data", minPartitions=parts)
    found = places(tmp_path / "data", minPartitions=parts, failOnDataLoss="false")
    assert found == wanted[:number] + wanted[number + 1 :]
    assert caplog.text.count("no record up to") == 1


def test_a_forged_record_inside_a_body_is_never_a_row(store: Store, tmp_path: Path) -> None:
    """Parts of a file begin where lengths lead, not where something looks like a record."""
    fill(store, 4)
    at = store.appended_position + 88
    forged = encode_record(topic="T", body=b"forged", queue_id=0, queue_offset=7, position=at)
    put(store, "T", 0, forged + bytes(1000))
    fill(store, 4)
    for parts in (1, 2, 3, 5, 8, 13, 21):
        assert b"forged" not in [row["value"] for row in rows(tmp_path / "data", minPartitions=str(parts))]


def test_missing_and_short_files_are_told(store: Store, tmp_path: Path) -> None:
    wanted = fill(store, 60)
    store.close()
    files = log_files(tmp_path / "data")
    os.truncate(files[0], 1000)
    with pytest.raises(DataLossError, match=r"no file has the positions 1000 to 4095"):
        places(tmp_path / "data")
    files[1].unlink()
    with pytest.raises(DataLossError, match=f"no file has the positions 1000 to {int(files[2].name) - 1}"):
        places(tmp_path / "data")
    found = places(tmp_path / "data", failOnDataLoss="false")
    assert found
    assert set(found) < set(wanted)
    # What is gone at the beginning was deleted by retention.
    files[0].unlink()
    kept = places(tmp_path / "data")
    assert kept == wanted[-len(kept) :]


def test_markers_of_a_repaired_log_are_walked_over(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    wanted = fill(store, 60)
    store.close()
    second = log_files(tmp_path)[1]
    at = second.read_bytes().index(b"body ")
    damage(second, at, b"B")
    assert repair(tmp_path, SETTINGS).problems == ()
    assert len(places(tmp_path)) == len(wanted) - 1


def test_foreign_files_are_passed_over(store: Store, tmp_path: Path) -> None:
    wanted = fill(store, 30)
    log = tmp_path / "data" / "commitlog"
    (log / "README").write_text("mine")
    (log / "00000000000000000000.gz").write_bytes(b"x")
    (log / "99999999999999999999").write_bytes(b"")
    assert places(tmp_path / "data") == wanted


def test_an_empty_log_has_no_rows(tmp_path: Path) -> None:
    open_small(tmp_path).close()
    assert places(tmp_path / "commitlog") == []


def test_paths_that_are_none_are_refused(tmp_path: Path) -> None:
    for path, text in (
        (str(tmp_path), "no file of a CommitLog"),
        (str(tmp_path / "gone"), "no directory"),
        ("s3://bucket/x", "on this machine"),
    ):
        with pytest.raises(ConfigError, match=text):
            IotmqDataSource({"path": path, "subscribe": "T"}).reader(PLACES).partitions()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pullBytes": "65536"}, "pullBytes is for reading from brokers"),
        ({"iotmq.bootstrap.servers": "h:1"}, "bootstrap.servers is for reading from brokers"),
        ({"assign": '{"T": ["broker-a:0"]}'}, "files do not know their broker: write 0"),
        ({"startingOffsets": '{"T": {"b:1": 5}}'}, "files do not know their broker: write 1"),
        ({"startingOffsets": "latest"}, "cannot start at the end"),
    ],
)
def test_options_without_a_meaning_for_files_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        reader(Path("x"), **options)


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="path is empty"):
        IotmqDataSource({"path": " ", "subscribe": "T"}).reader(PLACES)


def test_a_path_is_no_stream() -> None:
    with pytest.raises(ConfigError, match="path is for batch reads"):
        IotmqDataSource({"path": "x", "subscribe": "T"}).streamReader(PLACES)


def test_bodies_that_cannot_be_inflated_are_lost(store: Store, tmp_path: Path) -> None:
    put(store, "T", 0, b"not zlib", sys_flag=1)
    with pytest.raises(DataLossError, match="1 bodies cannot be decompressed"):
        rows(tmp_path / "data")
    assert [row["value"] for row in rows(tmp_path / "data", failOnDataLoss="false")] == [None]


def test_a_picker_asks_once_per_queue_and_takes_no_more_queues_than_it_may() -> None:
    asked: list[tuple[str, int]] = []

    def decide(topic: str, queue_id: int) -> tuple[int, int, int, int, int]:
        asked.append((topic, queue_id))
        return 0, 0, 1 << 62, 0, 1 << 62

    log = b""
    for number in range(400):
        log += encode_record(
            topic="T", body=b"x", queue_id=number % 100, queue_offset=number, position=len(log)
        )
    picker = RecordPicker(decide, queues_max=100)
    records, at, is_stopped = picker.pick(
        log, 0, len(log), start_position=0, bytes_max=len(log), room=bytearray(len(log))
    )
    assert (bytes(records), at, is_stopped) == (log, len(log), False)
    assert asked == [("T", number) for number in range(100)]
    more = log + encode_record(topic="U", body=b"x", position=len(log))
    with pytest.raises(StoreError, match="more than 100 queues"):
        picker.pick(more, 0, len(more), start_position=0, bytes_max=len(more), room=bytearray(len(more)))
