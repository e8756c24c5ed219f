"""A loop in a thread of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from eventually import until

from iotmq.mqtt_front.access.links.loop_thread import LoopThread


async def test_results_and_errors_come_back() -> None:
    thread = LoopThread("test")

    async def name() -> str:
        return threading.current_thread().name

    async def fail() -> None:
        raise ValueError("no")

    assert await thread.run(name) == "test"
    with pytest.raises(ValueError, match="no"):
        await thread.run(fail)
    assert await asyncio.gather(*(thread.run(name) for _ in range(10))) == ["test"] * 10
    thread.close()


async def test_who_is_cancelled_does_not_end_the_work() -> None:
    thread = LoopThread("test")
    free = threading.Event()
    done: list[int] = []

    async def work() -> None:
        await asyncio.to_thread(free.wait, 10)
        done.append(1)

    asking = asyncio.ensure_future(thread.run(work))
    await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    free.set()
    await until(lambda: done)
    thread.close()


def test_a_process_ends_while_work_goes_on() -> None:
    program = """
import asyncio, time
from iotmq.mqtt_front.access.links.loop_thread import LoopThread
async def block():
    time.sleep(60)
async def main():
    thread = LoopThread("test")
    try:
        await asyncio.wait_for(thread.run(block), 0.1)
    except TimeoutError:
        pass
    thread.close()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
