"""The flush thread: brings the log to the disk, off the owner's thread.

Under async flush it wakes every interval and syncs when enough waits; under sync flush it syncs as soon
as it is asked, and one sync covers everything appended before it began (group commit). Syncs follow one
another without the GIL then, and a second thread tells the owner about them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from iotmq.store import fail_points
from iotmq.store.log.group_commit import FAILED, STOPPED, GroupCommit

if TYPE_CHECKING:
    from iotmq.store.log.commit_log import CommitLog
    from iotmq.store.settings import StoreSettings

PAGE_BYTES = 4096

logger = logging.getLogger("iotmq.store")


class Flusher:
    """Moves `flushed_position` behind the log's end, in a thread of its own once started.

    A sync that fails leaves `flushed_position` where it is, for good: the kernel may have dropped the
    pages and would report success the next time, so no later sync can vouch for them. `failure` then
    holds the error, and the store has to stop taking appends.
    """

    def __init__(
        self,
        log: CommitLog,
        settings: StoreSettings,
        *,
        sync_file: Callable[[int], object],
        on_flushed: Callable[[], None],
        mark: Callable[[int], None],
    ) -> None:
        """The whole log counts as flushed. `on_flushed` is called in the thread after a move or failure.

        `mark` is told every new `flushed_position`, before `on_flushed` is called; any thread.
        """
        self._flushed = (log.appended_position, log.last_store_timestamp_ms)
        mark(log.appended_position)
        # Set once, by the first sync that failed.
        self.failure: OSError | None = None
        self._flushes = 0
        self._flush_s = 0.0
        self._log = log
        self._sync_file = sync_file
        self._on_flushed = on_flushed
        self._mark = mark
        self._interval_s = settings.flush_interval_ms / 1000
        self._thorough_interval_s = settings.flush_thorough_interval_ms / 1000
        self._waiting_bytes_min = settings.flush_pages_min * PAGE_BYTES
        if settings.flush == "sync":
            # Every append asks; what an interval finds waiting all the same is flushed at once.
            self._waiting_bytes_min = 1
        # Makes the syncs under sync flush, and then knows what is on the disk; None where `flush` does.
        self._commit: GroupCommit | None = None
        if settings.flush == "sync" and sync_file is os.fdatasync:
            self._commit = GroupCommit(*self._flushed)
        self._is_stopping = False
        # A request the thread has not taken up yet; spares the event, which is the expensive part.
        self._is_requested = False
        self._event = threading.Event()
        self._threads = self._make_threads()

    @property
    def flushed_position(self) -> int:
        """Return the position below which everything is on the disk."""
        return self.flushed()[0]

    @property
    def flushes(self) -> int:
        """Flushes that moved `flushed_position`."""
        return self._flushes + (0 if self._commit is None else self._commit.flushes)

    @property
    def flush_s(self) -> float:
        """Seconds they took."""
        return self._flush_s + (0.0 if self._commit is None else self._commit.flush_s)

    def start_at(self, position: int) -> None:
        """An empty log now begins at `position`."""
        self._flushed = (position, 0)
        if self._commit is not None:
            self._commit.set_flushed(position, 0, None)

    def start(self) -> None:
        """Start the thread."""
        for thread in self._threads:
            thread.start()

    def start_again(self, position: int) -> None:
        """Go on after `stop`, with a log that was cut and ends at `position`, all of it on the disk."""
        self._flushed = (position, self._log.last_store_timestamp_ms)
        if self._commit is not None:
            # A stopped one stays so.
            self._flushes, self._flush_s = self.flushes, self.flush_s
            self._commit = GroupCommit(*self._flushed)
        # A request that came too late for the thread that stopped would keep later ones from waking this one.
        self._is_stopping = self._is_requested = False
        self._threads = self._make_threads()
        self.start()

    def request(self) -> None:
        """Have everything appended so far flushed soon; returns at once. Any thread."""
        if self._commit is not None:
            # In this order: the time may be that of an earlier record, not of a later one.
            timestamp_ms = self._log.last_store_timestamp_ms
            self._commit.request(self._log.appended_position, timestamp_ms)
        elif not self._is_requested:
            self._is_requested = True
            self._event.set()

    def stop(self) -> None:
        """End the thread, after the flush that may be under way. Nothing more is flushed by it."""
        self._is_stopping = True
        self._event.set()
        if self._commit is not None:
            self._commit.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def flush(self) -> bool:
        """Sync everything appended so far; whether `flushed_position` moved. For the thread, or after `stop`.

        Failure is kept in `failure`, not raised.
        """
        if self.failure is not None:
            return False
        start_position = self.flushed_position
        # Read before the syncs: what is appended while they run may or may not be covered.
        timestamp_ms = self._log.last_store_timestamp_ms
        end_position = self._log.appended_position
        if end_position <= start_position:
            return False
        began_s = time.monotonic()
        fail_points.reach("flush-begun")
        try:
            for segment in self._log.segments_between(start_position, end_position):
                segment.sync(self._sync_file)
                if segment.end_position <= end_position:
                    self._log.release_descriptor(segment)
                    fail_points.reach("flush-between-segments")
        except OSError as error:
            self._fail(error, end_position)
            return False
        fail_points.reach("flush-done")
        self._flush_s += time.monotonic() - began_s
        self._flushes += 1
        self._flushed = (end_position, timestamp_ms)
        self._mark(end_position)
        if self._commit is not None:
            active = self._log.segments_between(end_position, end_position + 1)
            self._commit.set_flushed(end_position, timestamp_ms, active[0] if active else None)
        return True

    def flushed(self) -> tuple[int, int]:
        """(`flushed_position`, store time in ms of the last record before it)."""
        return self._flushed if self._commit is None else self._commit.flushed()

    def _make_threads(self) -> list[threading.Thread]:
        if self._commit is None:
            return [threading.Thread(target=self._run, name="iotmq-store-flush", daemon=True)]
        targets = {"iotmq-store-flush": self._run_commits, "iotmq-store-flushed": self._tell}
        return [
            threading.Thread(target=target, args=(self._commit,), name=name, daemon=True)
            for name, target in targets.items()
        ]

    def _fail(self, error: OSError, end_position: int) -> None:
        self.failure = error
        start_position = self.flushed_position
        logger.critical(
            "cannot bring positions %d..%d of the log to the disk: %s. The store takes no more records; "
            "what it acknowledged before is safe up to %d. Check the disk, then restart.",
            start_position,
            end_position,
            error,
            start_position,
        )

    def _run_commits(self, commit: GroupCommit) -> None:
        while self.failure is None:
            outcome = commit.wait(self._interval_s)
            if outcome == STOPPED:
                return
            if outcome == FAILED:
                self._fail(OSError(commit.error, os.strerror(commit.error)), self._log.appended_position)
            else:
                # The first flush, one over the end of a file, or what waits without having been asked for.
                self.flush()
        self._on_flushed()

    def _tell(self, commit: GroupCommit) -> None:
        """Tell the owner of every move, or of several at once when it is slow to listen."""
        seen_position = self._flushed[0]
        while (seen_position := commit.wait_flushed(seen_position)) >= 0:
            self._mark(seen_position)
            self._on_flushed()

    def _run(self) -> None:
        flushed_s = time.monotonic()
        while not self._is_stopping:
            self._event.wait(self._interval_s)
            self._event.clear()
            # Cleared before the log's end is read: a request after this point comes round again.
            is_requested = self._is_requested
            self._is_requested = False
            if self._is_stopping or self.failure is not None:
                continue
            now_s = time.monotonic()
            waiting_bytes = self._log.appended_position - self.flushed_position
            is_thorough = now_s - flushed_s >= self._thorough_interval_s
            if is_requested or is_thorough or waiting_bytes >= self._waiting_bytes_min:
                flushed_s = now_s
                if self.flush() or self.failure is not None:
                    self._on_flushed()
