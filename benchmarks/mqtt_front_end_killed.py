"""A front end is killed with thousands of kept sessions and traffic: what is lost, repeated, and which wills.

    .venv/bin/python -m benchmarks.mqtt_front_end_killed [--sessions 10000] [--quick]

A registry, a broker and two front ends in processes of their own. All devices are at the first front end;
each has one filter and a will. Services send them commands (QoS 1) by way of the second. The first is killed
(SIGKILL) in the middle. Nine of ten devices connect to the second at once, the others stay away for a while.

Every device numbers what it gets: nothing may be missing, and nothing be for somebody else. What comes twice
may only be what the front end had not told its broker of when it died; printed is how old the oldest was.
The connection of every device ended without DISCONNECT, so its will is published once [MQTT-3.1.2-8].
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks import _swarm, machine, peers
from benchmarks.mqtt_reconnect_storm import added

SERVICES = 10
RATE_PER_S = 5_000
AWAY_S = 6.0
DELIVERY_TIMEOUT_S = 60.0
# Told five times a second; and what is under way then.
WINDOW_GOAL_MS = 500.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was counted."""

    sessions: int
    stayed_away: int
    published: int
    counters: dict[str, int]
    oldest_repeat_ms: float
    """How long before the kill the oldest message that came twice was due; 0 when none did."""
    back_p50_s: float
    back_max_s: float
    wills: int
    wills_repeated: int

    @property
    def wrong(self) -> dict[str, int]:
        """What must not be, and how often it was."""
        received = self.counters["delivered"] - self.counters["sequence_repeats"]
        return {
            "messages lost": self.published - received,
            "gaps": self.counters["sequence_gaps"],
            "messages for somebody else": self.counters["misdelivered"],
            "sessions lost": self.sessions - self.counters["resumed"],
            "wills missing": max(0, self.sessions - self.wills),
            "wills repeated": self.wills_repeated,
            "protocol errors": self.counters["protocol_errors"],
        }


def play(sessions: int, seconds: float) -> Outcome:
    """Start everything, kill the front end after a third of the time, and count."""
    away = sessions // 10
    topics = sessions // SERVICES
    with peers.front_ends(2) as (broker, (first, second)), ExitStack() as stack:

        def devices(start: int, count: int, return_after_s: float) -> _swarm.Holding:
            return stack.enter_context(
                _swarm.holding(
                    first.port,
                    *("--subscribers", str(count), "--number-base", str(start), "--filter", "dev/{n}/cmd"),
                    *("--keep-sessions", "--qos", "1", "--topics-per-publisher", str(topics)),
                    *("--will-topic", "wills/{n}", "--fallback-port", str(second.port)),
                    *("--return-after", str(return_after_s), "--connect-rate", "1000000"),
                    *("--connects-in-progress", "512", "--connect-timeout", "120"),
                )
            )

        watcher = stack.enter_context(
            _swarm.holding(
                second.port,
                *("--subscribers", "1", "--client-id", "watcher", "--filter", "wills/+", "--qos", "1"),
                *("--keep-sessions", "--publishers-tracked", str(sessions)),
            )
        )
        groups = [devices(0, sessions - away, 0.0), devices(sessions - away, away, AWAY_S)]
        for one in (watcher, *groups):
            one.ready()
        sent: list[dict[str, Any] | _swarm.LoadError] = []
        sending = threading.Thread(target=lambda: sent.append(_send(second.port, topics, seconds)))
        sending.start()
        time.sleep(seconds / 3)
        killed_ns = time.monotonic_ns()
        first.kill()
        sending.join()
        (report,) = sent
        if isinstance(report, _swarm.LoadError):
            raise report
        published = report["counters"]["acknowledged"]
        deadline = time.monotonic() + DELIVERY_TIMEOUT_S
        while time.monotonic() < deadline:
            reports = [one.report() for one in groups]
            counters = added(reports)
            is_received = counters["delivered"] - counters["sequence_repeats"] >= published
            if is_received and counters["ready"] == sessions:
                break
        # Wills are late, and what comes twice would come now.
        time.sleep(3.0)
        wills_by_broker = round(broker.metric("iotmq_broker_wills_total"))
        reports = [one.end() for one in groups]
        wills = watcher.end()["counters"]
        print(f"wills published by the broker: {wills_by_broker:,}")
    oldest = [one["oldest_repeat_at_ns"] for one in reports if one["oldest_repeat_at_ns"]]
    back = reports[0]["latencies"]["reconnection"]
    return Outcome(
        sessions=sessions,
        stayed_away=away,
        published=published,
        counters=added(reports),
        oldest_repeat_ms=(killed_ns - min(oldest)) / 1e6 if oldest else 0.0,
        back_p50_s=back["p50_ns"] / 1e9,
        back_max_s=back["max_ns"] / 1e9,
        wills=wills["delivered"] - wills["sequence_repeats"],
        wills_repeated=wills["sequence_repeats"],
    )


def _send(port: int, topics: int, seconds: float) -> dict[str, Any] | _swarm.LoadError:
    try:
        return _swarm.publish(
            port,
            *("--publishers", str(SERVICES), "--topic", "dev/{n}/cmd", "--qos", "1", "--warmup", "0"),
            *("--topics-per-publisher", str(topics), "--rate", str(RATE_PER_S), "--seconds", str(seconds)),
            timeout_s=seconds + 60,
        )
    except _swarm.LoadError as error:
        return error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=10_000, help="a multiple of 100")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long commands are sent")
    parser.add_argument("--quick", action="store_true", help="2,000 sessions and 9 seconds, for a look")
    options = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine.description().items()))
    outcome = play(2_000 if options.quick else options.sessions, 9.0 if options.quick else options.seconds)
    counters = outcome.counters
    print(
        f"{outcome.sessions:,} sessions, {outcome.published:,} messages acknowledged at {RATE_PER_S:,}/s, "
        f"{counters['delivered']:,} delivered, {counters['lost']:,} connections lost with the front end"
    )
    print(
        f"{counters['sequence_repeats']:,} came twice, the oldest of them {outcome.oldest_repeat_ms:,.0f} ms "
        f"from before the kill (goal {WINDOW_GOAL_MS:.0f})"
    )
    print(
        f"back at the other front end: half of those that tried at once within {outcome.back_p50_s:.2f} s, "
        f"all within {outcome.back_max_s:.2f} s"
    )
    print(f"{outcome.stayed_away:,} stayed away for {AWAY_S:.0f} s; wills published: {outcome.wills:,}")
    print(", ".join(f"{name} {count}" for name, count in outcome.wrong.items()))
    machine.save(
        "mqtt_front_end_killed",
        {
            "killed": {
                "wrong": outcome.wrong,
                "repeats": counters["sequence_repeats"],
                "oldest_repeat_ms": outcome.oldest_repeat_ms,
                "back_max_s": outcome.back_max_s,
                "machine": machine.description(),
            }
        },
    )
    return 1 if any(outcome.wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
