"""Files that are level with their tables: who waits for the disk, what is written together, tried again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest
from eventually import soon

from iotmq.broker.tables.config_saver import ConfigSaver


class Table:
    """Holds a number, and a disk that can be slow or refuse."""

    def __init__(self) -> None:
        self.value = 0
        self.disk: list[bytes] = []
        self.refusal: OSError | None = None
        self.may_write = threading.Event()
        self.may_write.set()
        self.writing = threading.Event()

    def encoder(self) -> Callable[[], bytes]:
        value = self.value
        return lambda: b"%d" % value

    def write(self, data: bytes) -> None:
        self.writing.set()
        assert self.may_write.wait(30)
        if self.refusal is not None:
            raise self.refusal
        self.disk.append(data)


class Bench:
    def __init__(self) -> None:
        self.table = Table()
        self.saver = ConfigSaver("numbers.json", self.table, retry_first_s=0.01)
        self.told: list[OSError | None] = []
        self.task = asyncio.get_running_loop().create_task(self.saver.run())

    def change(self, value: int) -> None:
        self.table.value = value
        self.saver.changed()
        self.saver.check_invariants()

    def ask(self) -> None:
        self.saver.when_saved(self.told.append)
        self.saver.check_invariants()

    async def stop(self) -> None:
        self.table.may_write.set()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.saver.check_invariants()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.stop()


def value(bench: Bench, name: str) -> float:
    return next(metric.value for metric in bench.saver.metrics() if metric.name.endswith(name))


async def test_a_change_is_answered_when_it_is_on_the_disk(bench: Bench) -> None:
    bench.ask()
    assert bench.told == [None]
    bench.table.may_write.clear()
    bench.change(1)
    bench.ask()
    await asyncio.to_thread(bench.table.writing.wait, 30)
    bench.ask()
    assert bench.told == [None]
    assert value(bench, "_behind") == 1
    bench.table.may_write.set()
    await soon(lambda: len(bench.told) == 3, "both answers")
    assert (bench.told, bench.table.disk) == ([None] * 3, [b"1"])
    assert value(bench, "_behind") == 0


async def test_what_changes_during_a_write_is_in_the_next_and_only_then_answered(bench: Bench) -> None:
    bench.table.may_write.clear()
    bench.change(1)
    bench.ask()
    await asyncio.to_thread(bench.table.writing.wait, 30)
    for number in range(2, 50):
        bench.change(number)
        bench.ask()
    bench.table.may_write.set()
    await soon(lambda: len(bench.told) == 49, "all answers")
    assert bench.table.disk == [b"1", b"49"]


async def test_a_refused_write_is_said_counted_and_tried_again(bench: Bench) -> None:
    refusal = bench.table.refusal = OSError(28, "No space left on device")
    bench.change(1)
    bench.ask()
    await soon(lambda: bench.told, "the answer")
    assert bench.told == [refusal]
    assert value(bench, "_behind") == 1
    await soon(lambda: value(bench, "failed_config_writes_total") >= 3, "two more tries")
    bench.table.refusal = None
    await soon(lambda: bench.table.disk == [b"1"], "the write")
    await soon(lambda: value(bench, "_behind") == 0, "the end of it")


async def test_asking_tries_a_disk_that_refused_again_at_once() -> None:
    bench = Bench()
    bench.saver._retry_first_s = 60.0
    bench.table.refusal = OSError(28, "No space left on device")
    bench.change(1)
    await soon(lambda: bench.saver.failures_count == 1, "the first try")
    bench.table.refusal = None
    bench.ask()
    await soon(lambda: bench.told == [None], "the answer")
    await bench.stop()


async def test_a_stop_waits_for_the_write_under_way_and_the_last_write_answers(bench: Bench) -> None:
    bench.table.may_write.clear()
    bench.change(1)
    bench.ask()
    await asyncio.to_thread(bench.table.writing.wait, 30)
    bench.change(2)
    bench.task.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not bench.task.done()
    bench.table.may_write.set()
    await asyncio.gather(bench.task, return_exceptions=True)
    bench.saver.save()
    assert (bench.table.disk, bench.told) == ([b"1", b"2"], [None])
    assert not bench.saver.is_behind
