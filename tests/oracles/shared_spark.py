"""One Spark for the tests of a process: to start it takes ten seconds of the processor."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from iotmq.bridge.spark_session import session

# Half of the processor time of a short run goes to the compiler that makes long ones fast. One task after a
# shuffle is enough: the demo has as many as is usual.
CONF: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
}


def running_spark() -> SparkSession:
    """Return the Spark of this process; the first time it starts, as it does after a test that stopped it."""
    return SparkSession.getActiveSession() or session("tests", cores=2, profile="low_latency", conf=CONF)


def leave_nothing(spark: SparkSession) -> None:
    """Stop what a file's tests have left running, and forget what they have kept."""
    for query in spark.streams.active:
        query.stop()
    spark.catalog.clearCache()
    for view in spark.catalog.listTables():
        spark.catalog.dropTempView(view.name)


def stop_spark() -> None:
    """Stop the Spark of this process, if it has one."""
    running = SparkSession.getActiveSession()
    if running is not None:
        running.stop()
