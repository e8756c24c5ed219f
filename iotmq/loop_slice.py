"""A share of one turn of the event loop: work that may be long goes on until it is used up."""

from __future__ import annotations

import sys
import time
from typing import Final

# What one kind of work has of a turn: several kinds may come together, and all of it is to stay below 20 ms.
SLICE_S: Final = 0.003


class LoopSlice:
    """Some steps of work, for some milliseconds of the processor. The first step is always taken."""

    __slots__ = ("_end_s", "_left", "_steps_max")

    def __init__(self, steps_max: int = sys.maxsize, *, slice_s: float = SLICE_S) -> None:
        self._steps_max = self._left = steps_max
        self._end_s = time.thread_time() + slice_s

    @property
    def is_over(self) -> bool:
        """Whether the next step is one for another turn."""
        if self._left == self._steps_max:
            return False
        return self._left <= 0 or time.thread_time() >= self._end_s

    def take(self) -> bool:
        """Whether there is room for a step, which counts as taken."""
        if self.is_over:
            return False
        self._left -= 1
        return True
