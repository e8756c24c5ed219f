"""A replicated broker in processes of its own, with a real etcd: its masters change, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from eventually import eventually
from gateway_process import free_ports
from kill_masters import Load, check, play
from replicated_cluster import ROOT, ReplicatedCluster

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (tools/setup.sh dev)"),
]

DEVICES = 20
PAUSE_S = 0.01
# Messages are acknowledged for so long before and after a change.
SETTLE_S = 0.2


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    directory = tmp_path_factory.mktemp("members") / "cluster"
    with ReplicatedCluster(directory, port=free_ports()) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: ReplicatedCluster) -> Iterator[ReplicatedCluster]:
    """All members are in sync; those a test has killed are started again."""
    running.wait_in_sync()
    yield running
    for part in running.members.values():
        if not part.is_running:
            part.start()


def command(cluster: ReplicatedCluster, *words: str) -> subprocess.CompletedProcess[str]:
    file = cluster.directory / "member-1.toml"
    return subprocess.run(
        [sys.executable, "-m", "iotmq", "replication", *words, "--config", str(file)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_operators_see_and_change_the_master(cluster: ReplicatedCluster) -> None:
    # The first of the tests: nothing has happened yet that a line of its own would tell of.
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


@contextmanager
def loaded(cluster: ReplicatedCluster, name: str) -> Iterator[Load]:
    """A load, of which nothing is lost."""
    load = Load(cluster, DEVICES, PAUSE_S, name=name)
    load.start()
    try:
        yield load
        load.end_publishing()
    finally:
        load.stop()
    assert load.acknowledged
    assert check(load)


def test_nothing_is_lost_when_the_master_changes(cluster: ReplicatedCluster) -> None:
    """For long: make cluster-kill."""
    with loaded(cluster, "changes") as load:
        for how, rounds in (("kill", 2), ("hand-over", 2), ("stop", 1)):
            play(cluster, load, how, rounds, settle_s=SETTLE_S)
    assert load.refused == 0
    assert load.disconnects == 0


def test_all_members_begin_again_with_what_they_had(cluster: ReplicatedCluster) -> None:
    with loaded(cluster, "beginnings") as load:
        for _ in range(2):
            cluster.wait_in_sync()
            count = len(load.acknowledged)
            eventually(lambda count=count: len(load.acknowledged) > count + 100, "messages are stored")
            for part in cluster.members.values():
                part.signal(signal.SIGKILL)
            for part in cluster.members.values():
                part.start()
            cluster.wait_for_master()


def test_the_state_is_written_anew_when_the_consensus_store_has_lost_it(cluster: ReplicatedCluster) -> None:
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
