"""One load test from the first connection to the last message, with its result."""

import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import iotmq
from loadtest.runs.crew import PROCESSES_MAX, Crew, share_plan
from loadtest.runs.result import FORMAT, Result
from loadtest.runs.server_process import ServerProcess, Usage
from loadtest.swarm import VIOLATIONS
from loadtest.swarm.errors import SwarmError
from loadtest.swarm.histogram import Histogram
from loadtest.swarm.plan import SHARED_PREFIX, Plan, check_plan
from loadtest.swarm.room import check_room

TICK_S: Final = 1.0
# Nothing delivered for so long means that nothing more will come.
_QUIET_S: Final = 1.0
_ANSWER_S: Final = 20.0
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


def deliveries_of(plan: Plan) -> int:
    """How many subscribers get each message, as far as topics and filters tell."""
    if plan.deliveries_per_message is not None:
        return plan.deliveries_per_message
    if not plan.subscribers or not plan.publishers:
        return 0
    if plan.filter.startswith(SHARED_PREFIX) or plan.topics_per_publisher > 1:
        return 1
    is_own = any(variable in plan.filter for variable in ("%i", "{n}", "%c"))
    return 1 if is_own else plan.subscribers


class LoadRun:
    """Carries out a plan. `watch` is called with the progress at every interval."""

    def __init__(
        self, plan: Plan, options: Options, *, watch: Callable[[Progress], None] | None = None
    ) -> None:
        check_plan(plan)
        if not 1 <= options.processes <= PROCESSES_MAX:
            raise SwarmError(f"processes must be 1..{PROCESSES_MAX}, not {options.processes}")
        check_room(plan, processes=options.processes)
        self._plan = plan
        self._options = options
        self._watch = watch
        self._server = None if options.server_pid is None else ServerProcess(options.server_pid)
        self._plans = share_plan(plan, options.processes)
        self._progress = Progress(histograms={})
        self._ticks: list[dict[str, Any]] = []
        self._latest: list[dict[str, Any]] = [{} for _ in self._plans]
        self._parts: dict[int, dict[int, dict[str, Any]]] = {}
        self._usage: Usage | None = None
        self._began_ns = 0
        self._is_stopped = False

    def stop(self) -> None:
        """End the test soon, with a result of what there is; from a signal handler, too."""
        self._is_stopped = True

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
            begun = measured = stopped = self._command(crew, "measure")
            measured_ns = stopped_ns = time.monotonic_ns()
            if connected["ready"]:
                self._command(crew, "begin")
                if plan.warmup_s and plan.publishers:
                    self._progress.phase = "warm-up"
                    self._pass(crew, plan.warmup_s)
                    measured = self._command(crew, "measure")
                    measured_ns = time.monotonic_ns()
                self._progress.phase = "measure"
                self._pass(crew, plan.seconds)
                stopped = self._command(crew, "stop")
                stopped_ns = time.monotonic_ns()
                self._progress.phase = "drain"
                self._drain(crew, begun)
            self._command(crew, "close")
            self._tick({i: each | {"histograms": each["changes"]} for i, each in enumerate(self._latest)})
        ended = self._counters()
        seconds = max(1e-9, (stopped_ns - measured_ns) / 1e9)
        missing = self._missing(_since(begun, ended))
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
            "measured_s": seconds,
            "rates": {
                f"{name}_per_s": (stopped[name] - measured[name]) / seconds
                for name in ("published", "acknowledged", "delivered", "reconnected", "left", "resubscribed")
            },
            "counters": dict(_since(begun, ended)),
            "missing": missing,
            "outstanding": ended["outstanding"],
            "ends": _added(each["ends"] for each in self._latest),
            "tls_error": next((each["tls_error"] for each in self._latest if each["tls_error"]), ""),
            "latencies": {name: _summary(histogram) for name, histogram in self._histograms().items()},
            "histograms": {name: histogram.dump() for name, histogram in self._histograms().items()},
            "ticks": self._ticks,
        }
        result["verdict"] = self._verdict(result)
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
            is_over = self._plan.publishers and not any(each["is_publishing"] for each in self._latest)
            if is_over or not (self._counters()["ready"] or self._comes_back()):
                return

    def _comes_back(self) -> bool:
        plan = self._plan
        return plan.reconnects or plan.leave_per_s > 0 or bool(plan.fallback_ports)

    def _drain(self, crew: Crew, begun: Counter[str]) -> None:
        """Wait for acknowledgements and deliveries while they come."""
        until_s = time.monotonic() + self._plan.drain_timeout_s
        copies = deliveries_of(self._plan)
        came, came_at_s = -1, time.monotonic()
        while time.monotonic() < until_s and not self._is_stopped:
            counters = _since(begun, self._counters())
            arrived = counters["delivered"] - counters["sequence_repeats"]
            if not counters["outstanding"] and arrived >= copies * counters["published"]:
                return
            if counters["delivered"] + counters["acknowledged"] != came:
                came, came_at_s = counters["delivered"] + counters["acknowledged"], time.monotonic()
            if not counters["outstanding"] and time.monotonic() - came_at_s > _QUIET_S:
                return
            self._hear(crew, 0.05, with_answers="stop")

    # Hearing the processes

    def _command(self, crew: Crew, command: str) -> Counter[str]:
        """Say something to all, and return the counters at the time they did it."""
        self._expect(crew, command, command=command)
        return self._counters()

    def _expect(
        self, crew: Crew, state: str, *, command: str | None = None, timeout_s: float = _ANSWER_S
    ) -> None:
        """Wait until all have said this."""
        missing = set(range(crew.size))
        deadline_s = time.monotonic() + timeout_s
        if command is not None:
            crew.say(command)
        while missing:
            if time.monotonic() > deadline_s:
                raise SwarmError(f"{len(missing)} processes of the load test did not answer {state!r}")
            for number, answer in crew.listen(0.1):
                if self._take(number, answer) == state:
                    missing.discard(number)

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
        self._ticks.append(tick)
        self._progress.tick, self._progress.counters = tick, dict(counters)
        self._progress.ends = _added(part["ends"] for part in parts.values())
        if self._watch is not None:
            self._watch(self._progress)

    def _counters(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for each in self._latest:
            total.update(each.get("counters", {}))
        return total

    def _histograms(self) -> dict[str, Histogram]:
        """The times of all processes, as they were at the end."""
        merged: dict[str, Histogram] = {}
        for each in self._latest:
            for name, dumped in each.get("histograms", {}).items():
                merged.setdefault(name, Histogram()).load(dumped)
        return merged

    # Judging

    def _missing(self, totals: Counter[str]) -> int:
        """Deliveries that should be there and are not; of QoS 1 and 2 those of acknowledged messages."""
        sent = totals["acknowledged"] if self._plan.qos else totals["published"]
        return max(0, deliveries_of(self._plan) * sent - (totals["delivered"] - totals["sequence_repeats"]))

    def _verdict(self, result: Result) -> list[str]:
        """What went wrong, a sentence each; nothing when all is well."""
        plan, counters = self._plan, result["counters"]
        connect = result["connect"]
        wrong = []
        if connect["ready"] < connect["wanted"]:
            wrong.append(
                f"{connect['wanted'] - connect['ready']} of {connect['wanted']} connections did not get in"
            )
        for kind, count in result["ends"]["lost"].items():
            wrong.append(f"{count} connections were lost: {kind}")
        # A server may drop what was published or asked for with QoS 0.
        filter_qos = plan.qos if plan.filter_qos is None else plan.filter_qos
        allowed = set() if min(plan.qos, filter_qos) else {"sequence_gaps"}
        if min(plan.qos, filter_qos) == 1 and counters["reconnected"]:
            # Its acknowledgement may have been on the way when a connection ended.
            allowed.add("sequence_repeats")
        wrong += [
            f"{name} is {counters[name]}" for name in VIOLATIONS if counters[name] and name not in allowed
        ]
        if result["missing"] and min(plan.qos, filter_qos):
            wrong.append(f"{result['missing']} deliveries are missing")
        if result["outstanding"]:
            wrong.append(f"{result['outstanding']} messages were not acknowledged in time")
        if self._options.p99_ms_max is not None:
            times = result["latencies"].get("delivery") or {}
            if not times.get("count"):
                times = result["latencies"].get("acknowledgement") or {}
            if times.get("count") and times["p99_ns"] > self._options.p99_ms_max * 1e6:
                wrong.append(
                    f"p99 is {times['p99_ns'] / 1e6:.3f} ms, more than {self._options.p99_ms_max} ms"
                )
        return wrong


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
