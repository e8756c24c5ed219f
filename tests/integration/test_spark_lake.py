"""The job lake in a real Spark session over a real gateway, and the payloads it reads."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark")

import fastavro
from eventually import eventually
from gateway_process import GatewayProcess
from google.protobuf import descriptor_pb2
from pyspark.sql import DataFrame, SparkSession
from shared_spark import CONF

from iotmq.bridge.jobs import lake, replay
from iotmq.bridge.jobs.compaction import Compaction, Journal
from iotmq.bridge.jobs.payloads import Payload, data_schema, decode
from iotmq.client import Message, SyncClient, SyncProducer
from iotmq.client.transport.settings import ClientSettings
from iotmq.errors import ConfigError
from iotmq.files import replace_file

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

STORED = datetime(2026, 1, 1, 12, tzinfo=UTC)
AT_S = 1_767_225_600 + 3600  # 2026-01-01 01:00


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("lake") / "gateway") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def producer(gateway: GatewayProcess) -> Iterator[SyncProducer]:
    with (
        SyncClient(ClientSettings(registries=(gateway.registry,))) as client,
        SyncProducer(client) as producer,
    ):
        yield producer


def produce(producer: SyncProducer, topic: str, bodies: list[bytes], *, device: str = "d1") -> None:
    properties = {"MQTT_TOPIC": f"devices/{device}/telemetry"}
    for start in range(0, len(bodies), 500):
        messages = [Message(topic, body, properties=properties) for body in bodies[start : start + 500]]
        producer.send_batch(messages)


def reading(number: int, at_s: float = AT_S) -> bytes:
    return json.dumps({"ts": at_s, "number": number, "temperature": number / 4}).encode()


def settings(gateway: GatewayProcess, topic: str, directory: Path, **more: Any) -> lake.Settings:
    given = {
        "bootstrap": gateway.registry,
        "topic": topic,
        "checkpoint": str(directory / "checkpoint"),
        "path": str(directory / "lake"),
        "available_now": True,
        "payload": {
            "schema": "ts DOUBLE, number INT, temperature DOUBLE",
            "time_field": "ts",
            "required": ["number"],
        },
        **more,
    }
    return msgspec.convert(given, lake.Settings)


def table(spark: SparkSession, directory: Path, name: str = "table") -> DataFrame:
    return spark.read.parquet(str(directory / "lake" / name))


def test_good_payloads_are_rows_and_bad_ones_have_a_reason(
    spark: SparkSession, gateway: GatewayProcess, producer: SyncProducer, tmp_path: Path
) -> None:
    bad = [b"no json", b'{"ts": 1}', b'{"number": "text"}', b"\xff\xfe", b'{"number": 1']
    produce(producer, "lake-bad", [*(reading(n) for n in range(20)), *bad])
    report = tmp_path / "report.json"
    assert lake.run(spark, settings(gateway, "lake-bad", tmp_path, report=str(report))) == 0
    found = json.loads(report.read_text())
    assert (found["rows_read"], found["rows_written"], found["rows_quarantined"]) == (25, 20, 5)
    rows = table(spark, tmp_path).orderBy("number").collect()
    assert [row["number"] for row in rows] == list(range(20))
    assert rows[3]["temperature"] == 0.75
    assert (rows[0]["device"], rows[0]["topic"], str(rows[0]["date"])) == ("d1", "lake-bad", "2026-01-01")
    assert rows[0]["event_time"] == datetime(2026, 1, 1, 1)
    reasons = {bytes(row["value"]): row["reason"] for row in table(spark, tmp_path, "quarantine").collect()}
    assert reasons == {
        b"no json": "not JSON of the declared schema",
        b'{"ts": 1}': "column number is missing",
        b'{"number": "text"}': "not JSON of the declared schema",
        b"\xff\xfe": "not UTF-8",
        b'{"number": 1': "not JSON of the declared schema",
    }


@pytest.mark.spark_long
def test_small_files_of_earlier_batches_are_put_together(
    spark: SparkSession, gateway: GatewayProcess, producer: SyncProducer, tmp_path: Path
) -> None:
    for day in range(2):
        produce(producer, "lake-small", [reading(n, AT_S + 86_400 * day) for n in range(100)])
    chosen = settings(
        gateway,
        "lake-small",
        tmp_path,
        rows_per_trigger_max=20,
        compact_after=3,
        partition_by=["date", "hour"],
    )
    assert lake.run(spark, chosen) == 0
    rows = table(spark, tmp_path)
    assert rows.count() == 200
    assert rows.selectExpr("count(DISTINCT topic, partition, offset)").first()[0] == 200  # type: ignore[index]
    directories = {path.parent for path in (tmp_path / "lake" / "table").rglob("*.parquet")}
    assert {path.parent.name for path in directories} == {"hour=01"}
    assert len([path for path in directories if "compacted" in path.name]) >= 2
    assert len(directories) <= 8
    assert not (tmp_path / "lake" / "_compaction").exists()


def test_a_compaction_that_was_cut_off_is_ended(spark: SparkSession, tmp_path: Path) -> None:
    """At each step of the exchange: the journal is there, and nothing, some or all of it is done."""
    for step in range(4):
        root = tmp_path / str(step)
        partition = root / "table" / "date=2026-01-01"
        old = [partition / f"batch=q-{n}" for n in range(3)]
        staged = root / "_compaction" / "staged"
        for directory in (*old, staged):
            directory.mkdir(parents=True)
            (directory / "part.parquet").write_bytes(b"x")
        new = partition / "batch=compacted-1"
        journal = Journal([str(path.relative_to(root)) for path in old], str(new.relative_to(root)))
        (root / "_compaction" / "journal.json").write_bytes(msgspec.json.encode(journal))
        replaced = root / "_compaction" / "replaced"
        replaced.mkdir()
        for number in range(min(step, 3)):
            old[number].rename(replaced / str(number))
        if step == 3:
            staged.rename(new)
        Compaction(spark, str(root), 1024, 2).finish()
        assert [path.name for path in partition.iterdir()] == ["batch=compacted-1"]
        assert not (root / "_compaction").exists()
    (tmp_path / "_compaction" / "staged").mkdir(parents=True)
    Compaction(spark, str(tmp_path), 1024, 2).finish()
    assert not (tmp_path / "_compaction").exists()


def test_a_schema_is_inferred_once_and_kept(
    spark: SparkSession, gateway: GatewayProcess, producer: SyncProducer, tmp_path: Path
) -> None:
    producer.send(Message("lake-inferred", b"nothing"))
    chosen = settings(gateway, "lake-inferred", tmp_path, payload={"time_field": "ts"})
    with pytest.raises(ConfigError, match="nothing to infer it from"):
        lake.run(spark, chosen)
    produce(producer, "lake-inferred", [reading(n) for n in range(5)])
    assert lake.run(spark, chosen) == 0
    produce(producer, "lake-inferred", [b'{"number": 5, "ts": %d, "more": 1}' % AT_S])
    assert lake.run(spark, chosen) == 0
    rows = table(spark, tmp_path)
    assert sorted(row["number"] for row in rows.collect()) == list(range(6))
    assert "more" not in rows.columns
    taken = settings(gateway, "lake-inferred", tmp_path, payload={"schema": "topic STRING"})
    with pytest.raises(ConfigError, match="column topic has the name"):
        lake.run(spark, taken)


KILLED_JOB = """
import sys, msgspec
from iotmq.bridge.jobs import lake, replay
from iotmq.bridge.spark_session import session
settings = msgspec.json.decode(sys.argv[1], type=lake.Settings)
spark = session("killed", cores=2, profile="low_latency", conf=msgspec.json.decode(sys.argv[2]))
sys.exit(lake.run(spark, settings))
"""


@pytest.mark.crash
@pytest.mark.spark_long
def test_a_killed_job_has_every_record_once_after_its_restart(
    spark: SparkSession, gateway: GatewayProcess, producer: SyncProducer, tmp_path: Path
) -> None:
    chosen = settings(
        gateway,
        "lake-killed",
        tmp_path,
        available_now=False,
        trigger="0 seconds",
        compact_after=2,
        rows_per_trigger_max=200,
    )
    commits = tmp_path / "checkpoint" / "commits"
    count = 0
    for _kill in range(2):
        produce(producer, "lake-killed", [reading(n) for n in range(count, count + 1000)])
        count += 1000
        words = [sys.executable, "-c", KILLED_JOB, msgspec.json.encode(chosen).decode(), json.dumps(CONF)]
        victim = subprocess.Popen(words, stderr=subprocess.DEVNULL, start_new_session=True)
        before = len(list(commits.glob("[0-9]*")))
        try:
            eventually(
                lambda before=before: len(list(commits.glob("[0-9]*"))) >= before + 3, "batches", within_s=90
            )
        finally:
            os.killpg(victim.pid, signal.SIGKILL)
            victim.wait()
    assert lake.run(spark, msgspec.structs.replace(chosen, available_now=True)) == 0
    numbers = [row["number"] for row in table(spark, tmp_path).select("number").collect()]
    assert sorted(numbers) == list(range(count))


class CutOffError(Exception):
    """In place of a kill."""


def test_a_lake_is_replayed_in_its_order_at_a_rate_and_once(
    spark: SparkSession,
    gateway: GatewayProcess,
    producer: SyncProducer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for start in (0, 30):
        produce(producer, "lake-origin", [reading(n) for n in range(start, start + 30)], device=f"d{start}")
    assert lake.run(spark, settings(gateway, "lake-origin", tmp_path)) == 0
    producer.send(Message("replayed", b'{"number": -1}'))
    given = {
        "bootstrap": gateway.registry,
        "topic": "replayed",
        "parquet": str(tmp_path / "lake" / "table"),
        "state": str(tmp_path / "state"),
        "order_by": ["number"],
        "where": "number < 50",
        "report": str(tmp_path / "replay.json"),
        "rate": 20,
    }
    chosen = msgspec.convert(given, replay.Settings)

    def cut_off(path: Path, data: bytes, *, is_synced: bool) -> None:
        if path.name == "progress.json" and b'"batches":2' in data:
            raise CutOffError
        replace_file(path, data, is_synced=is_synced)

    # The second batch is stored when the job is killed, and the job does not know.
    monkeypatch.setattr(replay, "replace_file", cut_off)
    with pytest.raises(CutOffError):
        replay.run(spark, chosen)
    monkeypatch.undo()
    assert json.loads((tmp_path / "state" / "progress.json").read_bytes()) == {"batches": 1, "rows": 20}
    # What is added to the Parquet files meanwhile is not of this replay.
    produce(producer, "lake-origin", [reading(7)], device="d0")
    assert lake.run(spark, settings(gateway, "lake-origin", tmp_path)) == 0
    assert replay.run(spark, chosen) == 0
    report = json.loads((tmp_path / "replay.json").read_text())
    assert (report["rows_read"], report["batches"], report["ended"]) == (30, 2, "done")
    assert report["seconds"] >= 1, "20 rows a second: the last ten wait for those before them"
    options = {"iotmq.bootstrap.servers": gateway.registry, "subscribe": "replayed"}
    rows = spark.read.format("iotmq").options(**options).load().orderBy("partition", "offset").collect()
    found = [(json.loads(bytes(row.value))["number"], row.key, row.mqtt_topic) for row in rows]
    devices = {n: "d0" if n < 30 else "d30" for n in range(50)}
    assert sorted(found)[1:] == [(n, name, f"devices/{name}/telemetry") for n, name in devices.items()]
    for device in ("d0", "d30"):
        numbers = [number for number, key, _ in found if key == device]
        assert numbers == sorted(numbers)
    assert json.loads(bytes(rows[-1].value)).keys() == {"ts", "number", "temperature"}
    assert replay.run(spark, chosen) == 0
    assert json.loads((tmp_path / "replay.json").read_text())["rows_read"] == 0
    with pytest.raises(ConfigError, match="of a replay with other settings"):
        replay.run(spark, msgspec.structs.replace(chosen, where="number < 10"))
    nowhere = {**given, "parquet": str(tmp_path / "nope"), "state": str(tmp_path / "other")}
    with pytest.raises(ConfigError, match=r"replay of .*nope"):
        replay.run(spark, msgspec.convert(nowhere, replay.Settings))


KILLED_REPLAY = """
import sys

import msgspec

from iotmq.bridge.jobs import replay
from iotmq.bridge.spark_session import session

settings = msgspec.json.decode(sys.argv[1], type=replay.Settings)
spark = session("killed", cores=2, conf=msgspec.json.decode(sys.argv[2]))
sys.exit(replay.run(spark, settings))
"""


@pytest.mark.crash
@pytest.mark.spark_long
def test_a_killed_replay_has_sent_every_row_once_after_its_restart(
    spark: SparkSession, gateway: GatewayProcess, producer: SyncProducer, tmp_path: Path
) -> None:
    """The short form, in one process, is above."""
    count = 3_000
    spark.range(count).selectExpr("id AS number", "'d1' AS device").write.parquet(str(tmp_path / "rows"))
    producer.send(Message("replay-killed", b'{"number": -1}'))
    chosen = replay.Settings(
        bootstrap=gateway.registry,
        topic="replay-killed",
        parquet=str(tmp_path / "rows"),
        state=str(tmp_path / "state"),
        order_by=["number"],
        columns=["number"],
        mqtt_topic="",
        rate=100,
    )
    progress = tmp_path / "state" / "progress.json"

    def batches() -> int:
        return json.loads(progress.read_bytes())["batches"] if progress.exists() else 0

    for kill in range(3):
        words = [sys.executable, "-c", KILLED_REPLAY, msgspec.json.encode(chosen).decode(), json.dumps(CONF)]
        victim = subprocess.Popen(words, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            if kill:
                goal = batches() + 3
                eventually(lambda goal=goal: batches() >= goal, "batches", within_s=90, step_s=0.001)
            else:
                # While the rows are put in order.
                eventually(lambda: (tmp_path / "state" / "rows").exists(), "rows", within_s=90, step_s=0.001)
        finally:
            os.killpg(victim.pid, signal.SIGKILL)
            victim.wait()
    # As fast as it can: the rows are cut already.
    assert replay.run(spark, msgspec.structs.replace(chosen, rate=0)) == 0
    options = {"iotmq.bootstrap.servers": gateway.registry, "subscribe": "replay-killed"}
    rows = spark.read.format("iotmq").options(**options).load().orderBy("partition", "offset").collect()
    found = [json.loads(bytes(row.value))["number"] for row in rows]
    assert sorted(found) == list(range(-1, count))
    of_device = [number for number in found if number >= 0]
    assert of_device == sorted(of_device), "the rows of a device are in one queue"


# Payloads ---------------------------------------------------------------------------------------------


def decoded(
    spark: SparkSession, values: list[bytes | None], payload: Payload
) -> list[tuple[Any, str | None]]:
    rows = spark.createDataFrame([(value, STORED) for value in values], "value binary, timestamp timestamp")
    found = decode(rows, payload, data_schema(payload)).collect()
    return [(None if row["data"] is None else tuple(row["data"]), row["reason"]) for row in found]


def test_csv_payloads(spark: SparkSession) -> None:
    payload = Payload(format="csv", schema="name STRING, x DOUBLE", separator=";", required=["x"])
    assert decoded(spark, [b"a;1.5", b"b;x", b"c;", None], payload) == [
        (("a", 1.5), None),
        (None, "not CSV of the declared schema"),
        (("c", None), "column x is missing"),
        (None, "no payload"),
    ]


@pytest.mark.parametrize("order", ["big", "little"])
def test_binary_payloads(spark: SparkSession, order: Any) -> None:
    payload = Payload(
        format="binary", layout="temperature f4, battery u1, count u4, delta i2", byte_order=order
    )
    code = (">" if order == "big" else "<") + "fBIh"
    values = [(21.5, 200, 4_000_000_000, -2), (-1.0, 0, 1, 300)]
    wire: list[bytes | None] = [struct.pack(code, *each) for each in values]
    assert decoded(spark, [wire[0], b"short", None, wire[1]], payload) == [
        (values[0], None),
        (None, "not the 11 bytes of the layout"),
        (None, "no payload"),
        (values[1], None),
    ]


def test_protobuf_payloads(spark: SparkSession, tmp_path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="site", syntax="proto3")
    message = file.message_type.add(name="Reading")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(
        [("temperature", kinds.TYPE_DOUBLE), ("count", kinds.TYPE_UINT32), ("name", kinds.TYPE_STRING)],
        start=1,
    ):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    descriptor = tmp_path / "r.desc"
    descriptor.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    payload = Payload(format="protobuf", descriptor=str(descriptor), message="site.Reading")
    wire = b"\x09" + struct.pack("<d", 1.5) + b"\x10\x07\x1a\x01a"
    assert decoded(spark, [wire, b"\xff", None], payload) == [
        ((1.5, 7, "a"), None),
        (None, "not a message site.Reading"),
        (None, "no payload"),
    ]
    with pytest.raises(ConfigError, match=r"has no message 'site\.Other'"):
        data_schema(msgspec.structs.replace(payload, message="site.Other"))
    with pytest.raises(ConfigError, match=r"payload\.descriptor"):
        data_schema(msgspec.structs.replace(payload, descriptor=str(tmp_path / "none")))


def test_avro_payloads(spark: SparkSession, tmp_path: Path) -> None:
    described = tmp_path / "reading.avsc"
    fields = [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "name", "type": ["null", "string"]},
        {"name": "samples", "type": {"type": "array", "items": "int"}},
    ]
    schema = {"type": "record", "name": "Reading", "fields": fields}
    described.write_text(json.dumps(schema))
    payload = Payload(format="avro", descriptor=str(described), time_field="at", required=["name"])
    at_ms = AT_S * 1000
    wire = io.BytesIO()
    for name in ("a", None):
        row = {"at": at_ms, "name": name, "samples": [1, -2]}
        fastavro.schemaless_writer(wire, fastavro.parse_schema(schema), row)
    # The second is shorter by a length and a letter.
    first, second = wire.getvalue()[:-11], wire.getvalue()[-11:]
    assert len(first) == len(second) + 2
    rows = decoded(spark, [first, second, first[:-1], None], payload)
    assert rows[0] == ((datetime(2026, 1, 1, 1), "a", [1, -2]), None)
    assert [reason for _, reason in rows[1:]] == [
        "column name is missing",
        "not a record Reading",
        "no payload",
    ]
    with pytest.raises(ConfigError, match=r"payload\.descriptor is needed for avro"):
        data_schema(Payload(format="avro"))


def test_times_of_payloads(spark: SparkSession) -> None:
    payload = Payload(schema="at STRING", time_field="at")
    values = [
        '"2026-01-01T11:00:00Z"',
        '"1767265200"',
        '"1767265200000"',
        '"later"',
        '"2027-01-01T00:00:00Z"',
    ]
    rows = spark.createDataFrame(
        [(b'{"at": %s}' % value.encode(), STORED) for value in values], "value binary, timestamp timestamp"
    )
    found = (
        decode(rows, payload, data_schema(payload))
        .selectExpr("date_format(event_time, 'HH') AS hour")
        .collect()
    )
    assert [row["hour"] for row in found] == ["11", "11", "11", "12", "12"]


def test_settings_of_payloads_that_are_wrong_are_named(spark: SparkSession) -> None:
    for payload, text in (
        (Payload(), "payload.schema is needed"),
        (Payload(schema="a WHAT"), "payload.schema is no list of columns"),
        (Payload(schema="INT"), "payload.schema is no list of columns: 'INT'"),
        (Payload(schema="a INT, A STRING"), "payload.schema: column 'A' is there twice"),
        (Payload(schema="a STRUCT<b: INT, b: INT>"), "column 'a': column 'b' is there twice"),
        (Payload(schema="a INTERVAL"), "payload.schema: column 'a' is interval"),
        (Payload(schema="a VOID"), "payload.schema: column 'a' is void"),
        (Payload(schema="a ARRAY<MAP<INT, INT>>"), r"payload.schema: column 'a' is map<int,int>"),
        (Payload(schema="a CHAR(3)"), r"payload.schema: column 'a' is char\(3\)"),
        (Payload(format="csv", schema="a ARRAY<INT>"), "payload.schema: column 'a' is array<int>"),
        (Payload(format="binary", layout="a f2"), "payload.layout has 'a f2'"),
        (Payload(format="binary", layout="a f4, a u1"), "a name twice"),
        (Payload(format="protobuf"), "payload.message is needed"),
        (Payload(format="protobuf", message="a.B"), "payload.descriptor is needed"),
    ):
        with pytest.raises(ConfigError, match=text):
            data_schema(payload)
    rows = spark.createDataFrame([(b"", STORED)], "value binary, timestamp timestamp")
    payload = Payload(schema="a INT", required=["b"])
    with pytest.raises(ConfigError, match="no column 'b'"):
        decode(rows, payload, data_schema(payload))
    payload = Payload(schema="at BOOLEAN", time_field="at")
    with pytest.raises(ConfigError, match=r"payload\.time_field: column 'at' is boolean"):
        decode(rows, payload, data_schema(payload))
    everything = "a DOUBLE, b STRING, c DATE, d TIMESTAMP, e TIMESTAMP_NTZ, f DECIMAL(9, 2), g BOOLEAN"
    everything += ", h BINARY"
    nested = f"{everything}, i ARRAY<STRUCT<x: INT>>, j MAP<STRING, DOUBLE>, k VARIANT, l INTERVAL DAY"
    assert len(data_schema(Payload(schema=nested))) == 12
    assert len(data_schema(Payload(format="csv", schema=everything))) == 8
