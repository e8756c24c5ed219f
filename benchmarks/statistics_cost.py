"""What history and statistics that last cost a gateway whose devices publish.

QoS 1 with a window of 100, from a hundred devices. Two gateways run at a time, one with all of it and one
without: they have the load in turns, each first in every second round, and the ratio is that of neighbours. A
round is long enough for samples of the history, which are taken every ten seconds. Beside it, by processor
time alone, which other work disturbs less: a sample of the history of an all-in-one gateway, and a
minute of the statistics of 10 and of 1,000 topics, groups and prefixes.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import _swarm, machine, peers
from benchmarks.peers.server import Server
from iotmq.assembly import Process
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.statistics.counters import TrafficCounters
from iotmq.broker.statistics.lasting import LastingStatistics
from iotmq.clock import SystemClock
from iotmq.config.config import config_from_table

WITHOUT: Final = {
    "history.enabled": "false",
    "broker.statistics_names_max": "0",
    "mqtt.client_prefix_ends": "",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures both, in turns."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.statistics_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20.0, help="time of one round of one gateway")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parts = asyncio.run(_sample_ms())
    parts |= {f"a minute of {count:,} names": _minute_ms(count) for count in (10, 1_000)}
    print(machine.table(["part", "processor time"], [[name, f"{ms:.2f} ms"] for name, ms in parts.items()]))
    measured: list[dict[str, tuple[float, float]]] = []
    with (
        peers.iotmq(core=machine.cores()[0]) as with_all,
        peers.iotmq(core=machine.cores()[0], settings=WITHOUT) as without,
    ):
        servers = {"with": with_all, "without": without}
        for number in range(options.rounds + 1):
            names = sorted(servers, reverse=number % 2 == 1)
            found = {name: _rate(servers[name], options.seconds if number else 3.0) for name in names}
            # The first round is for warming up.
            if number:
                measured.append(found)
    results: dict[str, Any] = {"machine": machine.description(), "rounds": measured, "parts_ms": parts}
    for name in servers:
        results[name] = {
            "rate": median(found[name][0] for found in measured),
            "cpu_us": median(found[name][1] for found in measured),
        }
    results["rate_ratio"] = median(found["with"][0] / found["without"][0] for found in measured)
    results["cpu_ratio"] = median(found["with"][1] / found["without"][1] for found in measured)
    rows = [[name, f"{results[name]['rate']:,.0f}", f"{results[name]['cpu_us']:.3f} us"] for name in servers]
    rows.append(["ratio", f"{results['rate_ratio']:.3f}", f"{results['cpu_ratio']:.3f}"])
    print(machine.table(["QoS 1, window 100", "messages/s", "processor time of one"], rows))
    print(machine.save("statistics_cost", results))
    return 0


def _rate(server: Server, seconds: float) -> tuple[float, float]:
    """Messages a second, and the microseconds of one."""
    before_s = server.exact_cpu_s()
    report = _swarm.publish(
        server.port,
        *("--seconds", str(seconds), "--warmup", "0", "--payload-bytes", "100"),
        *("--publishers", "100", "--window", "100", "--qos", "1"),
        timeout_s=seconds + 120,
        core=machine.cores()[1],
    )
    server.check()
    cpu_s = server.exact_cpu_s() - before_s
    return report["acknowledged_per_s"], cpu_s / report["counters"]["acknowledged"] * 1e6


async def _sample_ms() -> dict[str, float]:
    """One sample of an idle gateway's history."""
    with tempfile.TemporaryDirectory() as data:
        listening = {name: {"listen_port": 0} for name in ("http", "broker", "registry", "mqtt")}
        process = Process(config_from_table({"data": data, **listening}), "serve")
        await process.start()
        try:
            history = process.history
            assert history is not None
            history.sample()
            begin = time.process_time()
            for _ in range(200):
                history.sample()
            passed_s = time.process_time() - begin
            return {f"a sample of {len(history)} series": passed_s / 200 * 1e3}
        finally:
            await process.stop()


def _minute_ms(count: int) -> float:
    """A minute in which so many topics, groups and prefixes had messages."""
    clock = SystemClock()
    counters = TrafficCounters(keys_max=16_384, monotonic_s=clock.monotonic_s)
    passed_s = []
    with tempfile.TemporaryDirectory() as directory:
        lasting = LastingStatistics(counters, clock, BrokerSettings(), directory=Path(directory))
        for _ in range(21):
            for number in range(count):
                counters.count_put(f"t{number}", 0, 5, 500)
                counters.count_get(f"t{number}", 0, f"g{number}", 5, 500, 10, False)
                counters.count_clients(f"c{number}", 1, 2, 3, 4, 5)
            begin = time.process_time()
            lasting.finish()
            passed_s.append(time.process_time() - begin)
    return median(passed_s) * 1e3


if __name__ == "__main__":
    sys.exit(main())
