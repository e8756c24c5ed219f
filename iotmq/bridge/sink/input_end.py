"""Tell whether the rows of a task have all come, or have broken off.

When what gives the rows fails (another Python worker that was killed, a function that raises), Spark closes
its side, and the rows just end: Arrow takes the end of the stream for that of the data. What is written then
must not be taken for all. A stream that is whole is followed by a word of Spark's.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any


def is_broken_off() -> bool:
    """Return whether Spark has closed the stream of rows of the caller's task, which were read to their end.

    False where there is no such stream, as without Spark.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        # So all workers of PySpark call what comes from Java.
        stream: Any = frame.f_locals.get("infile")
        if stream is not None and hasattr(stream, "peek") and _is_of_pyspark(frame):
            return not stream.peek(1)
        frame = frame.f_back
    return False


def _is_of_pyspark(frame: FrameType) -> bool:
    # A worker that is a program of its own has the package in its name alone.
    name = frame.f_globals.get("__package__") or frame.f_globals.get("__name__")
    return str(name).partition(".")[0] == "pyspark"
