"""The job alerts: its rules alone, and in a real Spark session with a device that gets the commands."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import paho.mqtt.client as paho
import pytest

pytest.importorskip("pyspark")

from eventually import eventually
from gateway_process import GatewayProcess
from pyspark.sql import SparkSession

from iotmq.bridge.jobs import alerts
from iotmq.bridge.jobs.alerts import Rule, Settings, check_rules, commands_of, next_states, told_readings
from iotmq.client import Message, SyncClient, SyncProducer
from iotmq.client.transport.settings import ClientSettings
from iotmq.errors import ConfigError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

AT = datetime(2026, 1, 1, 12)
HOT = {
    "name": "hot",
    "metric": "temperature",
    "above": 80,
    "clear": 75,
    "topic": "devices/{device}/commands",
    "raised": '{"fan": "on", "for": "{device}", "at": {reading}}',
    "cleared": '{"fan": "off"}',
}


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """With the state of rules in two parts."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield spark
    spark.conf.set("spark.sql.shuffle.partitions", before)


class Folded:
    """Rule hot, over one batch after another."""

    def __init__(self, spark: SparkSession, **more: Any) -> None:
        self._spark = spark
        self._rules = [msgspec.convert({**HOT, **more}, Rule)]
        self._state: list[Any] = []

    def batch(self, *readings: tuple[float, float]) -> list[tuple[str, float]]:
        """Changes by (seconds, reading)."""
        rows = [("d1", "temperature", float(reading), AT + timedelta(seconds=at)) for at, reading in readings]
        frame = self._spark.createDataFrame(
            rows, "device string, metric string, reading double, event_time timestamp"
        )
        state = self._spark.createDataFrame(self._state, alerts.STATE_SCHEMA)
        (after,) = next_states(state, told_readings(frame, self._rules)).collect() or [None]
        if after is None:
            return []
        is_kept = after.is_raised or after.since is not None
        self._state = (
            [(after.device, after.rule, after.is_raised, after.since, after["at"])] if is_kept else []
        )
        return [(change.state, change.reading) for change in after.changes]


def test_a_rule_is_raised_once_and_cleared_on_the_other_side(spark: SparkSession) -> None:
    hot = Folded(spark)
    assert hot.batch((0, 70)) == []
    assert hot.batch((1, 81), (2, 90)) == [("raised", 81)]
    assert hot.batch((3, 78), (4, 81)) == []
    assert hot.batch((3.5, 60)) == [], "older than what is known"
    assert hot.batch((6, 75), (5, 85)) == [("cleared", 75)]
    assert hot.batch((7, 82), (8, 70), (9, 90)) == [("raised", 82), ("cleared", 70), ("raised", 90)]


def test_a_rule_that_waits_is_raised_by_readings_that_stay(spark: SparkSession) -> None:
    hot = Folded(spark, for_seconds=10)
    assert hot.batch((0, 81), (9, 82)) == []
    assert hot.batch((9.5, 78), (10, 83)) == [], "between the bounds the wait begins anew"
    assert hot.batch((19.9, 84)) == []
    assert hot.batch((20, 85)) == [("raised", 85)]
    assert hot.batch((21, 78)) == []
    assert hot.batch((22, 70)) == [("cleared", 70)]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"above": 1, "below": 2}, "exactly one of above and below"),
        ({}, "exactly one of above and below"),
        ({"above": 1, "clear": 2}, "clear lies beyond"),
        ({"below": 1, "clear": 0}, "clear lies beyond"),
        ({"above": 1, "topic": "t"}, "commands need topic"),
        ({"above": 1, "raised": "x"}, "commands need topic"),
        ({"above": 1, "topic": "t", "raised": "x"}, "command_topic"),
    ],
)
def test_rules_that_make_no_sense_are_named(rule: dict[str, Any], text: str) -> None:
    given = {
        "bootstrap": "h:1",
        "topic": "t",
        "checkpoint": "c",
        "state": "s",
        "rules": [{"name": "r", "metric": "m", **rule}],
    }
    with pytest.raises(ConfigError, match=f"rule 'r'.*{text}"):
        check_rules(msgspec.convert(given, Settings))


def test_commands_are_filled_in_and_names_that_are_no_level_get_none(spark: SparkSession) -> None:
    devices = ["d1", 'quo"te', "a/b", "+", ""]
    frame = spark.createDataFrame(
        [(name, "hot", "raised", 81.5, AT) for name in devices], list(alerts.CHANGE_COLUMNS)
    )
    rows = commands_of(frame, [msgspec.convert(HOT, Rule)]).collect()
    found = {row.mqtt_topic: (json.loads(bytes(row.value)), row.qos) for row in rows}
    assert found == {
        f"devices/{name}/commands": ({"fan": "on", "for": name, "at": 81.5}, 1) for name in devices[:2]
    }


class Device:
    """A device that gets commands."""

    def __init__(self, port: int) -> None:
        self.commands: list[dict[str, Any]] = []
        ready = threading.Event()
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="d1", protocol=paho.MQTTv5)
        self.client.on_message = lambda _c, _d, message: self.commands.append(json.loads(message.payload))
        self.client.on_subscribe = lambda *_: ready.set()
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self.client.subscribe("devices/d1/commands", qos=1)
        assert ready.wait(30.0)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def test_a_device_gets_a_command_when_it_is_too_hot_and_when_it_is_not_any_more(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "topic": "readings",
        "checkpoint": str(tmp_path / "checkpoint"),
        "state": str(tmp_path / "state"),
        "parquet": str(tmp_path / "alerts"),
        "command_topic": "commands",
        "console": True,
        "available_now": True,
        "report": str(tmp_path / "report.json"),
        "rules": [HOT, {"name": "cold", "metric": "temperature", "below": 5}],
    }
    begun = datetime.now(UTC) - timedelta(hours=1)
    seconds = 0
    with GatewayProcess(tmp_path / "gateway") as gateway:
        client_settings = ClientSettings(registries=(gateway.registry,))
        with SyncClient(client_settings) as client, SyncProducer(client) as producer:
            device = Device(gateway.mqtt_port)
            producer.send(Message("commands", b"makes the topic"))
            chosen = msgspec.convert({"bootstrap": gateway.registry, **settings}, Settings)
            for readings, count in (([70, 81, 90], 1), ([78, 85], 0), ([74.5, 3], 2)):
                for reading in readings:
                    seconds += 1
                    body = {"ts": (begun + timedelta(seconds=seconds)).timestamp(), "temperature": reading}
                    properties = {"MQTT_TOPIC": "devices/d1/telemetry"}
                    producer.send(Message("readings", json.dumps(body).encode(), properties=properties))
                # What is raised is kept from run to run.
                assert alerts.run(spark, chosen) == 0
                report = json.loads((tmp_path / "report.json").read_text())
                assert report["alerts"] == count
            eventually(lambda: len(device.commands) == 2, "the commands come")
            device.close()
    assert device.commands == [{"fan": "on", "for": "d1", "at": 81.0}, {"fan": "off"}]
    kept = spark.read.parquet(str(tmp_path / "alerts")).orderBy("event_time").collect()
    assert [(row.device, row.rule, row.state, row.reading) for row in kept] == [
        ("d1", "hot", "raised", 81.0),
        ("d1", "hot", "cleared", 74.5),
        ("d1", "cold", "raised", 3.0),
    ]
    assert "raised   d1  hot  81" in capsys.readouterr().out
