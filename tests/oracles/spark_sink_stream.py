"""A Spark driver that streams numbers into a topic, to be killed.

Words: REGISTRY TOPIC CHECKPOINT ROWS_PER_BATCH LAST_BATCH. Tells each batch as it is done, and ends
behind the last one. An error is told, too.
"""

from __future__ import annotations

import sys
import time

from pyspark.errors import StreamingQueryException

from iotmq.bridge.spark_session import session

FAST_START = "-XX:TieredStopAtLevel=1"


def main() -> None:
    registry, topic, checkpoint, rows_per_batch, last_batch = sys.argv[1:]
    spark = session("numbers", cores=2, conf={"spark.driver.extraJavaOptions": FAST_START})
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows_per_batch)
        .option("numPartitions", "2")
        .load()
        .selectExpr("CAST(value AS STRING) value", "CONCAT('device-', value % 97) key")
    )
    query = (
        rows.writeStream.format("iotmq")
        .option("iotmq.bootstrap.servers", registry)
        .option("topic", topic)
        .option("batchBytes", "16384")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    told = -1
    try:
        while told < int(last_batch):
            if not query.isActive:
                query.awaitTermination()
                break
            done = query.lastProgress
            if done is not None and done["batchId"] > told:
                told = done["batchId"]
                print(told, flush=True)
            time.sleep(0.02)
        query.stop()
    except StreamingQueryException as error:
        print(f"failed: {error}"[:2000].replace("\n", " "), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
