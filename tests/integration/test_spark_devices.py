"""The job device_state in a real Spark session over a real gateway."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark")

from eventually import eventually
from gateway_process import GatewayProcess
from pyspark.sql import DataFrame, SparkSession
from shared_spark import CONF

from iotmq.bridge.jobs import device_state
from iotmq.bridge.jobs.device_state import (
    DEVICES_COLUMNS,
    DEVICES_SCHEMA,
    SOURCE_SCHEMA,
    Settings,
    added,
    devices,
    latest,
    merge,
)
from iotmq.bridge.jobs.snapshots import Current, Snapshots
from iotmq.client import Message, SyncClient, SyncProducer
from iotmq.client.transport.settings import ClientSettings
from iotmq.errors import ConfigError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

AT = datetime(2026, 1, 1, 12)


def heard(spark: SparkSession, *messages: tuple[str, float, str]) -> DataFrame:
    """Messages by (device, second of storing, body), reduced to the last of each device."""
    rows = [
        (None, body.encode(), AT + timedelta(seconds=second), f"devices/{device}/telemetry", None, offset)
        for offset, (device, second, body) in enumerate(messages)
    ]
    return latest(spark.createDataFrame(rows, SOURCE_SCHEMA), device_level=2)


def step(
    spark: SparkSession, before: list[Any], second: float, news: DataFrame
) -> tuple[list[Any], set[str]]:
    """Return the next table of devices that are gone after 60 s, and whose state changed."""
    as_of_us = round((AT + timedelta(seconds=second) - datetime(1970, 1, 1)).total_seconds() * 1e6)
    known = merge(spark.createDataFrame(before, DEVICES_SCHEMA), news, as_of_us, 60)
    merged = [*known.collect(), *added(news, known.where("is_heard"), as_of_us, 60).collect()]
    return [tuple(row[name] for name in DEVICES_COLUMNS) for row in merged], {
        row.device for row in merged if row.is_changed
    }


def test_devices_come_go_and_keep_their_last_message(spark: SparkSession) -> None:
    table, changed = step(spark, [], 10, heard(spark, ("a", 0, "first"), ("a", 10, "second"), ("b", 5, "b")))
    found = {row[0]: row for row in table}
    assert changed == {"a", "b"}
    assert {name: (bytes(row[4]), row[5]) for name, row in found.items()} == {
        "a": (b"second", True),
        "b": (b"b", True),
    }
    table, changed = step(spark, table, 66, heard(spark, ("a", 66, "third")))
    found = {row[0]: row for row in table}
    assert changed == {"b"}
    assert found["b"][5:] == (False, AT + timedelta(seconds=65))
    assert (bytes(found["a"][4]), found["a"][5:]) == (b"third", (True, AT + timedelta(seconds=10)))
    table, changed = step(spark, table, 70, heard(spark, ("b", 70, "back")))
    assert changed == {"b"}
    assert {row[0]: row[5] for row in table} == {"a": True, "b": True}


def test_a_message_that_comes_late_is_heard_and_is_not_the_last(spark: SparkSession) -> None:
    newer, older = (json.dumps({"ts": f"2026-01-01T11:59:{second}"}) for second in (50, 40))
    table, _ = step(spark, [], 1, heard(spark, ("a", 1, newer)))
    table, changed = step(spark, table, 40, heard(spark, ("a", 40, older)))
    ((_, event_time, stored, _, value, is_online, _),) = table
    assert (bytes(value).decode(), event_time) == (newer, datetime(2026, 1, 1, 11, 59, 50))
    assert (stored, is_online, changed) == (AT + timedelta(seconds=40), True, set())


def test_a_batch_done_again_begins_from_the_same_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    table = Snapshots(spark, str(tmp_path), "n int")
    assert table.before("q-0") == Current()
    assert table.read("").count() == 0
    for number in range(3):
        before = table.before(f"q-{number}")
        rows = table.read(before.snapshot).union(spark.createDataFrame([(number,)], "n int"))
        table.write(f"q-{number}", rows)
        table.commit(f"q-{number}", before, time_us=number)
    assert sorted(path.name for path in (tmp_path / "snapshots").iterdir()) == ["q-1", "q-2"]
    again = table.before("q-2")
    assert (again.snapshot, again.time_us) == ("q-1", 1)
    assert sorted(row.n for row in table.read(again.snapshot).collect()) == [0, 1]
    with pytest.raises(ConfigError, match="s3://x"):
        Snapshots(spark, "s3://x", "n int")


KILLED_JOB = """
import sys, msgspec
from iotmq.bridge.jobs import device_state
from iotmq.bridge.spark_session import session
settings = msgspec.json.decode(sys.argv[1], type=device_state.Settings)
spark = session("killed", cores=2, profile="low_latency", conf=msgspec.json.decode(sys.argv[2]))
sys.exit(device_state.run(spark, settings))
"""


@pytest.mark.crash
@pytest.mark.spark_long
def test_the_table_survives_kills_and_has_the_last_message_of_every_device(
    spark: SparkSession, tmp_path: Path
) -> None:
    chosen = msgspec.convert(
        {
            "bootstrap": "",
            "topic": "telemetry",
            "checkpoint": str(tmp_path / "checkpoint"),
            "path": str(tmp_path / "table"),
            "trigger": "0 seconds",
            "rows_per_trigger_max": 300,
        },
        Settings,
    )
    with GatewayProcess(tmp_path / "gateway") as gateway:
        chosen = msgspec.structs.replace(chosen, bootstrap=gateway.registry)
        client_settings = ClientSettings(registries=(gateway.registry,))
        with SyncClient(client_settings) as client, SyncProducer(client) as producer:
            commits = tmp_path / "checkpoint" / "commits"
            for kill in range(2):
                for start in range(0, 1500, 500):
                    producer.send_batch(
                        [
                            Message(
                                "telemetry",
                                b"%d" % (kill * 1500 + n),
                                key=f"d{n % 100}",
                                properties={"MQTT_TOPIC": f"devices/d{n % 100}/telemetry"},
                            )
                            for n in range(start, start + 500)
                        ]
                    )
                words = [
                    sys.executable,
                    "-c",
                    KILLED_JOB,
                    msgspec.json.encode(chosen).decode(),
                    json.dumps(CONF),
                ]
                victim = subprocess.Popen(words, stderr=subprocess.DEVNULL, start_new_session=True)
                before = len(list(commits.glob("[0-9]*")))
                try:
                    eventually(
                        lambda before=before: len(list(commits.glob("[0-9]*"))) >= before + 2,
                        "batches",
                        within_s=200,
                    )
                finally:
                    os.killpg(victim.pid, signal.SIGKILL)
                    victim.wait()
            assert device_state.run(spark, msgspec.structs.replace(chosen, available_now=True)) == 0
    rows = devices(spark, str(tmp_path / "table")).collect()
    assert {row.device for row in rows} == {f"d{n}" for n in range(100)}
    assert all(row.online for row in rows)
    # The messages of one send have one store time; which queue they are in is not the device's.
    assert all(int(bytes(row.value)) % 100 == int(row.device[1:]) for row in rows)
    assert all(int(bytes(row.value)) >= 2000 for row in rows)
    changes = spark.read.parquet(str(tmp_path / "table" / "changes"))
    assert changes.count() == 100, "each went online once"
