"""Messages sent by the HTTP API over kept connections: one a request, and many a request.

    .venv/bin/python -m benchmarks.http_publish [--quick] [--connections 64] [--seconds 10]

A gateway runs in a process on the first core, the load on the last. Every connection sends its next request
when the answer to the one before has come, and every answer has to be a 200. Messages have 100 bytes. The
first fifth of the time counts as warm-up.

The marks are 15,000 messages/s one by one, and 300,000/s with 100 in a request.
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

sys.path.insert(0, str(machine.ROOT / "tests" / "oracles"))
from gateway_process import GatewayProcess

MARKS: Final = {1: 15_000, 100: 300_000}
TOKEN: Final = "token-of-the-benchmark"
SETTINGS: Final = f"""[http]
open_paths = ["/healthz", "/readyz", "/metrics"]
[[http.tokens]]
name = "load"
token = "{TOKEN}"
role = "operator"
"""
_BODY_BYTES: Final = 100
_WARM_SHARE: Final = 5
_OK: Final = b"HTTP/1.1 200 "


def main(words: Sequence[str] | None = None) -> int:
    """0 when both marks are reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_publish", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 s each")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args(words)
    server_core, load_core = machine.cores()
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    seconds = 3.0 if options.quick else options.seconds
    rates: dict[int, float] = {}
    processor_us: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="data-http-", dir=machine.RESULTS) as directory:
        config = Path(directory, "iotmq.toml")
        config.write_text(SETTINGS)
        # What is started now stays on the first core.
        os.sched_setaffinity(0, {server_core})
        with GatewayProcess(Path(directory, "gateway"), config=config) as gateway:
            os.sched_setaffinity(0, {load_core})
            for count in MARKS:
                measuring = measure(gateway.ports["http"], count, options.connections, seconds, gateway.pid)
                rates[count], processor_us[count] = uvloop.run(measuring)
    rows = [
        [
            str(count),
            f"{rate:,.0f}",
            f"{MARKS[count]:,}",
            "reached" if rate >= MARKS[count] else "missed",
            f"{processor_us[count]:.2f}",
        ]
        for count, rate in rates.items()
    ]
    print(machine.table(["messages a request", "messages/s", "mark", "", "gateway: us a message"], rows))
    found = {str(count): rate for count, rate in rates.items()}
    about = machine.description()
    machine.save("http_publish", {"messages/s": {"machine": about, "by messages a request": found}})
    return 0 if options.quick or all(rate >= MARKS[count] for count, rate in rates.items()) else 1


def processor_s(pid: int) -> float:
    """Return the seconds of processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(port: int, count: int, connections: int, seconds: float, pid: int) -> tuple[float, float]:
    """Messages a second with so many in each request, and microseconds of the gateway for each."""
    loop = asyncio.get_running_loop()
    request = _request(count)
    protocols = [
        (await loop.create_connection(lambda: _Connection(request), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    await asyncio.sleep(seconds / _WARM_SHARE)
    before, began_s = sum(each.answered_count for each in protocols), time.perf_counter()
    used_s = processor_s(pid)
    await asyncio.sleep(seconds)
    answered = sum(each.answered_count for each in protocols) - before
    passed_s = time.perf_counter() - began_s
    used_s = processor_s(pid) - used_s
    for each in protocols:
        each.close()
    wrong = [each.wrong for each in protocols if each.wrong]
    if wrong:
        raise RuntimeError(f"an answer is no 200: {wrong[0][:300]!r}")
    return answered * count / passed_s, 1e6 * used_s / (answered * count)


class _Connection(asyncio.Protocol):
    """Sends the same request again and again."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport
        self._received = b""
        self._is_closed = False
        self.answered_count = 0
        self.wrong = b""

    def close(self) -> None:
        self._is_closed = True
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]):
            return
        if not head.startswith(_OK):
            self.wrong = self._received
            self._transport.close()
            return
        self._received = b""
        self.answered_count += 1
        if not self._is_closed:
            self._transport.write(self._request)

    def connection_lost(self, _error: Exception | None) -> None:
        if not self._is_closed and not self.wrong:
            self.wrong = b"the connection was closed"


def _request(count: int) -> bytes:
    messages = [{"mqtt_topic": f"bench/{number}", "payload": "x" * _BODY_BYTES} for number in range(count)]
    body = json.dumps(messages[0] if count == 1 else {"items": messages}).encode()
    path = "/api/v1/messages" if count == 1 else "/api/v1/messages/batch"
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


if __name__ == "__main__":
    sys.exit(main())
