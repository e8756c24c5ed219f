"""What is taken in from callers is what the slow ways make, and comes out of lanes in its order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from manual_clock import ManualClock

from iotmq.client.sending.message_elements import encode_element
from iotmq.client.sending.send_room import SendRoom
from iotmq.client.sending.waiting_sends import (
    Lane,
    SendIntake,
    TopicLanes,
    WaitingSend,
    joined_elements,
    living,
    tell_stored,
)
from iotmq.client.transport.message import Message, SendResult, SendStatus
from iotmq.client.transport.routes import MessageQueue, queue_of_key
from iotmq.client.transport.settings import ProducerSettings
from iotmq.message.message_ids import UniqueKeys

QUEUE = MessageQueue("T", "broker-a", 0)


class Taking:
    """An intake, and what it has said."""

    def __init__(self, **settings: Any) -> None:
        self.room = SendRoom(count_max=10, bytes_max=10_000)
        self.alone: list[Message] = []
        self.fresh: list[str] = []
        self.full: list[str] = []
        self.intake = SendIntake(
            self.room,
            UniqueKeys(clock=ManualClock()),
            ProducerSettings(**settings),
            alone=self._alone,
            fresh=lambda lanes: self.fresh.append(lanes.topic),
            full=lambda lanes: self.full.append(lanes.topic),
        )

    def _alone(self, message: Message, *_: object) -> asyncio.Future[SendResult]:
        self.alone.append(message)
        return asyncio.get_running_loop().create_future()

    def start(self) -> Taking:
        self.intake.start(asyncio.get_running_loop())
        return self

    def send(self, body: bytes, **fields: Any) -> asyncio.Future[SendResult]:
        return self.intake.send(Message("T", body, **fields), None, None)

    @property
    def lanes(self) -> TopicLanes:
        return self.intake.topics["T"]


def _lanes_of(count: int) -> Iterator[Lane]:
    return (Lane(MessageQueue("T", "b", number)) for number in range(count))


async def test_elements_are_those_of_batches_with_unique_keys_of_their_own() -> None:
    taking = Taking().start()
    # More than are made ahead the first time, and than fit two hexadecimal digits.
    futures = [taking.send(b"%d" % number, tags="a") for number in range(300)]
    waiting = taking.lanes.any_queue.waiting
    assert [send.future for send in waiting] == futures
    keys = [send.unique_key for send in waiting]
    assert len(set(keys)) == 300
    assert keys == sorted(keys)
    for number, send in enumerate(waiting):
        assert send.element == encode_element(Message("T", b"%d" % number, tags="a"), keys[number])
    assert joined_elements(waiting) == b"".join(send.element for send in waiting)
    assert (taking.fresh, taking.room.count) == (["T"], 300)


async def test_unique_keys_of_before_a_flush_are_not_used_behind_it() -> None:
    clock = ManualClock()
    taking = Taking().start()
    taking.intake = SendIntake(
        taking.room,
        UniqueKeys(clock=clock),
        ProducerSettings(),
        alone=taking._alone,
        fresh=lambda _: None,
        full=lambda _: None,
    )
    taking.start()
    for _ in range(3):
        taking.send(b"")
    clock.advance(1)
    taking.intake.forget_keys()
    taking.send(b"")
    keys = [send.unique_key for send in taking.lanes.any_queue.waiting]
    # All but the counter, which tells the messages of one moment apart.
    assert len({key[:28] for key in keys[:3]}) == 1
    assert keys[3][:28] > keys[2][:28]


async def test_a_body_past_the_limit_goes_alone() -> None:
    taking = Taking(compress_bytes_min=5).start()
    taking.send(b"1234")
    assert not taking.alone
    taking.send(b"12345")
    assert [message.body for message in taking.alone] == [b"12345"]
    assert taking.room.count == 1


async def test_messages_of_a_class_of_the_application_are_read_as_well() -> None:
    class Reading(Message):
        unit: str = ""

    taking = Taking().start()
    taking.intake.send(Reading("T", b"21.5", key="k", unit="C"), None, None)
    (send,) = taking.lanes.unsorted
    assert send.element == encode_element(Message("T", b"21.5", key="k"), send.unique_key)
    with pytest.raises(TypeError, match="a Message is sent, not 'text'"):
        taking.intake.send("text", None, None)  # type: ignore[arg-type]
    assert taking.room.count == 1


async def test_before_the_start_after_the_end_and_from_other_threads_nothing_is_taken() -> None:
    taking = Taking()
    taking.send(b"early")
    taking.start()
    with pytest.raises(RuntimeError, match="no running event loop"):
        await asyncio.to_thread(taking.send, b"elsewhere")
    taking.intake.stop()
    taking.send(b"late")
    assert [message.body for message in taking.alone] == [b"early", b"elsewhere", b"late"]
    assert not taking.intake.topics


async def test_enough_messages_or_bytes_for_a_request_are_told() -> None:
    taking = Taking(batch_records_max=3).start()
    for _ in range(2):
        taking.send(b"", key="k")
    assert not taking.full
    taking.send(b"")
    assert taking.full == ["T"]
    taking = Taking(batch_bytes_max=2 * (22 + 42)).start()
    taking.send(b"")
    assert not taking.full
    taking.send(b"")
    assert taking.full == ["T"]


@pytest.mark.parametrize("count", [1, 3, 7])
async def test_keys_lead_to_the_queues_that_the_slow_way_finds(count: int) -> None:
    taking = Taking().start()
    keys = ["a", "device-77", "ключ", "é", "\ud7ff", "x" * 300, *map(str, range(50))]
    for key in keys:
        taking.send(key.encode(), key=key)
    by_number = list(_lanes_of(count))
    filled = taking.lanes.sort(count, by_number.__getitem__, lambda _: None)
    assert {lane.queue for lane in filled} <= {lane.queue for lane in by_number}
    for number, lane in enumerate(by_number):
        mine = [key for key in keys if queue_of_key(key, count) == number]
        assert [send.key for send in lane.waiting] == mine
        assert lane.size == sum(len(send.element) for send in lane.waiting)
    assert not taking.lanes.unsorted


async def test_without_keys_one_lane_gets_all_and_a_choice_may_fail() -> None:
    taking = Taking(idempotent=True).start()
    (lane,) = _lanes_of(1)
    asked: list[WaitingSend] = []

    def lane_of(send: WaitingSend) -> Lane | None:
        asked.append(send)
        return None if send.choice == 9 else lane

    for body in (b"1", b"2"):
        taking.send(body)
    for choice in (9, 0):
        taking.intake.send(Message("T", b"3"), choice, None)
    assert taking.lanes.sort(1, lambda _: lane, lane_of) == [lane]
    assert [send.choice for send in asked] == [None, 9, 0]
    assert [send.choice for send in lane.waiting] == [None, None, 0]


async def test_results_come_to_those_that_want_one() -> None:
    taking = Taking().start()
    futures = [taking.send(b"") for _ in range(4)]
    waiting = taking.lanes.any_queue.take(count_max=10, bytes_max=10_000)
    assert not taking.lanes.any_queue.waiting
    futures[1].cancel()
    alive, given_up = living(waiting)
    assert [send.future for send in alive] == [futures[0], futures[2], futures[3]]
    assert [send.future for send in given_up] == [futures[1]]
    futures[2].cancel()
    tell_stored(alive, SendResult(SendStatus.SEND_OK, QUEUE, 7, 3, "first", "A,B,C"))
    first, last = futures[0].result(), futures[3].result()
    assert (first.queue_offset, last.queue_offset) == (7, 9)
    assert (first.offset_message_ids, last.offset_message_ids) == (["A"], ["C"])
    assert [first.message_id, last.message_id] == [alive[0].unique_key, alive[2].unique_key]


async def test_no_message_has_a_place_of_its_own_where_the_request_has_none() -> None:
    taking = Taking().start()
    futures = [taking.send(b"") for _ in range(2)]
    tell_stored(taking.lanes.any_queue.waiting, SendResult(SendStatus.SEND_OK, QUEUE, -1, 2, "first", ""))
    assert [future.result().queue_offset for future in futures] == [-1, -1]
    assert futures[1].result().offset_message_ids == []
