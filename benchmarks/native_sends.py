"""Single sends of 100 bytes, one process: the native client beside confluent-kafka, round by round.

    .venv/bin/python -m benchmarks.native_sends [--quick] [--records 500000] [--rounds 5] [--linger-ms 5]

A registry and a broker with a durable log (async flush) run in a child process on the first core, and so
does Kafka 4.1.1 (`python -m benchmarks.peers kafka`); the senders are on the last. Each round has every case
once, with a topic of 4 queues, and all acknowledgements are heard:

sends               `send_nowait` and its future, 10,000 in flight, with linger
confluent-kafka     `produce` with a call back per message, and the same linger
                    (`pip install confluent-kafka`)
sends without linger  as the first
sends with keys     as the first, with 1,000 keys
awaited sends       `await producer.send(...)` in 10,000 tasks, with linger
sends, seen         as the first, by a client with an interceptor that counts
sends, traced       as the first, by a client with a message trace

Processor time is that of the sending process. The marks are 400,000/s, and twice confluent-kafka.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import os
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle
from statistics import median
from typing import Any, Final

import uvloop

from benchmarks import machine, native_produce, peers
from benchmarks.peers.native import KAFKA
from iotmq.client import (
    ClientSettings,
    Interceptor,
    IotmqClient,
    Message,
    MessageTrace,
    Producer,
    ProducerSettings,
    Sending,
    SendResult,
)

MARK_PER_S: Final = 400_000
MARK_RATIO: Final = 2.0
SENDS: Final = "sends"
KAFKA_CASE: Final = "confluent-kafka"
KAFKA_TOPIC: Final = "sends"
IN_FLIGHT: Final = 10_000
KEYS: Final = tuple(f"device-{number}" for number in range(1_000))
BODY: Final = native_produce.BODY
QUEUES: Final = native_produce.QUEUES


class Counting(Interceptor):
    """Counts what it sees."""

    def __init__(self) -> None:
        self.count = 0

    def before_send(self, sending: Sending) -> None:
        self.count += len(sending.messages)

    def after_send(self, sending: Sending) -> None:
        self.count += len(sending.results)


def main(words: Sequence[str] | None = None) -> int:
    """0 when the marks are reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.native_sends", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds")
    parser.add_argument("--records", type=int, default=500_000, help="of each case, per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--linger-ms", type=int, default=5)
    options = parser.parse_args(words)
    server_core, load_core = machine.cores()
    records, rounds = (100_000, 3) if options.quick else (options.records, options.rounds)
    about = machine.description()
    with native_produce.served("data-native-sends-") as registry, kafka_started(server_core) as kafka:
        os.sched_setaffinity(0, {load_core})
        measured = uvloop.run(measure(registry, kafka, records, rounds, options.linger_ms))
    rates = {name: machine.spread([rate for rate, _ in found]) for name, found in measured.items()}
    costs = {name: median(cost for _, cost in found) for name, found in measured.items()}
    print(
        machine.table(
            ["case", "records/s", "min", "max", "processor, us"],
            [
                [name, *(f"{found[each]:,.0f}" for each in ("median", "min", "max")), f"{costs[name]:.2f}"]
                for name, found in rates.items()
            ],
        )
    )
    result: dict[str, Any] = {"machine": about, "records_per_s": rates, "processor_us": costs}
    reached = rates[SENDS]["median"] >= MARK_PER_S
    print(f"mark of {MARK_PER_S:,} sends/s: {'reached' if reached else 'missed'}")
    if KAFKA_CASE in measured:
        ratio = median(
            ours / theirs
            for (ours, _), (theirs, _) in zip(measured[SENDS], measured[KAFKA_CASE], strict=True)
        )
        result["ratio"] = {KAFKA_CASE: ratio}
        reached = reached and ratio >= MARK_RATIO
        print(f"{ratio:.2f} x {KAFKA_CASE}: {'reached' if ratio >= MARK_RATIO else 'missed'}")
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    machine.save("native_sends", {f"linger of {options.linger_ms} ms, {len(BODY)} bytes": result})
    return 0 if reached or options.quick else 1


@contextmanager
def kafka_started(core: int) -> Iterator[str | None]:
    """HOST:PORT of a Kafka on the core; None where it, or its client's library, is not there."""
    if importlib.util.find_spec("confluent_kafka") is None:
        print(f"{KAFKA_CASE}: SKIPPED: pip install confluent-kafka", file=sys.stderr)
        yield None
        return
    with ExitStack() as stack:
        servers = [
            stack.enter_context(peers.started(peer, core=core, more=[f"num.partitions={QUEUES}"]))
            for peer in peers.those_there([KAFKA])
        ]
        yield f"127.0.0.1:{servers[0].port}" if servers else None


async def measure(
    registry: str, kafka: str | None, records: int, rounds: int, linger_ms: int
) -> dict[str, list[tuple[float, float]]]:
    """Records per second, and microseconds of processor time a record, of each case and round."""
    settings = ClientSettings(registries=(registry,))
    lingering = ProducerSettings(linger_ms=linger_ms)
    async with (
        IotmqClient(settings) as client,
        IotmqClient(settings, interceptors=[Counting()]) as seen,
        IotmqClient(settings, interceptors=[MessageTrace()]) as traced,
    ):
        await native_produce.wait_for_broker(client.admin)
        producer = await client.producer("sends", lingering)
        cases: dict[str, Callable[[str], Awaitable[None]]] = {
            SENDS: partial(send_all, producer, records),
            "sends without linger": partial(send_all, await client.producer("at-once"), records),
            "sends with keys": partial(send_all_with_keys, producer, records),
            "awaited sends": partial(await_all, producer, records),
            "sends, seen": partial(send_all, await seen.producer("seen", lingering), records),
            "sends, traced": partial(send_all, await traced.producer("traced", lingering), records),
        }
        if kafka is not None:
            cases[KAFKA_CASE] = partial(send_to_kafka, kafka_producer(kafka, linger_ms), records)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        for number in range(rounds + 1):
            for name, case in cases.items():
                topic = f"{name.replace(',', '').replace(' ', '-')}-{number}"
                if name != KAFKA_CASE:
                    await client.admin.create_topic(topic, queues=QUEUES)
                started_s, processor_s = time.perf_counter(), time.process_time()
                await case(topic)
                processor_s = time.process_time() - processor_s
                rate = records / (time.perf_counter() - started_s)
                if name != KAFKA_CASE:
                    await native_produce.check_stored(client.admin, topic, records)
                if number:  # the first round warms up
                    found[name].append((rate, processor_s / records * 1e6))
        return found


async def send_all(producer: Producer, records: int, topic: str) -> None:
    """A future per message, and never waiting for one before the next."""
    pending: deque[asyncio.Future[SendResult]] = deque()
    for _ in range(records):
        if len(pending) == IN_FLIGHT:
            await pending.popleft()
        pending.append(producer.send_nowait(Message(topic, BODY)))
    for future in pending:
        await future


async def send_all_with_keys(producer: Producer, records: int, topic: str) -> None:
    """The same, with keys."""
    pending: deque[asyncio.Future[SendResult]] = deque()
    for _, key in zip(range(records), cycle(KEYS), strict=False):
        if len(pending) == IN_FLIGHT:
            await pending.popleft()
        pending.append(producer.send_nowait(Message(topic, BODY, key=key)))
    for future in pending:
        await future


async def await_all(producer: Producer, records: int, topic: str) -> None:
    """Tasks that each await the send of one message after the other."""
    left = iter(range(records))

    async def one() -> None:
        for _ in left:
            await producer.send(Message(topic, BODY))

    await asyncio.gather(*(one() for _ in range(IN_FLIGHT)))


def kafka_producer(address: str, linger_ms: int) -> Any:
    """A producer of confluent-kafka with settings like ours: acknowledged by the broker, large batches."""
    return importlib.import_module("confluent_kafka").Producer(
        {
            "bootstrap.servers": address,
            "acks": 1,
            "linger.ms": linger_ms,
            "batch.size": 256 * 1024,
            "queue.buffering.max.messages": 100_000,
        }
    )


async def send_to_kafka(producer: Any, records: int, topic: str) -> None:
    """Every message by itself, and every acknowledgement heard."""
    acknowledged = 0

    def heard(error: object, message: object) -> None:
        nonlocal acknowledged
        assert error is None, error
        acknowledged += 1

    for _ in range(records):
        while True:
            try:
                producer.produce(KAFKA_TOPIC, BODY, on_delivery=heard)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()
    assert acknowledged == records, f"{acknowledged} of {records} records are acknowledged"


if __name__ == "__main__":
    sys.exit(main())
