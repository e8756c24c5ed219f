"""Keeping a file level with a table that is to survive whatever happens once a change of it was answered.

The file is written in a thread, with a sync, as soon as the table has changed; what changes meanwhile is in
the next write. A write that fails is tried again, and until one succeeds whoever asks is told so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeAlias

from iotmq.backoff import Backoff
from iotmq.event_loop import happens_within
from iotmq.metrics import Metric, samples
from iotmq.supervised import to_its_end

logger = logging.getLogger(__name__)

_RETRY_FIRST_S: Final = 1.0
_RETRY_LAST_S: Final = 30.0

Saved: TypeAlias = Callable[[OSError | None], None]
"""Is told what the disk said, or nothing when the change is there."""


class KeptTable(Protocol):
    """A table with a file of its own."""

    def encoder(self) -> Callable[[], bytes]: ...

    def write(self, data: bytes) -> None: ...


class ConfigSaver:
    """One table and its file. `run` is cancelled before `save`."""

    def __init__(self, name: str, table: KeptTable, *, retry_first_s: float = _RETRY_FIRST_S) -> None:
        """`name` is that of the file, for logs and metrics."""
        self.name = name
        self._table = table
        self._retry_first_s = retry_first_s
        self._changed = asyncio.Event()
        # Counts changes; and how many of them the file has.
        self._changes_count = 0
        self._saved_count = 0
        # Whoever waits for a write that has so many changes, oldest first.
        self._waiting: deque[tuple[int, Saved]] = deque()
        self.failures_count = 0

    @property
    def is_behind(self) -> bool:
        """Return True from a change until a write that has it has succeeded."""
        return self._saved_count < self._changes_count

    def changed(self) -> None:
        """Have the table written as soon as possible."""
        self._changes_count += 1
        self._changed.set()

    def when_saved(self, saved: Saved) -> None:
        """Tell when the table as it is now is on the disk, at once if it is; or why it cannot be written."""
        if not self.is_behind:
            saved(None)
            return
        self._waiting.append((self._changes_count, saved))
        # While the disk refuses, asking is a reason to try again now.
        self._changed.set()

    async def run(self) -> None:
        """Write whatever changes, until cancelled; a write under way is waited for."""
        backoff = Backoff(min_s=self._retry_first_s, max_s=_RETRY_LAST_S)
        while True:
            # Whoever asks sets it as well, also for what a write under way has.
            while not self.is_behind:
                await self._changed.wait()
                self._changed.clear()
            self._changed.clear()
            begun_s = time.monotonic()
            if await self._write():
                backoff.reset()
                # Changes that come one by one must not keep the disk busy with whole tables.
                await asyncio.sleep(time.monotonic() - begun_s)
                continue
            await happens_within(self._changed, backoff.next_s())

    def save(self) -> None:
        """Write the table in this thread, whether or not it has changed."""
        try:
            self._table.write(self._table.encoder()())
        except OSError as error:
            self._written(self._changes_count, error)
        else:
            self._written(self._changes_count, None)

    def metrics(self) -> Iterable[Metric]:
        labels = (("file", self.name),)
        yield from samples(
            (
                "iotmq_broker_config_file_behind",
                "1 while changes of a file under config/ are not on the disk.",
                float(self.is_behind),
            ),
            (
                "iotmq_broker_failed_config_writes_total",
                "Writes of files under config/ the disk refused.",
                self.failures_count,
            ),
            labels=labels,
        )

    async def _write(self) -> bool:
        """Write once, in a thread; False when the disk refused it."""
        count = self._changes_count
        encoder = self._table.encoder()
        writing = asyncio.get_running_loop().run_in_executor(None, lambda: self._table.write(encoder()))
        try:
            # save() follows, and must not write at the same time.
            await to_its_end(writing)
        except OSError as error:
            self._written(count, error)
            return False
        self._written(count, None)
        return True

    def _written(self, count: int, error: OSError | None) -> None:
        """The disk has, or does not have, the table with its first `count` changes."""
        if error is None:
            self._saved_count = count
        else:
            self.failures_count += 1
            logger.error("%s could not be written, and is tried again: %s", self.name, error)
        while self._waiting and self._waiting[0][0] <= count:
            self._waiting.popleft()[1](error)

    def check_invariants(self) -> None:
        """Raise AssertionError when the counts and those who wait disagree."""
        assert 0 <= self._saved_count <= self._changes_count
        assert all(self._saved_count < count <= self._changes_count for count, _ in self._waiting)
