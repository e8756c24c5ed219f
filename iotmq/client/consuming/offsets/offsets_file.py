"""Keep the offsets of a broadcasting consumer in a file of its own.

JSON: the group, and of each queue the topic, broker, queue id and the offset below which all is consumed. The
file is replaced as a whole, and `NAME.lock` beside it is locked while a consumer uses it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from pathlib import Path

import msgspec

from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import ClientError
from iotmq.files import replace_file
from iotmq.supervised import to_its_end

_log = logging.getLogger(__name__)


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    broker: str
    queue: int
    offset: int


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    group: str
    offsets: list[_Row]


class OffsetsFile:
    """The offsets of one group in one file, between `open` and `close`."""

    def __init__(self, path: Path, group: str) -> None:
        self._path = path
        self._group = group
        self._lock: int | None = None
        """The descriptor of the lock file while it is locked."""
        self._saved: dict[MessageQueue, int] = {}
        self._saving = asyncio.Lock()

    def open(self) -> dict[MessageQueue, int]:
        """Lock the file and read it; ClientError when it is in use, or not such a file of this group."""
        self._take_lock()
        try:
            self._saved = self._read()
        except BaseException:
            self.close()
            raise
        return dict(self._saved)

    def close(self) -> None:
        """Release the file."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def save(self, offsets: dict[MessageQueue, int]) -> None:
        """Replace the file's content when it is another one; a refusal of the disk is logged."""
        async with self._saving:
            if offsets == self._saved:
                return
            saved = dict(offsets)
            rows = [_Row(*queue, offset) for queue, offset in sorted(saved.items())]
            data = msgspec.json.format(msgspec.json.encode(_Content(self._group, rows))) + b"\n"
            writing = asyncio.get_running_loop().run_in_executor(None, replace_file, self._path, data)
            try:
                await to_its_end(writing)
            except OSError as error:
                _log.error("the offsets of group %s are not saved to %s: %s", self._group, self._path, error)
                return
            self._saved = saved

    def _take_lock(self) -> None:
        name = self._path.with_name(self._path.name + ".lock")
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ClientError(f"offsets_file {self._path}: {error.strerror}") from error
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ClientError(
                    f"offsets_file {self._path} is used by another consumer: each needs a file of its own"
                ) from error
            stack.pop_all()
        self._lock = descriptor

    def _read(self) -> dict[MessageQueue, int]:
        try:
            content = msgspec.json.decode(self._path.read_bytes(), type=_Content)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise ClientError(
                f"offsets_file {self._path} cannot be read: {error}; without it the group begins "
                "at consume_from"
            ) from error
        if content.group != self._group:
            raise ClientError(f"offsets_file {self._path} belongs to group {content.group}")
        return {MessageQueue(row.topic, row.broker, row.queue): row.offset for row in content.offsets}
