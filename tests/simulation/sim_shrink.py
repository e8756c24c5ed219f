"""Make a failing run small: leave out faults one by one for as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

F = TypeVar("F")


def shrunk(faults: Sequence[F], still_fails: Callable[[list[F]], bool]) -> list[F]:
    """Return faults of which none can be left out; halves are tried first, single ones last."""
    kept = list(faults)
    size = max(1, len(kept) // 2)
    while True:
        at = 0
        while at < len(kept):
            without = kept[:at] + kept[at + size :]
            if still_fails(without):
                kept = without
            else:
                at += size
        if size == 1:
            return kept
        size = max(1, size // 2)
