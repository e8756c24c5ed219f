"""Drive a swarm over pipes: ``python -m loadtest.swarm driven``.

The first line of standard input is the plan, as JSON with the fields of ``Plan``. Every line of standard
output is a report, a JSON object:

    {"state": "connecting" | "running" | "over", "connections": N, "overdue": N, "counters": {...},
     "histograms": {...}, "faults": {"failed": {...}, "lost": {...}, "refused": {...}}, "cpu_s": seconds,
     "last_error": errno}

Counters and faults are totals since the start; histograms are what came since the last report. A plan that
cannot be carried out is {"state": "refused", "error": "..."}. A second line of input, or its end, stops the
swarm: it waits for what is under way, says "over" and ends.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from iotmq.spelling import did_you_mean
from loadtest.swarm import Plan, Swarm, SwarmError
from loadtest.swarm.room import raise_file_limit

if TYPE_CHECKING:
    from loadtest.swarm.histogram import Counts

REPORT_S: Final = 0.25
_PLAN_BYTES_MAX: Final = 1024 * 1024
_FIELDS: Final = {one.name: one.name for one in fields(Plan)}


def plan_of(values: Mapping[str, Any]) -> Plan:
    """Make a plan of named values; SwarmError names a field that there is not."""
    for name in values:
        if name not in _FIELDS:
            raise SwarmError(f"a plan has no field {name}{did_you_mean(name, _FIELDS)}")
    tuples: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    if isinstance(tuples.get("publish_properties"), str):
        tuples["publish_properties"] = bytes.fromhex(tuples["publish_properties"])
    return Plan(**tuples)


def plan_text(plan: Plan) -> str:
    """Write a plan as a line for ``plan_of``."""
    values = {name: getattr(plan, name) for name in _FIELDS}
    return json.dumps(values | {"publish_properties": plan.publish_properties.hex()})


def main() -> int:
    """Carry out the plan on standard input."""
    try:
        line = sys.stdin.readline(_PLAN_BYTES_MAX)
        raise_file_limit()
        swarm = Swarm(plan_of(json.loads(line)))
    except (SwarmError, ValueError, TypeError, MemoryError) as error:
        _print({"state": "refused", "error": str(error)})
        return 1
    with swarm:
        try:
            _Driver(swarm).drive()
        except BrokenPipeError:
            # Nobody reads the reports any more. The interpreter would say so once more when it flushes at
            # its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
    return 0


class _Driver:
    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self._engine = swarm.engine
        self._plan = swarm.plan
        self._told: dict[str, Counts] = {}
        # Connections that had no answer when the time for it was up.
        self._overdue_count = 0

    def drive(self) -> None:
        """Connect, publish until it is enough, drain."""
        engine, plan = self._engine, self._plan
        self._report("connecting")
        deadline_s = time.monotonic() + plan.connect_timeout_s
        is_stopped, is_settled = False, False
        while not is_settled and not is_stopped and time.monotonic() < deadline_s:
            is_settled = engine.connect(
                rate_per_s=plan.connect_rate_per_s,
                in_progress_max=plan.connects_in_progress_max,
                timeout_s=REPORT_S,
            )
            self._report("connecting")
            is_stopped = _is_stop_asked()
        if not is_settled and not is_stopped:
            now = engine.counters_now()
            self._overdue_count = self._connections - now["connected"] - now["failed"]
        if plan.publishers and not is_stopped:
            engine.start(messages_max=plan.messages_max, rate_per_s=plan.rate_per_s)
        is_done = False
        while not is_stopped and not is_done:
            began_s = time.monotonic()
            is_out = engine.run(REPORT_S) and plan.publishers > 0
            is_done = is_out or self._is_alone
            self._report("running")
            is_stopped = _is_stop_asked(0.0 if is_done else max(0.0, REPORT_S - (time.monotonic() - began_s)))
        self._drain()
        self._report("over")

    @property
    def _connections(self) -> int:
        return self._plan.publishers + self._plan.subscribers + self._plan.idle

    @property
    def _is_alone(self) -> bool:
        """Nobody is connected, and nobody comes back."""
        return not self._engine.counters_now()["ready"] and not self._plan.fallback_ports

    def _drain(self) -> None:
        """Wait for acknowledgements, and for deliveries while they keep coming and can be foretold."""
        engine, plan = self._engine, self._plan
        engine.stop()
        deadline_s = time.monotonic() + plan.drain_timeout_s
        if not engine.drain(plan.drain_timeout_s) or not plan.deliveries_per_message:
            return
        expected = plan.deliveries_per_message * engine.counters_now()["published"]
        while time.monotonic() < deadline_s:
            delivered = engine.counters_now()["delivered"]
            if engine.drain(0.5, delivered=expected) or engine.counters_now()["delivered"] == delivered:
                return

    def _report(self, state: str) -> None:
        engine = self._engine
        now = {name: histogram.counts() for name, histogram in engine.histograms().items()}
        _print(
            {
                "state": state,
                "connections": self._connections,
                "overdue": self._overdue_count,
                "counters": engine.counters_now(),
                "histograms": {name: _since(one, self._told.get(name)) for name, one in now.items()},
                "faults": engine.faults(),
                "cpu_s": time.process_time(),
                "last_error": engine.last_error,
            }
        )
        self._told = now


def _since(now: Counts, before: Counts | None) -> Counts:
    """Return what a histogram has got since then; the largest value is that of all time."""
    if before is None:
        return now
    had = before["counts"]
    return {
        "total_ns": now["total_ns"] - before["total_ns"],
        "max_ns": now["max_ns"],
        "counts": {
            edge: count - had.get(edge, 0)
            for edge, count in now["counts"].items()
            if count != had.get(edge, 0)
        },
    }


def _is_stop_asked(wait_s: float = 0.0) -> bool:
    return bool(select.select([sys.stdin], [], [], wait_s)[0])


def _print(values: dict[str, Any]) -> None:
    print(json.dumps(values), flush=True)
