"""Count what happens to names within a window of time, for a bounded number of names."""

from __future__ import annotations

from typing import Generic, TypeVar

_Name = TypeVar("_Name", bound="str | bytes")


class WindowCounts(Generic[_Name]):
    """A window begins with the first count of a name; past `names_max` the name that began first goes."""

    def __init__(self, *, window_s: float, names_max: int) -> None:
        self._window_s = window_s
        self._names_max = names_max
        # Name -> (when its window began, how often in it); in the order of their beginnings.
        self._counts: dict[_Name, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def count_of(self, name: _Name, now_s: float) -> int:
        """Return how often it has happened within the window."""
        began_s, count = self._counts.get(name, (now_s, 0))
        return count if now_s - began_s < self._window_s else 0

    def add(self, name: _Name, now_s: float) -> int:
        """Count one more; return how often within the window."""
        began_s, count = self._counts.get(name, (now_s, 0))
        if now_s - began_s >= self._window_s:
            del self._counts[name]
            began_s, count = now_s, 0
        if name not in self._counts and len(self._counts) >= self._names_max:
            del self._counts[next(iter(self._counts))]
        self._counts[name] = (began_s, count + 1)
        return count + 1

    def forget(self, name: _Name) -> None:
        self._counts.pop(name, None)

    def check_invariants(self) -> None:
        assert len(self._counts) <= self._names_max
        assert all(count > 0 for _, count in self._counts.values())
