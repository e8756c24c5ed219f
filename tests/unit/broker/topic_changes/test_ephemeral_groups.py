"""Ephemeral groups go with their last member, and with them all that is theirs; others stay."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import soon, until
from fake_connection import FakeConnection
from transaction_bench import HOST, Bench, open_bench

from iotmq.broker.tables.topics import EPHEMERAL_SUFFIX
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.message.properties import encode_properties
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command

GROUP = "dashboard" + EPHEMERAL_SUFFIX
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
QUEUE = {"consumerGroup": GROUP, "topic": "T", "queueId": "0"}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await open_bench(tmp_path)
    yield bench
    await bench.close()
    bench.broker.subscription_groups.check_invariants()


def join(bench: Bench, connection: FakeConnection, client_id: str = "c", group: str = GROUP) -> Command:
    """Send a heartbeat with a filter by property."""
    subscription = {"topic": "T", "subString": "a > 1", "subVersion": 1, "expressionType": "SQL92"}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    body = json.dumps({"clientID": client_id, "consumerDataSet": [consumer]}).encode()
    bench.connection, own = connection, bench.connection
    try:
        return bench.request(Command.request(RequestCode.HEART_BEAT, {}, body))
    finally:
        bench.connection = own


def leave(bench: Bench, connection: FakeConnection, client_id: str = "c", group: str = GROUP) -> None:
    request = Command.request(RequestCode.UNREGISTER_CLIENT, {"clientID": client_id, "consumerGroup": group})
    bench.broker.requests.handle(connection, request)  # type: ignore[arg-type]


def commit(bench: Bench, offset: int = 0) -> None:
    request = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, {**QUEUE, "commitOffset": str(offset)})
    assert bench.request(request).code == 0


def put(bench: Bench, topic: str) -> None:
    """Store a message."""
    bench.broker.topics.ensure(topic, queues=1)
    bench.writer.append(
        topic, 0, encode_element(b"x", b"", 0), born_timestamp_ms=1, born_host=HOST, done=lambda result: None
    )


def is_there(bench: Bench) -> bool:
    """Whether anything of the group is."""
    broker = bench.broker
    found = [
        broker.subscription_groups.find(GROUP) is not None,
        bool(broker.offsets.topics_of(GROUP)),
        broker.topics.find(RETRY) is not None,
        broker.topics.find(DEAD) is not None,
        any(data.consumer_group == GROUP for data in broker.native.filters.copied_entries()),
    ]
    assert any(found) in (all(found), any(found[:4]))
    return any(found)


async def test_a_group_goes_with_its_last_member_and_all_that_is_its_own(bench: Bench) -> None:
    one, other, plain = FakeConnection(), FakeConnection(), FakeConnection()
    join(bench, one)
    join(bench, other, "d")
    join(bench, plain, "p", "plain")
    commit(bench)
    put(bench, RETRY)
    put(bench, DEAD)
    pops = bench.broker.native._pops
    pops.set_mode(GROUP, "T", lambda refusal: None, is_popped=True)
    leave(bench, one)
    bench.broker.expire()
    assert is_there(bench)
    leave(bench, other, "d")
    leave(bench, plain, "p", "plain")
    await until(lambda: not is_there(bench))
    assert not pops.is_popped(GROUP, "T")
    # The deletion of its topics is on the disk, though nobody has asked for it.
    await soon(lambda: {RETRY, DEAD} <= _deleted(bench), "the file of deleted topics")
    assert bench.broker.subscription_groups.find("plain") is not None
    # Who comes later begins anew.
    assert bench.request(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, QUEUE)).code == (
        ResponseCode.QUERY_NOT_FOUND
    )
    join(bench, one)
    assert bench.broker.topics.find(RETRY) is not None
    assert bench.records(RETRY, 0) == []


def _deleted(bench: Bench) -> set[str]:
    path = bench.directory / "config" / "deletedTopics.json"
    return set(json.loads(path.read_bytes())["deletedTopics"]) if path.exists() else set()


async def test_a_lost_member_has_a_minute_to_come_back(bench: Bench) -> None:
    connection = FakeConnection()
    for is_back in (True, False):
        join(bench, connection)
        commit(bench)
        bench.broker.native._clients.connection_lost(connection)  # type: ignore[arg-type]
        bench.clock.advance(59)
        bench.broker.expire()
        assert is_there(bench)
        if is_back:
            join(bench, connection)
        bench.clock.advance(1)
        bench.broker.expire()
        await until(lambda: bool(bench.broker._admin._ephemeral._going) is False)
        assert is_there(bench) is is_back


async def test_members_find_their_offsets_after_a_restart_and_others_go(bench: Bench) -> None:
    join(bench, FakeConnection())
    commit(bench)
    bench.save_offsets()
    await bench.restart()
    assert bench.offsets.find(GROUP, "T", 0) == 0
    bench.clock.advance(59)
    bench.broker.expire()
    assert is_there(bench)
    bench.clock.advance(1)
    bench.broker.expire()
    await until(lambda: not is_there(bench))


async def test_what_a_crash_has_left_of_a_removal_goes_too(bench: Bench) -> None:
    bench.broker.topics.ensure(RETRY, queues=1)
    bench.broker.topics.ensure(EPHEMERAL_SUFFIX, queues=1)
    bench.offsets.commit("other" + EPHEMERAL_SUFFIX, "T", 0, 0)
    await bench.restart(is_killed=False)
    bench.clock.advance(60)
    bench.broker.expire()
    await until(lambda: bench.broker.topics.find(RETRY) is None and not bench.offsets.groups_of("T"))
    assert bench.broker.topics.find(EPHEMERAL_SUFFIX) is not None


async def test_offsets_of_a_group_that_never_had_a_member_go(bench: Bench) -> None:
    commit(bench)
    bench.clock.advance(60)
    bench.broker.expire()
    await until(lambda: not is_there(bench))


async def test_a_retry_that_is_due_when_the_group_has_gone_is_dropped(bench: Bench) -> None:
    join(bench, FakeConnection())
    waiting = bench.broker.timers.divert(
        RETRY, 0, encode_properties({"DELAY": "1"}), bench.broker.timers.read_delivery_time(b"DELAY\x011"),
        is_counted=False,
    )  # fmt: skip
    bench.writer.append(
        waiting.topic, waiting.queue_id, encode_element(b"late", waiting.properties, 0),
        born_timestamp_ms=1, born_host=HOST, done=lambda result: None,
    )  # fmt: skip
    connection = FakeConnection()
    join(bench, connection, "d")
    bench.broker.groups.connection_lost(connection)  # type: ignore[arg-type]
    for member in list(bench.broker.groups.consumer_group(GROUP).members):  # type: ignore[union-attr]
        bench.broker.groups._leave_consumers(GROUP, member, is_goodbye=True)
    await until(lambda: not is_there(bench))
    bench.clock.advance(5)
    bench.broker.expire()
    await until(lambda: bench.records(waiting.topic, waiting.queue_id) != [])
    bench.broker.expire()
    assert bench.records(RETRY, 0) == []
    assert bench.broker.topics.find(RETRY) is None


async def test_new_groups_begin_where_their_consumers_say(bench: Bench) -> None:
    """A queue whose messages are all there is read from its begin by other new groups."""
    put(bench, "T")
    ask = Command.request(RequestCode.QUERY_CONSUMER_OFFSET, QUEUE)
    assert bench.request(ask).code == ResponseCode.QUERY_NOT_FOUND
    other = Command.request(RequestCode.QUERY_CONSUMER_OFFSET, {**QUEUE, "consumerGroup": "plain"})
    assert bench.request(other).ext == {"offset": "0"}


async def test_topics_that_cannot_be_deleted_now_keep_their_group(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = FakeConnection()
    join(bench, connection)
    put(bench, RETRY)
    deleted = bench.broker.topics.deleted
    monkeypatch.setattr(deleted, "_topics_max", 0)
    leave(bench, connection)
    going = bench.broker._admin._ephemeral._going
    await until(lambda: not going)
    assert is_there(bench)
    monkeypatch.undo()
    bench.clock.advance(60)
    bench.broker.expire()
    await until(lambda: not is_there(bench))
