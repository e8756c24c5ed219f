"""Filters of a SUBSCRIBE that are refused before anybody else looks at it.

They keep their places in it under a name that no filter has, which says with which code they are refused, and
why, when there is more to say.
"""

from __future__ import annotations

from collections.abc import Iterable


def refused_filter(code: int, why: str = "") -> str:
    """Return a name in place of a filter that is refused with this code."""
    return f"\0{code:02x}{why}"


def refusals(filters: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the filters that are refused already, with the codes they are refused with."""
    return {name: int(name[1:3], 16) for name, _ in filters if name[0] == "\0"}


def refusal_text(filters: Iterable[tuple[str, int]]) -> str:
    """Return why the first of them is refused that says it; empty when none does."""
    return next((name[3:] for name, _ in filters if name[0] == "\0" and len(name) > 3), "")
