"""A Spark job: it prints the mean temperature that each device sends, over sliding minutes.

python examples/spark_job.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession, functions

from iotmq.bridge.spark_session import session


def temperatures(spark: SparkSession, registry: str) -> DataFrame:
    """Return a stream of means: of everything that is stored, then of what comes."""
    rows = (
        spark.readStream.format("iotmq")
        .option("iotmq.bootstrap.servers", registry)
        .option("subscribe", "mqtt")
        .option("startingOffsets", "earliest")
        .load()
    )
    temperature = functions.get_json_object(functions.col("value").cast("string"), "$.temperature")
    return (
        rows.withColumn("temperature", temperature.cast("double"))
        .where("temperature IS NOT NULL")
        .withWatermark("timestamp", "10 seconds")
        .groupBy(functions.window("timestamp", "1 minute", "10 seconds"), "mqtt_topic")
        .agg(functions.avg("temperature").alias("mean"))
    )


def main(registry: str) -> None:
    """Print them until Ctrl-C."""
    means = temperatures(session("temperatures"), registry)
    console = means.writeStream.outputMode("update").format("console").option("truncate", "false")
    console.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
