"""A replicated broker in processes of its own, with a real etcd: its masters change, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually
from kill_masters import Load, check, play
from replicated_cluster import ROOT, ReplicatedCluster

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (tools/setup.sh dev)"),
]

# Below those that tests take one by one; every file with a cluster has its own.
PORT = 16_100
DEVICES = 20
PAUSE_S = 0.01


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path / "cluster", port=PORT) as cluster:
        yield cluster


def command(cluster: ReplicatedCluster, *words: str) -> subprocess.CompletedProcess[str]:
    file = cluster.directory / "member-1.toml"
    return subprocess.run(
        [sys.executable, "-m", "iotmq", "replication", *words, "--config", str(file)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("how", "rounds"), [("kill", 3), ("hand-over", 3), ("stop", 1)])
def test_nothing_is_lost_when_the_master_changes(cluster: ReplicatedCluster, how: str, rounds: int) -> None:
    load = Load(cluster, DEVICES, PAUSE_S)
    load.start()
    try:
        play(cluster, load, how, rounds)
        load.end_publishing()
        eventually(
            lambda: load.received_count >= len({each[1:] for each in load.acknowledged}),
            "all is received",
            within_s=60.0,
        )
    finally:
        load.stop()
    assert load.acknowledged
    assert check(load)
    assert load.refused == 0
    assert load.disconnects == 0


def test_all_members_begin_again_with_what_they_had(cluster: ReplicatedCluster) -> None:
    load = Load(cluster, DEVICES, PAUSE_S)
    load.start()
    try:
        for _ in range(2):
            cluster.wait_in_sync()
            count = len(load.acknowledged)
            eventually(lambda count=count: len(load.acknowledged) > count + 100, "messages are stored")
            for part in cluster.members.values():
                part.signal(signal.SIGKILL)
            for part in cluster.members.values():
                part.start()
            cluster.wait_for_master()
        load.end_publishing()
        eventually(
            lambda: load.received_count >= len({each[1:] for each in load.acknowledged}),
            "all is received",
            within_s=60.0,
        )
    finally:
        load.stop()
    assert check(load)


def test_operators_see_and_change_the_master(cluster: ReplicatedCluster) -> None:
    cluster.wait_in_sync()
    shown = command(cluster, "status")
    assert shown.returncode == 0, shown.stderr
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["member", "1", "2", "3"]
    assert shown.stdout.count("yes") == 3
    other = next(number for number in cluster.members if number != cluster.master())
    moved = command(cluster, "hand-over", "--to", str(other))
    assert f"member {other} is master now" in moved.stdout, moved.stderr
    cluster.wait_in_sync()
    assert cluster.master() == other
    document = json.loads(command(cluster, "status", "--json").stdout)
    assert [row["role"] for row in document].count("leading") == 1
    refused = command(cluster, "force", "--member", str(other))
    assert refused.returncode == 1
    assert "hand-over" in refused.stderr
    cluster.members[other].signal(signal.SIGKILL)
    eventually(lambda: cluster.master() not in (None, other), "another member is master")
    gone = command(cluster, "status")
    assert "does not answer" in gone.stdout


def test_the_state_is_written_anew_when_the_consensus_store_has_lost_it(cluster: ReplicatedCluster) -> None:
    cluster.wait_in_sync()
    master = cluster.master()
    assert master is not None
    subprocess.run(
        ["etcdctl", "--endpoints", cluster.etcd_urls[0], "del", "--prefix", "/iotmq"],
        env={**os.environ, "ETCDCTL_API": "3"}, check=True, timeout=30,
    )  # fmt: skip
    eventually(
        lambda: any("adopt" in text for text in (cluster.status(master) or {"alarms": []})["alarms"]),
        "the master says what to do",
    )
    assert cluster.master() == master, "losing the consensus store stops nothing but elections"
    for part in cluster.members.values():
        part.signal(signal.SIGKILL)
    for part in cluster.members.values():
        part.start()
    eventually(
        lambda: all(
            any("adopt" in text for text in (cluster.status(number) or {"alarms": []})["alarms"])
            for number in cluster.members
        ),
        "all members wait for an operator",
    )
    only_said = command(cluster, "adopt")
    assert only_said.returncode == 1
    assert "--yes" in only_said.stdout
    done = command(cluster, "adopt", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    cluster.wait_in_sync()
