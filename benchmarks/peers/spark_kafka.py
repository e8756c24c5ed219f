"""The jars of Spark's source and sink for Kafka: no server, but fetched as one."""

from pathlib import Path
from typing import Final

from benchmarks.peers.peer import FAST, Launch, Peer, Place
from benchmarks.peers.server import PeerError
from benchmarks.peers.sources import Jars

SPARK_KAFKA_VERSION: Final = "4.2.0"


def _no_launch(_jars: Path, _place: Place) -> Launch:
    raise PeerError("Spark's source for Kafka runs inside of Spark")


SPARK_KAFKA: Final = Peer(
    name="spark-kafka",
    title=f"Spark's source for Kafka {SPARK_KAFKA_VERSION}",
    source=Jars((f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_KAFKA_VERSION}",)),
    launch=_no_launch,
    settings={FAST: "as it is"},
)
