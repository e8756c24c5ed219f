"""The peers on the side of services: logs and streams, each in its own protocol."""

from pathlib import Path
from typing import Final

from benchmarks.peers.nats import NATS_SOURCE, nats_configuration
from benchmarks.peers.peer import DURABLE, FAST, Launch, Peer, Place
from benchmarks.peers.rocketmq import PATIENT, broker_command, broker_environment, broker_files
from benchmarks.peers.sources import Installed, Jars

KAFKA_VERSION: Final = "4.1.1"
SEGMENT_BYTES: Final = 1 << 30


def redis_launch(program: Path, place: Place) -> Launch:
    """An append-only file and no snapshots beside it, synced every second or before each answer."""
    command = [
        *(str(program), "--port", str(place.port), "--bind", "127.0.0.1", "--dir", str(place.directory)),
        *("--save", "", "--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"),
        *("--appendfsync", "always" if place.is_durable else "everysec"),
        *("--stop-writes-on-bgsave-error", "no", *place.more),
    ]
    return Launch(command)


def rocketmq_launch(jars: Path, place: Place) -> Launch:
    """The broker alone, without a name server, which no message passes through."""
    settings = [
        "brokerRole=ASYNC_MASTER",
        f"flushDiskType={'SYNC_FLUSH' if place.is_durable else 'ASYNC_FLUSH'}",
        f"mappedFileSizeCommitLog={SEGMENT_BYTES}",
        *("maxHashSlotNum=5000000", "maxIndexNum=20000000"),
        # A pull brings 32 messages unless these are larger.
        *("maxTransferCountOnMessageInMemory=1024", "maxTransferBytesOnMessageInMemory=4194304"),
        *PATIENT,
        *place.more,
    ]
    home = place.directory
    return Launch(
        broker_command(home=home, libraries=jars, heap="2g", heap_at_start="2g"),
        broker_files(port=place.port, ha_port=place.spare_port, data=home / "data", settings=settings),
        broker_environment(home),
    )


def kafka_launch(jars: Path, place: Place) -> Launch:
    """One node that is broker and controller; its log is synced by the kernel, or with each batch."""
    lines = [
        *("process.roles=broker,controller", "node.id=1", f"log.dirs={place.directory}/data"),
        f"controller.quorum.voters=1@127.0.0.1:{place.spare_port}",
        f"listeners=PLAINTEXT://127.0.0.1:{place.port},CONTROLLER://127.0.0.1:{place.spare_port}",
        "controller.listener.names=CONTROLLER",
        *("num.network.threads=1", "num.io.threads=2", "num.partitions=1", "log.retention.ms=-1"),
        *("offsets.topic.replication.factor=1", "offsets.topic.num.partitions=1"),
        *("transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1"),
        "group.initial.rebalance.delay.ms=0",
        *(["log.flush.interval.messages=1"] if place.is_durable else []),
        *place.more,
    ]
    file = place.directory / "server.properties"
    command = ["java", "-Xms1g", "-Xmx1g", "-cp", f"{jars}/*", "kafka.Kafka", str(file)]
    return Launch(
        command,
        {
            file.name: "\n".join(lines) + "\n",
            # What its storage tool writes.
            "data/meta.properties": "version=1\nnode.id=1\ncluster.id=cGVlcnBlZXJwZWVycGVlcg\n",
        },
    )


def nats_launch(program: Path, place: Place) -> Launch:
    """JetStream in files."""
    file = place.directory / "nats.conf"
    text = nats_configuration(place, client_port=place.port)
    return Launch([str(program), "-c", str(file)], {file.name: text})


REDIS: Final = Peer(
    name="redis",
    title="Redis Streams",
    source=Installed("redis-server", "redis-server"),
    launch=redis_launch,
    settings={
        FAST: "append-only file, synced every second",
        DURABLE: "append-only file, synced before each answer",
    },
)
ROCKETMQ: Final = Peer(
    name="rocketmq",
    title="RocketMQ 4.9.7",
    source=Jars(("org.apache.rocketmq:rocketmq-broker:4.9.7",)),
    launch=rocketmq_launch,
    settings={FAST: "asynchronous flush", DURABLE: "synchronous flush"},
    # Of replication, and a second one for clients.
    ports_beside=(1, -2),
)
KAFKA: Final = Peer(
    name="kafka",
    title=f"Kafka {KAFKA_VERSION}",
    source=Jars(
        (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}")
    ),
    launch=kafka_launch,
    settings={FAST: "the kernel writes its log when it likes", DURABLE: "synced with each batch"},
)
NATS: Final = Peer(
    name="nats",
    title="NATS JetStream 2.15",
    source=NATS_SOURCE,
    launch=nats_launch,
    settings={
        FAST: "files, synced every two minutes",
        DURABLE: "files, synced before each acknowledgement",
    },
)

PEERS: Final = {peer.name: peer for peer in (REDIS, ROCKETMQ, KAFKA, NATS)}
