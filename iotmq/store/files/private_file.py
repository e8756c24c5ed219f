"""Replacing a file of secrets as a whole: nobody sees half of it, or sees it who may not."""

from __future__ import annotations

import os
from pathlib import Path

from iotmq.store.log.segment import sync_directory


def write_private(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace the file; the former content becomes `.bak`. Raises OSError, and leaves the file as it was.

    `mode` is who may read it, its owner unless told otherwise. Written by root, it keeps its owner and group.
    """
    fresh = path.with_name(path.name + ".tmp")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        # One that was left behind keeps the mode it had.
        os.fchmod(descriptor, 0o600)
        _keep_owner(descriptor, path)
        os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    backup = path.with_name(path.name + ".bak")
    try:
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    except FileNotFoundError:
        pass
    os.replace(fresh, path)
    sync_directory(str(path.parent))


def _keep_owner(descriptor: int, path: Path) -> None:
    """A server that runs as somebody else is to read what root writes for it."""
    try:
        former = path.stat()
    except FileNotFoundError:
        return
    if os.geteuid() == 0:
        os.fchown(descriptor, former.st_uid, former.st_gid)
