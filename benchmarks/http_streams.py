"""Messages read as server-sent events: ten readers of all that is published, and one that does not read.

    .venv/bin/python -m benchmarks.http_streams [--quick] [--readers 10] [--rate 10000] [--seconds 10]

A gateway runs in a process on the first core, publisher and readers on the last. Messages of 100 bytes are
published by the HTTP API, 100 in a request, at the rate. Each reader has to get every message once and in
order, and how long that takes is measured from before its request. The one that does not read has to be cut,
and to be told so when it reads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from benchmarks import machine
from benchmarks.http_publish import SETTINGS, TOKEN, processor_s

sys.path.insert(0, str(machine.ROOT / "tests" / "oracles"))
from gateway_process import GatewayProcess

_PER_REQUEST: Final = 100
_BODY_BYTES: Final = 100
_P99_MS_MAX: Final = 1000.0
_REQUEST: Final = (
    "GET /api/v1/stream/messages?filter=bench/%23 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    f"Authorization: Bearer {TOKEN}\r\n\r\n"
).encode()


def main(words: Sequence[str] | None = None) -> int:
    """0 when every reader has got everything, in time, and the one that did not read was cut."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_streams", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 s")
    parser.add_argument("--readers", type=int, default=10)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args(words)
    server_core, load_core = machine.cores()
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    seconds = 3.0 if options.quick else options.seconds
    with tempfile.TemporaryDirectory(prefix="data-http-", dir=machine.RESULTS) as directory:
        config = Path(directory, "iotmq.toml")
        config.write_text(SETTINGS)
        # What is started now stays on the first core.
        os.sched_setaffinity(0, {server_core})
        with GatewayProcess(Path(directory, "gateway"), config=config) as gateway:
            os.sched_setaffinity(0, {load_core})
            before_s = processor_s(gateway.pid)
            found = uvloop.run(_measure(gateway.ports["http"], options.readers, options.rate, seconds))
            used = (processor_s(gateway.pid) - before_s) / found["seconds"]
    print(
        machine.table(
            ["readers", "messages/s", "median ms", "p99 ms", "processor of the gateway", "who did not read"],
            [
                [
                    str(options.readers),
                    f"{found['rate']:,.0f}",
                    f"{found['median_ms']:.1f}",
                    f"{found['p99_ms']:.1f}",
                    f"{used:.0%}",
                    "was told" if found["was_told"] else "was not told",
                ]
            ],
        )
    )
    machine.save("http_streams", {"streams": {"machine": machine.description(), **found, "processor": used}})
    is_reached = found["rate"] >= 0.98 * options.rate and found["p99_ms"] <= _P99_MS_MAX and found["was_told"]
    return 0 if options.quick or is_reached else 1


async def _measure(port: int, readers: int, rate: int, seconds: float) -> dict[str, float]:
    count = int(rate * seconds) // _PER_REQUEST * _PER_REQUEST
    began_of: list[float] = []
    each = [asyncio.create_task(_read(port, count, began_of)) for _ in range(readers)]
    silent_reader, silent_writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
    silent_writer.write(_REQUEST)
    await asyncio.sleep(1.0)
    began_s = time.perf_counter()
    await _publish(port, count, rate, began_of)
    delays = sorted(delay for found in await asyncio.gather(*each) for delay in found)
    passed_s = time.perf_counter() - began_s
    told = await silent_reader.read(-1)
    silent_writer.close()
    return {
        "seconds": passed_s,
        "rate": count / passed_s,
        "median_ms": 1000 * delays[len(delays) // 2],
        "p99_ms": 1000 * delays[len(delays) * 99 // 100],
        "was_told": b'event: end\ndata: {"reason":"too-slow"}' in told,
    }


async def _publish(port: int, count: int, rate: int, began_of: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    start_s = time.perf_counter()
    for first in range(0, count, _PER_REQUEST):
        await asyncio.sleep(start_s + first / rate - time.perf_counter())
        items = [
            {"mqtt_topic": "bench/1", "payload": f"{number} ".ljust(_BODY_BYTES, "x")}
            for number in range(first, first + _PER_REQUEST)
        ]
        body = json.dumps({"items": items}).encode()
        began_of.append(time.perf_counter())
        writer.write(
            f"POST /api/v1/messages/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"an answer is no 200: {head!r}")
        await reader.readexactly(int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]))
    writer.close()


async def _read(port: int, count: int, began_of: list[float]) -> list[float]:
    """Return how long the last message of each request took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(_REQUEST)
    delays: list[float] = []
    expected = 0
    rest = b""
    mark = b'"payload":"'
    while expected < count:
        data = rest + await reader.read(1 << 18)
        if b"event: end" in data:
            raise RuntimeError(f"a reader was cut after {expected} messages")
        # The number stands behind the mark; one that is cut is looked at again with what follows.
        _, *parts = data.split(mark)
        is_cut = bool(parts) and b" " not in parts[-1][:16]
        rest = mark + parts.pop() if is_cut else data[-len(mark) + 1 :]
        now_s = time.perf_counter()
        for part in parts:
            number = int(part[: part.index(b" ")])
            if number != expected:
                raise RuntimeError(f"message {number} came where {expected} was due")
            expected += 1
            if expected % _PER_REQUEST == 0:
                delays.append(now_s - began_of[number // _PER_REQUEST])
    writer.close()
    return delays


if __name__ == "__main__":
    sys.exit(main())
