"""The file in which a process keeps its alarms, so that a restart neither repeats nor forgets."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from iotmq import limits
from iotmq.alarms.book import BookState
from iotmq.files import make_directory, replace_file

logger = logging.getLogger("iotmq.alarms")


def read_state(path: Path) -> BookState:
    """Return what the file has; nothing without a file. One that is none is put aside, and the log says so.

    OSError when it cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limits.ALARM_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return BookState()
    try:
        if len(data) > limits.ALARM_FILE_BYTES_MAX:
            raise msgspec.DecodeError(f"more than {limits.ALARM_FILE_BYTES_MAX:,} bytes")
        return msgspec.json.decode(data, type=BookState)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        aside = path.with_name(path.name + ".damaged")
        path.replace(aside)
        logger.error(
            "the file of alarms cannot be read and is put aside: %s", error, extra={"file": str(aside)}
        )
        return BookState()


def write_state(path: Path, state: BookState) -> None:
    """Replace the file's content; it is on the disk by the return. OSError leaves the former content."""
    make_directory(path.parent)
    replace_file(path, msgspec.json.encode(state))
