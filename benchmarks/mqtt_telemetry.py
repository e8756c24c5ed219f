"""What traces and the export by OpenTelemetry cost: messages for each second of the server's processor time.

    .venv/bin/python -m benchmarks.mqtt_telemetry [--rounds 5] [--seconds 3] [--quick]

QoS 1 from 100 connections with a window of 100 to 100 subscribers of QoS 0, on one core; the load and the
receiver of the exports are on the other. Each round starts a fresh server of each kind. `off` has none of it;
`none sampled` exports and looks for contexts, and finds none; the others trace a share of the messages.
"""

from __future__ import annotations

import argparse
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median
from typing import Final

from benchmarks import _swarm, machine, peers

SHARES: Final = {"none sampled": 0.0, "one of 1,000": 0.001, "one of 100": 0.01}


class Receiver(BaseHTTPRequestHandler):
    """Takes everything."""

    def do_POST(self) -> None:
        """Read it, and forget it."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is to be read of it."""


def rate(settings: dict[str, str], seconds: float) -> float:
    """Messages that a fresh server acknowledges in a second of its processor time, connecting included."""
    with peers.iotmq(core=machine.cores()[0], settings=settings) as server:
        began_s = server.exact_cpu_s()
        report = _swarm.publish(
            server.port,
            *("--publishers", "100", "--subscribers", "100", "--window", "100", "--qos", "1"),
            *("--filter", "devices/{n}/telemetry", "--deliveries-per-message", "1"),
            *("--seconds", str(seconds), "--warmup", "1.0"),
            timeout_s=seconds + 60,
            core=machine.cores()[1],
        )
        return float(report["counters"]["acknowledged"]) / (server.exact_cpu_s() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured of each server in a round")
    parser.add_argument("--quick", action="store_true", help="one round, for a look")
    parser.add_argument("--only-off", action="store_true", help="to compare with an earlier state")
    options = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine.description().items()))
    receiver = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{receiver.server_port}"
    kinds: dict[str, dict[str, str]] = {"off": {}}
    for name, share in {} if options.only_off else SHARES.items():
        kinds[name] = {"telemetry.endpoint": endpoint, "telemetry.sample_ratio": str(share)}
    measured: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(1 if options.quick else options.rounds):
        # Which one comes first changes.
        for kind, settings in list(kinds.items())[:: 1 if number % 2 else -1]:
            measured[kind].append(rate(settings, options.seconds))
        print("; ".join(f"{kind} {rates[-1]:,.0f}" for kind, rates in measured.items()))
    off = median(measured["off"])
    for kind, rates in measured.items():
        print(f"{kind}: {median(rates):,.0f} messages a processor second, {median(rates) / off:.3f} of off")
    receiver.shutdown()
    if not options.only_off:
        print(machine.save("mqtt_telemetry", {kind: median(rates) for kind, rates in measured.items()}))


if __name__ == "__main__":
    main()
