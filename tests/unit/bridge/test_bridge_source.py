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

from pyspark.sql.datasource import InputPartition
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
        self.is_plain = False  # other software, that knows none of our requests
        self.generation = "1000-0"
        self.changes: dict[int, dict[str, Any]] = {}  # told of queues to who asks for another generation
        self.deleted: dict[str, dict[int, int]] = {}  # topics, with the ends of their queues
        self.committed: list[tuple[str, int, int]] = []
        self.time_ms = STORED_MS + 1_000
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
        if request.code == RequestCode.GET_QUEUE_BOUNDS:
            return request.not_supported() if self.is_plain else self._bounds(request)
        if request.text("topic") not in self.topics:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic here")
        queue = self.queues.get(request.integer("queueId"))
        if queue is None:
            return request.reply(ResponseCode.QUERY_NOT_FOUND, remark="no such queue here")
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            offset = request.integer("commitOffset")
            self.committed.append((request.text("consumerGroup"), queue.queue_id, offset))
            return request.reply(0)
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

    def _bounds(self, request: Command) -> Command:
        topic = request.text("topic")
        is_deleted = topic in self.deleted
        if topic not in self.topics and not is_deleted:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic here")
        here = len(self.queues) if self.route_queues is None else self.route_queues
        held = (
            [{"queueId": n, "minOffset": end, "maxOffset": end} for n, end in self.deleted[topic].items()]
            if is_deleted
            else [
                {
                    "queueId": n,
                    "minOffset": queue.min_offset,
                    "maxOffset": queue.max_offset,
                    "isRemoved": n >= here,
                }
                for n, queue in self.queues.items()
            ]
        )
        if request.text("generation", self.generation) != self.generation:
            held = [queue | self.changes.get(queue["queueId"], {}) for queue in held]
        view = {
            "topic": topic,
            "generation": "" if is_deleted else self.generation,
            "timeMs": self.time_ms,
            "isDeleted": is_deleted,
            "queues": held,
        }
        return request.reply(0, body=json.dumps(view).encode())

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
    if not options.keys() & {"subscribePattern", "assign"}:
        options = {"subscribe": "t", **options}
    return IotmqDataSource(
        {
            "iotmq.bootstrap.servers": f"127.0.0.1:{cluster.port}",
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
    return {
        "v": 1,
        "topics": {"t": {f"broker-a:{name[1:]}": n for name, n in queues.items()}} if queues else {},
    }


def placed(document: dict[str, Any]) -> dict[str, Any]:
    """Return the offsets of a document, as `offsets` has them."""
    assert document["v"] == 2
    return {"v": 1, "topics": document["topics"]}


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
            with pytest.raises(DataLossError, match="broker-a:1 offset 0 to 16: the broker goes on at 17"):
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
            with pytest.raises(DataLossError, match="offset 20 to 24: the broker has nothing up to 25"):
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
    with pytest.raises(
        ConnectionClosedError, match=rf"\(option iotmq\.bootstrap\.servers\) answers: .*{cluster.port}"
    ):
        reader.partitions()


def test_a_broker_in_the_place_of_a_registry_is_named(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = source(cluster)
    reader = made.reader(made.schema())
    refused = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    monkeypatch.setattr(cluster, "handle", lambda _c, request: request.reply(refused, remark="not supported"))
    with pytest.raises(ConfigError, match=f"127.0.0.1:{cluster.port} is no registry, maybe a broker"):
        reader.partitions()


def test_a_missing_right_is_told_with_the_options_of_accounts(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = source(cluster)
    reader = made.reader(made.schema())
    refused = ResponseCode.NO_PERMISSION
    monkeypatch.setattr(cluster, "handle", lambda _c, request: request.reply(refused, remark="not signed"))
    with pytest.raises(BrokerError, match=r"not signed \(options accessKey and secretKey"):
        reader.partitions()


def test_the_partition_that_spark_makes_in_the_place_of_none_has_no_rows(cluster: FakeCluster) -> None:
    cluster.queues.clear()
    made = source(cluster)
    assert rows_of(made.reader(made.schema()), [InputPartition(None)]) == []


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
    assert placed(start) == offsets(q0=0, q1=4)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert placed(end) == offsets(q0=10, q1=25)
    assert seen(rows_of(reader, reader.partitions(start, end))) == expected(0, 0, 10) + expected(1, 4, 25)
    assert placed(reader.reportLatestOffset()) == offsets(q0=10, q1=25)
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_a_stream_from_latest_is_pinned_by_its_first_batch(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster)
    start = reader.initialOffset()
    assert start == {"v": 2, "topics": {}, "initial": True}
    pinned = reader.latestOffset(start, ReadAllAvailable())
    assert placed(pinned) == offsets(q0=10, q1=25)
    assert reader.partitions(start, pinned) == []
    # Written before the next batch, and even before a restart that asks for the start again.
    cluster.queues[0].max_offset = 12
    again = stream_reader(cluster)
    assert again.partitions(again.initialOffset(), pinned) == []
    end = again.latestOffset(pinned, ReadAllAvailable())
    assert seen(rows_of(again, again.partitions(pinned, end))) == expected(0, 10, 12)


def test_a_stream_from_a_time_is_pinned_too(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster, startingTimestamp=str(STORED_MS + 50))
    assert placed(reader.latestOffset(reader.initialOffset(), ReadAllAvailable())) == offsets(q0=5, q1=5)


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
    end = reader.latestOffset(start, ReadMaxRows(20))
    cluster.queues[0].max_offset = 99
    cluster.queues[2] = FakeQueue(2, 7)
    end = reader.latestOffset(end, ReadAllAvailable())
    assert placed(end) == offsets(q0=10, q1=25)
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    # The next run has a target of its own.
    reader.prepareForTriggerAvailableNow()
    begun = reader.latestOffset(end, ReadAllAvailable())
    assert placed(reader.latestOffset(begun, ReadAllAvailable())) == offsets(q0=99, q1=25, q2=7)


def test_available_now_reads_queues_and_topics_that_no_registry_has_at_that_moment(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A registry that was just started knows a broker some seconds later."""
    at = offsets(q0=3, q1=5)
    for topics, queues in (([], 2), (["t"], 1)):
        reader = stream_reader(cluster)
        everything = cluster.topics
        cluster.topics, cluster.route_queues = topics, queues
        reader.prepareForTriggerAvailableNow()
        cluster.topics, cluster.route_queues = everything, None
        assert placed(reader.latestOffset(at, ReadAllAvailable())) == offsets(q0=10, q1=25)
    # Of a topic that is not there at all this is said, once.
    reader = stream_reader(cluster, subscribe="t,nowhere")
    reader.prepareForTriggerAvailableNow()
    for _ in range(2):
        assert placed(reader.latestOffset(at, ReadAllAvailable())) == offsets(q0=10, q1=25)
    assert len(caplog.records) == 1
    assert "topic 'nowhere' does not exist" in caplog.text


def test_available_now_waits_for_a_queue_that_shows_less_than_its_target(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """As a slave does for a moment, or a broker that starts; it must not pass for the end."""

    def begun(**options: str) -> tuple[IotmqStreamReader, dict[str, Any]]:
        cluster.queues[1].max_offset = 25
        reader = stream_reader(cluster, **options)
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(offsets(q0=10, q1=5), ReadMaxRows(8))
        assert placed(end) == offsets(q0=10, q1=13)
        cluster.queues[1].max_offset = 13
        return reader, end

    reader, end = begun(retryTimeoutMs="60000")
    waiting = Waiting(reader, lambda: setattr(cluster.queues[1], "max_offset", 25), after_s=30)
    assert placed(reader.latestOffset(end, ReadAllAvailable())) == offsets(q0=10, q1=25)
    assert waiting.now_s >= 30
    assert "broker-a:1 offset 13 to 24: the queue ends at 13" in caplog.text
    reader, end = begun()
    with pytest.raises(
        DataLossError, match="broker-a:1 offset 13 to 24: the queue ends at 13, and was longer"
    ):
        reader.latestOffset(end, ReadAllAvailable())
    caplog.clear()
    lenient, end = begun(failOnDataLoss="false")
    for _ in range(2):
        assert placed(lenient.latestOffset(end, ReadAllAvailable())) == offsets(q0=10, q1=13)
    assert len(caplog.records) == 1


def test_available_now_from_latest_may_be_pinned_behind_its_target(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster)
    reader.prepareForTriggerAvailableNow()
    cluster.queues[0].max_offset = 15
    pinned = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert placed(pinned) == offsets(q0=15, q1=25)
    cluster.queues[0].max_offset = 20
    assert reader.latestOffset(pinned, ReadAllAvailable()) == pinned


def test_a_queue_added_later_is_read_from_its_beginning(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster)
    at = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    cluster.queues[2] = FakeQueue(2, 7)
    introduced = reader.latestOffset(at, ReadAllAvailable())
    assert placed(introduced) == offsets(q0=10, q1=25, q2=0)
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
    with pytest.raises(DataLossError, match=r"queue broker-a:1 offset 3 to 8: retention has deleted them"):
        reader.latestOffset(offsets(q0=0, q1=3), ReadAllAvailable())
    lenient = stream_reader(cluster, failOnDataLoss="false")
    end = lenient.latestOffset(offsets(q0=0, q1=3), ReadAllAvailable())
    assert placed(end) == offsets(q0=10, q1=25)
    rows = rows_of(lenient, lenient.partitions(offsets(q0=0, q1=3), end))
    assert seen(rows) == expected(0, 0, 10) + expected(1, 9, 25)


def test_a_queue_that_got_shorter_is_a_loss(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster)
    with pytest.raises(DataLossError, match="offset 25 to 29: the queue ends at 25"):
        reader.latestOffset(offsets(q0=10, q1=30), ReadAllAvailable())
    lenient = stream_reader(cluster, failOnDataLoss="false")
    assert placed(lenient.latestOffset(offsets(q0=10, q1=30), ReadAllAvailable())) == offsets(q0=10, q1=25)


def test_a_topic_that_disappears_under_a_stream_is_a_loss(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster)
    cluster.topics = []
    with pytest.raises(DataLossError, match="its broker does not remember it"):
        reader.latestOffset(offsets(q0=10, q1=25), ReadAllAvailable())
    lenient = stream_reader(cluster, failOnDataLoss="false")
    assert placed(lenient.latestOffset(offsets(q0=10, q1=25), ReadAllAvailable())) == offsets()


def _never_sleeps(reader: IotmqStreamReader) -> None:
    """From now on planning that waits for anything fails."""
    reader._open_view()._cluster.retry._sleep = lambda _s: pytest.fail("it waits")


@pytest.mark.parametrize(
    "fewer",
    [{"subscribe": "t"}, {"subscribePattern": "t"}, {"assign": '{"t": [0, 1]}'}],
    ids=lambda option: next(iter(option)),
)
@pytest.mark.parametrize("becomes", ["stays", "is deleted", "is at a broker that is away"])
def test_a_topic_that_is_not_subscribed_any_more_is_no_loss(
    cluster: FakeCluster, fewer: dict[str, str], becomes: str
) -> None:
    cluster.topics = ["t", "u"]
    reader = stream_reader(cluster, subscribe="t,u", startingOffsets="earliest")
    begun = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    behind = {**begun, "topics": {**begun["topics"], "u": {"broker-a:0": 3, "broker-a:1": 4}}}
    if becomes == "is deleted":
        cluster.topics = ["t"]
        cluster.deleted = {"u": {0: 10, 1: 25}}
    elif becomes == "is at a broker that is away":
        behind["topics"]["u"] = {"broker-z:0": 3}
    cluster.queues[0].max_offset = 11
    less = stream_reader(cluster, retryTimeoutMs="60000", **fewer)
    _never_sleeps(less)
    ended = less.latestOffset(behind, ReadAllAvailable())
    assert placed(ended) == offsets(q0=11, q1=25)
    assert ended["left"] == {"u": behind["topics"]["u"]}
    assert {part.ranges[0].key.topic for part in less.partitions(behind, ended)} == {"t"}
    assert less.latestOffset(ended, ReadAllAvailable()) == ended
    if becomes == "stays":
        back = stream_reader(cluster, subscribe="t,u").latestOffset(ended, ReadAllAvailable())
        assert "left" not in back
        parts = stream_reader(cluster, subscribe="t,u").partitions(ended, back)
        assert [part.ranges[0][1:3] for part in parts] == [(3, 11), (4, 25)], "it goes on where it was"


def test_a_topic_that_was_read_to_its_end_leaves_the_others_alone(cluster: FakeCluster) -> None:
    cluster.topics = ["t", "u"]
    reader = stream_reader(cluster, subscribe="t,u", startingOffsets="earliest", retryTimeoutMs="60000")
    begun = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert begun["topics"].keys() == {"t", "u"}
    _never_sleeps(reader)
    cluster.topics = ["t"]
    cluster.deleted = {"u": {0: 10, 1: 25}}
    cluster.queues[0].max_offset = 11
    ended = reader.latestOffset(begun, ReadAllAvailable())
    assert placed(ended) == offsets(q0=11, q1=25)
    assert "left" not in ended
    # So it is after a restart, and it is the broker's word that counts.
    again = stream_reader(cluster, subscribe="t,u", retryTimeoutMs="60000")
    _never_sleeps(again)
    assert placed(again.latestOffset(begun, ReadAllAvailable())) == offsets(q0=11, q1=25)
    # With records that were not read it is a loss, of its own queues alone.
    behind = {**begun, "topics": {**begun["topics"], "u": {"broker-a:0": 3}}}
    with pytest.raises(DataLossError, match=r"topic 'u' queue broker-a:0 offset 3 to 9:") as raised:
        stream_reader(cluster, subscribe="t,u").latestOffset(behind, ReadAllAvailable())
    assert "topic 't'" not in str(raised.value)
    available = stream_reader(cluster, subscribe="t,u")
    available.prepareForTriggerAvailableNow()
    assert placed(available.latestOffset(offsets(q0=10, q1=25), ReadAllAvailable())) == offsets(q0=11, q1=25)


def test_a_queue_that_was_removed_after_it_was_read_leaves_and_goes_on_when_it_is_back(
    cluster: FakeCluster,
) -> None:
    reader = stream_reader(cluster, retryTimeoutMs="60000")
    _never_sleeps(reader)
    cluster.route_queues = 1
    cluster.queues[0].max_offset = 12
    end = reader.latestOffset(offsets(q0=10, q1=25), ReadAllAvailable())
    assert placed(end) == offsets(q0=12)
    assert end["left"] == {"t": {"broker-a:1": 25}}
    # It is not waited for when its broker is gone, and not read twice when it comes back.
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    cluster.route_queues = 2
    cluster.queues[1].max_offset = 27
    back = reader.latestOffset(end, ReadAllAvailable())
    assert placed(back) == offsets(q0=12, q1=27)
    assert seen(rows_of(reader, reader.partitions(end, back))) == expected(1, 25, 27)
    # Once its broker has nothing of it any more, it is forgotten.
    cluster.route_queues = 1
    cluster.queues[1].min_offset = 27
    assert "left" not in reader.latestOffset(end, ReadAllAvailable())


def test_a_queue_that_was_removed_before_it_was_read_is_a_loss_that_is_waited_for_once(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.route_queues = 1
    with pytest.raises(DataLossError, match="broker-a:1 offset 20 to 24: the queue was removed"):
        stream_reader(cluster).latestOffset(offsets(q0=10, q1=20), ReadAllAvailable())
    lenient = stream_reader(cluster, failOnDataLoss="false", retryTimeoutMs="200")
    at = offsets(q0=10, q1=20)
    for end in (10, 12):
        cluster.queues[0].max_offset = end
        at = lenient.latestOffset(at, ReadAllAvailable())
        assert placed(at) == offsets(q0=end)
        _never_sleeps(lenient)
    assert len(caplog.records) == 1


def test_a_queue_of_a_broker_that_nobody_knows_keeps_its_offset_and_is_waited_for_once(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    start = {"v": 1, "topics": {"t": {"broker-a:0": 10, "broker-a:1": 25, "broker-z:0": 7}}}
    with pytest.raises(DataLossError, match="broker-z:0 offset 7: the queue's broker is not in the cluster"):
        stream_reader(cluster).latestOffset(start, ReadAllAvailable())
    lenient = stream_reader(cluster, failOnDataLoss="false", retryTimeoutMs="200")
    assert placed(lenient.latestOffset(start, ReadAllAvailable())) == start
    given_up = lenient._open_view()._given_up
    assert [str(key) for key in given_up] == ["topic 't' queue broker-z:0"]
    _never_sleeps(lenient)
    assert placed(lenient.latestOffset(start, ReadAllAvailable())) == start
    assert len(caplog.records) == 1


def test_a_broker_that_is_away_makes_a_batch_fail_and_never_smaller(cluster: FakeCluster) -> None:
    cluster.away = {"broker-b": 2}
    with pytest.raises(ConnectionClosedError, match="broker broker-b of topic 't' is away"):
        batch_rows(cluster)
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


class Waiting:
    """Time that passes by waiting alone, for one reader; `until` what, so many seconds later."""

    def __init__(self, reader: IotmqStreamReader, until: Callable[[], None], after_s: float) -> None:
        self.now_s = 0.0
        self._until = until
        self._after_s = after_s
        retry = reader._open_view()._cluster.retry
        retry._sleep = self._sleep
        retry._clock = self  # type: ignore[assignment]

    def monotonic_s(self) -> float:
        return self.now_s

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s >= self._after_s:
            self._until()


@pytest.mark.parametrize("step", ["initialOffset", "pinned", "latestOffset", "partitions"])
def test_a_stream_waits_for_a_broker_that_is_away_and_says_so(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    """However long it takes: registries know it, so nothing may be read without it."""
    cluster.away = {"broker-b": 2}
    starting = "latest" if step == "pinned" else "earliest"
    reader = stream_reader(cluster, startingOffsets=starting)
    waiting = Waiting(reader, cluster.away.clear, after_s=600)
    if step == "initialOffset":
        assert placed(reader.initialOffset()) == offsets(q0=0, q1=0)
    elif step == "pinned":
        assert placed(reader.latestOffset(reader.initialOffset(), ReadAllAvailable())) == offsets(
            q0=10, q1=25
        )
    elif step == "latestOffset":
        at = offsets(q0=10, q1=25)
        assert placed(reader.latestOffset(at, ReadAllAvailable())) == at
    else:
        # A query that is started again in the middle of a batch plans it without asking for the end.
        partitions = reader.partitions(offsets(q0=8, q1=25), offsets(q0=10, q1=25))
        assert seen(rows_of(reader, partitions)) == expected(0, 8, 10)
    assert 600 <= waiting.now_s < 610
    words = [record.getMessage() for record in caplog.records]
    assert 15 <= len(words) <= 25
    assert set(words) == {"waiting: offsets of topic 't': broker broker-b of topic 't' is away"}


def test_a_stream_gives_up_a_broker_that_nobody_knows_any_more(cluster: FakeCluster) -> None:
    """Registries forget brokers after an hour; until then the stream has waited."""
    cluster.away = {"broker-b": 2}
    reader = stream_reader(cluster, retryTimeoutMs="5000")
    start = {"v": 1, "topics": {"t": {"broker-a:0": 10, "broker-a:1": 25, "broker-b:0": 7}}}
    waiting = Waiting(reader, cluster.away.clear, after_s=600)
    with pytest.raises(DataLossError, match="broker-b:0 offset 7: the queue's broker is not in the cluster"):
        reader.latestOffset(start, ReadAllAvailable())
    assert 605 <= waiting.now_s < 615


def test_latest_never_becomes_the_backlog_of_a_broker_that_nobody_knew(cluster: FakeCluster) -> None:
    """Its queues look like new ones, and begin with what was stored since the stream began."""
    cluster.time_ms = STORED_MS + 10_000 + 45
    reader = stream_reader(cluster)
    pinned = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert pinned["since"] == STORED_MS + 45
    cluster.queues[2] = FakeQueue(2, 7)
    found = reader.latestOffset(pinned, ReadAllAvailable())
    assert placed(found) == offsets(q0=10, q1=25, q2=5)
    end = reader.latestOffset(found, ReadAllAvailable())
    assert seen(rows_of(reader, reader.partitions(found, end))) == expected(2, 5, 7)


def test_a_batch_that_was_interrupted_waits_for_its_broker(cluster: FakeCluster) -> None:
    start, end = offsets(q0=0, q1=0), offsets(q0=2, q1=3)
    reader = stream_reader(cluster, retryTimeoutMs="30000")
    original = cluster._bounds
    answers = iter([ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE])

    def starts(request: Command) -> Command:
        code = next(answers, None)
        return original(request) if code is None else request.reply(code, remark="it starts")

    cluster._bounds = starts  # type: ignore[method-assign]
    assert seen(rows_of(reader, reader.partitions(start, end))) == expected(0, 0, 2) + expected(1, 0, 3)


# What brokers say has become of offsets


def test_a_queue_that_lost_its_end_is_told_with_what_was_lost_and_read_again_from_there(
    cluster: FakeCluster,
) -> None:
    start = {**offsets(q0=10, q1=25), "v": 2, "generations": {"t": {"broker-a": "900-0"}}}
    # Longer than before: without generations nobody would see it.
    cluster.queues[1].max_offset = 30
    cluster.changes = {1: {"changedOffset": 22, "change": "cut"}}
    with pytest.raises(DataLossError, match="queue broker-a:1 offset 22 to 24: the broker has lost them"):
        stream_reader(cluster).latestOffset(start, ReadAllAvailable())
    lenient = stream_reader(cluster, failOnDataLoss="false")
    back = lenient.latestOffset(start, ReadAllAvailable())
    assert placed(back) == offsets(q0=10, q1=22)
    assert back["generations"] == {"t": {"broker-a": "1000-0"}}
    assert lenient.partitions(start, back) == []
    end = lenient.latestOffset(back, ReadAllAvailable())
    assert seen(rows_of(lenient, lenient.partitions(back, end))) == expected(1, 22, 30)


def test_a_queue_that_lost_nothing_that_was_read_is_no_loss(cluster: FakeCluster) -> None:
    start = {**offsets(q0=10, q1=25), "v": 2, "generations": {"t": {"broker-a": "900-0"}}}
    cluster.changes = {1: {"changedOffset": 25, "change": "cut"}}
    end = stream_reader(cluster).latestOffset(start, ReadAllAvailable())
    assert placed(end) == offsets(q0=10, q1=25)
    assert end["generations"] == {"t": {"broker-a": "1000-0"}}


def test_a_topic_that_was_made_anew_is_read_from_its_beginning_and_told(cluster: FakeCluster) -> None:
    start = {**offsets(q0=10, q1=7), "v": 2, "generations": {"t": {"broker-a": "900-0"}}}
    cluster.changes = {n: {"changedOffset": 0, "change": "anew"} for n in (0, 1)}
    with pytest.raises(DataLossError, match="broker-a:1 offset 7: the topic was deleted and made anew"):
        stream_reader(cluster).latestOffset(start, ReadAllAvailable())
    lenient = stream_reader(cluster, failOnDataLoss="false")
    begun = lenient.latestOffset(start, ReadAllAvailable())
    assert placed(begun) == offsets(q0=0, q1=0)
    end = lenient.latestOffset(begun, ReadAllAvailable())
    assert seen(rows_of(lenient, lenient.partitions(begun, end))) == expected(0, 0, 10) + expected(1, 0, 25)


def test_offsets_of_a_topic_made_anew_that_go_on_lose_exactly_what_was_not_read(cluster: FakeCluster) -> None:
    start = {**offsets(q0=10, q1=7), "v": 2, "generations": {"t": {"broker-a": "900-0"}}}
    cluster.queues[0].min_offset = 10
    cluster.queues[1].min_offset = 20
    cluster.changes = {0: {"changedOffset": 10, "change": "anew"}, 1: {"changedOffset": 20, "change": "anew"}}
    with pytest.raises(DataLossError, match="offset 7 to 19: the topic was deleted and made anew") as raised:
        stream_reader(cluster).latestOffset(start, ReadAllAvailable())
    assert "broker-a:0" not in str(raised.value)


def test_a_batch_that_is_read_again_after_a_cut_does_not_get_other_records(cluster: FakeCluster) -> None:
    def cut(_connection: ServerConnection, request: Command) -> Command | None:
        assert request.ext["generation"] == "1000-0"
        if request.text("queueId") == "0":
            return None
        ext = {
            "nextBeginOffset": "1",
            "minOffset": "0",
            "maxOffset": "25",
            "changedOffset": "1",
            "change": "cut",
        }
        return request.reply(ResponseCode.PULL_OFFSET_MOVED, remark="changed", ext=ext)

    start = {**offsets(q0=0, q1=0), "v": 2}
    reader = stream_reader(cluster)
    end = reader.latestOffset(start, ReadAllAvailable())
    cluster.before_pull = cut
    with pytest.raises(DataLossError, match="broker-a:1 offset 0 to 24: the broker has lost them"):
        rows_of(reader, reader.partitions(start, end))


def test_offsets_of_version_1_go_on_as_version_2(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster)
    end = reader.latestOffset(offsets(q0=4, q1=25), ReadAllAvailable())
    assert end.pop("id")
    assert end == {
        "v": 2,
        "topics": {"t": {"broker-a:0": 10, "broker-a:1": 25}},
        "generations": {"t": {"broker-a": "1000-0"}},
        "time": cluster.time_ms,
    }
    assert seen(rows_of(reader, reader.partitions(offsets(q0=4, q1=25), end))) == expected(0, 4, 10)


def test_other_brokers_are_read_without_generations(cluster: FakeCluster) -> None:
    cluster.is_plain = True
    reader = stream_reader(cluster, startingOffsets="earliest")
    at = reader.initialOffset()
    end = reader.latestOffset(at, ReadAllAvailable())
    assert placed(end) == offsets(q0=10, q1=25)
    assert "generations" not in end
    assert seen(rows_of(reader, reader.partitions(at, end))) == expected(0, 0, 10) + expected(1, 0, 25)
    cluster.route_queues = 1
    assert reader.latestOffset(end, ReadAllAvailable())["left"] == {"t": {"broker-a:1": 25}}


# Gaps that brokers explain


def explained(cluster: FakeCluster, **ext: str) -> None:
    """From now on the answers of queue 1 have these fields, too."""

    def explain(_connection: ServerConnection, request: Command) -> Command | None:
        assert request.ext["tellGaps"] == "true"
        queue = cluster.queues[request.integer("queueId")]
        answer = cluster._pull(request, queue)
        if queue.queue_id == 1:
            answer.ext |= ext
        return answer

    cluster.before_pull = explain
    cluster.pull_records_max = 100


def test_records_that_were_passed_over_are_no_loss(cluster: FakeCluster) -> None:
    cluster.queues[1].left_out = {0, 5, 6, 15, 24}
    explained(cluster, passedOver="5")
    assert len(batch_rows(cluster)) == 30
    # One more is missing than the broker says.
    cluster.queues[1].left_out.add(9)
    with pytest.raises(DataLossError, match="broker-a:1 offset 0: the broker left them out"):
        batch_rows(cluster)


def test_records_that_a_repaired_log_has_lost_are_told_as_that(cluster: FakeCluster) -> None:
    cluster.queues[1].left_out = {0, 5, 6, 15}
    explained(cluster, passedOver="2", lostOffsets="5-6")
    with pytest.raises(DataLossError, match=r"broker-a:1 offset 5 to 6: they are damaged .* repaired"):
        batch_rows(cluster)
    assert len(batch_rows(cluster, failOnDataLoss="false")) == 31


@pytest.mark.parametrize("lost", ["x", "6-5", "1-2,-", "1-"])
def test_nonsense_about_lost_offsets_is_refused(cluster: FakeCluster, lost: str) -> None:
    explained(cluster, lostOffsets=lost)
    with pytest.raises(BrokerError, match="lost offsets"):
        batch_rows(cluster)


def test_a_whole_answer_may_be_passed_over(cluster: FakeCluster) -> None:
    def nothing(_connection: ServerConnection, request: Command) -> Command | None:
        offset = request.integer("queueOffset")
        end = min(offset + 20, request.integer("endOffset"))
        ext = {
            "nextBeginOffset": str(end),
            "minOffset": "0",
            "maxOffset": "25",
            "passedOver": str(end - offset),
        }
        return request.reply(ResponseCode.PULL_RETRY_IMMEDIATELY, remark="NO_MATCHED_MESSAGE", ext=ext)

    cluster.before_pull = nothing
    assert batch_rows(cluster) == []


def test_what_has_expired_is_judged_by_the_time_of_the_batch(cluster: FakeCluster) -> None:
    asked: list[str | None] = []
    cluster.before_pull = lambda _connection, request: asked.append(request.ext.get("expiredAt"))
    start = offsets(q0=0, q1=0)
    reader = stream_reader(cluster)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["time"] == cluster.time_ms
    cluster.time_ms += 60_000
    # The offsets stay, so does the time, and there is no batch.
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    again = stream_reader(cluster)
    rows_of(again, again.partitions(start, end))
    assert set(asked) == {str(end["time"])}
    asked.clear()
    batch_rows(cluster)
    assert set(asked) == {str(cluster.time_ms)}
    asked.clear()
    batch_rows(cluster, includeExpired="true")
    assert set(asked) == {None}


# Progress as a group


def test_progress_is_published_as_a_group_of_the_stream(cluster: FakeCluster) -> None:
    reader = stream_reader(cluster, startingOffsets="earliest")
    at = reader.initialOffset()
    end = reader.latestOffset(at, ReadAllAvailable())
    group = f"iotmq-spark-{at['id']}"
    # The first planning makes the group known, so that its records are waited for.
    assert cluster.committed == [(group, 0, 0), (group, 1, 0)]
    cluster.committed.clear()
    reader.commit(end)
    assert cluster.committed == [(group, 0, 10), (group, 1, 25)]
    reader.commit(end)
    assert len(cluster.committed) == 2
    named = stream_reader(cluster, groupId="lake")
    named.latestOffset(end, ReadAllAvailable())
    assert cluster.committed[-1] == ("lake", 1, 25)


def test_a_broker_that_takes_no_progress_is_told_again_and_said_once(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream_reader(cluster, startingOffsets="earliest")
    at = reader.initialOffset()
    end = reader.latestOffset(at, ReadAllAvailable())
    removed = cluster.queues.pop(1)
    for _ in range(3):
        reader.commit(end)
    assert [record.getMessage() for record in caplog.records] == [
        f"broker broker-a does not take the progress of group iotmq-spark-{at['id']}: no such queue here"
    ]
    cluster.queues[1] = removed
    reader.commit(end)
    assert cluster.committed[-1][1:] == (1, 25)


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
    assert placed(reader.latestOffset(offsets(q0=0, q1=0), ReadAllAvailable())) == offsets(q0=10, q1=25)


def test_a_stream_waits_for_its_topic_at_the_start(cluster: FakeCluster) -> None:
    cluster.topics = []
    with pytest.raises(TopicMissingError):
        stream_reader(cluster, startingOffsets="earliest").initialOffset()


def test_offsets_of_another_version_are_refused(cluster: FakeCluster) -> None:
    with pytest.raises(Exception, match="version 3"):
        stream_reader(cluster).latestOffset({"v": 3}, ReadAllAvailable())
