"""Members that have to begin with a copy of the master's data, as processes that are killed meanwhile."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_node import PROGRAM
from eventually import eventually
from gateway_process import free_ports
from process_pages import metric_at, page
from replicated_cluster import BROKER, CLUSTER, Part, ReplicatedCluster
from store_model import bodies_of

from iotmq.errors import ConnectionClosedError
from iotmq.message.hosts import encode_host
from iotmq.remoting.blocking import BlockingConnection
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.replicated.member_store import open_member_store
from iotmq.store.settings import StoreSettings

SEGMENT_BYTES = 4_194_304
BODY = "b" * 100_000
# Everything but the newest file is deleted at once, on members that may.
STORE = {
    "segment_bytes": SEGMENT_BYTES,
    "record_bytes_max": 262_144,
    "allocation_step_bytes": 65_536,
    "retention_hours": 0,
    "disk_delete_percent": 1,
    "retention_delay_ms": 0,
    "retention_interval_ms": 50,
    "delete_pause_ms": 0,
    "hot_bytes": 1_048_576,
}
# So slow that a process can be killed meanwhile.
SLOWLY = {"copy_bytes_per_s": 1_000_000}

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="etcd is not installed (tools/setup.sh dev)"),
]


class Cluster(ReplicatedCluster):
    """A cluster whose log soon begins behind position 0, and how many messages were acknowledged."""

    def __init__(self, directory: Path, replication: dict[str, int]) -> None:
        settings = {"store": STORE, "replication": replication}
        super().__init__(directory, port=free_ports(), front_ends=0, settings=settings)
        self.sent = 0

    def send(self, count: int) -> None:
        """Send messages to whoever is master, again until each is acknowledged."""
        target = self.sent + count
        while self.sent < target:
            host, port = self.addresses[self.wait_for_master()]
            try:
                connection = BlockingConnection(host, port, 30)
                while self.sent < target and self._send(connection, self.sent):
                    self.sent += 1
                connection.close()
            except (ConnectionClosedError, OSError):
                pass

    def _send(self, connection: BlockingConnection, number: int) -> bool:
        fields = {"a": "pg", "b": "Alpha", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 7}
        fields |= {"i": f"UNIQ_KEY\x01K{number}", "j": 0, "k": "false", "m": "false"}
        request = Command.request(
            RequestCode.SEND_MESSAGE_V2, {name: str(value) for name, value in fields.items()}
        )
        request.version = 399
        request.body = f"{number} {BODY}".encode()
        return connection.request(request).code == 0

    def send_until_deleted(self, number: int, position: int = 0) -> int:
        """Send until a member's log begins behind a position; returns where it begins."""

        def oldest() -> int:
            self.send(40)
            status = self.status(number)
            return 0 if status is None or status["oldest"] <= position else status["oldest"]

        return eventually(oldest, f"the log of member {number} begins later", within_s=60)

    def follower(self) -> int:
        master = self.wait_for_master()
        return next(number for number in (3, 2, 1) if number != master)

    def replace_disk(self, number: int) -> None:
        member = self.members[number]
        if member.is_running:
            member.signal(signal.SIGKILL)
        shutil.rmtree(member.data)

    def check(self) -> None:
        """End the members. Their stores are in order, and have the same; nothing acknowledged is lost."""
        for member in self.members.values():
            member.signal(signal.SIGTERM)
            assert member.wait() == 0, member.log_text()[-4_000:]
        found = [self.numbers(number, member.data) for number, member in self.members.items()]
        for numbers in found:
            # What was not answered in time was sent again.
            assert sorted(set(numbers)) == list(range(numbers[0], self.sent)), "a message is lost"
        shortest = min(map(len, found))
        assert shortest > 0
        assert all(numbers[-shortest:] == found[0][-shortest:] for numbers in found)

    @staticmethod
    def numbers(member: int, directory: Path) -> list[int]:
        """The messages in a member's directory, whose store is in order."""
        opened = open_member_store(
            directory,
            StoreSettings(segment_bytes=SEGMENT_BYTES, allocation_step_bytes=65_536),
            cluster=CLUSTER,
            broker=BROKER,
            member=member,
            acknowledge_flushed=False,
            store_host=encode_host("127.0.0.1", 10_911),
        )
        # Members that stopped before the last of it was confirmed.
        opened.confirm(opened.log.end)
        assert opened.store.check() == []
        numbers = [int(body.split()[0]) for body in bodies_of(opened.store, "Alpha", 0)]
        opened.close()
        return numbers


def copies_of(member: Part) -> float:
    return metric_at(member.url, "iotmq_replication_copies")


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(tmp_path, getattr(request, "param", {})) as running:
        running.wait_in_sync()
        yield running
    for part in (*running.members.values(), *running.others):
        assert "Traceback" not in part.log_text(), part.log_text()[-8_000:]


def test_a_member_with_an_empty_disk_takes_a_copy_and_is_in_sync_again(cluster: Cluster) -> None:
    number = cluster.follower()
    cluster.send_until_deleted(cluster.wait_for_master())
    cluster.replace_disk(number)
    cluster.send(10)
    cluster.members[number].start()
    cluster.wait_in_sync()
    cluster.send(10)
    log = cluster.members[number].log_text()
    assert "this member has a copy of member" in log
    assert not (cluster.members[number].data / "copy").exists()
    cluster.check()


def test_a_member_that_was_away_too_long_takes_a_copy_and_keeps_what_it_had(cluster: Cluster) -> None:
    cluster.send(10)
    number = cluster.follower()
    member = cluster.members[number]
    member.signal(signal.SIGKILL)
    cluster.send_until_deleted(cluster.wait_for_master())
    member.start()
    cluster.wait_in_sync()
    (kept,) = (member.data / "replaced").iterdir()
    assert str(kept) in member.log_text()
    status = cluster.status(number)
    assert status is not None
    assert any(str(kept) in alarm for alarm in status["alarms"])
    cluster.send(10)
    # It may be master as well as any other.
    cluster.check()
    assert cluster.numbers(number, kept)[0] == 0


PLACES = (
    "copy-begun",
    "copy-half",
    "copy-whole",
    "copy-moving-out:3",
    "copy-moved-out",
    "copy-moving-in:3",
    "copy-moved-in",
)


def test_a_member_that_is_killed_anywhere_in_a_copy_takes_it_in_the_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start goes on where the last one was killed, and gets to the next place."""
    number = cluster.follower()
    member = cluster.members[number]
    cluster.send_until_deleted(cluster.wait_for_master())
    cluster.replace_disk(number)
    for place in PLACES:
        monkeypatch.setenv("IOTMQ_FAIL_POINT", place)
        member.start()
        assert member.wait() == -9, place
        cluster.send(5)
    monkeypatch.delenv("IOTMQ_FAIL_POINT")
    member.start()
    cluster.wait_in_sync()
    assert not (member.data / "copy").exists()
    cluster.check()


@pytest.mark.parametrize("cluster", [SLOWLY], indirect=True)
def test_a_copy_begins_anew_with_another_master_when_its_master_is_killed(cluster: Cluster) -> None:
    number = cluster.follower()
    master = cluster.wait_for_master()
    cluster.send_until_deleted(master)
    cluster.replace_disk(number)
    cluster.members[number].start()

    def is_in_the_middle() -> bool:
        status = cluster.status(number)
        return status is not None and status["role"] == "copying" and status["copy"]["bytes"] > 0

    eventually(is_in_the_middle, "it copies", within_s=30)
    status = cluster.status(number)
    assert status is not None
    assert f"copies the data of member {master}" in status["notReady"]
    assert page(f"{cluster.members[number].url}/readyz")[0] == 503
    cluster.members[master].signal(signal.SIGKILL)
    # Of three members one is left, which confirms nothing before the other has its copy.
    assert cluster.wait_for_master(other_than=master) != number
    cluster.members[master].start()
    cluster.wait_in_sync()
    assert "has not become whole" in cluster.members[number].log_text()
    cluster.send(5)
    cluster.check()


def test_the_log_is_held_back_only_while_a_copy_needs_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = cluster.follower()
    master = cluster.wait_for_master()
    oldest = cluster.send_until_deleted(master)
    cluster.replace_disk(number)
    # So slow that it takes longer than the rest.
    monkeypatch.setenv("IOTMQ_REPLICATION__COPY_BYTES_PER_S", "200000")
    cluster.members[number].start()
    monkeypatch.delenv("IOTMQ_REPLICATION__COPY_BYTES_PER_S")
    eventually(lambda: copies_of(cluster.members[master]) == 1, "it copies")
    held = cluster.status(master)
    assert held is not None
    cluster.send(100)
    status = cluster.status(master)
    assert status is not None
    assert status["oldest"] == held["oldest"] >= oldest
    assert list((cluster.members[master].data / "copies").iterdir())
    # Its connection ends with it.
    cluster.members[number].signal(signal.SIGKILL)
    cluster.send_until_deleted(master, held["oldest"])
    assert copies_of(cluster.members[master]) == 0
    assert list((cluster.members[master].data / "copies").iterdir()) == []
    cluster.members[number].start()
    cluster.wait_in_sync()
    cluster.check()


def test_followers_delete_what_the_master_has_deleted(cluster: Cluster) -> None:
    master = cluster.wait_for_master()
    oldest = cluster.send_until_deleted(master)

    def have_followed() -> bool:
        statuses = [cluster.status(number) for number in cluster.members]
        return all(status is not None and status["oldest"] >= oldest for status in statuses)

    eventually(have_followed, "followers delete", within_s=30)
    cluster.wait_in_sync()
    cluster.check()
