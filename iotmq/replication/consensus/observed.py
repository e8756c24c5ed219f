"""Measure how long ago other members gave a sign of life, by this process's own clock alone.

Clocks of two machines may differ by anything. So an observer looks whether a sign has changed since it looked
before, and counts the time since it saw the last change. It is told both ends of each look: what is seen
changed may be as new as the end, what is unchanged was so at the beginning at least.
"""

from __future__ import annotations

from collections.abc import Iterable


class ObservedChanges:
    """Remembers the last sign of each member, and when it was seen first."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[object, float]] = {}

    def age_s(self, member: int, sign: object, *, asked_s: float, answered_s: float) -> float | None:
        """Return the least age of a sign: 0 for a changed one, None for the first one of a member."""
        known = self._seen.get(member)
        if known is None or known[0] != sign:
            self._seen[member] = (sign, answered_s)
            return None if known is None else 0.0
        return max(0.0, asked_s - known[1])

    def forget_others(self, members: Iterable[int]) -> None:
        """Forget all members but these."""
        kept = set(members)
        self._seen = {member: seen for member, seen in self._seen.items() if member in kept}
