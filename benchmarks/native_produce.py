"""The native client against one broker: records stored and read per second, over one connection.

    .venv/bin/python -m benchmarks.native_produce [--quick] [--records 1000000] [--rounds 5] [--window 64]

A registry and a broker with a durable log (async flush) run in a child process on the first core, the
client on the last. Per round and case a fresh topic is filled, the stored records are counted by their
offsets, and one case reads them back:

encoded batches   batches of 100 x 100 bytes encoded beforehand, `--window` requests in flight (the mark)
batch of messages send_batch with 100 Message objects: properties, ids and encoding included
read as columns   PullConsumer.getmany_columns over what "encoded batches" stored
read as messages  PullConsumer.getmany of the same
iterated          `async for` of a PullConsumer in a group with automatic commits, over the same
pushed            PushConsumer with a listener that counts, over the same

The mark is 500,000 records/s for encoded batches. Single sends are measured by `native_sends`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvloop

from benchmarks import machine
from iotmq.client import (
    Admin,
    ClientSettings,
    IotmqClient,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PullConsumerSettings,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
    SendResult,
)
from iotmq.message.records.record import encode_batch

MARK_RECORDS_PER_S: Final = 500_000
QUEUES: Final = 4
BATCH_RECORDS: Final = 100
BODY: Final = b"x" * 100
CASES: Final = (
    "encoded batches",
    "batch of messages",
    "read as columns",
    "read as messages",
    "iterated",
    "pushed",
)


def main(words: Sequence[str] | None = None) -> int:
    """0 when the mark is reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.native_produce", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds")
    parser.add_argument("--records", type=int, default=1_000_000, help="of the fastest case, per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=int, default=64, help="batch requests in flight")
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    server_core, load_core = machine.cores()
    if options.serve:
        os.sched_setaffinity(0, {server_core})
        uvloop.run(serve(Path(options.serve)))
        return 0
    records, rounds = (200_000, 3) if options.quick else (options.records, options.rounds)
    about = machine.description()
    with served("data-native-produce-") as registry:
        os.sched_setaffinity(0, {load_core})
        rates = uvloop.run(measure(registry, records, rounds, options.window))
    results = {name: machine.spread(values) for name, values in rates.items()}
    rows = [
        [name, f"{found['median']:,.0f}", f"{found['min']:,.0f}", f"{found['max']:,.0f}"]
        for name, found in results.items()
    ]
    print(machine.table(["case", "records/s", "min", "max"], rows))
    machine.save(
        "native_produce",
        {f"{BATCH_RECORDS} x {len(BODY)} bytes": {"machine": about, "records_per_s": results}},
    )
    reached = results[CASES[0]]["median"] >= MARK_RECORDS_PER_S
    print(f"mark of {MARK_RECORDS_PER_S:,} records/s: {'reached' if reached else 'missed'}")
    return 0 if reached or options.quick else 1


@contextmanager
def served(prefix: str) -> Iterator[str]:
    """The address of a registry and a broker in a process of their own, on the first core."""
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=machine.RESULTS) as directory:
        server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.native_produce", "--serve", directory],
            cwd=machine.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdin is not None
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address, "the broker did not start"
            yield address
            server.stdin.close()
            server.wait(10)
        finally:
            server.kill()
            server.wait()


async def measure(registry: str, records: int, rounds: int, window: int) -> dict[str, list[float]]:
    """Records per second of each case and round, after one round of warm-up."""
    rates: dict[str, list[float]] = {name: [] for name in CASES}
    settings = ClientSettings(registries=(registry,))
    async with IotmqClient(settings) as client, Producer(client) as producer:
        admin = Admin(client)
        await wait_for_broker(admin)
        for number in range(rounds + 1):
            seconds: dict[str, tuple[int, float]] = {}
            queues = (await admin.create_topic(f"encoded-{number}", queues=QUEUES)).writable
            seconds[CASES[0]] = await timed(produce_encoded(producer, queues, records, window))
            await check_stored(admin, queues[0].topic, seconds[CASES[0]][0])
            seconds[CASES[2]] = await timed(read_columns(client, queues, seconds[CASES[0]][0]))
            seconds[CASES[3]] = await timed(read_messages(client, queues, seconds[CASES[0]][0]))
            seconds[CASES[4]] = await timed(iterate(client, queues[0].topic, seconds[CASES[0]][0]))
            seconds[CASES[5]] = await timed(push(client, queues[0].topic, seconds[CASES[0]][0]))
            topic = f"messages-{number}"
            await admin.create_topic(topic, queues=QUEUES)
            # Far slower than encoded batches, so fewer records.
            seconds[CASES[1]] = await timed(produce_messages(producer, topic, records // 2))
            await check_stored(admin, topic, seconds[CASES[1]][0])
            if number:  # the first round warms up
                for name, (count, took_s) in seconds.items():
                    rates[name].append(count / took_s)
    return rates


async def timed(work: Awaitable[int]) -> tuple[int, float]:
    """(what the work counted, seconds it took)."""
    started_s = time.perf_counter()
    count = await work
    return count, time.perf_counter() - started_s


async def wait_for_broker(admin: Admin) -> None:
    """Return when the broker has registered; TimeoutError after ten seconds."""
    async with asyncio.timeout(10):
        while not await admin.brokers():  # noqa: ASYNC110 - the registry tells nobody
            await asyncio.sleep(0.05)


async def check_stored(admin: Admin, topic: str, count: int) -> None:
    """A rate of records that are not stored is worth nothing."""
    stored = sum(offsets.end - offsets.begin for offsets in (await admin.offsets(topic)).values())
    assert stored == count, f"{stored} of {count} records are stored"


async def produce_encoded(
    producer: Producer, queues: Sequence[MessageQueue], records: int, window: int
) -> int:
    """Keep `window` batches in flight, by turn over the queues."""
    elements = encode_batch([(BODY, b"", 0)] * BATCH_RECORDS)
    pending: deque[asyncio.Future[SendResult]] = deque()
    batches = records // BATCH_RECORDS
    for number in range(batches):
        if len(pending) == window:
            await pending.popleft()
        queue = queues[number % len(queues)]
        pending.append(producer.send_encoded_batch_nowait(queue.topic, queue, elements, BATCH_RECORDS))
    await asyncio.gather(*pending)
    return batches * BATCH_RECORDS


async def produce_messages(producer: Producer, topic: str, records: int) -> int:
    """Eight tasks that each send one batch of Message objects after the other."""
    tasks = 8
    batches = records // BATCH_RECORDS // tasks

    async def one() -> None:
        for _ in range(batches):
            await producer.send_batch([Message(topic, BODY) for _ in range(BATCH_RECORDS)])

    await asyncio.gather(*(one() for _ in range(tasks)))
    return tasks * batches * BATCH_RECORDS


async def read_columns(client: IotmqClient, queues: Sequence[MessageQueue], records: int) -> int:
    """Bodies, offsets and store times of everything."""
    count = 0
    async with PullConsumer(client) as consumer:
        await consumer.assign(queues)
        while count < records:
            result = await consumer.getmany_columns(columns=("body", "queue_offset", "store_timestamp"))
            assert result is not None
            count += len(result[1])
    return count


async def read_messages(client: IotmqClient, queues: Sequence[MessageQueue], records: int) -> int:
    """Every body, as an object per message."""
    count = 0
    async with PullConsumer(client) as consumer:
        await consumer.assign(queues)
        while count < records:
            messages = await consumer.getmany()
            count += sum(len(message.body) == len(BODY) for message in messages)
    return count


async def iterate(client: IotmqClient, topic: str, records: int) -> int:
    """Every message by itself, as a member of a group."""
    count = 0
    consumer = PullConsumer(client, "iterating", PullConsumerSettings(consume_from="first"))
    await consumer.subscribe(topic)
    async with consumer:
        async for _ in consumer:
            count += 1
            if count == records:
                break
    return count


async def push(client: IotmqClient, topic: str, records: int) -> int:
    """Every message to a listener."""
    count, ended = 0, asyncio.Event()

    def listen(messages: list[ReceivedMessage]) -> None:
        nonlocal count
        count += len(messages)
        if count >= records:
            ended.set()

    consumer = PushConsumer(client, "pushed", listen, settings=PushConsumerSettings(consume_from="first"))
    await consumer.subscribe(topic)
    async with consumer:
        await ended.wait()
    return count


async def serve(directory: Path) -> None:
    """Registry and broker; prints the registry's address, ends with stdin."""
    from iotmq.broker.broker import Broker
    from iotmq.broker.registration.advertised_address import resolve_store_host
    from iotmq.broker.settings import BrokerSettings
    from iotmq.registry.server import Registry
    from iotmq.registry.settings import RegistrySettings
    from iotmq.store.settings import StoreSettings
    from iotmq.store.store import Store

    registry = Registry(RegistrySettings(listen_port=0), directory=directory / "registry")
    await registry.start()
    settings = BrokerSettings(listen_port=0, registries=(f"127.0.0.1:{registry.port}",))
    store = Store.open(directory / "data", StoreSettings(), store_host=resolve_store_host(settings))
    broker = Broker(settings, store, directory=directory / "data")
    await broker.start()
    print(f"127.0.0.1:{registry.port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await broker.stop()
    store.close()
    await registry.stop()


if __name__ == "__main__":
    sys.exit(main())
