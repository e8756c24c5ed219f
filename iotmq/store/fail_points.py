"""Named places where a test ends the process just there, as kill -9 would.

Off unless the environment says otherwise at the first import: `IOTMQ_FAIL_POINT=NAME` or `NAME:COUNT`
ends the process the COUNT-th time it comes to that place. Never set it where data matters.
"""

from __future__ import annotations

import logging
import os
import signal

VARIABLE = "IOTMQ_FAIL_POINT"

# In the order of a life of a store.
NAMES = (
    "abort-set",
    "recovery-log-checked",
    "recovery-log-cut",
    "recovery-queues-rewound",
    "queues-half-cleared",
    "segment-created",
    "segment-allocated",
    "queue-file-created",
    "batch-between-records",
    "batch-before-size",
    "index-file-created",
    "index-between-keys",
    "flush-begun",
    "flush-between-segments",
    "flush-done",
    "checkpoint-begun",
    "checkpoint-queues-synced",
    "queue-state-written",
    "checkpoint-index-synced",
    "index-state-written",
    "checkpoint-written",
    "begins-written",
    "segment-deleted",
    "index-files-let-go",
    "cut-begun",
    "cut-announced",
    "cut-files-deleted",
    "cut-done",
    "close-flushed",
    "close-before-abort-removal",
    "abort-removed",
    "copy-begun",
    "copy-half",
    "copy-whole",
    "copy-moving-out",
    "copy-moved-out",
    "copy-moving-in",
    "copy-moved-in",
)

logger = logging.getLogger("iotmq.store")


def _parse(text: str) -> tuple[str, int]:
    """(name, count) of a setting, ("", 0) for none."""
    if not text:
        return "", 0
    name, _, count = text.partition(":")
    if name not in NAMES or (count and not count.isdecimal()):
        raise ValueError(f"{VARIABLE}={text}: NAME or NAME:COUNT, where NAME is one of {', '.join(NAMES)}")
    return name, int(count or 1)


_name, _left = _parse(os.environ.get(VARIABLE, ""))
# Looked at once by compiled code, which calls `reach` on its hot paths only then.
IS_ON = bool(_name)
if IS_ON:
    logger.critical("%s is set: this process will kill itself at %s", VARIABLE, _name)


def reach(name: str) -> None:
    """The process has come to the place `name`."""
    global _left
    if name != _name:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
