"""What was answered is known to the registries: topics made by a send, a tool or a heartbeat have a route."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_site import SEND, WAIT_S
from small_cluster import SmallCluster

from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection

MAKE = {
    "topic": "Made", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip
HEARTBEAT = json.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "cg"}]}).encode()
REQUESTS = {
    "New": Command.request(RequestCode.SEND_MESSAGE_V2, {**SEND, "b": "New"}, b"x"),
    "Made": Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, MAKE),
    "%RETRY%cg": Command.request(RequestCode.HEART_BEAT, {}, HEARTBEAT),
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SmallCluster]:
    # No registration but those for changes.
    async with SmallCluster(tmp_path, brokers=1, registration_interval_s=60) as cluster:
        yield cluster


@pytest.mark.parametrize("topic", list(REQUESTS))
async def test_a_topic_has_a_route_at_every_registry_once_the_request_that_made_it_is_answered(
    cluster: SmallCluster, topic: str
) -> None:
    broker = await ClientConnection.connect("127.0.0.1", cluster.brokers[0].port)
    assert (await broker.request(REQUESTS[topic], timeout_s=WAIT_S)).code == 0
    assert all(registry.routes.route(topic) is not None for registry in cluster.registries)
    await broker.close()


async def test_a_registry_that_is_gone_holds_nobody_up(cluster: SmallCluster) -> None:
    await cluster.registries[0].stop()
    broker = await ClientConnection.connect("127.0.0.1", cluster.brokers[0].port)
    for _ in range(2):
        assert (await broker.request(REQUESTS["New"], timeout_s=WAIT_S)).code == 0
    assert cluster.registries[1].routes.route("New") is not None
    await broker.close()


async def test_a_registry_that_hangs_holds_an_answer_up_for_a_limited_time(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    registration = cluster.brokers[0]._registration._registration
    assert registration is not None
    monkeypatch.setattr(registration.links[0], "_register", hang)
    monkeypatch.setattr("iotmq.broker.registration.registration._TOLD_S", 0.05)
    broker = await ClientConnection.connect("127.0.0.1", cluster.brokers[0].port)
    assert (await broker.request(REQUESTS["New"], timeout_s=WAIT_S)).code == 0
    # The stop of a broker does not wait for it, and answers.
    monkeypatch.setattr("iotmq.broker.registration.registration._TOLD_S", 60.0)
    answer = broker.request(REQUESTS["Made"], timeout_s=WAIT_S)
    await cluster.until(lambda: cluster.brokers[0].topics.find("Made") is not None)
    await registration.stop()
    assert (await answer).code == 0
    await broker.close()


async def test_a_oneway_send_that_makes_a_topic_is_stored_and_not_answered(cluster: SmallCluster) -> None:
    broker = await ClientConnection.connect("127.0.0.1", cluster.brokers[0].port)
    broker.send_oneway(
        Command.request(RequestCode.SEND_MESSAGE_V2, {**SEND, "b": "Quiet"}, b"x", oneway=True)
    )
    assert (
        await broker.request(Command.request(RequestCode.SEND_MESSAGE_V2, SEND, b"x"), timeout_s=WAIT_S)
    ).code == 0
    queue = cluster.stores[0].find_queue("Quiet", 0)
    assert queue is not None
    assert queue.max_offset == 1
    assert broker._traffic.responses_unmatched == 0
    await broker.close()
