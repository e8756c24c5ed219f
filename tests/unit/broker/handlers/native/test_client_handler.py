"""Clients: members of groups are told of changes, each connection once, very many over several turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_connection import FakeConnection
from transaction_bench import Bench, open_bench

from iotmq.broker.handlers.native import clients
from iotmq.broker.tables.subscription_groups import SubscriptionGroupConfig
from iotmq.event_loop import LoopSlice
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await open_bench(tmp_path)
    yield bench
    await bench.close()


@pytest.fixture(autouse=True)
def _no_end_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices end by their steps only: a pause of the machine moves nothing into a later turn."""
    monkeypatch.setattr(clients, "LoopSlice", lambda: LoopSlice(slice_s=60.0))


def join(bench: Bench, connection: FakeConnection, client_id: str, *groups: str) -> None:
    """Send the heartbeat of a consumer of groups."""
    consumers = [
        {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        }
        for group in groups
    ]
    body = json.dumps({"clientID": client_id, "consumerDataSet": consumers}).encode()
    bench.broker.requests.handle(connection, Command.request(RequestCode.HEART_BEAT, {}, body))  # type: ignore[arg-type]


def told(connection: FakeConnection) -> list[str]:
    """The groups whose changes a connection was told."""
    assert {said.code for said in connection.said} <= {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
    return [said.ext["consumerGroup"] for said in connection.said]


async def test_a_connection_of_several_members_is_told_once_of_a_change(bench: Bench) -> None:
    both, other = FakeConnection(), FakeConnection()
    join(bench, both, "one", "g")
    join(bench, both, "two", "g")
    assert told(both) == ["g", "g"]
    join(bench, other, "three", "g")
    assert (told(both), told(other)) == (["g"] * 3, ["g"])


async def test_groups_that_want_it_so_are_not_told(bench: Bench) -> None:
    bench.broker.subscription_groups.put(
        SubscriptionGroupConfig(group_name="quiet", notify_consumer_ids_changed_enable=False)
    )
    connection = FakeConnection()
    join(bench, connection, "one", "quiet", "g")
    assert told(connection) == ["g"]


async def test_very_many_members_are_told_over_several_turns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = [FakeConnection() for _ in range(25)]
    for number, connection in enumerate(connections):
        join(bench, connection, f"client {number}", "g")
    for connection in connections:
        connection.said.clear()

    def counts() -> list[int]:
        return [len(connection.said) for connection in connections]

    # A step of each slice begins a group.
    monkeypatch.setattr(clients, "LoopSlice", lambda: LoopSlice(11, slice_s=60.0))
    join(bench, connections[0], "one more", "g")
    assert counts() == [1] * 10 + [0] * 15
    # What changes now, twice, is told once when this round is over, also to those who had their turn.
    join(bench, connections[0], "two more", "g")
    join(bench, connections[0], "three more", "g")
    assert counts() == [1] * 10 + [0] * 15
    for _ in range(10):
        await asyncio.sleep(0)
    assert counts() == [2] * 25
