"""Replace files whole, and have names survive a power cut.

`NAME.tmp` beside a file is its next content until that is whole. One that a crash has left is overwritten by
the next replacement, and read by nobody.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path


def replace_file(
    path: Path,
    data: bytes,
    *,
    is_synced: bool = True,
    private_mode: int | None = None,
    written: Callable[[], object] | None = None,
) -> None:
    """Replace a file's content; raises OSError, and leaves the former content then.

    A reader finds either content, whole: meanwhile, after the death of the process, and with `is_synced`
    after a power cut. Then the new content is on the disk by the return; it takes as long as the disk does.
    `private_mode` is for secrets: these may read the file, at no instant anybody else; written by root, it
    keeps its owner and group. `written` is called with the new content whole and the former one in place.
    """
    fresh = path.with_name(path.name + ".tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(fresh, flags, 0o666 if private_mode is None else 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if private_mode is not None:
            # One that was left behind keeps the mode it had.
            os.fchmod(descriptor, 0o600)
            _keep_owner(descriptor, path)
            os.fchmod(descriptor, private_mode)
        file.write(data)
        if is_synced:
            file.flush()
            os.fsync(descriptor)
    if written is not None:
        written()
    os.replace(fresh, path)
    if is_synced:
        sync_path(path.parent)


def replace_private_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file of secrets; the former content becomes `.bak`. OSError leaves the file as it was."""

    def keep_former() -> None:
        backup = path.with_name(path.name + ".bak")
        try:
            backup.unlink(missing_ok=True)
            os.link(path, backup)
        except FileNotFoundError:
            pass

    replace_file(path, data, private_mode=mode, written=keep_former)


@contextlib.contextmanager
def changing(path: Path) -> Iterator[None]:
    """Keep others who change files of this directory in the same way waiting, so that no change is lost."""
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_open_to_others(path: Path, *, may_read: bool = False) -> bool:
    """Return whether others on this machine may change a file, or read one that holds secrets."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return bool(mode & (stat.S_IWOTH | stat.S_IWGRP | (0 if may_read else stat.S_IROTH)))


def make_directory(path: Path) -> None:
    """Make a directory unless it is there, so that its name survives a power cut; raises OSError."""
    if not path.exists():
        path.mkdir(parents=True, exist_ok=True)
        sync_path(path.parent)


def sync_path(path: str | Path) -> None:
    """Wait until a file's content, or the names in a directory, are on the disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _keep_owner(descriptor: int, path: Path) -> None:
    """A server that runs as somebody else is to read what root writes for it."""
    try:
        former = path.stat()
    except FileNotFoundError:
        return
    if os.geteuid() == 0:
        os.fchown(descriptor, former.st_uid, former.st_gid)


def data_end(path: Path, size_bytes: int) -> int:
    """Return the end of a file's last data, without reading it."""
    with path.open("rb") as file:
        descriptor = file.fileno()
        end = 0
        while end < size_bytes:
            try:
                start = os.lseek(descriptor, end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return end
                raise
            end = min(size_bytes, os.lseek(descriptor, start, os.SEEK_HOLE))
        return end
