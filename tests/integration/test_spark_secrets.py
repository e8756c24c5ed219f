"""Secrets of format iotmq are in nothing that Spark shows: plans, progress, logs, event logs, web pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from gateway_process import GatewayProcess, free_port

from iotmq.client import Message, SyncClient, SyncProducer
from iotmq.client.transport.settings import ClientSettings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

TOPIC = "telemetry"
COUNT = 40
SECRETS = ("xyzzy-as-an-option", "xyzzy-of-a-file", "xyzzy-of-a-variable")

# Spark's own log goes to standard error: what its parts say of plans and tasks with all details.
LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
logger.sql.name = org.apache.spark.sql
logger.sql.level = trace
logger.api.name = org.apache.spark.api.python
logger.api.level = trace
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c: %m%n%ex%n
"""

# Prints everything that a user of Spark can see of three queries, and what a failing one says.
PROGRAM = """
import contextlib, io, os, sys, urllib.request

from iotmq.bridge.spark_session import session

address, port, directory, logging = sys.argv[1:]
os.environ["BROKER_SECRET"] = "xyzzy-of-a-variable"
spark = session(
    "secrets",
    cores=2,
    conf={
        "spark.ui.enabled": "true",
        "spark.ui.port": port,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{directory}/events",
        "spark.eventLog.compress": "false",
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile=file://{logging}",
    },
)
common = {"iotmq.bootstrap.servers": address, "subscribe": "telemetry", "accessKey": "account"}
ways = (
    {"secretKey": "xyzzy-as-an-option"},
    {"secretKeyFile": f"{directory}/secret"},
    {"secretKeyVariable": "BROKER_SECRET"},
)
for number, way in enumerate(ways):
    rows = spark.read.format("iotmq").options(**common, **way).load()
    print("counted", rows.count())
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        rows.explain(mode=mode)
    stream = spark.readStream.format("iotmq").options(**common, **way, startingOffsets="earliest").load()
    query = (
        stream.writeStream.format("noop")
        .queryName(f"q{number}")
        .option("checkpointLocation", f"{directory}/checkpoint-{number}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(extended=True)
    print([progress.json for progress in query.recentProgress])
    try:
        spark.read.format("iotmq").options(**common, **way, subscribePattern="x").load().count()
    except Exception as error:
        print("refused", error)


def page(path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return answer.read().decode()


application = spark.sparkContext.applicationId
for path in ("/environment/", "/SQL/", "/StreamingQuery/", "/jobs/", "/stages/"):
    print(page(path))
for number in range(12):
    with contextlib.suppress(OSError):
        print(page(f"/SQL/execution/?id={number}"))
for path in ("environment", "sql?details=true&planDescription=true", "jobs", "stages?details=true"):
    print(page(f"/api/v1/applications/{application}/{path}"))
spark.stop()
"""


def test_nothing_that_spark_shows_has_a_secret(tmp_path: Path) -> None:
    for name, text in (("program.py", PROGRAM), ("log.properties", LOGGING), ("secret", SECRETS[1] + "\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "events").mkdir()
    with GatewayProcess(tmp_path / "data") as gateway:
        address = f"127.0.0.1:{gateway.ports['registry']}"
        settings = ClientSettings(registries=(address,))
        with SyncClient(settings) as client, SyncProducer(client, "readings") as producer:
            producer.send_batch([Message(TOPIC, b"%d" % n) for n in range(COUNT)])
        done = subprocess.run(
            [
                *(sys.executable, "program.py", address, str(free_port())),
                *(str(tmp_path), str(tmp_path / "log.properties")),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(f"counted {COUNT}") == len(SECRETS)
    assert done.stdout.count("refused") == len(SECRETS)
    events = "".join(path.read_text() for path in (tmp_path / "events").rglob("*") if path.is_file())
    checkpoints = "".join(
        path.read_text(errors="replace") for path in tmp_path.glob("checkpoint-*/**/*") if path.is_file()
    )
    shown = {"output": done.stdout, "log": done.stderr, "events": events, "checkpoints": checkpoints}
    assert all("iotmq" in text for name, text in shown.items() if name != "checkpoints")
    assert "spark.ui.port" in done.stdout
    for where, text in shown.items():
        for secret in SECRETS:
            at = text.find(secret)
            assert at < 0, f"{where} has {secret}: ...{text[max(0, at - 300) : at + 60]}..."
