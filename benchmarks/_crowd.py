"""Connections of one plan in several processes, which stay while others come and go."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from loadtest.runs.crew import Crew, share_plan
from loadtest.swarm.errors import SwarmError
from loadtest.swarm.histogram import Histogram
from loadtest.swarm.plan import Plan

# Far below the 20,000 files that a process may often have, and the 28,000 ports of an address.
CONNECTIONS_EACH_MAX: Final = 15_000
_ANSWER_S: Final = 30.0
_LISTEN_S: Final = 0.1
# What a process tells without being asked has room in its pipe for many minutes. One that waited for its
# reader would be silent to the server, too.
_TICK_S: Final = 20.0


def processes_for(connections: int) -> int:
    """How many processes so many connections are shared among."""
    return -(-connections // CONNECTIONS_EACH_MAX)


class Crowd:
    """The processes. Each connects from an address of its own, the one with this number and those behind it.

    Usable as a context manager, which disconnects everybody.
    """

    def __init__(self, plan: Plan, *, first_address: int) -> None:
        self.plan = plan
        self.connections = plan.publishers + plan.subscribers + plan.idle
        plans = [
            replace(part, source_addresses=(address(first_address + i),))
            for i, part in enumerate(share_plan(plan, processes_for(self.connections)))
        ]
        self._crew = Crew(plans, interval_s=_TICK_S)
        self._latest: list[dict[str, Any]] = [{} for _ in plans]

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *error: object) -> None:
        self._crew.__exit__(None, None, None)

    def connect(self) -> float:
        """Connect and subscribe everybody; the seconds it took. SwarmError unless all got in."""
        self._expect("made")
        began_s = time.monotonic()
        self._expect("connected", command="connect", timeout_s=self.plan.connect_timeout_s + _ANSWER_S)
        seconds = time.monotonic() - began_s
        if self.counters["ready"] != self.connections:
            raise SwarmError(
                f"{self.counters['ready']} of {self.connections} connections got in: {self.ends}"
            )
        return seconds

    def say(self, command: str) -> Counter[str]:
        """Have all carry out a command; the counters when they had."""
        self._expect(command, command=command)
        return self.counters

    def stay(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Let time go by, less when it is enough, and hear what happens meanwhile."""
        deadline_s = time.monotonic() + seconds
        while not until() and (left_s := deadline_s - time.monotonic()) > 0:
            self._hear(min(left_s, _LISTEN_S))

    @property
    def counters(self) -> Counter[str]:
        """The newest of all processes."""
        total: Counter[str] = Counter()
        for each in self._latest:
            total.update(each.get("counters", {}))
        return total

    @property
    def ends(self) -> dict[str, int]:
        """Connections that failed, were lost or refused, by kind."""
        total: Counter[str] = Counter()
        for each in self._latest:
            for group, kinds in each.get("ends", {}).items():
                total.update({f"{group}: {kind}": count for kind, count in kinds.items()})
        return dict(total)

    @property
    def cpu_s(self) -> float:
        """Processor time of the processes so far."""
        return float(sum(each.get("cpu_s", 0.0) for each in self._latest))

    def end(self) -> dict[str, Histogram]:
        """Disconnect everybody; their times since `measure` was said."""
        self._expect("close", command="close")
        merged: dict[str, Histogram] = {}
        for each in self._latest:
            for name, dumped in each["histograms"].items():
                merged.setdefault(name, Histogram()).load(dumped)
        return merged

    def _expect(self, state: str, *, command: str | None = None, timeout_s: float = _ANSWER_S) -> None:
        missing = set(range(self._crew.size))
        deadline_s = time.monotonic() + timeout_s
        if command is not None:
            self._crew.say(command)
        while missing:
            if time.monotonic() > deadline_s:
                raise SwarmError(f"{len(missing)} processes of the load did not answer {state!r}")
            missing -= self._hear(_LISTEN_S, state)

    def _hear(self, timeout_s: float, state: str = "") -> set[int]:
        """Take in what the processes say; those that said this."""
        said = set()
        for number, answer in self._crew.listen(timeout_s):
            if "counters" in answer:
                self._latest[number] = answer
            if answer["state"] == state:
                said.add(number)
        return said


def address(number: int) -> str:
    """A loopback address, counted from 127.1.0.0."""
    return f"127.1.{number // 256}.{number % 256}"
