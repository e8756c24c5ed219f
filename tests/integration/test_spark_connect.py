"""A client of Spark Connect: the format works on a server that has iotmq installed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
# Spark's client needs these, which no other part of iotmq does: pip install "pyspark[connect]".
pytest.importorskip("grpc_status", reason='pip install "pyspark[connect]"')
pytest.importorskip("pandas", reason='pip install "pyspark[connect]"')

from eventually import eventually
from gateway_process import ROOT, GatewayProcess, free_port
from pyspark.find_spark_home import _find_spark_home

from iotmq.bridge.spark_session import ensure_java
from iotmq.client import Message, SyncClient, SyncProducer
from iotmq.client.transport.settings import ClientSettings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

COUNT = 100
CLIENT = """
import json, logging, sys

logging.basicConfig()
from iotmq.bridge.spark_session import session

address, checkpoint = sys.argv[1:]
spark = session("connected", cores=2)
print(type(spark).__module__)
source = {"iotmq.bootstrap.servers": address, "subscribe": "telemetry", "startingOffsets": "earliest"}
print(spark.read.format("iotmq").options(**source).load().count())
writer = spark.readStream.format("iotmq").options(**source).load().writeStream.format("noop")
query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
reports = [json.loads(progress.json) for progress in query.recentProgress]
print(sum(source["numInputRows"] for report in reports for source in report["sources"]))
try:
    spark.read.format("iotmq").options(**source, failOnDataLos="false").load().count()
except Exception as error:
    print("did you mean failOnDataLoss" in str(error))
spark.stop()
"""


def test_a_client_of_spark_connect_reads_and_streams(tmp_path: Path) -> None:
    ensure_java()
    port = free_port()
    environment = dict(os.environ) | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    }
    server = [
        *(f"{_find_spark_home()}/bin/spark-submit", "--master", "local[2]"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.memory=1g"),
        *("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1", "spark-internal"),
    ]
    log = tmp_path / "server.log"
    with GatewayProcess(tmp_path / "data") as gateway, log.open("ab") as written:
        address = f"127.0.0.1:{gateway.ports['registry']}"
        settings = ClientSettings(registries=(address,))
        with SyncClient(settings) as client, SyncProducer(client, "readings") as producer:
            producer.send_batch([Message("telemetry", b"%d" % n) for n in range(COUNT)])
        with subprocess.Popen(
            server, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=written, stderr=written
        ) as running:
            try:
                eventually(lambda: answers(port), "a server of Spark Connect", within_s=90)
                done = subprocess.run(
                    [sys.executable, "-c", CLIENT, address, str(tmp_path / "checkpoint")],
                    cwd=tmp_path,
                    env=environment | {"SPARK_REMOTE": f"sc://127.0.0.1:{port}"},
                    capture_output=True,
                    text=True,
                    timeout=150,
                    check=False,
                )
            finally:
                running.terminate()
    assert done.returncode == 0, done.stderr[-3000:] + log.read_text()[-3000:]
    assert done.stdout.splitlines() == [
        "pyspark.sql.connect.session", str(COUNT), str(COUNT), "True",
    ]  # fmt: skip
    assert "session() ignores cores: the server of Spark Connect has its own" in done.stderr


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
