"""Acknowledged by two: RocketMQ 4.9's sync master and slave, and iotmq in the same roles and elected.

    .venv/bin/python -m benchmarks.replication_beside_rocketmq [--quick] [--rounds 5]

rocketmq   4.9.7, SYNC_MASTER and SLAVE, each a JVM with 2 GiB
static     iotmq, the same two roles on the same wire
elected    iotmq, two members and an etcd

In every round each of them starts over an empty directory, in turns, and is measured by

single     single sends of 100 bytes, 500 in flight over 10 connections
batches    batches of 100 x 100 bytes, 32 in flight over one connection
again      the time from kill -9 of the master until a send is acknowledged. A master of fixed role is
           started again at once, as a watchdog would; of elected members the other one takes over.

Load and brokers share the cores. Every message must be in the queues of both in the end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, TypeAlias

from benchmarks import machine, peers
from benchmarks._wire_load import call, create_topic, frame, in_turn, pipeline, send_fields, stored_records
from benchmarks.broker_produce import BATCH_RECORDS, BODY, PROPERTIES, QUEUES
from benchmarks.peers.rocketmq import PATIENT
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import RequestCode

sys.path.insert(0, str(machine.ROOT / "tests" / "oracles"))
sys.path.insert(0, str(machine.ROOT / "deploy" / "cluster"))
from gateway_process import GatewayProcess
from java_process import JavaBroker
from replicated_cluster import ReplicatedCluster

PORT: Final = 22_200
SEGMENT_BYTES: Final = 1 << 30
_SERVED_AGAIN_S: Final = 60.0


class Pair(NamedTuple):
    """A running master and the one that copies it."""

    master_port: int
    copy_port: int
    master_process_id: int
    kill: Callable[[], None]
    """End the master at once."""
    go_on: Callable[[], int]
    """See to it that there is a master again, and return its port, which need not serve yet."""


Side: TypeAlias = Callable[[Path], contextlib.AbstractContextManager[Pair]]


@contextlib.contextmanager
def rocketmq(directory: Path) -> Iterator[Pair]:
    """RocketMQ's own brokers."""
    common = (f"mappedFileSizeCommitLog={SEGMENT_BYTES}", "maxHashSlotNum=5000000", "maxIndexNum=20000000")
    common += PATIENT
    master = JavaBroker(directory / "master", *common, "brokerRole=SYNC_MASTER", heap="2g", options=())
    # A Java broker replicates at the port behind its own, whatever haListenPort says.
    slave = JavaBroker(
        directory / "slave",
        *common, "brokerRole=SLAVE", "brokerId=1",
        f"haMasterAddress=127.0.0.1:{master.port + 1}",
        heap="2g",
        options=(),
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        stack.enter_context(master)
        stack.enter_context(slave)

        def go_on() -> int:
            master.launch()
            return master.port

        yield Pair(master.port, slave.port, master.process_id, master.kill, go_on)


@contextlib.contextmanager
def static(directory: Path) -> Iterator[Pair]:
    """The same roles of iotmq."""
    common = (f"store.segment_bytes={SEGMENT_BYTES}", "store.allocation_step_bytes=4194304")
    common += ("replication.mode=static", "broker.registries=[]")
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(
            GatewayProcess(directory / "master", *common, "replication.role=sync_master", role="broker")
        )
        address = f"127.0.0.1:{master.ports['broker'] + 1}"
        slave = stack.enter_context(
            GatewayProcess(
                directory / "slave",
                *common, "replication.role=slave", "replication.broker_id=1",
                f"replication.master_address={address}",
                role="broker",
            )
        )  # fmt: skip

        def go_on() -> int:
            master.launch()
            return master.ports["broker"]

        assert master.process is not None
        yield Pair(master.ports["broker"], slave.ports["broker"], master.process.pid, master.kill, go_on)


@contextlib.contextmanager
def elected(directory: Path) -> Iterator[Pair]:
    """Two elected members."""
    settings = {"store": {"segment_bytes": SEGMENT_BYTES}}
    with ReplicatedCluster(directory, port=PORT, members=2, front_ends=0, settings=settings) as cluster:
        first = cluster.wait_in_sync()
        master, copy = cluster.members[first], 3 - first
        ports = {number: port for number, (_host, port) in cluster.addresses.items()}

        def kill() -> None:
            master.signal(signal.SIGKILL)

        yield Pair(ports[first], ports[copy], master.process_id, kill, lambda: ports[copy])


SIDES: Final[dict[str, Side]] = {"rocketmq": rocketmq, "static": static, "elected": elected}


def measure(pair: Pair, case: str, records: int) -> dict[str, float]:
    """Store that many records in a topic of their own, and see that both have them."""
    topic = f"T-{case}"
    create_topic(pair.master_port, topic, QUEUES)
    is_batch = case == "batches"
    if is_batch:
        elements = encode_batch([(BODY, b"", 0)] * BATCH_RECORDS)
        fields = [{**send_fields(topic, number), "m": "true"} for number in range(QUEUES)]
        frames = [frame(RequestCode.SEND_BATCH_MESSAGE, one, elements) for one in fields]
        connections, in_flight, count = 1, 32, records // BATCH_RECORDS
    else:
        each = [send_fields(topic, number, PROPERTIES) for number in range(QUEUES)]
        frames = [frame(RequestCode.SEND_MESSAGE_V2, one, BODY) for one in each]
        connections, in_flight, count = 10, 500, records
    before_s = peers.exact_cpu_s(pair.master_process_id)
    took_s = pipeline(
        pair.master_port, in_turn(frames), connections=connections, in_flight=in_flight, count=count
    )
    used_s = peers.exact_cpu_s(pair.master_process_id) - before_s
    check_stored(pair.master_port, topic, records)
    check_stored(pair.copy_port, topic, records)
    return {f"{case}: messages/s": records / took_s, f"{case}: per processor second": records / used_s}


def check_stored(port: int, topic: str, records: int) -> None:
    """Wait until a broker has that many records in the queues of a topic."""
    deadline_s = time.monotonic() + 30.0
    found = -1
    while time.monotonic() < deadline_s:
        # A slave has no table of topics before it asked its master; the queues are there all the same.
        with contextlib.suppress(KeyError):
            found = stored_records(port, topic, QUEUES)
        if found == records:
            return
        time.sleep(0.05)
    raise AssertionError(f"{found} of {records} records of {topic} are at port {port}")


def served_again_s(pair: Pair, topic: str) -> float:
    """Kill the master; seconds until a send of a new client is acknowledged."""
    began_s = time.monotonic()
    pair.kill()
    port = pair.go_on()
    last: object = None
    while time.monotonic() < began_s + _SERVED_AGAIN_S:
        try:
            last = send(port, topic, timeout_s=1.0)
        except OSError as error:
            # Nobody listens yet, or somebody who does not answer yet.
            last = error
        # 11 and 12 say that it is stored, and not by the other one, which need not be back yet.
        if last in (0, 11, 12):
            return time.monotonic() - began_s
        time.sleep(0.002)
    raise AssertionError(f"no send was acknowledged again: {last}")


def send(port: int, topic: str, *, timeout_s: float = 10.0) -> int:
    """The code of the answer to one send."""
    fields = send_fields(topic, 0, PROPERTIES)
    return call(port, RequestCode.SEND_MESSAGE_V2, fields, BODY, timeout_s=timeout_s).code


def one_round(side: str, records: dict[str, int], number: int) -> dict[str, float]:
    """Start a pair, measure, and end it."""
    directory = machine.RESULTS / f"data-pair-{os.getpid()}-{number}-{side}"
    directory.mkdir(parents=True)
    try:
        with SIDES[side](directory) as pair:
            wait_until_copied(pair)
            machine.warm_page_cache(machine.RESULTS, 2 * sum(records.values()) * 360)
            found: dict[str, float] = {}
            for case, count in records.items():
                measure(pair, f"{case}-warm", count // 5)
                found |= measure(pair, case, count)
            return {**found, "again: s": served_again_s(pair, "T-single")}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def wait_until_copied(pair: Pair) -> None:
    """Wait until a send is answered with "stored by both"."""
    create_topic(pair.master_port, "T-ready", QUEUES)
    deadline_s = time.monotonic() + 30.0
    while time.monotonic() < deadline_s:
        if send(pair.master_port, "T-ready") == 0:
            return
        time.sleep(0.1)
    raise AssertionError("the copying broker is not there")


def main(words: Sequence[str] | None = None) -> int:
    """Print the medians of all sides."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replication_beside_rocketmq", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--side", choices=SIDES, action="append", help="only this one")
    options = parser.parse_args(words)
    rounds, share = (1, 10) if options.quick else (options.rounds, 1)
    records = {"single": 200_000 // share, "batches": 1_000_000 // share}
    about = machine.description()
    sides = options.side or list(SIDES)
    results: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides:
            results[side].append(one_round(side, records, number))
            print(f"round {number + 1}, {side}: {results[side][-1]}", flush=True)
    rows: list[list[str]] = []
    for name in results[sides[0]][0]:
        values = [median(found[name] for found in results[side]) for side in sides]
        rows.append([name, *(f"{value:,.2f}" if value < 100 else f"{value:,.0f}" for value in values)])
    print(machine.table(["median", *sides], rows))
    kept: dict[str, Any] = {"machine": about, "rounds": rounds, "results": results}
    machine.save("replication_beside_rocketmq", {"pairs": kept})
    return 0


if __name__ == "__main__":
    sys.exit(main())
