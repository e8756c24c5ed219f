"""How long one turn of an event loop takes, in processor time of its thread.

Processor time, because what other processes of the machine take is not the loop's fault; and in relation to
how fast the processor is, because neighbours slow it down, too. A turn is what happens between two calls of a
callback that asks for its next call at once.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import ExitStack
from statistics import median
from types import TracebackType

from iotmq.cycles import short_collections

# What a handler may take of the loop, whatever a peer asks; of a processor that does the work of `_work_s` in
# _WORK_S. The numbers of benchmarks/broker_loop_turns.py are those of the machine it runs on.
TURN_S_MAX = 0.020
_WORK_S = 0.0012
# What the measurement of coverage makes of a piece of Python, about; it does not see `_work_s`.
_TRACED = 3.0


def turn_s_max() -> float:
    """TURN_S_MAX on this machine as it is now: more where the processor is slower."""
    slower = max(1.0, median(_work_s() for _ in range(9)) / _WORK_S)
    return TURN_S_MAX * slower * (1.0 if sys.gettrace() is None else _TRACED)


def _work_s() -> float:
    began_s = time.thread_time()
    table = {b"%d" % number: number for number in range(3_000)}
    assert sum(table[b"%d" % number] for number in range(0, 3_000, 3)) == 1_498_500
    return time.thread_time() - began_s


class LoopTurns:
    """`with LoopTurns() as turns:` in a coroutine; `turns.longest_s` is the longest turn meanwhile."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.count = 0
        self._handle: asyncio.Handle | None = None
        self._began_s = 0.0
        self._cleaning = ExitStack()

    def __enter__(self) -> LoopTurns:
        self._loop = asyncio.get_running_loop()
        # As in a server: else it is chance whether a collection of all of a test's objects falls into a turn.
        self._cleaning.enter_context(short_collections())
        self._began_s = time.thread_time()
        self._handle = self._loop.call_soon(self._turn)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._handle is not None
        self._handle.cancel()
        self._look()
        self._cleaning.close()

    def _turn(self) -> None:
        self._look()
        self._handle = self._loop.call_soon(self._turn)

    def _look(self) -> None:
        now_s = time.thread_time()
        self.longest_s = max(self.longest_s, now_s - self._began_s)
        self.count += 1
        self._began_s = now_s
