"""Pops that are made again because no answer came: the same attempt gets the same messages."""

from __future__ import annotations

import pytest
from pop_bench import Bench

from iotmq import limits
from iotmq.remoting.codes import RequestCode, ResponseCode

ORDERS = pytest.mark.parametrize("order", [{}, {"order": "true"}, {"isKeyOrdered": "true"}])


def put(bench: Bench, *numbers: int, queue_id: int = 0) -> None:
    for number in numbers:
        bench.put(b"%d" % number, queue_id=queue_id, KEYS=f"k{number}")


@ORDERS
async def test_the_same_attempt_gets_what_it_holds_again_as_if_for_the_first_time(
    bench: Bench, order: dict[str, str]
) -> None:
    put(bench, 0, 1, 2)
    put(bench, 3, 4, queue_id=1)
    first = await bench.pop(attemptId="one", **order)
    assert len(first) == 5
    # For the others nothing has changed.
    assert await bench.pop(attemptId="two", **order) == []
    await bench.ack(first[0])
    second = await bench.pop(attemptId="one", **order)
    assert sorted(each.body for each in second) == sorted(each.body for each in first[1:])
    assert {each.record.reconsume_times for each in second} == {0}
    assert await bench.ack(first[1]) == [ResponseCode.NO_MESSAGE]
    assert await bench.ack(*second) == [0] * 4


async def test_its_messages_come_before_those_that_are_ready_in_other_queues(bench: Bench) -> None:
    put(bench, 0)
    put(bench, 1, 2, 3, queue_id=1)
    [given] = await bench.pop(attemptId="one", queueId="-1", maxMsgNums="1")
    for _ in range(3):
        [again] = await bench.pop(attemptId="one", queueId="-1", maxMsgNums="1")
        assert (again.body, again.record.reconsume_times) == (given.body, 0)


async def test_what_was_moved_or_is_somebody_elses_stays_there(bench: Bench) -> None:
    put(bench, 0, 1)
    held, other = await bench.pop(attemptId="one")
    moved = await bench.change(held, 60_000)
    assert not isinstance(moved, int)
    bench.move(10)
    [somebody_elses] = await bench.pop(attemptId="two")
    assert (somebody_elses.body, somebody_elses.record.reconsume_times) == (other.body, 1)
    assert await bench.pop(attemptId="one") == []
    assert await bench.ack(moved, somebody_elses) == [0, 0]


async def test_after_a_restart_an_attempt_waits_for_its_time(bench: Bench) -> None:
    put(bench, 0)
    await bench.pop(attemptId="one")
    await bench.restart(is_killed=True)
    assert await bench.pop(attemptId="one") == []
    bench.move(10)
    [again] = await bench.pop(attemptId="one")
    assert again.record.reconsume_times == 1


async def test_a_group_that_was_set_back_meanwhile_begins_there(bench: Bench) -> None:
    put(bench, 0, 1)
    await bench.pop(attemptId="one", maxMsgNums="1")
    bench.broker.subscription_groups.delete("G")
    bench.group()
    bench.broker.offsets.forget_group("G")
    assert [each.body for each in await bench.pop(attemptId="one")] == [b"0", b"1"]


async def test_so_many_attempts_are_remembered_the_last_ones(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "POP_ATTEMPTS_MAX", 2)
    put(bench, 0, 1, 2)
    for name in ("one", "two", "three"):
        await bench.pop(attemptId=name, maxMsgNums="1")
    attempts = bench.broker.native._pop_requests._attempts
    assert len(attempts) == 2
    assert await bench.pop(attemptId="one") == []
    assert [each.body for each in await bench.pop(attemptId="two")] == [b"1"]
    # What has no time left is forgotten by the next one.
    bench.move(11)
    await bench.pop(attemptId="four", maxMsgNums="1")
    assert len(attempts) == 1


async def test_the_name_of_an_attempt_has_its_limit(bench: Bench) -> None:
    put(bench, 0)
    longest = "n" * limits.POP_ATTEMPT_ID_BYTES_MAX
    answer = await bench.ask(RequestCode.POP_MESSAGE, bench.pop_ext(attemptId=longest + "n"))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert len(await bench.pop(attemptId=longest)) == 1
    assert len(await bench.pop(attemptId=longest)) == 1
