"""Bound the time that collections of cyclic garbage hold the event loop.

Python's full collection looks at every container of the process: 80 ms with 100,000 connected sessions, again
each time there are a quarter more. Nearly all of it lives long and is freed by its last reference, so here
what a full collection leaves is never looked at again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

# A full collection comes after about 7,700 new containers times this.
_MIDDLE_COLLECTIONS: Final = 4


# New containers until the first collection of a start; a start makes some 400,000, nearly all for good.
_START_CONTAINERS: Final = 100_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """In here hardly anything is looked at: what a start imports and makes is no garbage."""
    before = gc.get_threshold()
    gc.set_threshold(_START_CONTAINERS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def short_collections() -> Iterator[None]:
    """In here a full collection looks at what was made since the last one and still lives.

    A cycle that is let go when it is old is therefore not freed: what comes and goes with a connection, a
    session or a request must not leave any (tests/integration/test_live_objects.py).
    """
    if _set_aside in gc.callbacks:
        # That is so already, and goes on behind this.
        yield
        return
    newest, middle, oldest = gc.get_threshold()
    gc.set_threshold(newest, middle, _MIDDLE_COLLECTIONS)
    gc.callbacks.append(_set_aside)
    # The second finds little, which counts: the next full one comes when there is a quarter more than that.
    gc.collect()
    gc.collect()
    try:
        yield
    finally:
        gc.callbacks.remove(_set_aside)
        gc.set_threshold(newest, middle, oldest)
        gc.unfreeze()


def _set_aside(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
