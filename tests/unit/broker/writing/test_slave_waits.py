"""Sends to a sync master: whom they wait for, and what they are told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from manual_clock import ManualClock

from iotmq.broker.writing.slave_waits import SlaveWaits
from iotmq.remoting.codes import ResponseCode

TIMEOUT_S = 3.0


class FakeSlaves:
    """One slave that reports what it is told to."""

    def __init__(self) -> None:
        self.reported_position = 0
        self.is_near = True
        self._listener: Callable[[], None] = lambda: None

    def is_ok(self, end_position: int) -> bool:
        return self.is_near

    def add_listener(self, listener: Callable[[], None]) -> None:
        self._listener = listener

    def report(self, position: int) -> None:
        self.reported_position = position
        self._listener()


class Batch:
    status: int = ResponseCode.SUCCESS


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.slaves = FakeSlaves()
        self.waits = SlaveWaits(self.slaves, self.clock, timeout_s=TIMEOUT_S)
        self.done: list[int] = []

    def append(self, end_position: int, *, is_patient: bool = False) -> Callable[[object], None]:
        """What is called when the disk has the batch; `done` has the statuses of those that are answered."""
        return self.waits.then(
            end_position, lambda batch: self.done.append(batch.status), is_patient=is_patient
        )


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_a_batch_waits_for_a_report_of_its_end(bench: Bench) -> None:
    bench.append(10)(Batch())
    bench.append(20)(Batch())
    bench.slaves.report(9)
    assert bench.done == []
    bench.slaves.report(19)
    assert bench.done == [0]
    bench.slaves.report(20)
    assert (bench.done, len(bench.waits)) == ([0, 0], 0)


async def test_a_report_before_the_flush_is_enough(bench: Bench) -> None:
    flushed = bench.append(10)
    bench.slaves.report(10)
    assert bench.done == [], "the disk has not got it yet"
    flushed(Batch())
    assert bench.done == [0]


async def test_without_a_near_slave_it_is_told_so_at_once_also_when_one_comes_later(bench: Bench) -> None:
    bench.slaves.is_near = False
    flushed = bench.append(10)
    bench.slaves.is_near = True
    bench.slaves.report(10)
    flushed(Batch())
    assert bench.done == [ResponseCode.SLAVE_NOT_AVAILABLE]


async def test_after_the_timeout_it_is_told_so_and_those_behind_wait_on(bench: Bench) -> None:
    bench.append(10)(Batch())
    bench.clock.advance(TIMEOUT_S / 2)
    bench.append(20)(Batch())
    bench.clock.advance(TIMEOUT_S / 2)
    bench.waits.time_out()
    assert bench.done == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
    bench.slaves.report(20)
    assert bench.done == [ResponseCode.FLUSH_SLAVE_TIMEOUT, 0]


async def test_the_time_counts_from_the_append(bench: Bench) -> None:
    flushed = bench.append(10)
    bench.clock.advance(TIMEOUT_S)
    flushed(Batch())
    assert bench.done == [ResponseCode.FLUSH_SLAVE_TIMEOUT]


async def test_the_slaves_status_replaces_a_bad_one_of_the_disk_and_a_good_one_does_not(
    bench: Bench,
) -> None:
    for reported, expected in (
        (0, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        (10, ResponseCode.FLUSH_DISK_TIMEOUT),
    ):
        late, batch = bench.append(10), Batch()
        batch.status = ResponseCode.FLUSH_DISK_TIMEOUT
        bench.clock.advance(5.0)
        bench.slaves.report(reported)
        late(batch)
        assert bench.done.pop() == expected


async def test_a_patient_caller_is_told_of_no_slave(bench: Bench) -> None:
    bench.append(10, is_patient=True)(Batch())
    assert bench.done == []
    bench.clock.advance(TIMEOUT_S)
    bench.waits.time_out()
    bench.slaves.is_near = False
    bench.append(20, is_patient=True)(Batch())
    assert bench.done == [0, 0]
    assert (bench.waits.timeouts_count, bench.waits.unavailable_count) == (1, 1)


async def test_a_stop_answers_everything_and_a_deposed_broker_nothing(bench: Bench) -> None:
    bench.append(10)(Batch())
    bench.waits.forget()
    assert bench.done == []
    bench.append(10)(Batch())
    bench.waits.finish()
    assert bench.done == [ResponseCode.FLUSH_SLAVE_TIMEOUT]


@pytest.mark.parametrize("end", ["time_out", "finish", "report"])
async def test_one_that_cannot_be_answered_does_not_keep_the_others_from_their_answers(
    bench: Bench, end: str
) -> None:
    def fail(batch: object) -> None:
        raise ValueError("no answer")

    bench.waits.then(10, fail)(Batch())
    bench.append(20)(Batch())
    bench.clock.advance(TIMEOUT_S)
    if end == "report":
        bench.slaves.report(20)
    else:
        getattr(bench.waits, end)()
    assert bench.done == [0 if end == "report" else ResponseCode.FLUSH_SLAVE_TIMEOUT]
    assert len(bench.waits) == 0
