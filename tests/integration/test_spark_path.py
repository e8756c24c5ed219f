"""Option path of format iotmq in a real Spark session, over the files of a real store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from store_model import HOST, batch

from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ROWS = 60_000
SEGMENT_BYTES = 4 * 1024 * 1024


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a store that is open: three topics in turn, two queues each."""
    directory = tmp_path_factory.mktemp("data")
    store = Store.open(directory, StoreSettings(segment_bytes=SEGMENT_BYTES), store_host=HOST)
    for number in range(0, ROWS, 500):
        for topic in ("telemetry", "events", "%RETRY%group"):
            queue = store.queue(topic, number // 500 % 2)
            bodies = [b'{"number": %d}' % n for n in range(number, number + 500)]
            store.append(queue, batch(*bodies), born_timestamp_ms=1_700_000_000_000, born_host=HOST)
    yield directory
    store.close()


def frame(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("iotmq").options(**options).load(str(path))


def test_files_of_a_running_store_are_a_table(spark: SparkSession, data: Path) -> None:
    rows = frame(spark, data, subscribe="telemetry", minPartitions="6")
    assert rows.rdd.getNumPartitions() > 1
    numbers = rows.selectExpr(
        "get_json_object(CAST(value AS STRING), '$.number') AS n", "partition", "offset"
    )
    found = numbers.selectExpr(
        "count(*)", "count(DISTINCT n)", "sum(n)", "count(DISTINCT partition, offset)", "max(offset)"
    ).first()
    assert found is not None
    assert tuple(found) == (ROWS, ROWS, sum(range(ROWS)), ROWS, ROWS // 2 - 1)


def test_patterns_and_times_work_in_sql(spark: SparkSession, data: Path) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW log USING iotmq OPTIONS (path '{data}', subscribePattern '.*')"
    )
    counts = spark.sql("SELECT topic, count(*) AS n FROM log GROUP BY topic").collect()
    assert {row["topic"]: row["n"] for row in counts} == {"telemetry": ROWS, "events": ROWS}
    assert frame(spark, data, subscribe="events", endingTimestamp="1000").count() == 0


def test_damage_ends_the_query_with_its_place(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    log = shutil.copytree(data / "commitlog", tmp_path / "log")
    first = log / f"{0:020d}"
    with first.open("r+b") as file:
        at = file.read().index(b'{"number": 77}')
        file.seek(at)
        file.write(b"X")
    with pytest.raises(
        PySparkException, match=rf"{first.name} position {at - 88}: the body does not match its CRC"
    ):
        frame(spark, log, subscribe="telemetry").count()
    assert frame(spark, log, subscribe="telemetry", failOnDataLoss="false").count() == ROWS - 1
    with pytest.raises(PySparkException, match="the data directory knows no topic 'nope'"):
        frame(spark, data, subscribe="nope").count()
