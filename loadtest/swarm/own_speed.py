"""How fast the load engine is by itself: against a server that acknowledges and discards."""

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any, Final

from loadtest.swarm import Plan, Sink, Swarm
from loadtest.swarm.errors import SwarmError
from loadtest.swarm.room import check_cores

_END_S: Final = 10.0


def serve_sink(*, port: int, has_relay: bool, seconds: float, core: int | None) -> int:
    """A server that acknowledges and discards; prints its port and ends with SIGTERM, SIGINT or the time."""
    _pin(core)
    try:
        server = Sink(port, relay=has_relay)
    except (OSError, OverflowError) as error:
        raise SwarmError(f"no sink on 127.0.0.1:{port}: {error}") from error
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    print(json.dumps({"state": "ready", "port": server.port}), flush=True)
    timer = threading.Timer(seconds, server.stop)
    timer.daemon = True
    timer.start()
    server.run()
    print(json.dumps({"state": "over", "connects": server.connects, "messages": server.messages}), flush=True)
    return 0


def calibrate(*, payload_bytes: int, seconds: float, core: int | None, sink_core: int | None) -> int:
    """Full loads against the sink in a process of its own, a line for each.

    ``engine_limit_per_s`` is messages for each second of the engine's processor time: what it could do were
    the other side infinitely fast.
    """
    check_cores(core, sink_core)
    _pin(core)
    scenarios: list[tuple[str, dict[str, Any]]] = [
        ("connections", {"idle": 10_000, "connect_rate_per_s": 1e7}),
        ("qos1_window100", {"publishers": 100, "qos": 1, "window": 100}),
        ("qos1_window1", {"publishers": 100, "qos": 1, "window": 1}),
        ("qos2_window100", {"publishers": 100, "qos": 2, "window": 100}),
        ("qos0", {"publishers": 100, "qos": 0}),
        ("qos0_to_one_subscriber", {"publishers": 100, "subscribers": 1, "qos": 0}),
        ("qos1_to_one_subscriber", {"publishers": 100, "subscribers": 1, "qos": 1, "window": 100}),
    ]
    for name, kinds in scenarios:
        words = ["-m", "iotmq", "loadtest", "sink", "--seconds", "600"]
        words += ["--core", str(sink_core)] if sink_core is not None else []
        words += ["--relay"] if "subscribers" in kinds else []
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            port = json.loads(process.stdout.readline())["port"]
            plan = Plan(port=port, payload_bytes=payload_bytes, seconds=seconds, warmup_s=0.5, **kinds)
            line = _connections(plan) if plan.idle else _messages(plan)
        finally:
            process.terminate()
            process.communicate(timeout=_END_S)
        print(json.dumps({"scenario": name} | line), flush=True)
    return 0


def _pin(core: int | None) -> None:
    check_cores(core)
    if core is not None:
        os.sched_setaffinity(0, {core})


def _connections(plan: Plan) -> dict[str, Any]:
    with Swarm(plan) as swarm:
        began_s = sum(os.times()[:2])
        seconds = swarm.connect()
        cpu_share = (sum(os.times()[:2]) - began_s) / seconds
    return {
        "connections_per_s": round(plan.idle / seconds),
        "engine_cpu_share": round(cpu_share, 3),
        "engine_limit_per_s": round(plan.idle / seconds / cpu_share) if cpu_share else 0,
    }


def _messages(plan: Plan) -> dict[str, Any]:
    with Swarm(plan) as swarm:
        swarm.connect()
        report = swarm.publish()
    rate = report.published_per_s if plan.qos == 0 else report.acknowledged_per_s
    if plan.subscribers:
        rate = report.delivered_per_s
    return {
        "messages_per_s": round(rate),
        "engine_cpu_share": round(report.engine_cpu_share, 3),
        "engine_limit_per_s": round(rate / report.engine_cpu_share) if report.engine_cpu_share else 0,
        "violations": report.violations,
    }
