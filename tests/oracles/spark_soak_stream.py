"""A Spark driver that copies a topic into another one until its standard input ends.

Words: REGISTRY FROM TO CHECKPOINT SAMPLE_S. Each SAMPLE_S it tells a line of JSON: the batches done, and what
is left of Java's heap when nothing but what is in use is there.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from iotmq.bridge.spark_session import LOW_LATENCY_OPTIONS, session

# A heap of one size: what else the process takes shows as the rest.
JAVA = "-XX:TieredStopAtLevel=1 -Xms512m -XX:+AlwaysPreTouch -XX:+UseSerialGC"


def main() -> None:
    registry, source, target, checkpoint, sample_s = sys.argv[1:]
    conf = {"spark.driver.extraJavaOptions": JAVA, "spark.driver.memory": "512m"}
    spark = session("soak", cores=2, profile="low_latency", conf=conf)
    servers = {"iotmq.bootstrap.servers": registry}
    query = (
        spark.readStream.format("iotmq")
        .options(**servers, **LOW_LATENCY_OPTIONS, subscribe=source, startingOffsets="earliest")
        .load()
        .selectExpr("value", "key")
        .writeStream.format("iotmq")
        .options(**servers, topic=target, checkpointLocation=checkpoint)
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    java = spark.sparkContext._jvm
    assert java is not None
    memory = java.java.lang.management.ManagementFactory.getMemoryMXBean()
    process = java.java.lang.ProcessHandle.current().pid()
    while not ended.wait(float(sample_s)):
        error = query.exception()
        if error is not None:
            print(json.dumps({"failed": str(error)[:2000]}), flush=True)
            break
        progress = query.lastProgress
        if progress is None:
            continue
        java.java.lang.System.gc()
        found = {
            "batch": progress["batchId"],
            "heap": memory.getHeapMemoryUsage().getUsed(),
            "driver": os.getpid(),
            "java": process,
        }
        print(json.dumps(found), flush=True)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
