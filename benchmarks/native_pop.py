"""Consumption by message: messages popped and acknowledged per second, and when consumers have their first.

    .venv/bin/python -m benchmarks.native_pop [--quick] [--records 300000] [--rounds 3]

A registry and a broker with a durable log (async flush) run in a child process on the first core, the
client on the last. Per round:

popped and acknowledged  100 pop consumers of one group take a topic of one queue, filled beforehand, and
                         acknowledge each message; every message is to come once. The mark is 50,000/s
joined                   1,000 pop consumers of one group join at once while a producer sends; the time from
                         the first join until each has had its first message. The mark is 1 s
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
from statistics import median
from typing import Any, Final

import uvloop

from benchmarks import machine
from benchmarks.native_produce import wait_for_broker
from benchmarks.peers import exact_cpu_s
from iotmq.client import ClientSettings, IotmqClient, Message, PopConsumer, PopConsumerSettings

MARK_PER_S: Final = 50_000
MARK_FIRST_S: Final = 1.0
CONSUMERS: Final = 100
JOINERS: Final = 1_000
BODY: Final = b"x" * 100
TAKEN_MAX: Final = 32


def main(words: Sequence[str] | None = None) -> int:
    """0 when both marks are reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.native_pop", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(words)
    records, rounds = (30_000, 1) if options.quick else (options.records, options.rounds)
    _, load_core = machine.cores()
    about = machine.description()
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-native-pop-", dir=machine.RESULTS) as directory:
        command = [sys.executable, "-m", "benchmarks.native_produce", "--serve", directory]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            assert server.stdout is not None
            registry = server.stdout.readline().strip()
            os.sched_setaffinity(0, {load_core})
            found = uvloop.run(measure(registry, server.pid, records, rounds))
            assert server.stdin is not None
            server.stdin.close()
    rows = [[name, f"{median(values):,.2f}"] for name, values in found.items()]
    print(machine.table(["consumption by message", "median"], rows))
    machine.save(
        "native_pop",
        {"native_pop": {"machine": about, **{name: machine.spread(each) for name, each in found.items()}}},
    )
    is_reached = (
        median(found["popped and acknowledged, 1/s"]) >= MARK_PER_S
        and median(found["last first message, s"]) < MARK_FIRST_S
    )
    print("marks reached" if is_reached else "missed")
    return 0 if is_reached or options.quick else 1


async def measure(registry: str, server: int, records: int, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    async with IotmqClient(ClientSettings(registries=(registry,))) as client:
        await wait_for_broker(client.admin)
        for number in range(rounds):
            for name, value in (
                await take_all(client, server, f"all-{number}", records)
                | await join(client, f"join-{number}")
            ).items():
                found.setdefault(name, []).append(value)
    return found


async def take_all(client: IotmqClient, server: int, topic: str, records: int) -> dict[str, float]:
    """Pop and acknowledge everything of one queue."""
    await client.admin.create_topic(topic, queues=1)
    async with client.producer() as producer:
        for _ in range(0, records, 1_000):
            await producer.send_batch([Message(topic, BODY) for _ in range(1_000)])
    consumers = [await consumer_of(client, topic) for _ in range(CONSUMERS)]
    offsets: set[int] = set()

    async def take(consumer: PopConsumer) -> None:
        while len(offsets) < records:
            messages = await consumer.getmany(timeout_ms=100, records_max=TAKEN_MAX)
            await consumer.ack(messages)
            for message in messages:
                assert message.queue_offset not in offsets, "a message came twice"
                offsets.add(message.queue_offset)

    cpu_s, own_s = exact_cpu_s(server), time.process_time()
    began_s = time.perf_counter()
    for consumer in consumers:
        await consumer.start()
    await asyncio.gather(*(take(consumer) for consumer in consumers))
    took_s = time.perf_counter() - began_s
    cpu_s, own_s = exact_cpu_s(server) - cpu_s, time.process_time() - own_s
    for consumer in consumers:
        await consumer.stop()
    assert len(offsets) == records
    return {
        "popped and acknowledged, 1/s": records / took_s,
        "broker, us each": cpu_s / records * 1e6,
        "client, us each": own_s / records * 1e6,
    }


async def join(client: IotmqClient, topic: str) -> dict[str, float]:
    """Have very many consumers begin at once."""
    await client.admin.create_topic(topic, queues=1)
    consumers = [await consumer_of(client, topic, held_max=1) for _ in range(JOINERS)]
    firsts: list[float] = []
    is_over = asyncio.Event()

    async def send() -> None:
        async with client.producer() as producer:
            while not is_over.is_set():
                await producer.send_batch([Message(topic, BODY) for _ in range(100)])

    async def take_first(consumer: PopConsumer) -> None:
        await consumer.start()
        while not (messages := await consumer.getmany(timeout_ms=1_000, records_max=1)):
            pass
        firsts.append(time.perf_counter() - began_s)
        await consumer.ack(messages)

    sending = asyncio.ensure_future(send())
    began_s = time.perf_counter()
    await asyncio.gather(*(take_first(consumer) for consumer in consumers))
    is_over.set()
    await sending
    await asyncio.gather(*(consumer.stop() for consumer in consumers))
    return {"median first message, s": median(firsts), "last first message, s": max(firsts)}


async def consumer_of(client: IotmqClient, topic: str, **settings: Any) -> PopConsumer:
    """A consumer that is not started yet."""
    options = {"consume_from": "first", **settings}
    consumer = client.pop_consumer(f"G-{topic}", PopConsumerSettings(**options))
    await consumer.subscribe(topic)
    return consumer


if __name__ == "__main__":
    sys.exit(main())
