"""The list of connected clients, while devices are served: how long a page takes, and what it costs devices.

    .venv/bin/python -m benchmarks.http_clients [--quick] [--connections 15000] [--browsers 10] [--rounds 5]

A gateway runs in a process on the first core, all load on the last. So many connections are idle, with one
subscription each, and 20 devices publish 1,000 messages a second of QoS 1 to 20 others. Rounds with browsers
and rounds without take turns. Each browser asks for a page of 100 clients, filtered and sorted, and again a
second after its answer; the pages it asks for are sorted by client id, by rate, by latency and by address.

The marks: a page within 200 ms, and the p99 of deliveries within 1.2 times of what it is without browsers.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import http.client
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import _swarm, machine

sys.path.insert(0, str(machine.ROOT / "tests" / "oracles"))
from gateway_process import GatewayProcess

PAGE_MS_MARK: Final = 200.0
P99_MARK: Final = 1.2
TOKEN: Final = "token-of-the-benchmark"
SETTINGS: Final = f"""[http]
open_paths = ["/healthz", "/readyz", "/metrics"]
[[http.tokens]]
name = "load"
token = "{TOKEN}"
role = "viewer"
"""
PAUSE_S: Final = 1.0
PAGES: Final = (
    "client_id=*9*",
    "client_id=*9*&sort=-messages_sent_per_s",
    "subscriptions_min=1&sort=-latency_ms",
    "address=127.*&sort=address",
    "is_kept=false&sort=-connected_ms",
)


def main(words: Sequence[str] | None = None) -> int:
    """0 when both marks are reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_clients", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="3,000 connections, one round of 3 s, for a look"
    )
    parser.add_argument("--connections", type=int, default=15_000)
    parser.add_argument("--browsers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args(words)
    connections = 3_000 if options.quick else options.connections
    rounds, seconds = (1, 3.0) if options.quick else (options.rounds, options.seconds)
    server_core, load_core = machine.cores()
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    p99: dict[bool, list[float]] = {False: [], True: []}
    pages: list[float] = []
    with tempfile.TemporaryDirectory(prefix="data-clients-", dir=machine.RESULTS) as directory:
        config = Path(directory, "iotmq.toml")
        config.write_text(SETTINGS)
        # What is started now stays on the first core.
        os.sched_setaffinity(0, {server_core})
        with GatewayProcess(Path(directory, "gateway"), config=config) as gateway:
            os.sched_setaffinity(0, {load_core})
            mqtt, http_port = gateway.ports["mqtt"], gateway.ports["http"]
            with _swarm.holding(mqtt, *_idle(connections), core=load_core) as held:
                held.ready()
                for _ in range(rounds):
                    for is_watched in (False, True):
                        browsers = options.browsers if is_watched else 0
                        with watching(http_port, browsers, connections, pages):
                            p99[is_watched].append(deliveries_p99_ms(mqtt, seconds))
    ratio = median(p99[True]) / median(p99[False])
    times = sorted(pages)
    worst = times[min(int(len(times) * 0.99), len(times) - 1)]
    print(
        machine.table(
            [f"{connections:,} connections, {options.browsers} browsers", "found", "mark"],
            [
                ["page, median", f"{median(times):.0f} ms", ""],
                [f"page, p99 of {len(times)}", f"{worst:.0f} ms", f"{PAGE_MS_MARK:.0f} ms"],
                ["delivery p99 without browsers", _spread(p99[False]), ""],
                ["delivery p99 with browsers", _spread(p99[True]), ""],
                ["with / without", f"{ratio:.2f}", f"{P99_MARK}"],
            ],
        )
    )
    found = {
        "page_ms": {"median": median(times), "p99": worst, "max": times[-1]},
        "delivery_p99_ms": {"without": machine.spread(p99[False]), "with": machine.spread(p99[True])},
    }
    machine.save("http_clients", {f"{connections} connections": {"machine": machine.description(), **found}})
    return 0 if options.quick or (worst <= PAGE_MS_MARK and ratio <= P99_MARK) else 1


def deliveries_p99_ms(port: int, seconds: float) -> float:
    """The p99 of the time from a device to another one, in milliseconds."""
    report = _swarm.publish(
        port,
        *("--publishers", "20", "--subscribers", "20", "--qos", "1", "--filter", "devices/{n}/telemetry"),
        *("--client-id", "busy-{kind}-{n}", "--rate", "1000", "--seconds", str(seconds), "--warmup", "0.5"),
        *("--deliveries-per-message", "1", "--shares-cores"),
        timeout_s=seconds + 60,
        core=machine.cores()[1],
    )
    if not report["is_drained"]:
        raise _swarm.LoadError(f"not everything was delivered: {report['counters']}")
    return float(report["latencies"]["delivery"]["p99_ns"]) / 1e6


@contextlib.contextmanager
def watching(port: int, browsers: int, connections: int, pages: list[float]) -> Iterator[None]:
    """Browsers that ask for pages meanwhile; `pages` gets the milliseconds of each."""
    is_over = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(max(browsers, 1)) as pool:
        asked = [pool.submit(_browse, port, number, connections, is_over) for number in range(browsers)]
        try:
            yield
        finally:
            is_over.set()
        for each in asked:
            pages += each.result()


def _browse(port: int, number: int, connections: int, is_over: threading.Event) -> list[float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    found: list[float] = []
    is_over.wait(PAUSE_S * number / 10)
    for place in itertools.count(number):
        if is_over.is_set():
            break
        began_s = time.perf_counter()
        connection.request("GET", f"/api/v1/clients?{PAGES[place % len(PAGES)]}&limit=100", headers=headers)
        answer = connection.getresponse()
        body: dict[str, Any] = json.loads(answer.read())
        found.append((time.perf_counter() - began_s) * 1e3)
        if answer.status != 200 or len(body["items"]) != 100 or body["connected"] < connections:
            raise RuntimeError(f"an answer is none: {answer.status} {str(body)[:300]}")
        is_over.wait(PAUSE_S)
    connection.close()
    return found


def _idle(connections: int) -> list[str]:
    return [
        *("--subscribers", str(connections), "--filter", "idle/{n}/cmd", "--qos", "1"),
        *("--connect-rate", "3000", "--connect-timeout", "120"),
    ]


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} ms ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    sys.exit(main())
