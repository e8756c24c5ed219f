"""Clients of others at a replicated broker whose master is killed, comes back, and is handed over.

They keep the old address for up to 30 s, and the member there passes their requests on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cpp_process import cpp_marks, cpp_process
from eventually import eventually
from gateway_process import ROOT, free_ports
from java_process import java_marks, java_processes
from piped_client import PipedClient
from replicated_clients import ForeignLoad, numbers_by_queue
from replicated_cluster import ReplicatedCluster

from iotmq.client import ClientSettings, SyncAdmin, SyncClient
from iotmq.errors import BrokerError
from iotmq.remoting.codes import RequestCode

MODULES = ROOT / "build" / "interop" / "node" / "node_modules"
SCRIPT = Path(__file__).parent / "node" / "ali_ons_client.js"

pytestmark = [
    *java_marks,
    *cpp_marks,
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (tools/setup.sh dev)"),
    pytest.mark.skipif(
        not (MODULES / "ali-ons").is_dir(), reason="ali-ons is not installed (tools/setup.sh dev, with npm)"
    ),
]

KINDS = ("java", "cpp", "ons")
# How long nothing is acknowledged once the killed master is back, or handed over. The C++ client waits 5 s
# for what was in flight when its connection ended; the rest is for a machine that is busy.
GAP_S_MAX = 15.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """It asks about transactions every half second, from a second on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IOTMQ_BROKER__TRANSACTION_TIMEOUT_S", "1")
        patch.setenv("IOTMQ_BROKER__TRANSACTION_CHECK_INTERVAL_S", "0.5")
        patch.setenv("IOTMQ_BROKER__TRANSACTION_CHECKS_MAX", "200")
        directory = tmp_path_factory.mktemp("cluster")
        with ReplicatedCluster(directory, port=free_ports(), front_ends=0) as running:
            running.wait_in_sync()
            with SyncClient(ClientSettings(registries=running.registries)) as client:
                for topic in (*KINDS, "Orders"):
                    SyncAdmin(client).create_topic(topic, queues=4)
            yield running


def hand_over(cluster: Any) -> int:
    """Have another member made master; what is asked for may not be possible at the moment."""
    master = cluster.wait_for_master()

    def is_done() -> bool:
        # Refused as well when it is done already.
        with contextlib.suppress(BrokerError):
            asyncio.run(cluster.connector.request(master, RequestCode.HAND_OVER, timeout_s=5.0))
        return cluster.master() not in (None, master)

    eventually(is_done, "the master hands over", step_s=0.5)
    return int(master)


def kill(cluster: Any) -> int:
    """Kill the master, and start it again when there is another one."""
    master = cluster.wait_for_master()
    cluster.members[master].signal(signal.SIGKILL)
    cluster.wait_for_master(other_than=master)
    cluster.members[master].start()
    cluster.members[master].wait_ready()
    return int(master)


def test_nothing_acknowledged_is_lost_and_order_is_kept(cluster: Any, tmp_path: Path) -> None:
    registries = ";".join(cluster.registries)
    environment = {**os.environ, "HOME": str(tmp_path), "NODE_PATH": str(MODULES)}
    # It takes one registry.
    node = ["node", str(SCRIPT), cluster.registries[0], "defaults"]
    with (
        java_processes(tmp_path / "java", registries) as javas,
        cpp_process(registries, tmp_path / "cpp") as cpp,
        PipedClient(node, directory=tmp_path / "ons", environment=environment) as ons,
    ):
        java, consumer = javas.start("JavaClient"), javas.start("JavaClient")
        for kind in KINDS:
            # The time of the library itself after a pull that has failed.
            consumer.call("push", group=f"java-{kind}", topic=kind, pull_again_ms=3_000)
        consumer.call("push", group="java-orderly", topic="java", orderly=True, pull_again_ms=3_000)
        cpp.call("push", group="cpp-group", topic="cpp")
        ons.call("push", group="ons-group", topic="ons")
        loads = [
            ForeignLoad(kind, client, kind) for kind, client in zip(KINDS, (java, cpp, ons), strict=True)
        ]
        for load in loads:
            load.start()
        eventually(lambda: all(load.count > 20 for load in loads), "all send", within_s=60)
        gaps = []
        for change in (kill, hand_over):
            cluster.wait_in_sync()
            begun_s = time.monotonic()
            change(cluster)
            ready_s = time.monotonic()
            counts = {load.kind: load.count for load in loads}
            eventually(
                lambda counts=counts: all(load.count > counts[load.kind] + 3 for load in loads),
                "sends go on",
                within_s=GAP_S_MAX,
            )
            end_s = time.monotonic()
            gaps.append(
                (change.__name__, {load.kind: round(load.gap_s(begun_s, end_s), 2) for load in loads})
            )
            assert all(load.gap_s(ready_s, end_s) <= GAP_S_MAX for load in loads), gaps
        for load in loads:
            load.stop()
        print(gaps)
        by_group = {
            **{f"java-{kind}": (consumer, {"group": f"java-{kind}"}) for kind in KINDS},
            "java-orderly": (consumer, {"group": "java-orderly"}),
            "cpp-group": (cpp, {}),
            "ons-group": (ons, {}),
        }
        for group, (client, words) in by_group.items():
            kind = group.split("-")[1] if group.startswith("java") else group.split("-")[0]
            load = next(each for each in loads if each.kind == ("java" if kind == "orderly" else kind))
            eventually(
                lambda client=client, words=words, load=load: (
                    load.bodies <= {line["body"] for line in client.said("message", **words)}
                ),
                f"{group} got everything",
                within_s=60,
            )
        orderly = numbers_by_queue(consumer.said("message", group="java-orderly"), "java")
        assert all(numbers == sorted(numbers) for numbers in orderly.values())
        # Each error was the client's own about a member that was away, or one request that was in flight.
        assert all(not load.not_ok for load in loads)
        born = {line["born_port"] for line in consumer.said("message", group="java-java")}
        members = {address[1] for address in cluster.connector.members.values()}
        assert born
        assert not born & members


def test_a_transaction_ends_at_the_next_master(cluster: Any, tmp_path: Path) -> None:
    """The producer has the old address: it ends one by it, and is asked about the other one."""
    cluster.wait_in_sync()
    with java_processes(tmp_path / "java", ";".join(cluster.registries)) as javas:
        producer, consumer = javas.start("JavaClient"), javas.start("JavaClient")
        producer.call("transaction_producer", group="orders", heartbeat_ms=1_000)
        consumer.call("push", group="billing", topic="Orders", pull_again_ms=3_000)

        def in_transaction(body: str, execute: str, **words: Any) -> None:
            producer.call(
                "send_in_transaction", group="orders", topic="Orders", body=body, execute=execute, **words
            )

        in_transaction("first", "COMMIT_MESSAGE")
        in_transaction("asked about", "UNKNOW", check="UNKNOW")
        hand_over(cluster)
        in_transaction("second", "COMMIT_MESSAGE")
        # The next master asks a producer that came by the former one.
        in_transaction("third", "UNKNOW", check="COMMIT_MESSAGE")
        for body in ("first", "second", "third"):
            consumer.wait_for("message", 1, body=body)
        assert producer.said("check", body="third")
