"""Messages that wait for a time: what a million of them cost, and how late ten thousand in a second come.

    .venv/bin/python -m benchmarks.broker_timers [--quick] [--pending 1000000] [--due 10000] [--idle 10]

A broker with a durable log (async flush) runs in a child process on the first core. It is given messages that
wait for up to a year, and then does nothing for some seconds:

idle              processor time while so many wait, in percent of a core (the mark: under 1 %)
start             a start with all of them waiting
spread            `--due` messages that fall due one after the other within one second
at once           as many that fall due in the same millisecond
before a restart  as many again, with the broker killed after they were stored

How late a message is comes from its own record: when it was stored in its topic, which is when consumers can
have it, less when it was due. A client in this process reads the topic meanwhile and says how late they
arrive there, to the millisecond of the machine's clock. The mark: all that fall due within a second within
500 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from benchmarks import machine
from iotmq.broker.broker import Broker
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.scheduled.delivery_time import waiting_until
from iotmq.broker.settings import BrokerSettings
from iotmq.client import ClientSettings, IotmqClient, PullConsumer
from iotmq.message.records.record import encode_batch, iter_records, property_value
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

MARK_IDLE_PERCENT: Final = 1.0
MARK_LATE_MS: Final = 500
TOPIC: Final = "due"
YEAR_MS: Final = 365 * 86_400_000
BODY: Final = b"x" * 100
FILL_BATCH: Final = 500


def main(words: Sequence[str] | None = None) -> int:
    """0 when both marks are reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker_timers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 waiting, a shorter look at idling")
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--due", type=int, default=10_000)
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of doing nothing")
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    server_core, load_core = machine.cores()
    if options.serve:
        os.sched_setaffinity(0, {server_core})
        uvloop.run(serve(Path(options.serve)))
        return 0
    if options.quick:
        options.pending, options.idle = min(options.pending, 100_000), min(options.idle, 4.0)
    about = machine.description()
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    os.sched_setaffinity(0, {load_core})
    with tempfile.TemporaryDirectory(prefix="data-broker-timers-", dir=machine.RESULTS) as directory:
        results = measure(directory, options.pending, options.due, options.idle)
    rows = [[name, f"{value:,.3f}"] for name, value in results.items()]
    print(machine.table(["", "value"], rows))
    machine.save(
        "broker_timers", {f"{options.pending} waiting, {options.due} due": {"machine": about, **results}}
    )
    late = max(results[f"{name}, stored late, ms, most"] for name in ("spread", "before a restart"))
    is_reached = results["idle, percent of a core"] < MARK_IDLE_PERCENT and late <= MARK_LATE_MS
    print(f"marks ({MARK_IDLE_PERCENT} %, {MARK_LATE_MS} ms): {'reached' if is_reached else 'missed'}")
    return 0 if is_reached or options.quick else 1


def measure(directory: str, pending: int, due: int, idle_s: float) -> dict[str, float]:
    """Everything measured, by name."""
    results: dict[str, float] = {}
    child = Child(directory)
    began_s = time.monotonic()
    child.ask(f"fill {pending}")
    results["fill, messages/s"] = pending / (time.monotonic() - began_s)
    # What filling left to do (flushes, the database's compactions) is not idling.
    settle(child)
    before_s = child.cpu_s()
    time.sleep(idle_s)
    results["idle, percent of a core"] = 100 * (child.cpu_s() - before_s) / idle_s
    results["memory, MB"] = child.memory_bytes() / 1e6
    child.end()
    child = Child(directory)
    results["start, s"] = child.start_s
    for name, spread_ms in (("spread", 1_000), ("at once", 1)):
        results |= uvloop.run(burst(child, name, due, spread_ms))
    child.ask(f"store {due} 1500 1000")
    child.kill()
    child = Child(directory)
    results |= {f"before a restart, {name}": value for name, value in child.numbers(f"late {due}").items()}
    child.end()
    return results


async def burst(child: Child, name: str, count: int, spread_ms: int) -> dict[str, float]:
    """How late `count` messages are that fall due within `spread_ms`."""
    arrived_ms: list[float] = []
    settings = ClientSettings(registries=(child.address,))
    async with IotmqClient(settings) as client, PullConsumer(client, "late") as consumer:
        (queue,) = await consumer.queues(TOPIC, timeout_ms=10_000)
        begun = child.numbers(f"store {count} 2500 {spread_ms}")
        await consumer.assign({queue: int(begun["offset"])})
        while len(arrived_ms) < count:
            messages = await consumer.poll()
            now_ms = time.time_ns() / 1e6
            arrived_ms += [now_ms - int(message.properties["TIMER_OUT_MS"]) for message in messages]
    arrived_ms.sort()
    found = child.numbers(f"late {count}")
    return {
        **{f"{name}, {key}": value for key, value in found.items()},
        f"{name}, arrived late, ms, median": arrived_ms[len(arrived_ms) // 2],
        f"{name}, arrived late, ms, most": arrived_ms[-1],
    }


def settle(child: Child) -> None:
    """Wait until the child is at rest, or twenty seconds."""
    for _ in range(20):
        before_s = child.cpu_s()
        time.sleep(1)
        if child.cpu_s() - before_s < 0.02:
            return


class Child:
    """The broker's process: one line of words to it, one line back."""

    def __init__(self, directory: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.broker_timers", "--serve", directory],
            cwd=machine.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        words = self._read().split()
        self.address, self.start_s = words[0], float(words[1])

    def ask(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._read()

    def numbers(self, command: str) -> dict[str, float]:
        """The answer `name=number;name=number`."""
        pairs = (pair.split("=") for pair in self.ask(command).strip().split(";"))
        return {name: float(number) for name, number in pairs}

    def cpu_s(self) -> float:
        total_ns = 0
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            total_ns += int((task / "schedstat").read_text().split()[0])
        return total_ns / 1e9

    def memory_bytes(self) -> int:
        """Resident bytes that are no file's."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        return 0

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the broker ended")
        return line


async def serve(directory: Path) -> None:
    """Registry and broker, and messages on demand; ends with stdin."""
    began_s = time.monotonic()
    registry = Registry(RegistrySettings(listen_port=0), directory=directory / "registry")
    await registry.start()
    settings = BrokerSettings(
        listen_port=0, registries=(f"127.0.0.1:{registry.port}",), registration_interval_s=1.0
    )
    store = Store.open(directory / "data", StoreSettings(), store_host=resolve_store_host(settings))
    broker = Broker(settings, store, directory=directory / "data")
    await broker.start()
    broker.topics.ensure(TOPIC, queues=1)
    print(f"127.0.0.1:{registry.port} {time.monotonic() - began_s:.3f}", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        words = line.split()
        numbers = [int(word) for word in words[1:]]
        answer = ""
        if words[0] == "fill":
            await fill(broker, numbers[0], first_ms=time.time_ns() // 1_000_000 + 86_400_000, step_ms=YEAR_MS)
        elif words[0] == "store":
            count, ahead_ms, spread_ms = numbers
            queue = store.queue(TOPIC, 0)
            answer = f"offset={queue.max_offset}"
            first_ms = time.time_ns() // 1_000_000 + ahead_ms
            await fill(broker, count, first_ms=first_ms, step_ms=spread_ms)
        elif words[0] == "late":
            answer = await lateness(store, numbers[0])
        print(answer, flush=True)
    await broker.stop()
    store.close()
    await registry.stop()


async def fill(broker: Broker, count: int, *, first_ms: int, step_ms: int) -> None:
    """Store `count` messages that fall due evenly over `step_ms`, as a send of each would."""
    topic, queue_id = "", 0
    for begin in range(0, count, FILL_BATCH):
        elements = []
        for number in range(begin, min(count, begin + FILL_BATCH)):
            due_ms = first_ms + number * step_ms // count
            waiting = waiting_until(TOPIC, 0, b"UNIQ_KEY\x01%032X\x02" % number, due_ms)
            topic, queue_id = waiting.topic, waiting.queue_id
            elements.append((BODY, waiting.properties, 0))
        broker.writer.append(
            topic,
            queue_id,
            encode_batch(elements),
            born_timestamp_ms=time.time_ns() // 1_000_000,
            born_host=bytes((127, 0, 0, 1, 0, 0, 0, 0)),
            done=lambda result: None,
            is_internal=True,
        )
        await asyncio.sleep(0)


async def lateness(store: Store, count: int) -> str:
    """Of the last `count` messages of the topic, once all of the waiting ones that are near are there."""
    queue = store.queue(TOPIC, 0)
    timers = store.timers()
    for _ in range(300):
        if timers.next_due_ms > time.time_ns() // 1_000_000 + 3_600_000:
            break
        await asyncio.sleep(0.1)
    late_ms = []
    offset = queue.max_offset - count
    while offset < queue.max_offset:
        read = store.read(queue, offset, records_max=1_024, bytes_max=1 << 20)
        for view in read.views:
            for record in iter_records(view):
                due_ms = int(property_value(record.properties, b"TIMER_OUT_MS") or 0)
                late_ms.append(record.store_timestamp_ms - due_ms)
        offset = read.next_offset
    late_ms.sort()
    return (
        f"stored late, ms, least={late_ms[0]};stored late, ms, median={late_ms[len(late_ms) // 2]};"
        f"stored late, ms, most={late_ms[-1]}"
    )


if __name__ == "__main__":
    sys.exit(main())
