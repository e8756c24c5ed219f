"""What history and statistics that last cost a gateway whose devices publish.

QoS 1 with a window of 100, from a hundred devices. Two gateways run at a time, one with all of it and one
without: they have the load in turns, each first in every second round, and the ratio is that of neighbours. A
round is long enough for samples of the history, which are taken every ten seconds.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from benchmarks import _swarm, machine, peers
from benchmarks.peers.server import Server

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
    results: dict[str, Any] = {"machine": machine.description(), "rounds": measured}
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


if __name__ == "__main__":
    sys.exit(main())
