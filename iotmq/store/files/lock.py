"""Lock a data directory, and tell whether its last owner left it in order.

`lock` is held exclusively as long as the store is open and names the process. `abort` exists as long
as the store is open: finding it at the start means that the last run did not end cleanly.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

from iotmq.errors import StoreLockedError
from iotmq.files import sync_path

# struct flock: type 2, whence 2, (padding), start 8, length 8 (0 = all), pid 4.
_WHOLE_FILE = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class DirectoryLock:
    """The exclusive right to a data directory; taken by the constructor, given back by `release`.

    The lock belongs to the open file, not the process: it also keeps out a second store in the same
    process, and the locks Java brokers take conflict with it.
    """

    def __init__(self, directory: Path) -> None:
        """Raises StoreLockedError, which names the lock file and the process that holds it."""
        self.path = directory / "lock"
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        except OSError as error:
            holder = os.pread(self._descriptor, 32, 0).strip()
            os.close(self._descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                # A Java broker writes the word `lock` over the front of what is there.
                who = f"pid {holder.decode()}" if holder.isdigit() else "a broker that does not say its pid"
                raise StoreLockedError(f"{self.path} is held by another process ({who})") from None
            raise
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let others open the directory; the file stays."""
        os.close(self._descriptor)


class AbortMark:
    """The `abort` file of a directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "abort"
        # Whether the run before this one ended without `clear`.
        self.was_set = self.path.exists()

    def set(self) -> None:
        """Create the abort file: a start finds that this run has not ended cleanly."""
        self.path.touch()
        sync_path(self.path.parent)

    def clear(self) -> None:
        """Remove the abort file: this run has ended cleanly."""
        self.path.unlink(missing_ok=True)
        sync_path(self.path.parent)
