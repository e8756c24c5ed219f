"""The price of looking: processor time of a client per message, by who looks.

    .venv/bin/python -m benchmarks.experiments.observed [--records 200000] [--rounds 5]

Registry and broker run in a child process. Each round fills a topic with encoded batches of 100 x 100 bytes
and reads it pushed to a listener and as columns, with clients that differ in who looks:

nobody            no interceptors
elsewhere         an interceptor that overrides none of the functions of these paths
a function        an interceptor whose functions do nothing
MessageTrace      writes traces of pushed messages; columns are none of its business
OpenTelemetry     without a tracer provider, as in a program that has not set one
metrics           a registry of prometheus-client collects the client's numbers every 100 ms

The numbers are microseconds of processor time of the client's process per message, and the lowest of the
rounds: what other work on the machine adds comes and goes.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import prometheus_client
import uvloop

from benchmarks import machine
from benchmarks.native_produce import QUEUES, produce_encoded, push, read_columns, wait_for_broker
from iotmq.client import (
    ClientSettings,
    Consuming,
    ConsumingColumns,
    Interceptor,
    IotmqClient,
    MessageQueue,
    MessageTrace,
    OpenTelemetry,
    Sending,
)

Read = Callable[[IotmqClient, Sequence[MessageQueue], int], Awaitable[int]]
_METRICS: Final = "metrics"


class Elsewhere(Interceptor):
    def after_send(self, sending: Sending) -> None:
        pass


class Function(Interceptor):
    def before_consume(self, consuming: Consuming) -> None:
        pass

    def after_consume(self, consuming: Consuming) -> None:
        pass

    def before_consume_columns(self, consuming: ConsumingColumns) -> None:
        pass

    def after_consume_columns(self, consuming: ConsumingColumns) -> None:
        pass


WATCHERS: Final[dict[str, Callable[[], list[Interceptor]]]] = {
    "nobody": list,
    "elsewhere": lambda: [Elsewhere()],
    "a function": lambda: [Function()],
    "MessageTrace": lambda: [MessageTrace()],
    "OpenTelemetry": lambda: [OpenTelemetry()],
    _METRICS: list,
}


async def pushed(client: IotmqClient, queues: Sequence[MessageQueue], records: int) -> int:
    return await push(client, queues[0].topic, records)


PATHS: Final[dict[str, Read]] = {"pushed": pushed, "columns": read_columns}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.observed", description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(words)
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-observed-", dir=machine.RESULTS) as directory:
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
            costs = uvloop.run(measure(server.stdout.readline().strip(), options.records, options.rounds))
            server.stdin.close()
            server.wait(10)
        finally:
            server.kill()
            server.wait()
    print(
        machine.table(
            ["who looks", *PATHS],
            [[name, *(f"{min(costs[name, path]):.3f}" for path in PATHS)] for name in WATCHERS],
        )
    )
    return 0


async def measure(registry: str, records: int, rounds: int) -> dict[tuple[str, str], list[float]]:
    """Microseconds per message of each watcher and path, after one round of warm-up."""
    costs: dict[tuple[str, str], list[float]] = {(name, path): [] for name in WATCHERS for path in PATHS}
    settings = ClientSettings(registries=(registry,))
    async with IotmqClient(settings) as client:
        await wait_for_broker(client.admin)
        producer = await client.producer()
        for number in range(rounds + 1):
            queues = (await client.admin.create_topic(f"observed-{number}", queues=QUEUES)).writable
            await produce_encoded(producer, queues, records, 64)
            for name, watchers in WATCHERS.items():
                async with IotmqClient(settings, interceptors=watchers()) as watched:
                    collecting = asyncio.ensure_future(collect(watched)) if name == _METRICS else None
                    for path, read in PATHS.items():
                        begun_s = time.process_time()
                        count = await read(watched, queues, records)
                        if number:
                            costs[name, path].append((time.process_time() - begun_s) / count * 1e6)
                    if collecting is not None:
                        collecting.cancel()
                # The next one begins at the first message again.
                await client.admin.changes.delete_group("pushed")
    return costs


async def collect(client: IotmqClient) -> None:
    registry = prometheus_client.CollectorRegistry()
    registry.register(client)
    while True:
        prometheus_client.generate_latest(registry)
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
