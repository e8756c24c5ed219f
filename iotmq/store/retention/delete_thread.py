"""A thread that deletes files, because giving a gigabyte back to a file system takes its time.

A file that is mapped keeps its blocks until the last view of it is gone, however deleted. So a segment is
held here until nobody else has it, and the mapping ends in this thread, not where a socket happens to
send the last bytes of it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from iotmq.files import sync_path
from iotmq.store import fail_points

if TYPE_CHECKING:
    from iotmq.store.log.segment import Segment
    from iotmq.store.projections.projection import Leaving

# After a refusal of the operating system.
RETRY_S = 10.0
# Between looks at whether the views of a deleted segment are gone: soon at first, for most are gone with the
# call that let go of it, then twice as long each time.
HELD_MIN_S = 0.01
HELD_MAX_S = 1.0
# What the list, the loop and the call itself hold while looking at how many references there are.
_OWN_REFERENCES = 3

logger = logging.getLogger("iotmq.store")


class _Removal(NamedTuple):
    path: str
    # Of the log, None for other files.
    segment: Segment | None = None
    # Instead of a deletion: what is to be done before the ones behind it.
    action: Callable[[], None] | None = None


class Remover:
    """Deletes what it is given, in that order, in a thread that starts with the first of it.

    Each segment's deletion is on the disk before the next one begins, so that no power cut leaves a hole in
    the log. `removed_position`: the log's files before it are gone.
    """

    def __init__(self, removed_position: int, *, pause_s: float) -> None:
        self.removed_position = removed_position
        self.removed_segments = 0
        self.removed_bytes = 0
        # Set while the operating system refuses to delete; what it said.
        self.problem: str | None = None
        self._pause_s = pause_s
        self._removals: deque[_Removal] = deque()
        # Deleted segments that others may still have views of.
        self._held: list[Segment] = []
        self._stopping = threading.Event()
        self._event = threading.Event()
        # Clear while there is something to delete.
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="iotmq-store-remove", daemon=True)

    @property
    def leaving_bytes(self) -> int:
        """Disk blocks of segments that are not given back yet."""
        return sum(
            segment.allocated_bytes
            for segment in [*(removal.segment for removal in list(self._removals)), *self._held]
            if segment is not None
        )

    @property
    def leaving_paths(self) -> set[str]:
        """Their files."""
        removals = list(self._removals)
        paths = {removal.path for removal in removals if removal.path}
        return paths | {segment.path for segment in self._held}

    def remove_segments(
        self, segments: Iterable[Segment], *, prepare: Callable[[], None] = lambda: None
    ) -> None:
        """Delete segments the log has let go of, lowest first, once `prepare` was called.

        It may raise OSError: then it is called again later.
        """
        self._add([_Removal("", action=prepare), *(_Removal(segment.path, segment) for segment in segments)])

    def remove_files(self, paths: Iterable[str]) -> None:
        """Delete other files, after everything that was given before."""
        self._add(_Removal(path) for path in paths)

    def remove_leaving(self, leaving: Leaving) -> None:
        """Delete the files a projection let go of, after everything that was given before."""
        self._add([_Removal("", action=leaving.prepare), *(_Removal(path) for path in leaving.paths)])

    def wait_idle(self, timeout_s: float) -> bool:
        """Return whether everything given was deleted within `timeout_s`.

        Views may still hold their segments.
        """
        return self._idle.wait(timeout_s)

    def stop(self) -> None:
        """Delete what is left, without pauses, and end the thread."""
        self._stopping.set()
        self._event.set()
        if self._thread.is_alive():
            self._thread.join()

    def _add(self, removals: Iterable[_Removal]) -> None:
        added = list(removals)
        if not added or self._stopping.is_set():
            return
        self._removals += added
        # In this order: the thread sets it before it looks for more a last time.
        self._idle.clear()
        if self._thread.ident is None:
            self._thread.start()
        self._event.set()

    def _run(self) -> None:
        held_s = HELD_MIN_S
        while not self._stopping.is_set():
            is_woken = self._event.wait(held_s if self._held else None)
            held_s = HELD_MIN_S if is_woken else min(2 * held_s, HELD_MAX_S)
            self._event.clear()
            self._drop_held()
            self._remove_all()
        self._remove_all()

    def _remove_all(self) -> None:
        while self._removals:
            removal = self._removals[0]
            try:
                self._remove(removal)
            except OSError as error:
                if self.problem is None:
                    logger.error("cannot delete %s: %s; trying again", removal.path or "files", error)
                self.problem = str(error)
                if self._stopping.wait(RETRY_S):
                    return
                continue
            self.problem = None
            self._removals.popleft()
            is_segment = removal.segment is not None
            del removal
            self._drop_held()
            if is_segment and self._removals:
                self._stopping.wait(self._pause_s)
        self._idle.set()
        if self._removals:
            self._idle.clear()

    def _remove(self, removal: _Removal) -> None:
        if removal.action is not None:
            removal.action()
            return
        Path(removal.path).unlink(missing_ok=True)
        segment = removal.segment
        if segment is None:
            return
        fail_points.reach("segment-deleted")
        sync_path(os.path.dirname(removal.path))
        self.removed_segments += 1
        self.removed_bytes += segment.allocated_bytes
        self.removed_position = segment.end_position
        self._held.append(segment)

    def _drop_held(self) -> None:
        """Let go of the segments nobody else has; the mapping ends here."""
        if self._held and not self._stopping.is_set():
            self._held = [segment for segment in self._held if sys.getrefcount(segment) > _OWN_REFERENCES]
