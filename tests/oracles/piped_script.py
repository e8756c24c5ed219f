"""The other side of `piped_client`, for scripts in Python: commands come as JSON lines, and so do answers.

A script is run by its path; `PipedClient` sees to it that it finds this module.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

MARK = "@@"

_write_lock = threading.Lock()


def say(**values: Any) -> None:
    """Write a line; from any thread."""
    with _write_lock:
        sys.stdout.write(f"\n{MARK}{json.dumps(values)}\n")
        sys.stdout.flush()


def serve(client: object) -> None:
    """Call the methods of `client` that commands name, until there are no more; ends the process."""
    say(kind="ready", pid=os.getpid())
    for line in sys.stdin:
        words = json.loads(line)
        try:
            say(kind="done", value=getattr(client, words.pop("do"))(**words))
        except Exception as error:
            say(kind="failed", error=f"{type(error).__name__}: {error}")
    # Without the library's own ways to end, which wait for its threads.
    os._exit(0)
