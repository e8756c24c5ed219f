"""Make a process that Spark reuses for task after task ready for the next one sooner.

Spark collects cyclic garbage after each task of a Python worker. With its libraries loaded that takes 10
to 25 ms of the processor, which the next small batch waits for.
"""

from __future__ import annotations

import gc
import os

_is_done = False


def set_libraries_aside() -> None:
    """Leave what this worker has loaded out of later collections; only once, only in a worker of Spark."""
    global _is_done
    if not _is_done and os.environ.get("SPARK_REUSE_WORKER") == "1":
        # Garbage of the first task would stay for good.
        gc.collect()
        gc.freeze()
        _is_done = True
