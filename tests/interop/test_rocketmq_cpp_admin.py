"""The C++ client (PyPI rocketmq 0.4.4, as published) while operators scale its topics and move its groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cpp_process import cpp_marks, cpp_process
from eventually import eventually
from gateway_process import GatewayProcess
from piped_client import PipedClient

from iotmq.client import (
    Admin,
    ClientSettings,
    Message,
    SyncAdmin,
    SyncClient,
    SyncProducer,
)

pytestmark = cpp_marks


@pytest.fixture
def cpp(gateway: GatewayProcess, tmp_path: Path) -> Iterator[PipedClient]:
    with cpp_process(gateway.registry, tmp_path) as client:
        yield client


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[SyncClient]:
    with SyncClient(ClientSettings(registries=(gateway.registry,))) as client:
        yield client


def test_its_producers_send_on_while_queues_are_frozen_and_removed(
    cpp: PipedClient, client: SyncClient
) -> None:
    SyncAdmin(client).create_topic("CppScaled", queues=6)
    admin = Admin(client.asynchronous)
    cpp.call("producer", group="cpp-scaled")

    def send(name: str) -> None:
        messages = [{"topic": "CppScaled", "body": f"{name}-{number}"} for number in range(30)]
        assert {result["status"] for result in cpp.call("send", group="cpp-scaled", messages=messages)} == {0}

    def ends() -> list[int]:
        content = client.run(admin.statistics.topic_content("CppScaled"))
        return [held.max_offset for held in content.values()]

    send("before")
    before = ends()
    assert all(before)
    # One in the middle, which only we know how to leave alone, and the last two.
    client.run(admin.scaling.freeze("CppScaled", [1, 4, 5]))
    send("after")
    after = ends()
    assert [after[queue_id] - before[queue_id] for queue_id in (1, 4, 5)] == [0, 0, 0]
    assert sum(after) == 60
    client.run(admin.scaling.remove("CppScaled", 4, is_forced=True))
    send("later")
    assert sum(ends()) == 60 - after[4] - after[5] + 30


def test_its_push_consumers_go_where_they_are_told(cpp: PipedClient, client: SyncClient) -> None:
    SyncAdmin(client).create_topic("CppMoved", queues=2)
    admin = Admin(client.asynchronous)
    with SyncProducer(client) as producer:
        for number in range(10):
            producer.send(Message("CppMoved", b"%d" % number))
    cpp.call("push", group="cpp-moved", topic="CppMoved")
    cpp.wait_for("message", 10)
    eventually(
        lambda: client.run(admin.groups.progress("cpp-moved", "CppMoved")).behind == 0,
        "it has said that it consumed them",
        within_s=30,
    )
    moved = client.run(admin.changes.reset_offsets("cpp-moved", "CppMoved", 0))
    assert moved.is_live
    # The client drops what it has, waits ten seconds for what is under way, and commits.
    got = cpp.wait_for("message", 20, within_s=60)
    assert sorted(line["body"] for line in got) == sorted(2 * [str(number) for number in range(10)])
