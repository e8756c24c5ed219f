"""The disk of a simulated machine: what is left of its files after a kill, and when the power goes.

What a power cut leaves is decided by `crash_model`, which has seen every write and sync. The key-value
database writes in threads of its own, outside of that; it has no log and is made again from the CommitLog,
so that of it there is left what it had flushed, or nothing.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from crash_model import WAYS, DiskRecorder, PowerCut


class Disk:
    """A directory for each life of what is on it."""

    def __init__(self, root: Path, source: random.Random, recorders: list[DiskRecorder]) -> None:
        """`recorders` are those that see what happens, which has to be watched: `crash_model.watching`."""
        self._root = root
        self._recorders = recorders
        self._random = source
        self._generation = 0
        self.directory = root / "0"
        self.directory.mkdir(parents=True)
        self._recorder: DiskRecorder | None = None
        self._is_failing = False
        # To see everything takes as much time as all else; without it the power may not go.
        self.may_lose_power = True

    def watch(self, meanwhile: Callable[[], None]) -> Callable[[int], None]:
        """See everything from now on; what is there counts as synced. Returns what syncs a file.

        `meanwhile` is called while something is synced.
        """
        self._is_failing = False
        if not self.may_lose_power:
            return partial(self._sync, meanwhile)
        self._recorder = DiskRecorder(self.directory, ignored=("kv",))
        self._recorder.on_sync = meanwhile
        self._recorders.append(self._recorder)
        return self._recorder.sync_file

    def stop_watching(self) -> None:
        if self._recorder is not None:
            self._recorders.remove(self._recorder)
            self._recorder = None

    def next_life(self, *, is_power_cut: bool) -> None:
        """Go on with what is there now: everything that was written, or what a power cut leaves."""
        recorder = self._recorder
        before = self.directory
        self._generation += 1
        self.directory = self._root / str(self._generation)
        assert self.may_lose_power or not is_power_cut
        if is_power_cut and recorder is not None:
            recorder.look()
            way = self._random.choice(WAYS)
            PowerCut(recorder, len(recorder.operations), self._random, way).materialise(self.directory)
            if (before / "kv").is_dir() and self._random.random() < 0.7:
                shutil.copytree(before / "kv", self.directory / "kv")
        else:
            shutil.copytree(before, self.directory)
        self.stop_watching()

    def drop_former(self) -> None:
        """Delete what was there before, when nobody has it open any more."""
        shutil.rmtree(self._root / str(self._generation - 1), ignore_errors=True)

    def fail_next_sync(self) -> None:
        """The next sync of the log says that the disk did not take it."""
        self._is_failing = True
        if self._recorder is not None:
            self._recorder.is_failing = True

    def _sync(self, meanwhile: Callable[[], None], descriptor: int) -> None:
        """What is seen of a sync where the power does not go."""
        if self._is_failing and "/commitlog/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            self._is_failing = False
            raise OSError(errno.EIO, "Input/output error")
        meanwhile()
