"""Queues added, frozen, drained and removed while a topic is in use (codes 30040 to 30044)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from broker_site import Site

from iotmq import limits
from iotmq.remoting.codes import RequestCode


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.start()
    site.broker.topics.ensure("T", queues=4)
    yield site
    await site.stop()


async def change(site: Site, code: int, **fields: str) -> dict[str, Any]:
    response = await site.ask(code, {"topic": "T", **fields})
    assert response.code == 0, response.remark
    state: dict[str, Any] = json.loads(response.body_bytes())
    return state


async def refused(site: Site, code: int, **fields: str) -> str:
    response = await site.ask(code, {"topic": "T", **fields})
    assert response.code == 1
    return response.remark or ""


def states(document: dict[str, Any]) -> str:
    """The first letters of all queues' states."""
    return "".join(queue["state"][0] for queue in document["queues"])


async def test_queues_are_added_and_take_messages_at_once(site: Site) -> None:
    state = await change(site, RequestCode.ADD_QUEUES, queueNums="6")
    assert (state["readQueueNums"], state["writeQueueNums"], states(state)) == (6, 6, "oooooo")
    await site.send(b"new", e="5")
    assert await site.bodies(5) == [b"new"]


async def test_a_frozen_queue_takes_nothing_and_is_still_read(site: Site) -> None:
    await site.send(b"before", e="1")
    state = await change(site, RequestCode.FREEZE_QUEUES, queueIds="1")
    assert (state["writeQueueNums"], states(state)) == (4, "ofoo")
    response = await site.send(b"after", e="1")
    assert response.ext["queueId"] == "2"
    assert await site.bodies(1) == [b"before"]
    assert await site.bodies(2) == [b"after"]
    for number in range(20):
        assert (await site.send(b"%d" % number, e="-1")).ext["queueId"] != "1"
    assert await site.bodies(1) == [b"before"]


async def test_what_was_meant_for_one_frozen_queue_stays_in_order(site: Site) -> None:
    await change(site, RequestCode.FREEZE_QUEUES, queueIds="0,3")
    for number in range(6):
        await site.send(b"%d" % number, e="3")
    taking = [queue_id for queue_id in range(4) if await site.bodies(queue_id)]
    assert len(taking) == 1
    assert await site.bodies(taking[0]) == [b"%d" % number for number in range(6)]


async def test_a_delayed_message_for_a_queue_frozen_meanwhile_goes_to_another(site: Site) -> None:
    await site.send(b"later", e="3", i="DELAY\x011\x02")
    await change(site, RequestCode.FREEZE_QUEUES, queueIds="3")
    await change(site, RequestCode.REMOVE_QUEUES, queueNums="3")
    site.clock.advance(2)
    site.broker.expire()
    found = [body for queue_id in range(3) for body in await site.bodies(queue_id)]
    assert found == [b"later"]


async def test_write_queues_end_behind_the_last_open_one(site: Site) -> None:
    state = await change(site, RequestCode.FREEZE_QUEUES, queueIds="2,3")
    assert (state["readQueueNums"], state["writeQueueNums"], states(state)) == (4, 2, "ooff")
    state = await change(site, RequestCode.THAW_QUEUES, queueIds="3")
    assert (state["writeQueueNums"], states(state)) == (4, "oofo")


async def test_a_queue_is_drained_when_every_group_consumed_it(site: Site) -> None:
    for group in ("g", "h"):
        site.broker.offsets.commit(group, "T", 0, 0)
    await site.send(b"x", e="3")
    await change(site, RequestCode.FREEZE_QUEUES, queueIds="3")
    assert "not drained" in await refused(site, RequestCode.REMOVE_QUEUES, queueNums="3")
    site.broker.offsets.commit("g", "T", 3, 1)
    (last,) = (await change(site, RequestCode.GET_QUEUE_STATES))["queues"][3:]
    assert last["behind"] == {"g": 0, "h": 1}
    assert not last["isDrained"]
    assert "group h has 1 messages to go" in await refused(site, RequestCode.REMOVE_QUEUES, queueNums="3")
    site.broker.offsets.commit("h", "T", 3, 1)
    state = await change(site, RequestCode.REMOVE_QUEUES, queueNums="3")
    assert (state["readQueueNums"], state["writeQueueNums"], states(state)) == (3, 3, "ooo")


async def test_a_removed_queue_says_where_it_ends_while_its_messages_are_there(site: Site) -> None:
    await site.send(b"x", e="3")
    await change(site, RequestCode.FREEZE_QUEUES, queueIds="2,3")
    await change(site, RequestCode.REMOVE_QUEUES, queueNums="2", isForce="true")
    ends = []
    for queue_id in ("1", "2", "3", "4", "-1"):
        for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
            answer = await site.ask(code, {"topic": "T", "queueId": queue_id})
            ends.append(answer.ext.get("offset") if answer.code == 0 else answer.code)
    # Of 2 nothing was ever stored, and 4 never was.
    assert ends == ["0", "0", 22, 22, "0", "1", 22, 22, 22, 22]
    assert (await site.ask(RequestCode.GET_MAX_OFFSET, {"topic": "U", "queueId": "0"})).code == 17


async def test_messages_nobody_consumes_keep_a_queue_unless_forced(site: Site) -> None:
    await site.send(b"x", e="3")
    await change(site, RequestCode.FREEZE_QUEUES, queueIds="3")
    assert "no group consumes" in await refused(site, RequestCode.REMOVE_QUEUES, queueNums="3")
    await change(site, RequestCode.REMOVE_QUEUES, queueNums="3", isForce="true")
    state = await change(site, RequestCode.ADD_QUEUES, queueNums="4")
    assert states(state) == "oooo"
    assert await site.bodies(3) == [b"x"]


async def test_an_open_queue_is_not_removed_even_by_force(site: Site) -> None:
    remark = await refused(site, RequestCode.REMOVE_QUEUES, queueNums="3", isForce="true")
    assert "freeze them first" in remark


async def test_frozen_queues_stay_frozen_through_a_restart_and_an_update_of_the_topic(site: Site) -> None:
    await change(site, RequestCode.FREEZE_QUEUES, queueIds="1")
    await site.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        {
            "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        },
    )  # fmt: skip
    await site.stop(as_crash=True)
    await site.start()
    assert states(await change(site, RequestCode.GET_QUEUE_STATES)) == "ofoo"
    assert (await site.send(b"x", e="1")).ext["queueId"] != "1"


@pytest.mark.parametrize(
    ("code", "fields", "text"),
    [
        (RequestCode.ADD_QUEUES, {"queueNums": "3"}, "freeze and remove"),
        (RequestCode.ADD_QUEUES, {"queueNums": str(limits.QUEUES_PER_TOPIC_MAX + 1)}, "may grow to 1024"),
        (RequestCode.ADD_QUEUES, {}, "queueNums"),
        (RequestCode.FREEZE_QUEUES, {"queueIds": "4"}, "queues 0 to 3"),
        (RequestCode.FREEZE_QUEUES, {"queueIds": "0,1,2,3"}, "leave one open"),
        (RequestCode.FREEZE_QUEUES, {"queueIds": "a"}, "queueIds"),
        (RequestCode.FREEZE_QUEUES, {"queueIds": ""}, "queueIds"),
        (RequestCode.FREEZE_QUEUES, {"queueIds": "1," * 3_000}, "queueIds"),
        (RequestCode.FREEZE_QUEUES, {"queueIds": "9" * 5_000}, "queueIds"),
        (RequestCode.THAW_QUEUES, {"queueIds": "9"}, "queues 0 to 3"),
        (RequestCode.REMOVE_QUEUES, {"queueNums": "0"}, "keeps one"),
        (RequestCode.REMOVE_QUEUES, {"queueNums": "5"}, "has 4 queues"),
        (RequestCode.REMOVE_QUEUES, {"queueNums": "3", "isForce": "maybe"}, "isForce"),
        (RequestCode.ADD_QUEUES, {"topic": "TBW102", "queueNums": "9"}, "belongs to the broker"),
    ],
)
async def test_a_change_that_cannot_be_names_its_field(
    site: Site, code: int, fields: dict[str, str], text: str
) -> None:
    assert text in await refused(site, code, **fields)
    assert states(await change(site, RequestCode.GET_QUEUE_STATES)) == "oooo"


async def test_a_topic_grows_to_its_limit(site: Site) -> None:
    state = await change(site, RequestCode.ADD_QUEUES, queueNums=str(limits.QUEUES_PER_TOPIC_MAX))
    assert len(state["queues"]) == limits.QUEUES_PER_TOPIC_MAX


async def test_an_unknown_topic_is_17(site: Site) -> None:
    for code in range(RequestCode.GET_QUEUE_STATES, RequestCode.REMOVE_QUEUES + 1):
        assert (await site.ask(code, {"topic": "nobody"})).code == 17
