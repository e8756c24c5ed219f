"""Pops in the order of keys: one message of a key at a time, and other keys go on."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from pop_bench import Bench, Popped, popped

from iotmq import limits
from iotmq.broker.pop.pop_queue import BY_KEY, PopQueue
from iotmq.broker.pop.states import Place
from iotmq.errors import StoreCorruptError
from iotmq.message.properties import encode_properties
from iotmq.message.records.record import encode_record
from iotmq.remoting.codes import RequestCode, ResponseCode

T = 1_700_000_000_000
KEYED = {"isKeyOrdered": "true"}


def put(bench: Bench, *names: str) -> None:
    """Store messages whose key is the first letter of their body; those that begin with - have none."""
    for name in names:
        bench.put(name.encode(), **({} if name[0] == "-" else {"KEYS": name[0]}))


async def pop(bench: Bench, **changes: str) -> list[Popped]:
    return await bench.pop(queueId="0", **{**KEYED, **changes})


def names(messages: list[Popped]) -> list[str]:
    return [message.body.decode() for message in messages]


async def test_the_first_of_each_key_is_given_and_the_next_when_it_is_done(bench: Bench) -> None:
    put(bench, "a0", "a1", "b0", "-0", "a2", "b1", "-1", "c0")
    first = await pop(bench)
    assert names(first) == ["a0", "b0", "-0", "-1", "c0"]
    assert await pop(bench) == []
    await bench.ack(first[1])
    second = await pop(bench)
    assert names(second) == ["b1"]
    await bench.ack(second[0], first[0])
    assert names(await pop(bench)) == ["a1"]
    assert bench.broker.offsets.find("G", "T", 0) == 1


async def test_a_key_is_the_sharding_key_and_else_the_first_of_the_keys(bench: Bench) -> None:
    for body, properties in (
        (b"0", {"KEYS": "a b"}),
        (b"1", {"KEYS": "a c"}),
        (b"2", {"KEYS": "b a"}),
        (b"3", {"KEYS": "d", "__SHARDINGKEY": "a"}),
        (b"4", {"KEYS": "a", "__SHARDINGKEY": "e"}),
        (b"5", {"KEYS": "", "__SHARDINGKEY": ""}),
        (b"6", {"KEYS": " a"}),
    ):
        bench.put(body, **properties)
    assert names(await pop(bench)) == ["0", "2", "4", "5", "6"]


async def test_a_message_that_failed_comes_again_in_its_place(bench: Bench) -> None:
    put(bench, "a0", "a1", "b0")
    first, other = await pop(bench)
    assert isinstance(await bench.change(first, 5_000), Popped)
    await bench.ack(other)
    bench.move(4.9)
    assert await pop(bench) == []
    bench.move(0.1)
    [again] = await pop(bench)
    assert (again.body, again.record.reconsume_times) == (b"a0", 1)
    # Its time ends, and it is acknowledged late: nobody else has it.
    bench.move(10)
    assert await bench.ack(again) == [0]
    assert names(await pop(bench)) == ["a1"]


@pytest.mark.parametrize("order", [KEYED, {"order": "true"}])
async def test_a_dead_letter_lets_the_next_message_go_and_wakes_who_waits(
    bench: Bench, order: dict[str, str]
) -> None:
    bench.group(retry_max_times=0)
    put(bench, "a0", "a1")
    [first] = await bench.pop(queueId="0", maxMsgNums="1", **order)
    waiting = bench.wait(queueId="0", **order)
    await bench.settle()
    assert not waiting.replies
    bench.move(10)
    await bench.settle()
    assert [record.body for record in bench.dead_letters()] == [b"a0"]
    assert names(popped(waiting.replies[0])) == ["a1"]
    assert await bench.ack(first) == [0]


async def test_a_pop_that_waits_goes_on_when_the_holder_of_a_key_is_done(bench: Bench) -> None:
    put(bench, "a0")
    [first] = await pop(bench)
    waiting = bench.wait(queueId="0", **KEYED)
    put(bench, "a1")
    await bench.settle()
    assert not waiting.replies
    asked = {"consumerGroup": "G", "topic": "T", "queueId": "0", "pollTime": "0", **KEYED}
    assert (await bench.ask(RequestCode.NOTIFICATION, asked)).ext["hasMsg"] == "false"
    await bench.ack(first)
    await bench.settle()
    assert names(popped(waiting.replies[0])) == ["a1"]


async def test_keys_outlive_a_restart(bench: Bench) -> None:
    put(bench, "a0", "a1", "b0", "a2", "c0")
    first = await pop(bench)
    await bench.ack(first[1])
    await bench.restart(is_killed=True)
    assert await pop(bench) == []
    put(bench, "c1", "b1")
    assert names(await pop(bench)) == ["b1"]
    await bench.ack(first[0])
    await bench.restart(is_killed=True)
    assert names(await pop(bench)) == ["a1"]


async def test_a_group_that_popped_without_order_goes_on_by_key_when_all_is_back(bench: Bench) -> None:
    put(bench, "a0", "b0", "a1", "b1", "c0")
    first = await bench.pop(queueId="0", maxMsgNums="4")
    assert await pop(bench) == []
    await bench.ack(first[0])
    # Nobody knows their keys until they are read again.
    await bench.restart()
    assert await pop(bench) == []
    bench.move(10)
    again = await pop(bench)
    assert names(again) == ["b0", "a1", "c0"]
    await bench.ack(again[0])
    assert names(await pop(bench)) == ["b1"]
    # And back: in the order of the queue nothing is given behind what waits.
    put(bench, "b2", "d0")
    bench.move(10)
    back = await bench.pop(queueId="0", order="true")
    assert names(back) == ["a1", "b1", "c0", "b2", "d0"]
    await bench.ack(*back)
    assert bench.broker.offsets.find("G", "T", 0) == 7


async def test_in_the_order_of_the_queue_what_waits_for_its_key_holds_up_what_is_new(bench: Bench) -> None:
    put(bench, "a0", "a1", "b0")
    await pop(bench)
    put(bench, "c0")
    bench.move(10)
    first = await bench.pop(queueId="0", order="true")
    assert names(first) == ["a0", "b0"]
    await bench.ack(*first)
    assert names(await bench.pop(queueId="0", order="true")) == ["a1", "c0"]


async def test_a_pop_holds_no_more_than_it_wants_and_reads_far_behind_a_key_that_is_held(
    bench: Bench,
) -> None:
    put(bench, *(f"a{number}" for number in range(300)), *"bcdefg")
    assert names(await pop(bench, maxMsgNums="1")) == ["a0"]
    assert names(await pop(bench, maxMsgNums="2")) == ["b", "c"]
    state = bench.pops.find(Place("G", "T", 0))
    assert state is not None
    assert (state.next_offset, state.waiting_count) == (302, 299)
    assert names(await pop(bench)) == ["d", "e", "f", "g"]


async def test_messages_that_wait_for_their_key_count_and_so_do_their_blocks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "POP_IN_FLIGHT_MAX", 100)
    put(bench, *(f"a{number}" for number in range(100)), "b0")
    [first] = await pop(bench)
    assert await pop(bench) == []
    await bench.ack(first)
    assert names(await pop(bench)) == ["a1", "b0"]
    state = bench.pops.find(Place("G", "T", 0))
    assert state is not None
    # Two blocks of 64, with keys, weigh as much as eight.
    assert (state.undone_count, state.block_count) == (100, 8)
    monkeypatch.setattr(limits, "POP_BLOCKS_MAX", 8)
    bench.put(b"other", queue_id=1)
    assert await bench.pop(queueId="1") == []
    monkeypatch.setattr(limits, "POP_BLOCKS_MAX", 9)
    assert names(await bench.pop(queueId="1")) == ["other"]


async def test_what_could_not_be_stored_is_given_in_the_same_order(bench: Bench) -> None:
    put(bench, "a0", "a1", "b0")
    bench.broker.writer.close("no room")
    answer = await bench.ask(RequestCode.POP_MESSAGE, bench.pop_ext(**KEYED))
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    bench.broker.writer.open()
    bench.broker.writer._refused_until_s = 0.0
    assert names(await pop(bench)) == ["a0", "b0"]
    # Nobody has a receipt of what waits, whatever he makes up.
    made_up = {"consumerGroup": "G", "topic": "T", "queueId": "0", "offset": "1"}
    made_up["extraInfo"] = "1 0 1 0 0 b 0 1"
    assert (await bench.ask(RequestCode.ACK_MESSAGE, made_up)).code == ResponseCode.NO_MESSAGE


def test_values_of_blocks_with_keys_of_others_are_refused() -> None:
    run = (1).to_bytes(8, "big") + bytes(18)
    for keys in (
        (3).to_bytes(8, "big") + bytes(16),
        (1).to_bytes(8, "big"),
        (1).to_bytes(8, "big") + bytes(16),
        b"",
    ):
        with pytest.raises(StoreCorruptError):
            PopQueue(0).restore_block(0, run + bytes(8) + keys)
    queue = PopQueue(1)
    queue.restore_block(0, run + bytes(8) + (1).to_bytes(8, "big") + (7).to_bytes(8, "big"))
    queue.check_invariants()
    assert queue.unknown_count == 0


def test_a_record_that_cannot_be_read_is_refused() -> None:
    record = bytearray(encode_record(topic="T", body=b"", queue_offset=0, position=0))
    record[86] = 200
    with pytest.raises(StoreCorruptError):
        PopQueue(0).hand_out([memoryview(record)], 0, 1, pop_ms=T, due_ms=T, order=BY_KEY)


@pytest.mark.parametrize("seed", range(5))
def test_keys_of_offsets_that_were_popped_without_order_are_put_in_order(seed: int) -> None:
    random_ = random.Random(seed)
    keys = [random_.choice(["", "a", "b", "c"]) for _ in range(200)]
    queue = PopQueue(0)

    def views(start: int, end: int) -> list[memoryview]:
        records = [
            encode_record(
                topic="T",
                body=b"",
                queue_offset=offset,
                position=offset,
                properties=encode_properties({"KEYS": keys[offset]} if keys[offset] else {}),
            )
            for offset in range(start, end)
        ]
        return [memoryview(b"".join(records))]

    now_ms, done, held = T, set[int](), dict[int, int]()
    while len(done) < 200:
        now_ms += random_.randrange(1_200)
        queue.expire(now_ms, attempts_max=1_000)
        is_keyed = random_.random() < 0.7
        order = BY_KEY if is_keyed else 0
        held = {offset: receipt for offset, receipt in held.items() if queue.find(offset, receipt) == 1}
        new_end = min(200, queue.next_offset + 20)
        run = queue.ready_run() or (queue.next_offset, new_end)
        is_new = run[0] == queue.next_offset
        if queue.may_give(order) and (not is_new or queue.may_give_new(order)) and run[0] < run[1]:
            pop_ms = max(now_ms, queue.pop_floor_ms)
            _, text, _ = queue.hand_out(views(*run), *run, pop_ms=pop_ms, due_ms=now_ms + 1_000, order=order)
            given = [int(each) for each in text.split(b",") if each]
            if is_keyed:
                for offset in given:
                    if keys[offset]:
                        same = [each for each in range(offset) if keys[each] == keys[offset]]
                        assert set(same) <= done
            held |= dict.fromkeys(given, pop_ms)
        queue.check_invariants()
        for offset in random_.sample(sorted(held), random_.randrange(len(held) + 1)):
            if random_.random() < 0.6:
                assert queue.acknowledge(offset, held.pop(offset)) == 1
                assert offset not in done
                done.add(offset)
        queue.check_invariants()
    assert (queue.undone_count, queue.block_count, queue.low_offset) == (0, 0, 200)


class Held(NamedTuple):
    """Who has a message, and how long."""

    message: Popped
    until_ms: int


class Model:
    """What a group has of one queue, as slowly as can be."""

    def __init__(self, retries_max: int) -> None:
        self.retries_max = retries_max
        self.sent: list[str] = []
        self.done: set[int] = set()
        self.held: dict[int, Held] = {}
        self.times: dict[int, int] = {}

    def expected(self, now_ms: int, count_max: int) -> list[int]:
        """The first of each key that nobody has, by offset."""
        found: list[int] = []
        keys: set[str] = set()
        for offset, name in enumerate(self.sent):
            if offset in self.done or (name[0] != "-" and name[0] in keys):
                continue
            keys.add(name[0])
            if offset not in self.held or self.held[offset].until_ms <= now_ms:
                found.append(offset)
        return found[:count_max]

    def expire(self, now_ms: int) -> None:
        """End what was handed out as often as it may be."""
        for offset, held in list(self.held.items()):
            if held.until_ms <= now_ms and self.times[offset] > self.retries_max:
                del self.held[offset]
                self.done.add(offset)


@pytest.mark.parametrize("seed", range(3))
async def test_a_random_life_by_key_is_that_of_a_slow_model(bench: Bench, seed: int) -> None:
    random_ = random.Random(seed)
    bench.group(retry_max_times=2)
    model = Model(retries_max=2)
    dead: set[int] = set()

    async def take(count: int) -> None:
        await bench.settle()
        expected = model.expected(bench.clock.now_ms(), count)
        messages = await pop(bench, maxMsgNums=str(count))
        assert [message.record.queue_offset for message in messages] == expected
        for message in messages:
            offset = message.record.queue_offset
            model.times[offset] = model.times.get(offset, 0) + 1
            assert message.record.reconsume_times == model.times[offset] - 1
            model.held[offset] = Held(message, bench.clock.now_ms() + 10_000)

    def move(seconds: int) -> None:
        bench.move(seconds)
        before = set(model.done)
        model.expire(bench.clock.now_ms())
        dead.update(model.done - before)

    for _ in range(120):
        choice = random_.randrange(9)
        if choice == 0:
            new = [f"{random_.choice('aaabc-')}{number}" for number in range(random_.randrange(1, 25))]
            put(bench, *new)
            model.sent += new
        elif choice in (1, 2, 3):
            await take(random_.randrange(1, 33))
        elif choice in (4, 5):
            for offset in random_.sample(sorted(model.held), min(len(model.held), 6)):
                assert await bench.ack(model.held.pop(offset).message) == [0]
                model.done.add(offset)
        elif choice == 6 and model.held:
            offset = random_.choice(sorted(model.held))
            delay_ms = random_.choice((0, 3_000, 20_000))
            changed = await bench.change(model.held[offset].message, delay_ms)
            assert isinstance(changed, Popped)
            model.held[offset] = Held(changed, bench.clock.now_ms() + delay_ms)
            move(0)
        elif choice == 7:
            move(random_.randrange(8))
        elif choice == 8:
            await bench.restart(is_killed=random_.random() < 0.5)
            bench.group(retry_max_times=2)
            move(0)
    while len(model.done) < len(model.sent):
        move(20)
        await take(32)
        for offset in list(model.held):
            assert await bench.ack(model.held.pop(offset).message) == [0]
            model.done.add(offset)
    await bench.settle()
    assert sorted(record.body.decode() for record in bench.dead_letters()) == sorted(
        model.sent[offset] for offset in dead
    )
    assert bench.broker.offsets.find("G", "T", 0) == len(model.sent)
