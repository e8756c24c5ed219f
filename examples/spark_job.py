"""A Spark job: it prints the mean temperature of every device over sliding minutes.

python examples/spark_job.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys

from pyspark.sql import functions

from iotmq.bridge.spark_session import session


def main(registry: str) -> None:
    """Read everything that is stored, then go on with what comes, until Ctrl-C."""
    spark = session("temperatures")
    rows = (
        spark.readStream.format("iotmq")
        .option("iotmq.bootstrap.servers", registry)
        .option("subscribe", "mqtt")
        .option("startingOffsets", "earliest")
        .load()
    )
    temperature = functions.get_json_object(functions.col("value").cast("string"), "$.temperature")
    means = (
        rows.withWatermark("timestamp", "10 seconds")
        .groupBy(functions.window("timestamp", "1 minute", "10 seconds"), "key")
        .agg(functions.avg(temperature.cast("double")).alias("mean"))
    )
    means.writeStream.outputMode("update").format("console").start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
