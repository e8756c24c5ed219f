"""Consumption by message over a whole broker: one holder, times, restarts, offsets, modes, limits."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_connection import FakeConnection
from pop_bench import Bench, Popped, popped

from iotmq import limits
from iotmq.broker.pop.states import Place
from iotmq.broker.tables.topics import POP_TOPIC
from iotmq.broker.writing.message_writer import RefusedBatch
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command


def bodies(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


async def test_messages_of_all_queues_have_one_holder_each(bench: Bench) -> None:
    bench.put(*bodies(*range(50)))
    bench.put(*bodies(*range(50, 60)), queue_id=1)
    found = []
    for _ in range(4):
        found += await bench.pop(maxMsgNums="20")
    assert sorted(message.body for message in found) == sorted(bodies(*range(60)))
    assert await bench.pop() == []


async def test_acknowledged_messages_move_the_committed_offset_and_others_come_again(bench: Bench) -> None:
    bench.put(*bodies(0, 1, 2, 3))
    messages = await bench.pop(queueId="0")
    assert await bench.ack(messages[0], messages[2]) == [0, 0]
    assert bench.broker.offsets.find("G", "T", 0) == 1
    bench.move(10)
    again = await bench.pop()
    assert [(each.body, each.record.reconsume_times) for each in again] == [(b"1", 1), (b"3", 1)]
    # Somebody else has it now.
    assert await bench.ack(messages[1]) == [ResponseCode.NO_MESSAGE]
    assert await bench.ack(*again) == [0, 0]
    assert bench.broker.offsets.find("G", "T", 0) == 4
    # Done is done, whoever says it again.
    assert await bench.ack(*messages) == [0, 0, 0, 0]


async def test_many_are_acknowledged_in_one_request(bench: Bench) -> None:
    bench.put(*bodies(*range(10)))
    bench.put(*bodies(10, 11), queue_id=1)
    messages = await bench.pop()
    assert await bench.ack_many(*messages[:7], messages[-1]) == 0
    bench.move(10)
    again = await bench.pop()
    assert len(again) == 4
    assert await bench.ack_many(*messages[7:]) == ResponseCode.NO_MESSAGE
    assert await bench.ack_many(*again) == 0
    bench.move(10)
    assert await bench.pop() == []


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_nobody_holds_a_message_longer_because_the_clock_was_set_back(
    bench: Bench, is_restarted: bool
) -> None:
    bench.put(*bodies(0, 1))
    given_back, _ = await bench.pop()
    bench.clock.step(-600)
    if is_restarted:
        await bench.restart()
    bench.move(5)
    assert await bench.pop() == []
    changed = await bench.change(given_back, 7_000)
    assert not isinstance(changed, int)
    bench.move(5)
    assert [each.body for each in await bench.pop()] == [b"1"]
    bench.move(2)
    [again] = await bench.pop()
    assert (again.body, await bench.ack(again)) == (b"0", [0])


async def test_time_is_extended_or_a_message_given_back_at_once_or_later(bench: Bench) -> None:
    bench.put(*bodies(0, 1, 2))
    longer, at_once, later = await bench.pop()
    extended = await bench.change(longer, 60_000)
    assert not isinstance(extended, int)
    assert await bench.change(longer, 60_000) == ResponseCode.NO_MESSAGE
    await bench.change(at_once, 0)
    await bench.change(later, 30_000)
    bench.move(0)
    assert [each.body for each in await bench.pop()] == [b"1"]
    bench.move(29)
    assert [each.body for each in await bench.pop()] == [b"1"]
    bench.move(1)
    assert [each.body for each in await bench.pop()] == [b"2"]
    assert await bench.ack(extended) == [0]


@pytest.mark.parametrize("retry_max_times", [0, 1, 3])
async def test_a_message_is_a_dead_letter_exactly_after_its_last_retry(
    bench: Bench, retry_max_times: int
) -> None:
    bench.group(retry_max_times=retry_max_times)
    bench.put(b"bad", KEYS="k")
    for times in range(retry_max_times + 1):
        assert bench.dead_letters() == []
        [message] = await bench.pop()
        assert message.record.reconsume_times == times
        bench.move(10)
        await bench.settle()
    assert await bench.pop() == []
    [dead] = bench.dead_letters()
    assert (dead.body, dead.reconsume_times) == (b"bad", retry_max_times + 1)
    assert b"RETRY_TOPIC\x01T\x02" in dead.properties
    assert bench.broker.offsets.find("G", "T", 0) == 1
    for is_killed in (False, True):
        await bench.restart(is_killed=is_killed)
        bench.move(100)
        assert await bench.pop() == []
        assert len(bench.dead_letters()) == 1


@pytest.mark.parametrize("is_killed", [None, False, True])
async def test_a_holder_may_have_a_message_dead_at_once(bench: Bench, is_killed: bool | None) -> None:
    bench.put(*bodies(0, 1))
    bad, good = await bench.pop(queueId="0")
    code = RequestCode.CHANGE_MESSAGE_INVISIBLE_TIME
    assert (await bench.ask(code, bench.held(bad, isDead="true"))).code == 0
    if is_killed is not None:
        await bench.restart(is_killed=is_killed)
    bench.move(0)
    await bench.settle()
    [dead] = bench.dead_letters()
    assert (dead.body, dead.reconsume_times) == (b"0", 1)
    assert (await bench.ask(code, bench.held(bad, isDead="true"))).code == 0
    assert await bench.ack(good) == [0]
    assert bench.broker.offsets.find("G", "T", 0) == 2
    bench.move(20)
    assert await bench.pop(queueId="0") == []


async def test_who_holds_a_message_no_more_cannot_have_it_dead(bench: Bench) -> None:
    bench.put(b"0")
    [former] = await bench.pop()
    bench.move(10)
    [present] = await bench.pop()
    code = RequestCode.CHANGE_MESSAGE_INVISIBLE_TIME
    assert (await bench.ask(code, bench.held(former, isDead="true"))).code == ResponseCode.NO_MESSAGE
    assert await bench.ack(present) == [0]


async def test_what_is_given_back_unseen_comes_again_at_once_and_was_no_attempt(bench: Bench) -> None:
    bench.group(retry_max_times=0)
    bench.put(*bodies(0, 1, 2))
    zero, one, two = await bench.pop()
    code, unseen = RequestCode.CHANGE_MESSAGE_INVISIBLE_TIME, {"isUnseen": "true", "invisibleTime": "0"}
    waiting = bench.wait()
    assert (await bench.ask(code, bench.held(one, **unseen))).code == 0
    await bench.settle()
    [again] = popped(waiting.replies[0])
    assert (again.body, again.record.reconsume_times) == (b"1", 0)
    assert (await bench.ask(code, bench.held(one, **unseen))).code == ResponseCode.NO_MESSAGE
    await bench.ack(again, zero)
    assert (await bench.ask(code, bench.held(two, **unseen))).code == 0
    await bench.restart(is_killed=True)
    [again] = await bench.pop()
    assert (again.body, again.record.reconsume_times) == (b"2", 0)
    assert (await bench.ask(code, bench.held(zero, **unseen))).code == ResponseCode.NO_MESSAGE
    assert bench.dead_letters() == []


async def test_a_restart_in_the_middle_changes_nothing_for_holders(bench: Bench) -> None:
    bench.put(*bodies(*range(100)))
    first = await bench.pop(queueId="0")
    second = await bench.pop(queueId="0", invisibleTime="60000")
    await bench.ack(first[0], *first[5:])
    for is_killed in (True, False):
        await bench.restart(is_killed=is_killed)
        assert bench.broker.offsets.find("G", "T", 0) == 1
        [*third] = await bench.pop(queueId="0", maxMsgNums="1")
        assert [int(each.body) for each in third] == [65 if not is_killed else 64]
    bench.move(10)
    assert [int(each.body) for each in await bench.pop(maxMsgNums="4")] == [1, 2, 3, 4]
    assert await bench.ack(first[1]) == [ResponseCode.NO_MESSAGE]
    assert await bench.ack(*second) == [0] * 32


async def test_in_order_a_queue_waits_for_its_holder_and_comes_again_from_what_failed(bench: Bench) -> None:
    bench.put(*bodies(*range(6)))
    bench.put(b"other", queue_id=1)
    first = await bench.pop(order="true", queueId="0", maxMsgNums="3")
    assert [each.body for each in first] == bodies(0, 1, 2)
    assert [each.body for each in await bench.pop(order="true")] == [b"other"]
    await bench.ack(first[0], first[2])
    assert await bench.pop(order="true", queueId="0") == []
    bench.move(10)
    again = await bench.pop(order="true", queueId="0", maxMsgNums="2")
    assert [each.body for each in again] == bodies(1, 3)
    await bench.ack(*again)
    assert [each.body for each in await bench.pop(order="true", queueId="0")] == bodies(4, 5)


async def test_only_messages_with_the_tag_are_popped_and_the_others_are_passed_over(bench: Bench) -> None:
    bench.put(*bodies(0, 1), TAGS="a")
    bench.put(*bodies(2), TAGS="b")
    [message] = await bench.pop(exp="b", queueId="0")
    assert message.body == b"2"
    await bench.ack(message)
    assert bench.broker.offsets.find("G", "T", 0) == 3
    bench.put(*bodies(3), TAGS="b")
    [message] = await bench.pop(exp="TAGS = 'b'", expType="SQL92", queueId="0")
    assert message.body == b"3"


async def test_a_new_group_begins_at_the_first_message_or_behind_the_last(bench: Bench) -> None:
    bench.put(*bodies(0, 1))
    assert await bench.pop(initMode="1") == []
    bench.put(*bodies(2))
    assert [each.body for each in await bench.pop(initMode="1")] == [b"2"]
    bench.group("H")
    assert len(await bench.pop(consumerGroup="H")) == 3


async def test_a_group_that_pulls_meanwhile_or_is_set_back_goes_on_where_it_was_put(bench: Bench) -> None:
    bench.put(*bodies(*range(10)))
    messages = await bench.pop(queueId="0", maxMsgNums="8")
    await bench.ack(messages[7])
    bench.broker.offsets.commit("G", "T", 0, 5)
    bench.move(10)
    assert [int(each.body) for each in await bench.pop(queueId="0")] == [5, 6, 8, 9]
    bench.broker.offsets.commit("G", "T", 0, 2)
    assert [int(each.body) for each in await bench.pop(queueId="0")] == [*range(2, 10)]
    bench.broker.offsets.forget_group("G")
    assert len(await bench.pop(queueId="0")) == 10


async def test_a_group_changes_between_queues_and_messages_and_nothing_is_lost(bench: Bench) -> None:
    assert await bench.set_mode("POP") == 0
    bench.put(*bodies(*range(10)))
    messages = await bench.pop(queueId="0", maxMsgNums="6")
    await bench.ack(*messages[:3])
    assert await bench.set_mode("PULL") == 0
    # Consumers by queue begin at the first message that is not done, and get 7 of them.
    assert bench.broker.offsets.find("G", "T", 0) == 3
    bench.broker.offsets.commit("G", "T", 0, 7)
    assert await bench.set_mode("POP") == 0
    await bench.restart()
    assert [int(each.body) for each in await bench.pop(queueId="0")] == [7, 8, 9]
    assert await bench.ack(messages[4]) == [0]


async def test_consumers_are_told_their_mode_and_it_survives_a_restart(bench: Bench) -> None:
    assert await bench.assigned(messageModel="BROADCASTING") == [(0, "PULL"), (1, "PULL")]
    assert await bench.assigned() == []
    await bench.set_mode("POP")
    assert await bench.assigned() == [(-1, "POP")]
    await bench.restart(is_killed=True)
    assert await bench.assigned() == [(-1, "POP")]
    assert await bench.set_mode("POP", topic="%RETRY%G") != 0
    await bench.set_mode("PULL")
    await bench.restart()
    assert await bench.assigned(messageModel="BROADCASTING") == [(0, "PULL"), (1, "PULL")]


async def test_members_hear_at_once_that_their_group_has_another_mode(bench: Bench) -> None:
    member = FakeConnection()
    consumer = {"groupName": "G", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
    body = {"clientID": "c1", "producerDataSet": [], "consumerDataSet": [consumer]}
    heartbeat = Command.request(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
    bench.broker.requests.handle(member, heartbeat)  # type: ignore[arg-type]
    for mode in ("POP", "PULL"):
        member.said.clear()
        assert await bench.set_mode(mode) == 0
        assert [(said.code, said.ext) for said in member.said] == [
            (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "G"})
        ]


async def test_what_cannot_be_stored_is_not_handed_out(bench: Bench) -> None:
    bench.put(*bodies(0, 1))
    bench.broker.writer.close("no room")
    answer = await bench.ask(200_050, bench.pop_ext())
    assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "no room")
    bench.broker.writer.open()
    bench.broker.writer._refused_until_s = 0.0
    messages = await bench.pop()
    assert [(each.body, each.record.reconsume_times) for each in messages] == [(b"0", 0), (b"1", 0)]
    bench.broker.writer.close("no room")
    assert await bench.ack(messages[0]) == [ResponseCode.SERVICE_NOT_AVAILABLE]
    bench.broker.writer.open()
    bench.broker.writer._refused_until_s = 0.0
    assert await bench.ack(messages[0]) == [0]
    await bench.restart(is_killed=True)
    bench.move(11)
    assert [each.body for each in await bench.pop()] == [b"1"]


async def test_topics_and_groups_that_are_deleted_take_their_state_along(bench: Bench) -> None:
    bench.put(*bodies(0, 1))
    await bench.pop()
    bench.broker.subscription_groups.delete("G")
    await bench.settle()
    assert bench.pops.find(Place("G", "T", 0)) is None
    bench.group()
    bench.broker.offsets.forget_group("G")
    assert len(await bench.pop()) == 2
    await bench.restart(is_killed=True)
    assert bench.pops.find(Place("G", "T", 0)) is not None
    bench.broker.topics.delete("T")
    await bench.settle()
    assert bench.pops.find(Place("G", "T", 0)) is None


async def test_so_many_messages_of_a_queue_may_be_in_flight_and_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "POP_IN_FLIGHT_MAX", 40)
    bench.put(*bodies(*range(60)))
    messages = [*(await bench.pop(queueId="0")), *(await bench.pop(queueId="0"))]
    assert len(messages) == 40
    assert await bench.pop(queueId="0") == []
    await bench.ack(messages[7])
    assert [each.body for each in await bench.pop(queueId="0")] == [b"40"]
    bench.move(10)
    assert len(await bench.pop(queueId="0")) == 32


async def test_so_many_blocks_may_be_held_and_what_is_due_comes_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "POP_BLOCKS_MAX", 2)
    bench.put(*bodies(*range(300)))
    messages = [message for _ in range(3) for message in await bench.pop(queueId="0")]
    assert len(messages) == 96
    assert await bench.pop(queueId="0") == []
    bench.move(10)
    assert len(await bench.pop(queueId="0")) == 32
    await bench.ack(*messages[64:])
    assert len(await bench.pop(queueId="0")) == 32


async def test_so_many_queues_may_be_popped_from(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "POP_QUEUES_MAX", 3)
    bench.group("H")
    bench.put(b"x")
    assert len(await bench.pop()) == 1
    assert len(await bench.pop(consumerGroup="H", queueId="0")) == 1
    with pytest.raises(AssertionError, match="maximum of 3 queues"):
        await bench.pop(consumerGroup="H", queueId="1")


async def test_what_a_turn_pops_and_acknowledges_is_one_append(bench: Bench) -> None:
    bench.put(*bodies(*range(100)))
    before = bench.store.queue(POP_TOPIC, 0).max_offset
    waiting = [bench.wait(queueId="0", maxMsgNums="1") for _ in range(50)]
    await bench.settle()
    assert all(len(connection.replies) == 1 for connection in waiting)
    assert bench.store.queue(POP_TOPIC, 0).max_offset == before + 1


@pytest.mark.parametrize("seed", range(5))
async def test_in_a_random_life_with_restarts_every_message_is_done_once_or_dead(
    bench: Bench, seed: int
) -> None:
    random_ = random.Random(seed)
    bench.group(retry_max_times=2)
    sent = 0
    done: set[int] = set()
    held: dict[int, tuple[int, Popped]] = {}
    attempts: dict[int, int] = {}
    for _ in range(150):
        choice = random_.randrange(8)
        if choice == 0:
            count = random_.randrange(1, 30)
            bench.put(*bodies(*range(sent, sent + count)), queue_id=random_.randrange(2))
            sent += count
        elif choice in (1, 2, 3):
            for message in await bench.pop(maxMsgNums=str(random_.randrange(1, 33))):
                number = int(message.body)
                # One holder: nobody has it any more whose time is not over.
                assert number not in done
                assert number not in held or held[number][0] <= bench.clock.now_ms()
                attempts[number] = attempts.get(number, 0) + 1
                assert message.record.reconsume_times == attempts[number] - 1
                held[number] = bench.clock.now_ms() + 10_000, message
        elif choice in (4, 5):
            for number in random_.sample(sorted(held), min(len(held), 10)):
                _, message = held.pop(number)
                if await bench.ack(message) == [0]:
                    done.add(number)
        elif choice == 6:
            bench.move(random_.randrange(8))
            await bench.settle()
        else:
            await bench.restart(is_killed=random_.random() < 0.5)
            bench.broker.expire()
            await bench.settle()
    for _ in range(6):
        bench.move(20)
        await bench.settle()
        while messages := await bench.pop():
            for number in [int(message.body) for message in messages]:
                assert number not in done
                attempts[number] = attempts.get(number, 0) + 1
    dead = [int(record.body) for record in bench.dead_letters()]
    assert len(dead) == len(set(dead))
    assert set(dead) | done == set(range(sent))
    assert not set(dead) & done
    assert all(attempts[number] == 3 for number in dead)


async def test_a_refused_pop_gives_back_nothing_of_another_pop_of_the_same_moment(bench: Bench) -> None:
    bench.put(*bodies(*range(4)))
    held = await bench.pop(queueId="0", maxMsgNums="2")
    bench.broker.writer.close("no room")
    answer = await bench.ask(200_050, bench.pop_ext(queueId="0", maxMsgNums="2"))
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    bench.broker.writer.open()
    bench.broker.writer._refused_until_s = 0.0
    again = await bench.pop(queueId="0")
    assert [(each.body, each.record.reconsume_times) for each in again] == [(b"2", 0), (b"3", 0)]
    assert await bench.ack(*held, *again) == [0] * 4


@pytest.mark.parametrize("modes", [("POP",), ("POP", "POP"), ("PULL",)])
async def test_a_group_that_is_told_its_mode_again_keeps_what_it_holds(
    bench: Bench, modes: tuple[str, ...]
) -> None:
    if modes == ("POP", "POP"):
        await bench.set_mode("POP")
    bench.put(*bodies(*range(4)))
    held = await bench.pop(queueId="0", maxMsgNums="2")
    for mode in modes:
        assert await bench.set_mode(mode) == 0
    assert [each.body for each in await bench.pop(queueId="0")] == [b"2", b"3"]
    await bench.restart(is_killed=True)
    assert await bench.pop(queueId="0") == []
    assert await bench.ack(*held) == [0, 0]


async def test_after_a_reset_in_the_same_moment_former_receipts_hold_nothing(bench: Bench) -> None:
    bench.put(*bodies(0, 1))
    former = await bench.pop(queueId="0")
    bench.broker.offsets.commit("G", "T", 0, 1)
    [kept] = former[1:]
    assert await bench.pop(queueId="0") == []
    bench.broker.offsets.commit("G", "T", 0, 0)
    again = await bench.pop(queueId="0")
    assert len(again) == 2
    assert await bench.ack(kept, *former) == [ResponseCode.NO_MESSAGE] * 3
    assert await bench.ack(*again) == [0, 0]


async def test_a_saved_offset_behind_the_end_of_the_log_passes_over_nothing_new(bench: Bench) -> None:
    bench.put(*bodies(0, 1))
    await bench.pop(queueId="0")
    # As after a power cut that took the end of the log and left the file of offsets.
    bench.broker.offsets.commit("G", "T", 0, 5)
    await bench.restart()
    assert bench.broker.offsets.find("G", "T", 0) == 2
    bench.put(*bodies(2, 3))
    assert [each.body for each in await bench.pop(queueId="0")] == bodies(2, 3)


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_change_on_its_way_brings_nothing_back_of_a_topic_that_is_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    bench.put(*bodies(0, 1))
    on_their_way: list[Callable[[], None]] = []
    append = bench.pops.append

    def late(*args: Any) -> None:
        *others, done = args
        if is_stored:
            append(*others, lambda result: on_their_way.append(lambda: done(result)))
        else:
            refusal = RefusedBatch(code=ResponseCode.SERVICE_NOT_AVAILABLE, remark="late")
            on_their_way.append(lambda: done(refusal))

    monkeypatch.setattr(bench.pops, "append", late)
    connection = bench.wait(queueId="0")
    await bench.settle()
    monkeypatch.setattr(bench.pops, "append", append)
    bench.broker.topics.delete("T")
    await bench.settle()
    for arrive in on_their_way:
        arrive()
    await bench.settle()
    assert len(connection.replies) == 1
    bench.pops.check_invariants()
    assert bench.pops.find(Place("G", "T", 0)) is None
    assert bench.broker.native._pops._states.queues() == {}


async def test_what_the_log_has_no_more_is_done_or_passed_over(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.segment_bytes = 1 << 20
    await bench.start()
    body = bytes(100_000)
    for _ in range(30):
        bench.put(body)
    assert len(await bench.pop(queueId="0", maxMsgNums="3")) == 3
    bench.trim()
    begin = bench.store.queue("T", 0).min_offset
    assert begin > 3
    bench.move(0)
    assert [each.record.queue_offset for each in await bench.pop(queueId="0", maxMsgNums="1")] == [begin]
    bench.move(10)
    assert [each.record.queue_offset for each in await bench.pop(queueId="0", maxMsgNums="1")] == [begin]
    assert bench.broker.offsets.find("G", "T", 0) == begin
    await bench.close()
