"""Batches of front ends whose messages wait: stored as one, delivered one by one, refused as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from manual_clock import ManualClock
from timer_bench import HOST, TimerBench

from iotmq.broker.scheduled.delayed_batches import DelayedBatches
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.message.properties import decode_properties, encode_properties
from iotmq.message.records.record import Record, encode_batch
from iotmq.remoting.codes import ResponseCode


class Bench(TimerBench):
    def append(
        self, *messages: tuple[bytes, dict[str, str]], elements: bytes | None = None
    ) -> StoredBatch | RefusedBatch:
        batch = encode_batch([(body, encode_properties(named), 0) for body, named in messages])
        answers: list[StoredBatch | RefusedBatch] = []
        DelayedBatches(self.timers, self.writer, self.clock).append(
            "T", 2, batch if elements is None else elements, born_host=HOST, done=answers.append
        )
        (answer,) = answers
        return answer

    def delivered(self) -> list[Record]:
        return self.records("T", 2)


def delayed(seconds: int, **named: str) -> dict[str, str]:
    return {"MQTT_TOPIC": "a/b", **named, "TIMER_DELAY_SEC": str(seconds)}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path, ManualClock(), pending_max=4)
    yield bench
    bench.close()


async def test_each_message_comes_into_its_queue_at_its_time_and_keeps_what_it_had(bench: Bench) -> None:
    named = {"MQTT_CLIENT_ID": "d", "MQTT_QOS": "1", "MQTT_RETAIN": "1"}
    assert isinstance(bench.append((b"3s", delayed(3, **named)), (b"1s", delayed(1))), StoredBatch)
    assert bench.timers.pending_count == 2
    bench.pass_time(0.999)
    assert bench.delivered() == []
    bench.pass_time(0.001)
    assert [record.body for record in bench.delivered()] == [b"1s"]
    bench.pass_time(2)
    assert [record.body for record in bench.delivered()] == [b"1s", b"3s"]
    record = bench.delivered()[1]
    assert decode_properties(record.properties).items() >= {"MQTT_TOPIC": "a/b", **named}.items()
    assert record.born_host == HOST
    assert bench.timers.pending_count == 0


async def test_messages_due_together_come_in_their_order(bench: Bench) -> None:
    bench.append(*((b"%d" % number, delayed(1)) for number in range(4)))
    bench.pass_time(1)
    assert [record.body for record in bench.delivered()] == [b"0", b"1", b"2", b"3"]


async def test_messages_that_wait_at_their_limit_and_past_it(bench: Bench) -> None:
    assert isinstance(bench.append((b"1", delayed(9)), (b"2", delayed(9))), StoredBatch)
    answer = bench.append((b"3", delayed(9)), (b"4", delayed(9)), (b"5", delayed(9)))
    assert isinstance(answer, RefusedBatch)
    assert answer.code == ResponseCode.TOO_MANY_WAITING
    assert "timers_pending_max" in answer.remark
    assert bench.timers.pending_count == 2, "all or nothing"
    assert isinstance(bench.append((b"3", delayed(9)), (b"4", delayed(9))), StoredBatch)
    numbers = {metric.name: metric.value for metric in bench.timers.metrics()}
    assert numbers["iotmq_broker_delayed_messages_refused_total"] == 1


@pytest.mark.parametrize(
    ("named", "wrong"),
    [
        ({}, "without TIMER_DELAY_SEC"),
        ({"DELAY": "1"}, "without TIMER_DELAY_SEC"),
        ({"TIMER_DELAY_SEC": "0"}, "without TIMER_DELAY_SEC"),
        ({"TIMER_DELAY_SEC": "x"}, "TIMER_DELAY_SEC"),
        ({"TIMER_DELAY_SEC": "5", "MQTT_TOPIC": "t" * 32_680}, "properties"),
    ],
)
async def test_a_message_that_cannot_wait_is_refused_with_its_batch(
    bench: Bench, named: dict[str, str], wrong: str
) -> None:
    answer = bench.append((b"good", delayed(5)), (b"bad", named))
    assert isinstance(answer, RefusedBatch)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert wrong in answer.remark
    assert bench.timers.pending_count == 0


@pytest.mark.parametrize("elements", [b"", b"x", encode_batch([(b"x", b"", 0)])[:-1]])
async def test_what_is_no_batch_is_refused(bench: Bench, elements: bytes) -> None:
    answer = bench.append(elements=elements)
    assert isinstance(answer, RefusedBatch)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


async def test_what_waits_is_there_after_a_restart(bench: Bench, tmp_path: Path) -> None:
    bench.append((b"x", delayed(5)))
    bench.close()
    again = Bench(tmp_path, bench.clock)
    again.pass_time(5)
    assert [record.body for record in again.delivered()] == [b"x"]
    again.close()
