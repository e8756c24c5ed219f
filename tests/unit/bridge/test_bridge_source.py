"""The reader of format iotmq against a scripted registry and broker, without Spark's JVM."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import IntegerType, StringType, StructType

from iotmq.bridge.cluster import TopicMissingError
from iotmq.bridge.plan import DataLossError
from iotmq.bridge.rows import COLUMNS, default_schema
from iotmq.bridge.source import IotmqDataSource, IotmqStreamReader, QueueRanges
from iotmq.errors import BrokerError, ConfigError, ConnectionClosedError
from iotmq.message.properties import encode_properties
from iotmq.message.records.record import encode_record
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import RemotingServer, ServerConnection

BORN_MS = 1_700_000_000_000
STORED_MS = 1_700_000_100_000


def record(
    queue_id: int,
    offset: int,
    *,
    body: bytes | None = None,
    properties: bytes | None = None,
    sys_flag: int = 0,
) -> bytes:
    if properties is None:
        properties = encode_properties({"KEYS": f"k{offset}", "MQTT_TOPIC": f"d/{offset}", "color": "red"})
    return encode_record(
        topic="t",
        body=b"body %d %d" % (queue_id, offset) if body is None else body,
        properties=properties,
        queue_id=queue_id,
        queue_offset=offset,
        position=1000 + offset,
        sys_flag=sys_flag,
        born_timestamp_ms=BORN_MS + offset,
        store_timestamp_ms=STORED_MS + offset * 10,
    )


class FakeQueue:
    """A queue whose records are made when asked for, unless `special` has one."""

    def __init__(self, queue_id: int, length: int) -> None:
        self.queue_id = queue_id
        self.min_offset = 0
        self.max_offset = length
        self.special: dict[int, bytes] = {}
        self.left_out: set[int] = set()

    def records(self, offset: int, end: int) -> bytes:
        return b"".join(
            self.special.get(n) or record(self.queue_id, n)
            for n in range(offset, end)
            if n not in self.left_out
        )


class FakeCluster:
    """Registry and broker behind one listener; `pulls` records what was asked for."""

    def __init__(self) -> None:
        self.queues = {0: FakeQueue(0, 10), 1: FakeQueue(1, 25)}
        self.topics = [
            "t",
            "%RETRY%g",
            "%DLQ%g",
            "SCHEDULE_TOPIC_XXXX",
            "TBW102",
            "c",
            "broker-a",
            "RMQ_SYS_X",
        ]
        self.broker = "broker-a"
        self.is_registered = True
        self.route_queues: int | None = None  # how many the route has; None for all
        self.away: dict[str, int] = {}  # brokers that have left, with their queues
        self.pulls: list[tuple[int, int, int]] = []
        self.pull_records_max = 8
        self.before_pull: Callable[[ServerConnection, Command], Command | None] = lambda _c, _r: None
        self.drop_pulls = 0  # how many pulls from now on end with a closed connection
        self._loop = asyncio.new_event_loop()
        self._server = RemotingServer(self)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(5)
        self.port = self._server.port

    def stop(self) -> None:
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def connection_lost(self, connection: ServerConnection) -> None: ...

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        if request.code == RequestCode.GET_ROUTE_INFO_BY_TOPIC:
            return self._route(request)
        if request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_REGISTRY:
            return request.reply(0, body=json.dumps({"topicList": self.topics}).encode())
        if request.code == RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_REGISTRY:
            return request.reply(0, body=json.dumps({"topicList": ["c", self.broker]}).encode())
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            table = {self.broker: self._broker_data()} if self.is_registered else {}
            return request.reply(0, body=json.dumps({"brokerAddrTable": table}).encode())
        if request.text("topic") not in self.topics:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic here")
        queue = self.queues.get(request.integer("queueId"))
        if queue is None:
            return request.reply(ResponseCode.QUERY_NOT_FOUND, remark="no such queue here")
        if request.code == RequestCode.GET_MIN_OFFSET:
            return request.reply(0, ext={"offset": str(queue.min_offset)})
        if request.code == RequestCode.GET_MAX_OFFSET:
            return request.reply(0, ext={"offset": str(queue.max_offset)})
        assert request.code == RequestCode.PULL_MESSAGE
        if self.drop_pulls:
            self.drop_pulls -= 1
            connection.abort("test")
            return None
        return self.before_pull(connection, request) or self._pull(request, queue)

    def _route(self, request: Command) -> Command:
        topic = request.text("topic")
        if topic not in self.topics:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark=f"no route of {topic}")
        here = len(self.queues) if self.route_queues is None else self.route_queues
        assert request.boolean("withAway")
        route = {
            "brokerDatas": [self._broker_data()],
            "queueDatas": [
                {"brokerName": name, "perm": 6, "readQueueNums": count, "writeQueueNums": count}
                for name, count in {self.broker: here, **self.away}.items()
            ],
        }
        return request.reply(0, body=json.dumps(route).encode())

    def _broker_data(self) -> dict[str, Any]:
        return {
            "brokerName": self.broker,
            "brokerAddrs": {"0": f"127.0.0.1:{self.port}"},
            "cluster": "c",
        }

    def _pull(self, request: Command, queue: FakeQueue) -> Command:
        offset = request.integer("queueOffset")
        count = request.integer("maxMsgNums")
        self.pulls.append((queue.queue_id, offset, count))
        ext = {
            "suggestWhichBrokerId": "0",
            "minOffset": str(queue.min_offset),
            "maxOffset": str(queue.max_offset),
        }
        if offset < queue.min_offset:
            ext["nextBeginOffset"] = str(queue.min_offset)
            return request.reply(ResponseCode.PULL_OFFSET_MOVED, remark="OFFSET_TOO_SMALL", ext=ext)
        if offset > queue.max_offset:
            ext["nextBeginOffset"] = str(queue.max_offset)
            return request.reply(ResponseCode.PULL_OFFSET_MOVED, remark="OFFSET_OVERFLOW_BADLY", ext=ext)
        if offset == queue.max_offset:
            ext["nextBeginOffset"] = str(offset)
            return request.reply(ResponseCode.PULL_NOT_FOUND, remark="OFFSET_OVERFLOW_ONE", ext=ext)
        end = min(offset + min(count, self.pull_records_max), queue.max_offset)
        ext["nextBeginOffset"] = str(end)
        return request.reply(0, remark="FOUND", ext=ext, body=queue.records(offset, end))


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    fake = FakeCluster()
    yield fake
    fake.stop()


def source(cluster: FakeCluster, **options: str) -> IotmqDataSource:
    return IotmqDataSource(
        {
            "iotmq.bootstrap.servers": f"127.0.0.1:{cluster.port}",
            "subscribe": "t",
            "requestTimeoutMs": "2000",
            "retryTimeoutMs": "0",
            **options,
        }
    )


def stream_reader(cluster: FakeCluster, **options: str) -> IotmqStreamReader:
    made = source(cluster, **options)
    return made.streamReader(made.schema())


def rows_of(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    """All rows, each partition read by a copy of the reader as a task would."""
    rows: list[dict[str, Any]] = []
    for partition in partitions:
        task_reader, task_partition = pickle.loads(pickle.dumps((reader, partition)))
        for batch in task_reader.read(task_partition):
            rows += batch.to_pylist()
    return rows


def batch_rows(
    cluster: FakeCluster, schema: StructType | None = None, **options: str
) -> list[dict[str, Any]]:
    made = source(cluster, **options)
    reader = made.reader(schema or made.schema())
    return rows_of(reader, reader.partitions())


def offsets(**queues: int) -> dict[str, Any]:
    return {"v": 1, "topics": {"t": {f"broker-a:{name[1:]}": n for name, n in queues.items()}}}


def seen(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in rows]


def expected(queue_id: int, start: int, end: int) -> list[tuple[int, int]]:
    return [(queue_id, n) for n in range(start, end)]


# Batch


def test_a_batch_reads_every_record_once_with_all_columns(cluster: FakeCluster) -> None:
    rows = batch_rows(cluster)
    assert seen(rows) == expected(0, 0, 10) + expected(1, 0, 25)
    row = rows[12]
    assert list(row) == default_schema(with_properties=False).fieldNames()
    assert row["key"] == "k2"
    assert row["value"] == b"body 1 2"
    assert row["topic"] == "t"
    assert row["mqtt_topic"] == "d/2"
    assert row["client_id"] is None
    assert row["tags"] is None
    assert row["timestamp"].timestamp() * 1000 == STORED_MS + 20
    assert row["born_timestamp"].timestamp() * 1000 == BORN_MS + 2


def test_a_batch_has_one_partition_per_queue_that_has_records(cluster: FakeCluster) -> None:
    cluster.queues[2] = FakeQueue(2, 0)
    reader = source(cluster).reader(default_schema(with_properties=False))
    partitions = reader.partitions()
    assert [p.ranges[0].key.queue_id for p in partitions if isinstance(p, QueueRanges)] == [0, 1]


def test_a_schema_of_the_reader_is_the_columns_in_its_order(cluster: FakeCluster) -> None:
    schema = StructType().add("offset", "long").add("broker", "string").add("position", "long")
    rows = batch_rows(cluster, schema)
    assert list(rows[3].items()) == [("offset", 3), ("broker", "broker-a"), ("position", 1003)]


def test_one_column_alone_can_be_read(cluster: FakeCluster) -> None:
    for name, column in COLUMNS.items():
        rows = batch_rows(cluster, StructType().add(name, column.spark_type))
        assert len(rows) == 35
        assert list(rows[0]) == [name]


def test_a_wrong_schema_is_refused_by_name(cluster: FakeCluster) -> None:
    with pytest.raises(ConfigError, match="no column 'payload'"):
        source(cluster).reader(StructType().add("payload", StringType()))
    with pytest.raises(ConfigError, match="column offset of format iotmq is bigint, not int"):
        source(cluster).reader(StructType().add("offset", IntegerType()))
    with pytest.raises(ConfigError, match="at least one column"):
        source(cluster).reader(StructType())


def test_headers_are_the_properties_as_a_map(cluster: FakeCluster) -> None:
    odd = {
        3: b"a\x011\x02a\x012\x02",
        4: b"",
        5: b"nothing\x02\x01x\x02b\x01\x01\x02c\x013",
        6: b"bad\x01\xff\x02",
    }
    for offset, properties in odd.items():
        cluster.queues[0].special[offset] = record(0, offset, properties=properties)
    rows = batch_rows(cluster, includeHeaders="true", endingOffsets='{"t": {"0": -1, "1": 0}}')
    maps = [dict(row["properties"]) for row in rows]
    assert maps[2] == {"KEYS": "k2", "MQTT_TOPIC": "d/2", "color": "red"}
    assert maps[3] == {"a": "2"}
    assert maps[4] == {}
    assert maps[5] == {"b": "\x01", "c": "3"}
    assert maps[6] == {"bad": "\ufffd"}


def test_ends_by_offset_and_time(cluster: FakeCluster) -> None:
    by_offset = {
        "startingOffsets": '{"t": {"0": 4, "broker-a:1": -2}}',
        "endingOffsets": '{"t": {"0": -1, "1": 3}}',
    }
    assert seen(batch_rows(cluster, **by_offset)) == expected(0, 4, 10) + expected(1, 0, 3)
    by_time = {"startingTimestamp": str(STORED_MS + 71), "endingTimestamp": str(STORED_MS + 90)}
    assert seen(batch_rows(cluster, **by_time)) == expected(0, 8, 9) + expected(1, 8, 9)
    late = {"startingTimestamp": str(STORED_MS + 9_999)}
    with pytest.raises(ConfigError, match="no record stored at or after"):
        batch_rows(cluster, **late)
    assert batch_rows(cluster, **late, startingOffsetsByTimestampStrategy="latest") == []
    assert len(batch_rows(cluster, endingTimestamp=str(STORED_MS + 9_999))) == 35


def test_pulls_stop_exactly_at_the_end(cluster: FakeCluster) -> None:
    assert seen(batch_rows(cluster, endingOffsets='{"t": {"0": 0, "1": 17}}')) == expected(1, 0, 17)
    assert cluster.pulls == [(1, 0, 17), (1, 8, 9), (1, 16, 1)]


def test_min_partitions_splits_queues(cluster: FakeCluster) -> None:
    reader = source(cluster, minPartitions="7").reader(default_schema(with_properties=False))
    partitions = reader.partitions()
    assert len(partitions) == 7
    assert seen(rows_of(reader, partitions)) == expected(0, 0, 10) + expected(1, 0, 25)


def matched(cluster: FakeCluster, pattern: str) -> int:
    made = IotmqDataSource(
        {"iotmq.bootstrap.servers": f"127.0.0.1:{cluster.port}", "subscribePattern": pattern}
    )
    reader = made.reader(made.schema())
    return len(rows_of(reader, reader.partitions()))


def test_patterns_match_whole_names_and_no_topics_of_brokers_own(cluster: FakeCluster) -> None:
    assert matched(cluster, ".*") == 35
    assert matched(cluster, "t|x") == 35
    assert matched(cluster, "t.") == 0


def test_a_missing_topic_is_named(cluster: FakeCluster) -> None:
    with pytest.raises(TopicMissingError, match="topic 'nope' does not exist"):
        batch_rows(cluster, subscribe="nope")


def test_compressed_bodies_are_inflated(cluster: FakeCluster) -> None:
    cluster.queues[0].special[2] = record(0, 2, body=zlib.compress(b"long " * 50), sys_flag=1)
    assert batch_rows(cluster)[2]["value"] == b"long " * 50


def test_a_body_that_cannot_be_inflated_is_a_loss_or_null(cluster: FakeCluster) -> None:
    cluster.queues[0].special[2] = record(0, 2, body=b"not zlib", sys_flag=1)
    with pytest.raises(DataLossError, match="cannot be decompressed"):
        batch_rows(cluster)
    rows = batch_rows(cluster, failOnDataLoss="false")
    assert rows[2]["value"] is None
    assert len(rows) == 35


# Losses


def test_offsets_left_out_by_the_broker_are_a_loss(cluster: FakeCluster) -> None:
    cluster.queues[1].left_out = {0, 5, 6, 15, 24}
    with pytest.raises(DataLossError, match=r"topic 't' queue broker-a:1 offset 0: .*failOnDataLoss"):
        batch_rows(cluster)
    rows = batch_rows(cluster, failOnDataLoss="false")
    assert len(rows) == 30
    assert (1, 5) not in seen(rows)


def test_a_start_below_what_is_left_is_a_loss(cluster: FakeCluster) -> None:
    cluster.queues[1].min_offset = 20
    start = {"startingOffsets": '{"t": {"0": 0, "1": 18}}'}
    with pytest.raises(DataLossError, match=r"broker-a:1 offset 18: .*20 to 25"):
        batch_rows(cluster, **start)
    assert len(batch_rows(cluster, **start, failOnDataLoss="false")) == 15


def test_retention_that_passes_between_planning_and_reading_is_a_loss(cluster: FakeCluster) -> None:
    for option, left in (("true", None), ("false", 18)):
        made = source(cluster, failOnDataLoss=option)
        reader = made.reader(made.schema())
        cluster.queues[1].min_offset = 0
        partitions = reader.partitions()
        cluster.queues[1].min_offset = 17
        if left is None:
            with pytest.raises(DataLossError, match="broker-a:1 offset 0: the broker goes on at 17"):
                rows_of(reader, partitions)
        else:
            assert len(rows_of(reader, partitions)) == left


def test_records_that_vanish_from_the_end_are_a_loss(cluster: FakeCluster) -> None:
    for option in ("true", "false"):
        cluster.queues[1].max_offset = 25
        made = source(cluster, failOnDataLoss=option)
        reader = made.reader(made.schema())
        partitions = reader.partitions()
        cluster.queues[1].max_offset = 20
        if option == "true":
            with pytest.raises(DataLossError, match="offset 20: the broker has nothing up to 25"):
                rows_of(reader, partitions)
        else:
            assert len(rows_of(reader, partitions)) == 30


# Failures


def test_a_broken_connection_is_made_again_and_rows_stay_exact(cluster: FakeCluster) -> None:
    made = source(cluster, retryTimeoutMs="5000")
    reader = made.reader(made.schema())
    partitions = reader.partitions()
    cluster.drop_pulls = 3
    assert seen(rows_of(reader, partitions)) == expected(0, 0, 10) + expected(1, 0, 25)


def test_patience_with_a_dead_broker_ends(cluster: FakeCluster) -> None:
    made = source(cluster, retryTimeoutMs="100")
    reader = made.reader(made.schema())
    partitions = reader.partitions()
    cluster.drop_pulls = 1_000_000
    with pytest.raises(ConnectionClosedError, match=r"topic 't' queue broker-a:0 offset 0 .*retryTimeoutMs"):
        rows_of(reader, partitions)


def test_nobody_listening_is_said(cluster: FakeCluster) -> None:
    made = source(cluster)
    reader = made.reader(made.schema())
    cluster.stop()
    with pytest.raises(ConnectionClosedError, match=str(cluster.port)):
        reader.partitions()


def test_a_refused_pull_says_why(cluster: FakeCluster) -> None:
    cluster.before_pull = lambda _c, request: request.reply(ResponseCode.NO_PERMISSION, remark="not readable")
    with pytest.raises(BrokerError, match="offset 0 is refused: not readable"):
        batch_rows(cluster)


def test_a_busy_broker_is_asked_again(cluster: FakeCluster) -> None:
    answers = iter([ResponseCode.SYSTEM_BUSY, ResponseCode.PULL_NOT_FOUND, ResponseCode.SYSTEM_ERROR])

    def busy(_connection: ServerConnection, request: Command) -> Command | None:
        code = next(answers, None)
        return None if code is None else request.reply(code, remark="later")

    cluster.before_pull = busy
    assert len(batch_rows(cluster, retryTimeoutMs="5000")) == 35


# Streams


def test_a_stream_from_earliest_starts_at_the_smallest_offsets(cluster: FakeCluster) -> None:
    cluster.queues[1].min_offset = 4
    reader = stream_reader(cluster, startingOffsets="earliest")
    start = reader.initialOffset()
    assert start == offsets(q0=0, q1=4)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == offsets(q0=10, q1=25)
    assert seen(rows_of(reader, reader.partitions(start, end))) == expected(0, 0, 10) + expected(1, 4, 25)
    assert reader.reportLatestOffset() == offsets(q0=10, q1=25)
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_a_stream_from_latest_is_pinned_by_its_first_batch(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster)
    start = reader.initialOffset()
    assert start == {"v": 1, "topics": {}, "initial": True}
    pinned = reader.latestOffset(start, ReadAllAvailable())
    assert pinned == offsets(q0=10, q1=25)
    assert reader.partitions(start, pinned) == []
    # Written before the next batch, and even before a restart that asks for the start again.
    cluster.queues[0].max_offset = 12
    again = stream_reader(cluster)
    assert again.partitions(again.initialOffset(), pinned) == []
    end = again.latestOffset(pinned, ReadAllAvailable())
    assert seen(rows_of(again, again.partitions(pinned, end))) == expected(0, 10, 12)


def test_a_stream_from_a_time_is_pinned_too(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster, startingTimestamp=str(STORED_MS + 50))
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == offsets(q0=5, q1=5)


def test_limits_hold_and_the_stream_arrives(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="7")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(7)
    at = reader.initialOffset()
    rows: list[tuple[int, int]] = []
    for _ in range(5):
        end = reader.latestOffset(at, limit)
        batch = seen(rows_of(reader, reader.partitions(at, end)))
        assert len(batch) == 7
        rows += batch
        at = end
    assert sorted(rows) == expected(0, 0, 10) + expected(1, 0, 25)
    assert reader.latestOffset(at, limit) == at


def test_available_now_stops_at_the_target(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster, startingOffsets="earliest")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    cluster.queues[0].max_offset = 99
    cluster.queues[2] = FakeQueue(2, 7)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == offsets(q0=10, q1=25)
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_available_now_from_latest_may_be_pinned_behind_its_target(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster)
    reader.prepareForTriggerAvailableNow()
    cluster.queues[0].max_offset = 15
    pinned = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert pinned == offsets(q0=15, q1=25)
    cluster.queues[0].max_offset = 20
    assert reader.latestOffset(pinned, ReadAllAvailable()) == pinned


def test_a_queue_added_later_is_read_from_its_beginning(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster)
    at = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    cluster.queues[2] = FakeQueue(2, 7)
    introduced = reader.latestOffset(at, ReadAllAvailable())
    assert introduced == offsets(q0=10, q1=25, q2=0)
    end = reader.latestOffset(introduced, ReadAllAvailable())
    assert seen(rows_of(reader, reader.partitions(introduced, end))) == expected(2, 0, 7)


def test_small_batches_are_one_task_with_combine_rows(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster, combineRows="35")
    partitions = reader.partitions(offsets(q0=0, q1=0), offsets(q0=10, q1=25))
    assert len(partitions) == 1
    assert seen(rows_of(reader, partitions)) == expected(0, 0, 10) + expected(1, 0, 25)


def test_a_checkpoint_that_retention_has_passed_is_a_loss(cluster: FakeCluster) -> None:
    cluster.queues[1].min_offset = 9
    reader = stream_reader(cluster)
    with pytest.raises(DataLossError, match=r"queue broker-a:1 offset 3: the queue begins at 9 now"):
        reader.latestOffset(offsets(q0=0, q1=3), ReadAllAvailable())
    lenient = stream_reader(cluster, failOnDataLoss="false")
    end = lenient.latestOffset(offsets(q0=0, q1=3), ReadAllAvailable())
    assert end == offsets(q0=10, q1=25)
    rows = rows_of(lenient, lenient.partitions(offsets(q0=0, q1=3), end))
    assert seen(rows) == expected(0, 0, 10) + expected(1, 9, 25)


def test_a_queue_that_got_shorter_is_a_loss(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster)
    with pytest.raises(DataLossError, match="offset 30: the queue ends at 25"):
        reader.latestOffset(offsets(q0=10, q1=30), ReadAllAvailable())
    lenient = stream_reader(cluster, failOnDataLoss="false")
    assert lenient.latestOffset(offsets(q0=10, q1=30), ReadAllAvailable()) == offsets(q0=10, q1=25)


def test_a_topic_that_disappears_under_a_stream_is_a_loss(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster)
    cluster.topics = []
    with pytest.raises(DataLossError, match="the queue is not there any more"):
        reader.latestOffset(offsets(q0=10, q1=25), ReadAllAvailable())
    lenient = stream_reader(cluster, failOnDataLoss="false")
    assert lenient.latestOffset(offsets(q0=10, q1=25), ReadAllAvailable()) == {"v": 1, "topics": {}}


def _never_sleeps(reader: IotmqStreamReader) -> None:
    """From now on planning that waits for anything fails."""
    reader._open_view()._cluster.retry._sleep = lambda _s: pytest.fail("it waits")


def test_a_topic_that_was_read_to_its_end_leaves_the_others_alone(cluster: FakeCluster) -> None:
    cluster.topics = ["t", "u"]
    reader = stream_reader(cluster, subscribe="t,u", startingOffsets="earliest")
    begun = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert begun["topics"].keys() == {"t", "u"}
    cluster.topics = ["t"]
    cluster.queues[0].max_offset = 11
    assert reader.latestOffset(begun, ReadAllAvailable()) == offsets(q0=11, q1=25)
    # With records that were not read it is a loss, of its own queues alone.
    behind = {"v": 1, "topics": {**begun["topics"], "u": {"broker-a:0": 3}}}
    with pytest.raises(DataLossError, match="topic 'u' queue broker-a:0 offset 3") as raised:
        stream_reader(cluster, subscribe="t,u").latestOffset(behind, ReadAllAvailable())
    assert "topic 't'" not in str(raised.value)
    available = stream_reader(cluster, subscribe="t,u")
    available.prepareForTriggerAvailableNow()
    assert available.latestOffset(offsets(q0=10, q1=25), ReadAllAvailable()) == offsets(q0=11, q1=25)


def test_a_queue_that_was_removed_after_it_was_read_is_no_loss_and_goes_on_when_it_is_back(
    cluster: FakeCluster,
) -> None:
    reader = stream_reader(cluster, retryTimeoutMs="60000")
    _never_sleeps(reader)
    cluster.route_queues = 1
    cluster.queues[0].max_offset = 12
    assert reader.latestOffset(offsets(q0=10, q1=25), ReadAllAvailable()) == offsets(q0=12, q1=25)
    cluster.route_queues = 2
    cluster.queues[1].max_offset = 27
    assert reader.latestOffset(offsets(q0=12, q1=25), ReadAllAvailable()) == offsets(q0=12, q1=27)


def test_a_queue_that_was_removed_before_it_was_read_is_a_loss_that_is_waited_for_once(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.route_queues = 1
    with pytest.raises(DataLossError, match="broker-a:1 offset 20: the queue was removed with records up to"):
        stream_reader(cluster).latestOffset(offsets(q0=10, q1=20), ReadAllAvailable())
    lenient = stream_reader(cluster, failOnDataLoss="false", retryTimeoutMs="200")
    for end in (10, 12):
        cluster.queues[0].max_offset = end
        assert lenient.latestOffset(offsets(q0=10, q1=20), ReadAllAvailable()) == offsets(q0=end, q1=20)
        _never_sleeps(lenient)
    assert len(caplog.records) == 1


def test_a_queue_of_a_broker_that_nobody_knows_keeps_its_offset_and_is_waited_for_once(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    start = {"v": 1, "topics": {"t": {"broker-a:0": 10, "broker-a:1": 25, "broker-z:0": 7}}}
    with pytest.raises(DataLossError, match="broker-z:0 offset 7: the queue's broker is not in the cluster"):
        stream_reader(cluster).latestOffset(start, ReadAllAvailable())
    lenient = stream_reader(cluster, failOnDataLoss="false", retryTimeoutMs="200")
    assert lenient.latestOffset(start, ReadAllAvailable()) == start
    given_up = lenient._open_view()._given_up
    assert [str(key) for key in given_up] == ["topic 't' queue broker-z:0"]
    _never_sleeps(lenient)
    assert lenient.latestOffset(start, ReadAllAvailable()) == start
    assert len(caplog.records) == 1


def test_a_broker_that_is_away_is_an_error_and_not_less_data(cluster: FakeCluster) -> None:
    cluster.away = {"broker-b": 2}
    with pytest.raises(ConnectionClosedError, match="broker broker-b of topic 't' is away"):
        batch_rows(cluster)
    with pytest.raises(ConnectionClosedError, match="broker-b"):
        stream_reader(cluster, startingOffsets="earliest").initialOffset()
    with pytest.raises(ConnectionClosedError, match="broker-b"):
        stream_reader(cluster, failOnDataLoss="false").latestOffset(offsets(q0=10, q1=25), ReadAllAvailable())
    # Nothing is said about brokers of which no queue is wanted.
    made = IotmqDataSource(
        {
            "iotmq.bootstrap.servers": f"127.0.0.1:{cluster.port}",
            "assign": '{"t": ["broker-a:0"]}',
            "retryTimeoutMs": "0",
        }
    )
    reader = made.reader(made.schema())
    assert seen(rows_of(reader, reader.partitions())) == expected(0, 0, 10)


def test_a_batch_that_was_interrupted_waits_for_its_broker(cluster: FakeCluster) -> None:
    cluster.is_registered = False
    start, end = offsets(q0=0, q1=0), offsets(q0=2, q1=3)
    with pytest.raises(ConnectionClosedError, match="broker broker-a is away"):
        stream_reader(cluster).partitions(start, end)
    reader = stream_reader(cluster, retryTimeoutMs="30000")
    original = cluster.handle

    def register_when_asked(connection: ServerConnection, request: Command) -> Command | None:
        answer = original(connection, request)
        cluster.is_registered = True
        return answer

    cluster.handle = register_when_asked  # type: ignore[method-assign]
    assert seen(rows_of(reader, reader.partitions(start, end))) == expected(0, 0, 2) + expected(1, 0, 3)


def test_a_batch_that_was_interrupted_before_its_topic_was_deleted_is_a_loss(cluster: FakeCluster) -> None:
    start, end = offsets(q0=0, q1=0), offsets(q0=2, q1=3)
    reader = stream_reader(cluster)
    partitions = reader.partitions(start, end)
    cluster.topics = []
    with pytest.raises(DataLossError, match="the topic was deleted"):
        rows_of(reader, partitions)
    assert rows_of(stream_reader(cluster, failOnDataLoss="false"), partitions) == []


def test_a_batch_that_was_interrupted_before_its_queue_was_removed_is_a_loss(cluster: FakeCluster) -> None:
    def refuse(_: ServerConnection, request: Command) -> Command | None:
        is_removed = request.text("queueId") == "1"
        return request.reply(ResponseCode.SYSTEM_ERROR, remark="queueId is 1") if is_removed else None

    start, end = offsets(q0=0, q1=0), offsets(q0=2, q1=3)
    partitions = stream_reader(cluster).partitions(start, end)
    cluster.before_pull = refuse
    # A broker in trouble, as long as the queue is in the route.
    with pytest.raises(BrokerError, match="queueId is 1"):
        rows_of(stream_reader(cluster, failOnDataLoss="false"), partitions)
    cluster.route_queues = 1
    with pytest.raises(DataLossError, match="the queue was removed"):
        rows_of(stream_reader(cluster), partitions)
    assert seen(rows_of(stream_reader(cluster, failOnDataLoss="false"), partitions)) == expected(0, 0, 2)


def test_pulls_ask_for_expired_records_too(cluster: FakeCluster) -> None:
    asked: list[str | None] = []
    cluster.before_pull = lambda _connection, request: asked.append(request.ext.get("withExpired"))
    batch_rows(cluster)
    assert set(asked) == {"true"}


def test_an_end_before_the_start_is_said(cluster: FakeCluster) -> None:
    with pytest.raises(ConfigError, match="queue broker-a:1 would be read from offset 9 to 4"):
        batch_rows(
            cluster,
            startingOffsets='{"t": {"0": 0, "1": 9}}',
            endingOffsets='{"t": {"0": 5, "1": 4}}',
        )


def test_a_broker_that_comes_back_in_time_is_no_loss(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster, retryTimeoutMs="10000")
    cluster.topics = []
    # The answer after the first miss brings the topic back.
    original = cluster._route

    def back(request: Command) -> Command:
        answer = original(request)
        cluster.topics = ["t"]
        return answer

    cluster._route = back  # type: ignore[method-assign]
    assert reader.latestOffset(offsets(q0=0, q1=0), ReadAllAvailable()) == offsets(q0=10, q1=25)


def test_a_stream_waits_for_its_topic_at_the_start(cluster: FakeCluster) -> None:
    cluster.topics = []
    with pytest.raises(TopicMissingError):
        stream_reader(cluster, startingOffsets="earliest").initialOffset()


def test_offsets_of_another_version_are_refused(cluster: FakeCluster) -> None:
    with pytest.raises(Exception, match="version 2"):
        stream_reader(cluster).latestOffset({"v": 2}, ReadAllAvailable())
