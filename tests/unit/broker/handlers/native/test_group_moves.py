"""Moving a group by way of its members: each connection is told once, with what was encoded once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_connection import FakeConnection
from transaction_bench import Bench, open_bench

from iotmq.broker.replies import sliced_reply
from iotmq.event_loop import LoopSlice
from iotmq.remoting.codes import LanguageCode, RequestCode
from iotmq.remoting.command import Command


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await open_bench(tmp_path)
    yield bench
    await bench.close()


def join(
    bench: Bench, connection: FakeConnection, client_id: str, language: LanguageCode = LanguageCode.JAVA
) -> None:
    consumer = {
        "groupName": "g",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
    }
    body = json.dumps({"clientID": client_id, "consumerDataSet": [consumer]}).encode()
    request = Command.request(RequestCode.HEART_BEAT, {}, body)
    request.language = language
    bench.broker.requests.handle(connection, request)  # type: ignore[arg-type]


async def test_all_members_are_told_what_was_encoded_once(bench: Bench) -> None:
    connections = [FakeConnection() for _ in range(20)]
    for number, connection in enumerate(connections):
        language = LanguageCode.CPP if number % 2 else LanguageCode.JAVA
        join(bench, connection, f"{number}", language)
        join(bench, connection, f"{number} again", language)
        connection.said.clear()
    for connection in connections:
        connection.said.clear()
    answer = bench.request(
        Command.request(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"},
        )
    )
    assert answer.code == 0
    told = [said for connection in connections for said in connection.said]
    assert [said.code for said in told] == [RequestCode.RESET_CONSUMER_CLIENT_OFFSET] * 20
    bodies = [said.body_bytes() for said in told]
    assert [body.startswith(b'{"offsetTable":[') for body in bodies] == [False, True] * 10
    assert len(set(map(id, bodies))) == 2


async def test_all_members_are_told_also_when_who_asked_goes_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = [FakeConnection() for _ in range(20)]
    for number, connection in enumerate(connections):
        join(bench, connection, f"{number}")
    # Each answer gets so many steps in a turn, and one more is for each queue and each member.
    monkeypatch.setattr(sliced_reply, "LoopSlice", lambda slice_s: LoopSlice(10, slice_s=60.0))
    asked = Command.request(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"},
    )
    assert bench.request(asked).code == -1, "there is no answer yet"
    told = [RequestCode.RESET_CONSUMER_CLIENT_OFFSET in {said.code for said in c.said} for c in connections]
    assert 0 < sum(told) < 20
    bench.broker.requests.connection_lost(bench.connection)  # type: ignore[arg-type]
    for connection in connections:
        assert [said.code for said in connection.said].count(RequestCode.RESET_CONSUMER_CLIENT_OFFSET) == 1
