"""One process of a load test: a swarm that does what is said on standard input, and tells what happened.

Commands are JSON, one a line: first a plan, then ``connect``, ``begin``, ``measure``, ``stop`` and ``close``.
Each is answered with a line that names it; in between comes a ``tick`` at every interval since the time that
the plan came with, which is the same for all processes of a test, and ``out`` when the last message that the
plan allows was acknowledged.
"""

import json
import os
import select
import sys
import time
from typing import Any, Final

from loadtest.swarm import Plan, Swarm, SwarmError

# How long a command waits at most for the loop to come to it.
_SLICE_S: Final = 0.05
_LINE_BYTES: Final = 1024 * 1024


class Worker:
    """A swarm between a stream of commands and one of answers."""

    def __init__(self, swarm: Swarm, *, epoch_ns: int, interval_s: float) -> None:
        self._swarm = swarm
        self._interval_ns = round(interval_s * 1e9)
        self._epoch_ns = epoch_ns
        self._tick = 0
        self._dumped: dict[str, dict[str, Any]] = {}
        self._held = b""
        self._is_connecting = False
        self._is_publishing = False
        self._connect_until_ns = 0

    def run(self) -> None:
        """Follow commands until ``close``, or until nobody says any."""
        engine = self._swarm.engine
        while True:
            for command in self._commands():
                if command == "close":
                    self._answer(
                        command,
                        changes=self._changes(),
                        histograms={name: each.dump() for name, each in engine.histograms().items()},
                    )
                    return
                self._do(command)
                self._answer(command)
            self._turn()
            while time.monotonic_ns() >= self._epoch_ns + (self._tick + 1) * self._interval_ns:
                self._tick += 1
                self._answer("tick", tick=self._tick, histograms=self._changes())

    def _do(self, command: str) -> None:
        engine, plan = self._swarm.engine, self._swarm.plan
        if command == "connect":
            self._is_connecting = True
            self._connect_until_ns = time.monotonic_ns() + round(plan.connect_timeout_s * 1e9)
            self._connect(0.0, goes_on=False)
        elif command == "begin":
            self._swarm.begin()
            self._is_publishing = plan.publishers > 0
        elif command == "measure":
            engine.measure()
            for name in ("delivery", "acknowledgement", "send_delay"):
                self._dumped.pop(name, None)
        elif command == "stop":
            engine.stop()
            engine.change()
            self._is_publishing = False
            if self._is_connecting:
                self._is_connecting = False
                self._answer("connected")
        else:
            raise SwarmError(f"there is no command {command!r}")

    def _turn(self) -> None:
        """Let the engine work until the next tick or command."""
        now_ns = time.monotonic_ns()
        until_ns = self._epoch_ns + (self._tick + 1) * self._interval_ns
        seconds = min(_SLICE_S, max(0.0, (until_ns - now_ns) / 1e9))
        if self._is_connecting:
            self._connect(seconds, goes_on=True)
            return
        if self._swarm.engine.run(seconds) and self._is_publishing:
            # All messages are out and acknowledged; from now on only what comes counts.
            self._swarm.engine.stop()
            self._is_publishing = False
            self._answer("out")
        left_s = seconds - (time.monotonic_ns() - now_ns) / 1e9
        if left_s > 0:
            select.select([sys.stdin], [], [], left_s)

    def _connect(self, seconds: float, *, goes_on: bool) -> None:
        plan = self._swarm.plan
        is_over = self._swarm.engine.connect(
            rate_per_s=plan.connect_rate_per_s,
            in_progress_max=plan.connects_in_progress_max,
            timeout_s=seconds,
            goes_on=goes_on,
        )
        if is_over or time.monotonic_ns() >= self._connect_until_ns:
            self._is_connecting = False
            self._answer("connected")

    def _commands(self) -> list[str]:
        """The commands that came; ``close`` when there will be no more."""
        if not select.select([sys.stdin], [], [], 0)[0]:
            return []
        data = os.read(sys.stdin.fileno(), _LINE_BYTES)
        *lines, self._held = (self._held + data).split(b"\n")
        return [json.loads(line) for line in lines] + ([] if data else ["close"])

    def _changes(self) -> dict[str, dict[str, Any]]:
        """Every histogram less what the tick before had."""
        changes = {}
        for name, histogram in self._swarm.engine.histograms().items():
            dumped = histogram.dump()
            before = dict(self._dumped.get(name, {"buckets": []})["buckets"])
            buckets = [[i, n - before.get(i, 0)] for i, n in dumped["buckets"] if n != before.get(i, 0)]
            total_ns = dumped["total_ns"] - self._dumped.get(name, {"total_ns": 0.0})["total_ns"]
            changes[name] = {"buckets": buckets, "total_ns": total_ns, "max_ns": dumped["max_ns"]}
            self._dumped[name] = dumped
        return changes

    def _answer(self, state: str, **values: Any) -> None:
        engine = self._swarm.engine
        answer = {
            "state": state,
            "at_ns": time.monotonic_ns(),
            "counters": engine.counters_now(),
            "ends": engine.ends(),
            "tls_error": engine.last_tls_error,
            "cpu_s": time.process_time(),
            "tracks_sequences": engine.tracks_sequences or not self._swarm.plan.subscribers,
        }
        print(json.dumps(answer | values), flush=True)


def main() -> int:
    """Read a plan from the first line, and do what the others say."""
    # Without a buffer: what follows the first line is read from the descriptor.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as unbuffered:
        wanted = json.loads(unbuffered.readline())
    plan: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in wanted["plan"].items()
    }
    plan["publish_properties"] = bytes.fromhex(plan.get("publish_properties", ""))
    if wanted["core"] is not None:
        os.sched_setaffinity(0, {wanted["core"]})
    try:
        with Swarm(Plan(**plan)) as swarm:
            print(json.dumps({"state": "made"}), flush=True)
            Worker(swarm, epoch_ns=wanted["epoch_ns"], interval_s=wanted["interval_s"]).run()
    except (SwarmError, ValueError, MemoryError) as error:
        print(json.dumps({"state": "refused", "error": str(error) or type(error).__name__}), flush=True)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        # Whoever began the test went away.
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
