"""Request and reply between two services over the broker: how long the answer takes at a steady rate.

    .venv/bin/python -m benchmarks.native_requests [--quick] [--rate 1000] [--seconds 20]

A gateway and the service that answers run in processes on the first core, the one that asks on the last.
Requests of 100 bytes go out evenly spread over each second, whether those before are answered or not; the
replier is a push consumer that answers each with its own body. The first fifth counts as warm-up, and every
reply has to be that of its request.

The mark is a p99 under 3 ms at 1,000 requests/s.
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

import numpy
import uvloop

import iotmq
from benchmarks import machine
from iotmq.client import Message, PushConsumerSettings, ReceivedMessage

sys.path.insert(0, str(machine.ROOT / "tests" / "oracles"))
from gateway_process import GatewayProcess

MARK_P99_MS: Final = 3.0
TOPIC: Final = "questions"
BODY_BYTES: Final = 100
_WARM_SHARE: Final = 5
_TICK_S: Final = 0.001
_WAITING_MAX: Final = 10_000


def main(words: Sequence[str] | None = None) -> int:
    """0 when the mark is reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.native_requests", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 s")
    parser.add_argument("--rate", type=int, default=1_000, help="requests a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--reply", metavar="REGISTRY", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    server_core, load_core = machine.cores()
    if options.reply:
        uvloop.run(reply(options.reply))
        return 0
    about = machine.description()
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    # What is started now stays on the first core.
    os.sched_setaffinity(0, {server_core})
    with (
        tempfile.TemporaryDirectory(prefix="data-requests-", dir=machine.RESULTS) as directory,
        GatewayProcess(Path(directory, "gateway")) as gateway,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.native_requests", "--reply", gateway.registry],
            cwd=machine.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                print("the service that answers did not start", file=sys.stderr)
                return 1
            os.sched_setaffinity(0, {load_core})
            seconds = 5.0 if options.quick else options.seconds
            found = uvloop.run(measure(gateway.registry, options.rate, seconds))
            process.stdin.close()
            process.wait(10)
        finally:
            process.kill()
            process.wait()
    print(machine.table(list(found), [[f"{value:,.2f}" for value in found.values()]]))
    machine.save("native_requests", {f"{options.rate} requests/s": {"machine": about, "replies": found}})
    reached = found["p99 ms"] < MARK_P99_MS
    print(f"mark of {MARK_P99_MS:g} ms: {'reached' if reached else 'missed'}")
    return 0 if reached or options.quick else 1


async def measure(registry: str, rate: int, seconds: float) -> dict[str, float]:
    """Milliseconds from a request to its reply."""
    latencies_ms: list[float] = []
    failed: list[BaseException] = []
    waiting: set[asyncio.Task[None]] = set()

    async with iotmq.connect(f"iotmq://{registry}") as client:
        requester = await client.requester()

        async def ask(number: int) -> None:
            body = str(number).encode().ljust(BODY_BYTES, b" ")
            began_s = time.perf_counter()
            answer = await requester.request(Message(TOPIC, body))
            latencies_ms.append((time.perf_counter() - began_s) * 1000)
            if answer.body != body:
                raise RuntimeError(f"{answer.body!r} is the answer to {body!r}")

        def ended(task: asyncio.Task[None]) -> None:
            waiting.discard(task)
            if (error := task.exception()) is not None:
                failed.append(error)

        asked, began_s = 0, time.perf_counter()
        while (passed_s := time.perf_counter() - began_s) < seconds:
            while asked < passed_s * rate:
                if len(waiting) >= _WAITING_MAX:
                    raise RuntimeError(f"{_WAITING_MAX} requests wait for their replies")
                task = asyncio.create_task(ask(asked))
                waiting.add(task)
                task.add_done_callback(ended)
                asked += 1
            await asyncio.sleep(_TICK_S)
        if waiting:
            await asyncio.wait(tuple(waiting))
    if failed:
        raise failed[0]
    counted = numpy.array(latencies_ms[len(latencies_ms) // _WARM_SHARE :])
    p50, p99, most = numpy.percentile(counted, (50, 99, 100))
    return {"p50 ms": float(p50), "p99 ms": float(p99), "max ms": float(most), "replies": float(len(counted))}


async def reply(registry: str) -> None:
    """Answer until standard input ends; prints a line when requests are taken."""
    async with iotmq.connect(f"iotmq://{registry}") as client:
        await client.admin.create_topic(TOPIC, queues=4)
        replier = client.replier()

        async def listen(messages: list[ReceivedMessage]) -> None:
            await asyncio.gather(*(replier.reply(message, message.body) for message in messages))

        consumer = client.push_consumer(
            "answers", listen, settings=PushConsumerSettings(consume_from="first")
        )
        await consumer.subscribe(TOPIC)
        async with consumer:
            print("takes requests", flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    sys.exit(main())
