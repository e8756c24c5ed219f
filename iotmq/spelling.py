"""Suggest the known name that a misspelt one may mean."""

from __future__ import annotations

from collections.abc import Mapping


def did_you_mean(name: str, known: Mapping[str, str]) -> str:
    """Return "; did you mean ...?" with what `known` has for the nearest name, or "" when none is near."""
    # Only now: most names are right.
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {known[near[0]]}?" if near else ""
