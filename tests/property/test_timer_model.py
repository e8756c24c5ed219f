"""Waiting messages against a list: whatever is stored, cancelled and restarted, all come once and on time."""

from __future__ import annotations

import asyncio
import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from manual_clock import ManualClock
from timer_bench import TimerBench
from timer_oracle import check_index

from iotmq.broker.writing.message_writer import StoredBatch
from iotmq.store.kv import timer_index

PENDING_KEYS_MAX = timer_index.PENDING_KEYS_MAX
LEVEL_MS = (1_000, 5_000, 10_000, 30_000, 60_000)


def on_loop(method: Callable[..., None]) -> Callable[..., None]:
    """The method, called on the machine's event loop."""

    @functools.wraps(method)
    def called(self: TimerModel, **arguments: Any) -> None:
        async def call() -> None:
            method(self, **arguments)

        self.loop.run_until_complete(call())

    return called


class TimerModel(RuleBasedStateMachine):
    """The model is a dict: body -> when it is due."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = TemporaryDirectory()
        self.clock = ManualClock()
        self.waiting: dict[bytes, int] = {}
        self.delivered: list[bytes] = []
        self.number = 0

    @initialize(pending_keys=st.sampled_from((6, 60, 1_024)))
    @on_loop
    def begin(self, pending_keys: int) -> None:
        timer_index.PENDING_KEYS_MAX = pending_keys
        self.bench = TimerBench(Path(self.directory.name), self.clock)

    @rule(in_ms=st.integers(1, 20_000), times=st.integers(1, 5))
    @on_loop
    def put(self, in_ms: int, times: int) -> None:
        for _ in range(times):
            self.bench.put(self._body(), in_ms=in_ms, key=f"k{self.number}")
            self._wait(self.clock.now_ms() + in_ms)

    @rule(level=st.integers(1, 5))
    @on_loop
    def put_level(self, level: int) -> None:
        self.bench.put(self._body(), level=level, key=f"k{self.number}")
        self._wait(self.clock.now_ms() + LEVEL_MS[level - 1])

    @rule(seconds=st.sampled_from((0.0, 0.001, 0.5, 3.0, 30.0)))
    @on_loop
    def pass_time(self, seconds: float) -> None:
        self._move(seconds)

    def _move(self, seconds: float) -> None:
        self.bench.pass_time(seconds)
        now_ms = self.clock.now_ms()
        due = sorted((due_ms, int(body)) for body, due_ms in self.waiting.items() if due_ms <= now_ms)
        self.delivered += [b"%d" % number for _, number in due]
        for _, number in due:
            del self.waiting[b"%d" % number]

    @rule(choice=st.integers(0, 200))
    @on_loop
    def cancel(self, choice: int) -> None:
        number = choice % (self.number + 1)
        is_waiting = b"%d" % number in self.waiting
        assert isinstance(self.bench.cancel(f"k{number}"), StoredBatch) == is_waiting
        self.waiting.pop(b"%d" % number, None)

    @rule(is_made_again=st.booleans())
    @on_loop
    def restart(self, is_made_again: bool) -> None:
        self.bench.close()
        if is_made_again:
            shutil.rmtree(Path(self.directory.name) / "kv")
        self.bench = TimerBench(Path(self.directory.name), self.clock)
        self._move(0.0)

    @invariant()
    @on_loop
    def everything_is_where_it_should_be(self) -> None:
        if not hasattr(self, "bench"):
            return
        assert self.bench.bodies() == self.delivered
        assert self.bench.timers.pending_count == len(self.waiting)
        expected = check_index(self.bench.store, self.bench.index)
        assert {one.body: one.due_ms for one in expected} == self.waiting

    def teardown(self) -> None:
        self._close()
        timer_index.PENDING_KEYS_MAX = PENDING_KEYS_MAX
        self.loop.close()
        self.directory.cleanup()

    @on_loop
    def _close(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()

    def _body(self) -> bytes:
        return b"%d" % self.number

    def _wait(self, due_ms: int) -> None:
        self.waiting[self._body()] = due_ms
        self.number += 1


TestTimers = TimerModel.TestCase
TestTimers.settings = settings(max_examples=max(25, settings().max_examples // 10), stateful_step_count=25)
