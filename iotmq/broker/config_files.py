"""How the broker's JSON files under `config/` are read and written.

Rules (wire document 5.5): before a file is replaced its content becomes `NAME.bak`; a reader takes
the main file and, when that is missing, empty or broken, the `.bak`. Files written by Java brokers
may hold integer keys without quotes; ours are always valid JSON.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TypeVar

from iotmq.errors import RequestError, StoreCorruptError
from iotmq.remoting import lenient_json

logger = logging.getLogger(__name__)

T = TypeVar("T")


def read_json_file(path: Path, shape: type[T]) -> T | None:
    """The content of `path`, or of its `.bak`; None when neither exists.

    Raises StoreCorruptError when files exist and none can be read: starting with an empty table
    would forget topics or repeat everything consumed.
    """
    problems: list[str] = []
    for candidate in (path, _backup_of(path)):
        try:
            data = candidate.read_bytes()
        except FileNotFoundError:
            continue
        if not data.strip():
            problems.append(f"{candidate} is empty")
            continue
        try:
            content = lenient_json.decode(data, shape)
        except RequestError as error:
            problems.append(f"{candidate}: {error}")
            continue
        for problem in problems:
            logger.warning("%s; using %s", problem, candidate.name)
        return content
    if any("empty" not in problem for problem in problems):
        raise StoreCorruptError("; ".join(problems))
    return None


def write_json_file(path: Path, data: bytes, *, is_synced: bool) -> None:
    """Replace `path` by `data`, keeping the previous content as `.bak`. At no instant are both gone.

    Without `is_synced` the new content survives the death of the process, not of the machine.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with open(fresh, "wb") as file:
        file.write(data)
        if is_synced:
            file.flush()
            os.fsync(file.fileno())
    try:
        os.replace(path, _backup_of(path))
    except FileNotFoundError:
        pass
    os.replace(fresh, path)


def _backup_of(path: Path) -> Path:
    return path.with_name(path.name + ".bak")
