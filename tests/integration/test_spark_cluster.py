"""Jobs on a real standalone cluster of two workers, whose executors have nothing of ours.

IOTMQ_STREAM_ROWS is how many rows a stream reads whose executor and driver are killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow
from eventually import eventually
from gateway_process import GatewayProcess
from log_reader import read_bodies
from pyarrow import parquet
from spark_cluster import StandaloneCluster

from iotmq.client import Message, SyncClient, SyncProducer
from iotmq.client.transport.settings import ClientSettings

TOPIC = "telemetry"
COUNT = int(os.environ.get("IOTMQ_STREAM_ROWS", "4000"))
BATCHES = 20
READINGS = 50
STEP_S = 240.0 + COUNT // 5_000
SMALL = (
    *("--conf", "spark.executor.memory=500m", "--conf", "spark.driver.memory=600m"),
    *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"),
    *("--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"),
    *("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"),
    *("--conf", "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1"),
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600 + COUNT // 2_500)]

READS = """
import json, logging, sys

logging.basicConfig()
from iotmq.bridge.spark_session import session

address, report = sys.argv[1:]
spark = session("reads", cores=7, conf={"spark.driver.memory": "9g"})
source = {"iotmq.bootstrap.servers": address, "subscribe": "telemetry"}
rows = spark.read.format("iotmq").options(**source).load()


def where(_):
    import os
    import iotmq
    return os.path.abspath(iotmq.__file__)


places = spark.sparkContext.parallelize(range(16), 16).map(where).distinct().collect()
seen = rows.selectExpr("CAST(CAST(value AS STRING) AS INT) AS n").agg({"n": "sum"}).collect()[0][0]
report_text = {
    "sum": seen,
    "files": sorted(places),
    "settings": {name: spark.conf.get(name) for name in ("spark.sql.shuffle.partitions", "spark.master")},
}
with open(report, "w") as file:
    json.dump(report_text, file)
"""

STREAMS = """
import sys
from iotmq.bridge.spark_session import session

address, directory, batch_rows, sink = sys.argv[1:]
options = {"iotmq.bootstrap.servers": address, "topic": "written"} if sink == "iotmq" else {"path": directory + "/rows"}
column = "value" if sink == "iotmq" else "CAST(CAST(value AS STRING) AS INT) AS n"
spark = session("streams")
rows = (
    spark.readStream.format("iotmq")
    .option("iotmq.bootstrap.servers", address)
    .option("subscribe", "telemetry")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", batch_rows)
    .load()
)
query = (
    rows.selectExpr(column)
    .writeStream.format(sink)
    .options(**options)
    .option("checkpointLocation", directory + "/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with GatewayProcess(
        tmp_path_factory.mktemp("gateway") / "data", "broker.default_topic_queues=4"
    ) as running:
        address = f"127.0.0.1:{running.ports['registry']}"
        settings = ClientSettings(registries=(address,))
        with SyncClient(settings) as client, SyncProducer(client, "readings") as producer:
            for first in range(0, COUNT, 500):
                producer.send_batch([Message(TOPIC, b"%d" % n) for n in range(first, first + 500)])
            producer.send_batch(
                [Message("readings", b'{"temperature": %d}' % n, key="pump") for n in range(READINGS)]
            )
        yield address


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def cluster_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with numpy and pyarrow, as machines of clusters have; all else has to be sent to it."""
    directory = tmp_path_factory.mktemp("python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=60)
    (packages,) = directory.glob("lib/python3*/site-packages")
    ours = Path(pyarrow.__file__).parent.parent
    for name in ("numpy", "numpy.libs", "pyarrow", "pyarrow.libs"):
        if (ours / name).exists():
            (packages / name).symlink_to(ours / name)
    return str(directory / "bin" / "python")


def submit(cluster: StandaloneCluster, cluster_python: str, program: Path, *arguments: str) -> list[str]:
    return [
        *(sys.executable, "-m", "iotmq", "spark", "submit", "--master", cluster.master),
        *("--python", cluster_python, *SMALL, str(program), *arguments),
    ]


def finish(words: list[str], log: Path) -> str:
    """Run a submission to its end; what it wrote."""
    with (
        log.open("ab") as file,
        subprocess.Popen(words, stdout=file, stderr=file, start_new_session=True) as running,
    ):
        try:
            code = running.wait(STEP_S)
        except BaseException:
            os.killpg(running.pid, signal.SIGKILL)
            raise
    said = log.read_text()
    assert code == 0, said[-6000:]
    return said


def numbers_in(directory: Path) -> list[int]:
    """What a Parquet sink has written: the files that its log names, without those of killed tasks."""
    lines = [
        line
        for path in (directory / "_spark_metadata").iterdir()
        if not path.name.startswith(".")
        for line in path.read_text().splitlines()[1:]
    ]
    # A compacted part of the log repeats those before it.
    files = {urllib.parse.unquote(urllib.parse.urlparse(json.loads(line)["path"]).path) for line in lines}
    return [n for file in files for n in parquet.read_table(file, columns=["n"]).column("n").to_pylist()]


@pytest.mark.spark_long
def test_a_job_reads_with_executors_that_have_nothing_but_what_was_sent(
    cluster: StandaloneCluster, gateway: str, cluster_python: str, tmp_path: Path
) -> None:
    program, report = tmp_path / "reads.py", tmp_path / "report.json"
    program.write_text(READS)
    said = finish(submit(cluster, cluster_python, program, gateway, str(report)), tmp_path / "driver.log")
    found = json.loads(report.read_text())
    assert found["sum"] == sum(range(COUNT))
    assert found["settings"] == {"spark.sql.shuffle.partitions": "2", "spark.master": cluster.master}
    assert len(found["files"]) == 2
    assert all("/iotmq-packages/iotmq/" in file and "/work-" in file for file in found["files"])
    # Arguments of session() that come too late are said by name.
    assert "session() ignores conf['spark.driver.memory'], cores" in said


def test_a_job_that_comes_with_iotmq_runs_as_its_file_says(
    cluster: StandaloneCluster, gateway: str, cluster_python: str, tmp_path: Path
) -> None:
    config = tmp_path / "job.toml"
    config.write_text(f"""
bootstrap = "{gateway}"
topic = "readings"
checkpoint = "{tmp_path}/checkpoint"
parquet = "{tmp_path}/windows"
report = "{tmp_path}/report.json"
available_now = true

[spark]
cores = 3
conf = {{ "spark.sql.streaming.numRecentProgressUpdates" = "10" }}
""")
    words = submit(cluster, cluster_python, Path("telemetry_windows"))
    at = words.index("--master")
    said = finish([*words[:at], "--config", str(config), *words[at:]], tmp_path / "driver.log")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["rows_read"], report["ended"]) == (READINGS, "caught up")
    assert f": batch 0: {READINGS} rows in " in said
    assert "session() ignores cores: spark-submit has started" in said


@pytest.mark.spark_long
@pytest.mark.parametrize("sink", ["parquet", "iotmq"])
def test_a_stream_goes_on_when_an_executor_is_killed_and_after_its_driver_was(
    cluster: StandaloneCluster, gateway: str, cluster_python: str, tmp_path: Path, sink: str
) -> None:
    if sink == "iotmq":
        words = ("topic", "create", "written", "--queues", "4", "--registry", gateway)
        subprocess.run([sys.executable, "-m", "iotmq", "admin", *words], check=True, timeout=60)
    program = tmp_path / "streams.py"
    program.write_text(STREAMS)
    (tmp_path / "state").mkdir()
    checkpoint = tmp_path / "state" / "checkpoint" / "commits"

    def commits() -> int:
        return len([path for path in checkpoint.glob("*") if path.name.isdigit()])

    log = (tmp_path / "driver.log").open("ab")
    state = tmp_path / "state"
    words = submit(cluster, cluster_python, program, gateway, str(state), str(COUNT // BATCHES), sink)
    with log, subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True) as first:
        try:
            eventually(lambda: commits() >= 2, "two batches", within_s=STEP_S)
            os.kill(cluster.executors()[0], signal.SIGKILL)
            before = commits()
            eventually(lambda: commits() >= before + 3, "batches without an executor", within_s=STEP_S)
        finally:
            # All of the driver: the command, Java, and the interpreters.
            os.killpg(first.pid, signal.SIGKILL)
    assert commits() < BATCHES, "the driver was killed too late to show anything"
    finish(words, tmp_path / "driver.log")
    if sink == "iotmq":
        found = [int(body) for body in read_bodies(gateway, "written")]
    else:
        found = numbers_in(state / "rows")
    assert sorted(found) == list(range(COUNT))
    print(f"{sink}: {COUNT:,} rows once; an executor killed, and a driver with {before} of {BATCHES} batches done")
