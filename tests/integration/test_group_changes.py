"""Deleting groups (207), moving them by time (222, 220) and cloning their offsets (314), over the wire."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from broker_site import WAIT_S, Site
from eventually import soon

from iotmq.broker.replies import sliced_reply
from iotmq.errors import ConnectionClosedError
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import LanguageCode, RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection

RESET = {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.start()
    yield site
    await site.stop()


class Member:
    """A consumer of group g that keeps what the broker tells it."""

    def __init__(self, connection: ClientConnection, told: list[Command]) -> None:
        self.connection = connection
        self.told = told

    @classmethod
    async def join(cls, site: Site, name: str, *, language: int = 0, version: int = 409) -> Member:
        told: list[Command] = []
        connection = await ClientConnection.connect(
            "127.0.0.1", site.broker.port, on_request=lambda _, request: told.append(request)
        )
        subscription = {"topic": "T", "subString": "*", "subVersion": 1}
        group = {
            "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription],
        }  # fmt: skip
        heartbeat = Command.request(
            RequestCode.HEART_BEAT, {}, json.dumps({"clientID": name, "consumerDataSet": [group]}).encode()
        )
        heartbeat.language, heartbeat.version = language, version
        assert (await connection.request(heartbeat, timeout_s=WAIT_S)).code == 0
        return cls(connection, told)

    async def reset(self) -> Command:
        """The order to move, once it came."""
        found: list[Command] = []

        def has_come() -> bool:
            found[:] = [told for told in self.told if told.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET]
            return bool(found)

        await soon(has_come, "the member is told", within_s=WAIT_S)
        return found[0]


def offsets_of(body: bytes) -> dict[int, int]:
    table: dict[str, Any] = json.loads(lenient_json.standard_json(body))["offsetTable"]
    return {json.loads(queue)["queueId"]: offset for queue, offset in table.items()}


async def test_live_members_are_told_and_keep_their_offsets_until_they_commit(site: Site) -> None:
    for _ in range(3):
        await site.send(b"x")
    site.broker.offsets.commit("g", "T", 0, 1)
    java = await Member.join(site, "java")
    cpp = await Member.join(site, "cpp", language=LanguageCode.CPP, version=63)
    response = await site.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET)
    assert response.code == 0
    assert offsets_of(response.body_bytes()) == {0: 3, 1: 0, 2: 0, 3: 0}
    order = await java.reset()
    assert order.is_oneway
    assert order.ext == {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}
    assert offsets_of(order.body_bytes()) == {0: 3, 1: 0, 2: 0, 3: 0}
    rows = json.loads((await cpp.reset()).body_bytes())["offsetTable"]
    assert rows[0] == {"brokerName": "broker-a", "offset": 3, "queueId": 0, "topic": "T"}
    assert len(rows) == 4
    assert site.broker.offsets.find("g", "T", 0) == 1
    for member in (java, cpp):
        await member.connection.close()


async def test_a_group_goes_to_a_time_and_forward_only_by_force(site: Site) -> None:
    times = []
    for _ in range(4):
        times.append(site.clock.now_ms())
        await site.send(b"x")
        site.clock.advance(10)
    site.broker.offsets.commit("g", "T", 0, 2)
    member = await Member.join(site, "c")

    async def moved(timestamp_ms: int, is_forced: str) -> int:
        response = await site.ask(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {**RESET, "timestamp": str(timestamp_ms), "isForce": is_forced},
        )
        return offsets_of(response.body_bytes())[0]

    assert await moved(times[1], "false") == 1
    assert await moved(times[3], "false") == 2
    assert await moved(times[3], "true") == 3
    assert await moved(0, "false") == 0
    await member.connection.close()


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({}, 206, "no live consumer"),
        ({"topic": "nobody"}, 1, "nobody"),
        ({"group": "a b"}, 1, "group"),
        ({"timestamp": "-2"}, 1, "timestamp"),
        ({"timestamp": None}, 1, "timestamp"),
        ({"isForce": "maybe"}, 1, "isForce"),
        ({"isForce": None}, 1, "isForce"),
    ],
)
async def test_a_reset_that_cannot_be_is_refused(
    site: Site, fields: dict[str, str | None], code: int, text: str
) -> None:
    await site.send(b"x")
    ext = {name: value for name, value in {**RESET, **fields}.items() if value is not None}
    response = await site.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
    assert response.code == code
    assert text in (response.remark or "")


async def test_members_too_old_to_be_moved_are_named(site: Site) -> None:
    await site.send(b"x")
    member = await Member.join(site, "ancient", version=27)
    response = await site.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET)
    assert response.code == 1
    assert "ancient" in (response.remark or "")
    await member.connection.close()


async def test_a_group_is_deleted_with_its_offsets_only_when_asked(site: Site) -> None:
    await site.send(b"x")
    site.broker.subscription_groups.find_or_create("g")
    site.broker.offsets.commit("g", "T", 0, 1)
    delete = RequestCode.DELETE_SUBSCRIPTION_GROUP
    assert (await site.ask(delete, {"groupName": "g"})).code == 0
    assert site.broker.subscription_groups.find("g") is None
    assert site.broker.offsets.find("g", "T", 0) == 1
    assert (await site.ask(delete, {"groupName": "g", "removeOffset": "true"})).code == 0
    assert site.broker.offsets.find("g", "T", 0) is None
    await site.stop()
    await site.start()
    assert site.broker.subscription_groups.find("g") is None


@pytest.mark.parametrize("name", ["TOOLS_CONSUMER", "a b", ""])
async def test_a_group_that_may_not_be_deleted_is_refused(site: Site, name: str) -> None:
    response = await site.ask(RequestCode.DELETE_SUBSCRIPTION_GROUP, {"groupName": name})
    assert response.code == 1


async def test_offsets_are_cloned_for_one_topic_or_all(site: Site) -> None:
    for topic in ("T", "U"):
        await site.send(b"x", b=topic)
        site.broker.offsets.commit("g", topic, 0, 1)
    site.broker.offsets.commit("g", "gone", 0, 1)
    clone = {"srcGroup": "g", "destGroup": "h", "topic": "T", "offline": "true"}
    assert (await site.ask(RequestCode.CLONE_GROUP_OFFSET, clone)).code == 0
    assert site.broker.offsets.find("h", "T", 0) == 1
    assert site.broker.offsets.find("h", "U", 0) is None
    del clone["topic"]
    assert (await site.ask(RequestCode.CLONE_GROUP_OFFSET, {**clone, "destGroup": "i"})).code == 0
    assert sorted(topic for topic, group in site.broker.offsets.each_pair() if group == "i") == ["T", "U"]
    del clone["srcGroup"]
    assert (await site.ask(RequestCode.CLONE_GROUP_OFFSET, clone)).code == 1


@pytest.mark.parametrize("has_left", [False, True])
async def test_offsets_of_many_topics_are_cloned_in_several_turns_also_for_one_who_does_not_wait(
    site: Site, monkeypatch: pytest.MonkeyPatch, has_left: bool
) -> None:
    monkeypatch.setattr(sliced_reply, "LoopSlice", OneStep)
    topics = {f"t{number}" for number in range(50)}
    for topic in topics:
        site.broker.topics.ensure(topic, queues=1)
        site.broker.offsets.commit("g", topic, 0, 7)

    def cloned() -> set[str]:
        return {topic for topic, group in site.broker.offsets.each_pair() if group == "h"}

    clone = Command.request(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "h"})
    connection = await ClientConnection.connect("127.0.0.1", site.broker.port)
    answer = connection.request(clone, timeout_s=WAIT_S)
    await soon(cloned, "some are cloned", step_s=0.0)
    assert len(cloned()) < len(topics)
    if has_left:
        await connection.close()
        with pytest.raises(ConnectionClosedError):
            await answer
    else:
        assert (await answer).code == 0
        await connection.close()
    await soon(lambda: cloned() == topics, "all are cloned")


class OneStep:
    """A slice of a turn with room for one step."""

    def __init__(self, **_: float) -> None:
        self._is_left = True

    def take(self) -> bool:
        is_left, self._is_left = self._is_left, False
        return is_left


async def test_offsets_of_an_unknown_topic_are_not_cloned(site: Site) -> None:
    clone = {"srcGroup": "g", "destGroup": "h", "topic": "nowhere", "offline": "true"}
    response = await site.ask(RequestCode.CLONE_GROUP_OFFSET, clone)
    assert response.code == 17
    assert "nowhere" in (response.remark or "")


async def test_only_topics_a_live_group_subscribes_to_are_cloned_unless_it_counts_as_offline(
    site: Site,
) -> None:
    for topic in ("T", "U"):
        await site.send(b"x", b=topic)
        site.broker.offsets.commit("g", topic, 0, 1)
    member = await Member.join(site, "c")
    for is_offline, target, topics in (("false", "h", ["T"]), ("true", "i", ["T", "U"])):
        ext = {"srcGroup": "g", "destGroup": target, "offline": is_offline}
        assert (await site.ask(RequestCode.CLONE_GROUP_OFFSET, ext)).code == 0
        assert sorted(topic for topic, group in site.broker.offsets.each_pair() if group == target) == topics
    await member.connection.close()
