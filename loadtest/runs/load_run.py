"""One load test from the first connection to the last message, with its result."""

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import iotmq
from loadtest.runs.crew import PROCESSES_MAX, Crew, share_plan
from loadtest.runs.judgement import missing_of, notes_of, verdict_of
from loadtest.runs.result import FORMAT, Result
from loadtest.runs.server_process import ServerProcess, Usage
from loadtest.runs.ticks import within_limit
from loadtest.swarm.errors import SwarmError
from loadtest.swarm.histogram import Histogram
from loadtest.swarm.plan import Plan, check_plan
from loadtest.swarm.reach import check_heard, deliveries_of
from loadtest.swarm.room import check_cores, check_room, raise_file_limit

TICK_S: Final = 1.0
# Nothing delivered for so long means that nothing more will come.
_QUIET_S: Final = 1.0
_ANSWER_S: Final = 20.0
_RATES: Final = ("published", "acknowledged", "delivered", "reconnected", "left", "resubscribed")
_PERCENTILES: Final = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99, "p999_ns": 0.999, "p9999_ns": 0.9999}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a plan is carried out, and what is expected of it."""

    name: str = "load test"
    processes: int = 1
    cores: tuple[int, ...] = ()
    """Processor cores that the processes are pinned to, in turn."""
    server_pid: int | None = None
    """Process of the server, measured with its children."""
    p99_ms_max: float | None = None
    """Longest time to a subscriber, or else to the acknowledgement, that is not a failure."""
    interval_s: float = TICK_S


@dataclass(slots=True)
class Progress:
    """Where a test is, for those who watch."""

    phase: str = "connect"
    tick: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    ends: dict[str, dict[str, int]] = field(default_factory=dict)


class LoadRun:
    """Carries out a plan. `watch` is called with the progress at every interval."""

    def __init__(
        self, plan: Plan, options: Options, *, watch: Callable[[Progress], None] | None = None
    ) -> None:
        check_plan(plan)
        check_heard(plan)
        if not 1 <= options.processes <= PROCESSES_MAX:
            raise SwarmError(f"processes must be 1..{PROCESSES_MAX}, not {options.processes}")
        check_cores(*options.cores)
        self._plans = share_plan(plan, options.processes)
        raise_file_limit()
        check_room(plan, self._plans)
        self._plan = plan
        self._options = options
        self._watch = watch
        self._server = None if options.server_pid is None else ServerProcess(options.server_pid)
        self._progress = Progress(histograms={})
        self._ticks: list[dict[str, Any]] = []
        self._latest: list[dict[str, Any]] = [{} for _ in self._plans]
        # Of each process the answer by which all its messages were out, once they are.
        self._out: dict[int, dict[str, Any]] = {}
        self._parts: dict[int, dict[int, dict[str, Any]]] = {}
        self._usage: Usage | None = None
        self._began_ns = 0
        self._stop_count = 0

    def stop(self) -> None:
        """End the test soon, with a result of what there is; from a signal handler, too.

        What is on its way is waited for, unless this is called again.
        """
        self._stop_count += 1

    @property
    def _is_stopped(self) -> bool:
        return self._stop_count > 0

    def run(self) -> Result:
        """Connect, publish and wait for what is outstanding. SwarmError when it cannot be done here."""
        began_at = datetime.now(UTC)
        load_before = os.getloadavg()[0]
        plan = self._plan
        with Crew(self._plans, interval_s=self._options.interval_s, cores=self._options.cores) as crew:
            # The first tick may come together with the last word that a swarm is made.
            self._began_ns = crew.epoch_ns
            self._expect(crew, "made")
            self._usage = self._server.usage() if self._server else None
            connected_s = self._connect(crew)
            connected = self._counters()
            measured_by = stopped_by = self._command(crew, "measure")
            begun = _total(measured_by)
            if connected["ready"] and not self._is_stopped:
                measured_by = self._command(crew, "begin")
                if plan.warmup_s and plan.publishers:
                    self._progress.phase = "warm-up"
                    self._pass(crew, plan.warmup_s)
                    # A count that ends in the warm-up is measured from the beginning.
                    if not self._is_out:
                        measured_by = self._command(crew, "measure")
                self._progress.phase = "measure"
                if not self._is_out:
                    self._pass(crew, plan.seconds)
                stopped_by = self._command(crew, "stop")
                if self._is_out:
                    # From the first message of all to the last acknowledgement of all.
                    measured_by = _at(min(each["at_ns"] for each in measured_by), measured_by)
                    out_by = [self._out.get(i, each) for i, each in enumerate(stopped_by)]
                    stopped_by = _at(max(each["at_ns"] for each in self._out.values()), out_by)
                self._progress.phase = "drain"
                self._drain(crew, begun, connected["ready"])
            self._command(crew, "close")
            self._tick({i: each | {"histograms": each["changes"]} for i, each in enumerate(self._latest)})
        ended = self._counters()
        totals = _since(begun, ended)
        result: Result = {
            "format": FORMAT,
            "version": iotmq.__version__,
            "name": self._options.name,
            "began_at": began_at.isoformat(timespec="seconds"),
            "machine": _machine() | {"load_before": load_before, "load_after": os.getloadavg()[0]},
            "plan": _plain(plan),
            "options": asdict(self._options),
            "connect": {
                "wanted": plan.publishers + plan.subscribers + plan.idle,
                "ready": connected["ready"],
                "seconds": connected_s,
                "per_s": connected["connected"] / max(1e-9, connected_s),
            },
            "measured_s": max(_seconds(*each) for each in zip(measured_by, stopped_by, strict=True)),
            "rates": {f"{name}_per_s": _rate(name, measured_by, stopped_by) for name in _RATES},
            "counters": dict(totals),
            "missing": missing_of(plan, totals),
            "outstanding": ended["outstanding"],
            "unsent": ended["unsent"],
            "ends": _added(each["ends"] for each in self._latest),
            "tls_error": next((each["tls_error"] for each in self._latest if each["tls_error"]), ""),
            "latencies": {name: _summary(histogram) for name, histogram in self._histograms().items()},
            "histograms": {name: histogram.dump() for name, histogram in self._histograms().items()},
            "ticks": self._ticks,
        }
        result["verdict"] = verdict_of(plan, result, p99_ms_max=self._options.p99_ms_max)
        result["notes"] = ["it was ended early"] * self._is_stopped + notes_of(
            plan, result, tracks_sequences=all(each["tracks_sequences"] for each in self._latest)
        )
        return result

    # Phases

    def _connect(self, crew: Crew) -> float:
        began_s = time.monotonic()
        self._expect(crew, "connected", command="connect", timeout_s=self._plan.connect_timeout_s + _ANSWER_S)
        return time.monotonic() - began_s

    def _pass(self, crew: Crew, seconds: float) -> None:
        """Let this time go by, or less when all messages are out or nobody is left."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and not self._is_stopped:
            self._hear(crew, min(left_s, 0.1))
            if self._is_out or not (self._counters()["ready"] or self._comes_back()):
                return

    @property
    def _is_out(self) -> bool:
        """All messages that there are to be are acknowledged."""
        return len(self._out) == sum(each.publishers > 0 for each in self._plans) > 0

    def _comes_back(self) -> bool:
        plan = self._plan
        return plan.reconnects or plan.leave_per_s > 0 or bool(plan.fallback_ports)

    def _drain(self, crew: Crew, begun: Counter[str], ready: int) -> None:
        """Wait for acknowledgements and deliveries while they come, and for who is to come back to them."""
        until_s = time.monotonic() + self._plan.drain_timeout_s
        copies = deliveries_of(self._plan) or 0
        came, came_at_s = -1, time.monotonic()
        while time.monotonic() < until_s and self._stop_count < 2:
            counters = _since(begun, self._counters())
            arrived = counters["delivered"] - counters["sequence_repeats"]
            is_sent = not counters["outstanding"] and not counters["unsent"]
            if is_sent and copies and arrived >= copies * counters["published"]:
                return
            if counters["delivered"] + counters["acknowledged"] != came:
                came, came_at_s = counters["delivered"] + counters["acknowledged"], time.monotonic()
            is_away = self._plan.keeps_sessions and self._comes_back() and self._counters()["ready"] < ready
            quiet_s = _QUIET_S if self._plan.subscribers else 0.0
            if is_sent and not is_away and time.monotonic() - came_at_s > quiet_s:
                return
            self._hear(crew, 0.05, with_answers="stop")

    # Hearing the processes

    def _command(self, crew: Crew, command: str) -> list[dict[str, Any]]:
        """Say something to all, and return what they answered when they did it."""
        answers = self._expect(crew, command, command=command)
        return [answers[number] for number in range(crew.size)]

    def _expect(
        self, crew: Crew, state: str, *, command: str | None = None, timeout_s: float = _ANSWER_S
    ) -> dict[int, dict[str, Any]]:
        """Wait until all have said this; those that connect are told when the test is stopped."""
        answers: dict[int, dict[str, Any]] = {}
        is_told = command != "connect"
        deadline_s = time.monotonic() + timeout_s
        if command is not None:
            crew.say(command)
        while len(answers) < crew.size:
            if time.monotonic() > deadline_s:
                silent = crew.size - len(answers)
                raise SwarmError(f"{silent} processes of the load test did not answer {state!r}")
            if self._is_stopped and not is_told:
                is_told = True
                crew.say("stop")
            heard = crew.listen(0.1)
            answers |= {number: answer for number, answer in heard if self._take(number, answer) == state}
        return answers

    def _hear(self, crew: Crew, timeout_s: float, *, with_answers: str = "") -> None:
        for number, answer in crew.listen(timeout_s):
            self._take(number, answer)
        if with_answers:
            # Fresh counters: ticks are too far apart to wait for one.
            self._expect(crew, with_answers, command=with_answers)

    def _take(self, number: int, answer: dict[str, Any]) -> str:
        state: str = answer["state"]
        if "counters" in answer:
            self._latest[number] = answer
        if state == "out":
            self._out[number] = answer
        if state == "tick":
            parts = self._parts.setdefault(answer["tick"], {})
            parts[number] = answer
            if len(parts) == len(self._plans):
                self._tick(self._parts.pop(answer["tick"]))
        return state

    def _tick(self, parts: dict[int, dict[str, Any]]) -> None:
        """One interval of all processes."""
        counters: Counter[str] = Counter()
        for part in parts.values():
            counters.update(part["counters"])
        latencies = {}
        for name in next(iter(parts.values()))["histograms"]:
            histogram = Histogram()
            for part in parts.values():
                histogram.load(part["histograms"][name])
            if histogram.count:
                latencies[name] = _summary(histogram) | {"max_ns": histogram.percentile(0.999_999)}
            self._progress.histograms.setdefault(name, Histogram()).load(histogram.dump())
        at_ns = max(part["at_ns"] for part in parts.values())
        tick: dict[str, Any] = {
            "at_s": round((at_ns - self._began_ns) / 1e9, 3),
            "phase": self._progress.phase,
            "counters": dict(counters),
            "latencies": latencies,
            "load_cpu_s": round(sum(part["cpu_s"] for part in parts.values()), 3),
        }
        if self._server and (usage := self._server.usage()):
            tick["server_cpu_s"] = round(usage.cpu_s - (self._usage.cpu_s if self._usage else 0.0), 3)
            tick["server_memory_bytes"] = usage.memory_bytes
        self._ticks = within_limit([*self._ticks, tick])
        self._progress.tick, self._progress.counters = tick, dict(counters)
        self._progress.ends = _added(part["ends"] for part in parts.values())
        if self._watch is not None:
            self._watch(self._progress)

    def _counters(self) -> Counter[str]:
        return _total(self._latest)

    def _histograms(self) -> dict[str, Histogram]:
        """The times of all processes, as they were at the end."""
        merged: dict[str, Histogram] = {}
        for each in self._latest:
            for name, dumped in each.get("histograms", {}).items():
                merged.setdefault(name, Histogram()).load(dumped)
        return merged


def _total(answers: Iterable[dict[str, Any]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in answers:
        total.update(each.get("counters", {}))
    return total


def _at(at_ns: int, answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [answer | {"at_ns": at_ns} for answer in answers]


def _seconds(begun: dict[str, Any], ended: dict[str, Any]) -> float:
    return max(1e-9, float(ended["at_ns"] - begun["at_ns"]) / 1e9)


def _rate(name: str, begun_by: list[dict[str, Any]], ended_by: list[dict[str, Any]]) -> float:
    """How often something happened each second: in each process by its own clock, then added."""
    return sum(
        float(ended["counters"][name] - begun["counters"][name]) / _seconds(begun, ended)
        for begun, ended in zip(begun_by, ended_by, strict=True)
    )


def _since(begun: Counter[str], now: Counter[str]) -> Counter[str]:
    """By how much counters rose; none is left out."""
    return Counter({name: now[name] - begun[name] for name in now})


def _summary(histogram: Histogram) -> dict[str, float]:
    summary = histogram.summary()
    return {
        "count": summary["count"],
        "mean_ns": summary["mean_ns"],
        **{name: histogram.percentile(fraction) for name, fraction in _PERCENTILES.items()},
        "max_ns": summary["max_ns"],
    }


def _added(many: Any) -> dict[str, dict[str, int]]:
    """The counts of several, by group and kind."""
    added: dict[str, Counter[str]] = {"failed": Counter(), "lost": Counter(), "refused": Counter()}
    for ends in many:
        for group, kinds in ends.items():
            added[group].update(kinds)
    return {group: dict(kinds) for group, kinds in added.items()}


def _plain(plan: Plan) -> dict[str, Any]:
    """The plan as JSON has it, without secrets."""
    values = asdict(plan) | {"publish_properties": plan.publish_properties.hex()}
    values["password"] = None if plan.password is None else "(not shown)"
    return values


def _machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
