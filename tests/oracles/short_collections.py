"""Collections of cyclic garbage as servers have them, for a while."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from iotmq.cycles import _set_aside, keep_collections_short


@contextmanager
def short_collections() -> Iterator[None]:
    thresholds = gc.get_threshold()
    keep_collections_short()
    try:
        yield
    finally:
        gc.callbacks.remove(_set_aside)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
