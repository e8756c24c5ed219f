"""Pops that wait, ask or peek; and what bad requests get."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from pop_bench import Bench, popped

from iotmq import limits
from iotmq.broker.handlers.native.pop_acks import read_receipt
from iotmq.broker.handlers.native.request_modes import share_of
from iotmq.broker.pop.states import Place
from iotmq.broker.tables.subscription_groups import SubscriptionGroupConfig
from iotmq.errors import RequestError
from iotmq.message.records.record import iter_records
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path, held_pulls_max=3)
    await bench.start()
    yield bench
    await bench.close()


async def test_a_pop_waits_for_a_message_and_only_one_of_them_gets_it(bench: Bench) -> None:
    waiting = [bench.wait() for _ in range(3)]
    await bench.settle()
    assert not any(connection.replies for connection in waiting)
    bench.put(b"x")
    await bench.settle()
    assert [len(connection.replies) for connection in waiting] == [1, 0, 0]
    [message] = popped(waiting[0].replies[0])
    assert message.body == b"x"
    bench.move(10)
    await bench.settle()
    # Its time is over, and it is the next one's.
    assert sum(len(connection.replies) for connection in waiting) == 2
    bench.move(5)
    answers = [answer.code for connection in waiting for answer in connection.replies]
    assert sorted(answers) == [ResponseCode.SUCCESS, ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT]
    assert bench.store.queue("T", 0).watched == 0


async def test_a_pop_that_has_no_room_to_wait_is_told_so(bench: Bench) -> None:
    for _ in range(3):
        bench.wait(queueId="1")
    [answer] = bench.wait().replies
    assert (answer.code, answer.ext["restNum"]) == (ResponseCode.POLLING_FULL, "0")
    info = await bench.ask(RequestCode.POLLING_INFO, {"consumerGroup": "G", "topic": "T", "queueId": "1"})
    assert info.ext == {"pollingNum": "3"}


async def test_a_pop_in_order_that_waits_goes_on_when_the_holder_is_done(bench: Bench) -> None:
    bench.put(b"0", b"1", b"2")
    first = await bench.pop(order="true", queueId="0", maxMsgNums="2")
    waiting = bench.wait(order="true", queueId="0")
    await bench.ack(first[0])
    await bench.settle()
    assert not waiting.replies
    await bench.ack(first[1])
    await bench.settle()
    [message] = popped(waiting.replies[0])
    assert message.body == b"2"
    waiting = bench.wait(order="true", queueId="0")
    bench.put(b"3")
    await bench.settle()
    assert not waiting.replies
    assert await bench.ack_many(message) == 0
    await bench.settle()
    assert [each.body for each in popped(waiting.replies[0])] == [b"3"]


async def test_a_pop_that_waits_for_room_goes_on_when_something_is_done(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "POP_IN_FLIGHT_MAX", 2)
    bench.put(b"0", b"1", b"2")
    messages = await bench.pop()
    waiting = bench.wait()
    await bench.settle()
    assert not waiting.replies
    await bench.ack(messages[1])
    await bench.settle()
    assert [each.body for each in popped(waiting.replies[0])] == [b"2"]


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_a_group_that_is_gone_or_may_not_consume_gets_nothing_by_pops_that_wait(
    bench: Bench, is_deleted: bool
) -> None:
    waiting = bench.wait()
    if is_deleted:
        bench.broker.subscription_groups.delete("G")
    else:
        bench.broker.subscription_groups.put(SubscriptionGroupConfig(group_name="G", consume_enable=False))
    bench.put(b"x")
    await bench.settle()
    assert [answer.code for answer in waiting.replies] == [ResponseCode.POLLING_TIMEOUT]
    assert not is_deleted or bench.pops.find(Place("G", "T", 0)) is None


async def test_a_pop_that_waits_for_the_disk_finds_the_queues_that_there_are_then(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put(b"former")
    loaded: list[Callable[[OSError | None], None]] = []
    with monkeypatch.context() as cold:
        cold.setattr(bench.store, "plan_read", lambda *_, **__: object())
        cold.setattr(
            bench.broker.native._pop_requests,
            "_cold_reads",
            SimpleNamespace(start=lambda _, done: loaded.append(done)),
        )
        waiting = bench.wait()
    assert (await bench.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    bench.broker.topics.ensure("T", queues=4)
    [done] = loaded
    done(None)
    await bench.settle()
    bench.put(b"present", queue_id=3)
    await bench.settle()
    [message] = popped(waiting.replies[0])
    assert message.body == b"present"


async def test_a_lost_connection_waits_for_nothing_any_more(bench: Bench) -> None:
    connection = bench.wait()
    bench.broker.requests.connection_lost(connection)  # type: ignore[arg-type]
    bench.put(b"x")
    await bench.settle()
    assert not connection.replies
    assert len(await bench.pop()) == 1


async def test_a_question_is_answered_when_there_is_something_and_holds_nothing(bench: Bench) -> None:
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "-1", "pollTime": "0", "bornTime": "0"}
    answer = await bench.ask(RequestCode.NOTIFICATION, ext)
    assert answer.ext == {"hasMsg": "false", "pollingFull": "false"}
    bench.put(b"x")
    answer = await bench.ask(RequestCode.NOTIFICATION, ext)
    assert answer.ext == {"hasMsg": "true", "pollingFull": "false"}
    assert len(await bench.pop()) == 1
    answer = await bench.ask(RequestCode.NOTIFICATION, ext)
    assert answer.ext["hasMsg"] == "false"


async def test_who_peeks_sees_what_is_next_and_holds_nothing(bench: Bench) -> None:
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "0", "maxMsgNums": "2"}
    assert (await bench.ask(RequestCode.PEEK_MESSAGE, ext)).code == ResponseCode.PULL_NOT_FOUND
    bench.put(b"0", b"1", b"2")
    for _ in range(2):
        answer = await bench.ask(RequestCode.PEEK_MESSAGE, ext)
        assert answer.code == ResponseCode.SUCCESS
        assert isinstance(answer.body, list)
        assert [record.body for view in answer.body for record in iter_records(view)] == [b"0", b"1"]
    assert len(await bench.pop()) == 3
    assert (await bench.ask(RequestCode.PEEK_MESSAGE, ext)).code == ResponseCode.PULL_NOT_FOUND


async def test_who_peeks_waits_for_what_is_on_the_disk_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put(b"0", b"1")
    bench.put(b"2", queue_id=1)
    loaded: list[Callable[[OSError | None], None]] = []
    peeks = bench.broker.native._pop_requests
    monkeypatch.setattr(bench.store, "plan_read", lambda *_, **__: object())
    monkeypatch.setattr(peeks, "_cold_reads", SimpleNamespace(start=lambda _, done: loaded.append(done)))
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "-1", "maxMsgNums": "3"}
    asked = [asyncio.ensure_future(bench.ask(RequestCode.PEEK_MESSAGE, ext)) for _ in range(2)]
    await bench.settle()
    # Four times, and then the disk is read here.
    for number in range(4):
        assert len(loaded) == 2
        (good, bad), loaded[:] = loaded, []
        good(None)
        if number == 0:
            bad(OSError("broken"))
            refused = await asked[1]
            assert (refused.code, "broken" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
            loaded.append(lambda _: None)
        else:
            bad(None)
            loaded.append(lambda _: None)
    answer = await asked[0]
    assert isinstance(answer.body, list)
    assert [record.body for view in answer.body for record in iter_records(view)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": "2"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "-2"}, ResponseCode.SYSTEM_ERROR),
        ({"maxMsgNums": "0"}, ResponseCode.SYSTEM_ERROR),
        ({"invisibleTime": "0"}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": str(limits.POP_INVISIBLE_MS_MAX + 1)}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": str(limits.POP_INVISIBLE_MS_MAX)}, ResponseCode.POLLING_TIMEOUT),
        ({"expType": "SQL92", "exp": "a = "}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
async def test_a_pop_that_asks_for_what_cannot_be_is_told_so(
    bench: Bench, changes: dict[str, str], code: int
) -> None:
    answer = await bench.ask(RequestCode.POP_MESSAGE, bench.pop_ext(**changes))
    assert answer.code == code, answer.remark


async def test_a_oneway_pop_takes_nothing(bench: Bench) -> None:
    bench.put(b"x")
    request = Command.request(RequestCode.POP_MESSAGE, bench.pop_ext(), oneway=True)
    assert bench.broker.requests.handle(bench.connection, request) is None  # type: ignore[arg-type]
    assert len(await bench.pop()) == 1


@pytest.mark.parametrize(
    ("text", "is_good"),
    [
        ("3 1700 10 0 0 b 1 5", True),
        ("3 1700 10 0 0 b 1", True),
        ("3 1700 10 0 0 b 2 5", False),
        ("3 1700 10 0 0 b 1 6", False),
        ("3 x 10 0 0 b 1 5", False),
        ("3 -1 10 0 0 b 1 5", False),
        ("3 1700 10 0 0", False),
        ("", False),
        ("3 1700 10 0 0 " + "b" * (limits.POP_RECEIPT_BYTES_MAX - 18) + " 1 5", True),
        ("3 1700 10 0 0 " + "b" * (limits.POP_RECEIPT_BYTES_MAX - 17) + " 1 5", False),
    ],
)
def test_a_receipt_is_one_of_its_message_or_refused(text: str, is_good: bool) -> None:
    if is_good:
        assert read_receipt(text, queue_id=1, offset=5) == 1700
    else:
        with pytest.raises(RequestError, match="no receipt for offset 5"):
            read_receipt(text, queue_id=1, offset=5)


async def test_acknowledgements_in_one_request_have_their_limits(bench: Bench) -> None:
    def body(acks: int, bits_bytes: int) -> bytes:
        ack: dict[str, object] = {"c": "G", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1}
        ack["b"] = base64.b64encode(bytes(bits_bytes)).decode()
        return json.dumps({"brokerName": "b", "acks": [ack] * acks}).encode()

    for acks, bits_bytes, is_taken in (
        (limits.POP_ACKS_MAX, 1, True),
        (limits.POP_ACKS_MAX + 1, 1, False),
        (1, limits.POP_ACK_BITS_BYTES_MAX, True),
        (1, limits.POP_ACK_BITS_BYTES_MAX + 2, False),
    ):
        answer = await bench.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body(acks, bits_bytes))
        assert (answer.code == ResponseCode.SUCCESS) == is_taken, answer.remark
    zeros = base64.b64encode(bytes(limits.POP_ACK_BITS_BYTES_MAX))
    ones = base64.b64encode(b"\xff" * (limits.POP_ACKED_MAX // 8) + bytes(limits.POP_ACK_BITS_BYTES_MAX // 2))
    more = base64.b64encode(b"\x01" + bytes(limits.POP_ACK_BITS_BYTES_MAX - 1))
    assert len(zeros) == len(ones) == len(more)
    full = body(1, limits.POP_ACK_BITS_BYTES_MAX).replace(zeros, ones)
    answer = await bench.ask(RequestCode.BATCH_ACK_MESSAGE, {}, full)
    assert answer.code == ResponseCode.NO_MESSAGE
    full = body(2, limits.POP_ACK_BITS_BYTES_MAX).replace(zeros, ones, 1).replace(zeros, more)
    answer = await bench.ask(RequestCode.BATCH_ACK_MESSAGE, {}, full)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    answer = await bench.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body(1, 1).replace(b"AA==", b"A"))
    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_brokers_share_queues_as_clients_do() -> None:
    queues, members = list(range(8)), ["a", "b", "c"]
    assert [share_of(queues, members, member, "AVG") for member in members] == [
        [0, 1, 2], [3, 4, 5], [6, 7],
    ]  # fmt: skip
    assert share_of(queues, members, "b", "AVG_BY_CIRCLE") == [1, 4, 7]
    assert share_of(queues, members, "d", "AVG") == []
    with pytest.raises(RequestError, match="brokers do not know"):
        share_of(queues, members, "a", "MACHINE_ROOM")
