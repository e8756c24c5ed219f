"""The processes of one load test, driven and heard as one."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Final

from loadtest.swarm.errors import SwarmError
from loadtest.swarm.plan import MESSAGES_UNLIMITED, Plan
from loadtest.swarm.reach import shares_one_group

PROCESSES_MAX: Final = 64
# A process that says nothing for so long is stuck.
_SILENCE_S: Final = 30.0
_END_S: Final = 10.0
_READ_BYTES: Final = 1024 * 1024


def share_plan(plan: Plan, processes: int) -> list[Plan]:
    """The plans of the processes that carry out one together, with everything numbered as in one.

    The members of a shared subscription are all in one process, which checks what comes to any of them.
    """
    keeps_together = processes > 1 and shares_one_group(plan)
    total = plan.publishers + plan.subscribers + plan.idle
    tracked = (
        plan.number_base + plan.publishers if plan.publishers_tracked is None else plan.publishers_tracked
    )
    subscriber_base = plan.number_base if plan.subscriber_base is None else plan.subscriber_base
    idle_base = plan.number_base if plan.idle_base is None else plan.idle_base
    plans = []
    for i in range(processes):
        if keeps_together:
            publishers, before = _part(plan.publishers, processes - 1, i)
            subscribers, subscribers_before = _part(plan.subscribers, 1, i - processes + 1)
            idle, idle_before = _part(plan.idle, processes - 1, i)
        else:
            publishers, before = _part(plan.publishers, processes, i)
            subscribers, subscribers_before = _part(plan.subscribers, processes, i)
            idle, idle_before = _part(plan.idle, processes, i)
        share = publishers / plan.publishers if plan.publishers else 0.0
        if not publishers + subscribers + idle:
            continue
        plans.append(
            replace(
                plan,
                publishers=publishers,
                subscribers=subscribers,
                idle=idle,
                number_base=plan.number_base + before,
                subscriber_base=subscriber_base + subscribers_before,
                idle_base=idle_base + idle_before,
                publishers_tracked=tracked,
                rate_per_s=_of(plan.rate_per_s, before, publishers, plan.publishers),
                rate_from_per_s=_of(plan.rate_from_per_s, before, publishers, plan.publishers),
                ramp_s=plan.ramp_s if share else 0.0,
                messages_max=(
                    plan.messages_max
                    if plan.messages_max == MESSAGES_UNLIMITED
                    else _of(plan.messages_max, before, publishers, plan.publishers)
                ),
                connect_rate_per_s=plan.connect_rate_per_s * (publishers + subscribers + idle) / total,
                leave_per_s=plan.leave_per_s * (subscribers + idle) / max(1, plan.subscribers + plan.idle),
                resubscribe_per_s=plan.resubscribe_per_s * subscribers / max(1, plan.subscribers),
            )
        )
    return plans


def _part(count: int, processes: int, i: int) -> tuple[int, int]:
    """The part of one process, and how many come in those before it; nothing for one outside of them."""
    if not 0 <= i < processes:
        return 0, 0
    before = count * i // processes
    return count * (i + 1) // processes - before, before


def _of(total: int, before: int, count: int, of: int) -> int:
    """The share of a total of `count` things behind `before` others; the shares add up."""
    return total * (before + count) // of - total * before // of if of else 0


class Crew:
    """The running processes. Usable as a context manager, which ends them."""

    def __init__(self, plans: list[Plan], *, interval_s: float, cores: tuple[int, ...] = ()) -> None:
        self._ready = selectors.DefaultSelector()
        self._workers: list[_Process] = []
        self._heard_at_s = time.monotonic()
        self.epoch_ns = time.monotonic_ns()
        """CLOCK_MONOTONIC from which ticks are counted."""
        for i, plan in enumerate(plans):
            core = cores[i % len(cores)] if cores else None
            worker = _Process(plan, epoch_ns=self.epoch_ns, interval_s=interval_s, core=core)
            self._workers.append(worker)
            self._ready.register(worker.output, selectors.EVENT_READ, worker)

    @property
    def size(self) -> int:
        """How many processes there are."""
        return len(self._workers)

    def __enter__(self) -> "Crew":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.ask_to_end()
        until_s = time.monotonic() + _END_S
        for worker in self._workers:
            worker.end(until_s)
        self._ready.close()

    def say(self, command: str) -> None:
        """Give a command to all."""
        for worker in self._workers:
            worker.say(command)

    def listen(self, timeout_s: float) -> Iterator[tuple[int, dict[str, Any]]]:
        """What the processes say meanwhile, with the number of each. SwarmError when one failed."""
        for key, _ in self._ready.select(timeout_s):
            worker: _Process = key.data
            number = self._workers.index(worker)
            for answer in worker.answers():
                self._heard_at_s = time.monotonic()
                if answer["state"] == "refused":
                    raise SwarmError(answer["error"])
                yield number, answer
            if worker.is_over:
                self._ready.unregister(worker.output)
                if not worker.is_closed:
                    raise SwarmError(f"a process of the load test ended: {worker.said()}")
        if time.monotonic() - self._heard_at_s > _SILENCE_S:
            raise SwarmError(f"no process of the load test said anything for {_SILENCE_S:.0f} s")


class _Process:
    """One of them."""

    def __init__(self, plan: Plan, *, epoch_ns: int, interval_s: float, core: int | None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtest.swarm.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C is for whoever began the test, who says `close` in time.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout
        os.set_blocking(self.output.fileno(), False)
        self._held = b""
        self.is_over = False
        self.is_closed = False
        wanted = asdict(plan) | {"publish_properties": plan.publish_properties.hex()}
        self._write({"plan": wanted, "epoch_ns": epoch_ns, "interval_s": interval_s, "core": core})

    def say(self, command: str) -> None:
        self._write(command)

    def _write(self, value: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # The end of its output says why.
            pass

    def answers(self) -> Iterator[dict[str, Any]]:
        while data := self.output.read(_READ_BYTES):
            *lines, self._held = (self._held + data).split(b"\n")
            for line in lines:
                answer: dict[str, Any] = json.loads(line)
                self.is_closed = self.is_closed or answer["state"] == "close"
                yield answer
        self.is_over = data is not None

    def said(self) -> str:
        """Why it ended, as far as anybody knows."""
        assert self._process.stderr is not None
        words = self._process.stderr.read().decode(errors="replace").strip()[-1_000:]
        code = self._process.wait()
        return words or (f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")

    def ask_to_end(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass

    def end(self, until_s: float) -> None:
        """Wait for its end until this time, and make it end."""
        assert self._process.stderr is not None
        try:
            self._process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.output.close()
        self._process.stderr.close()
