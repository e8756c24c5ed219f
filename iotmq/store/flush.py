"""The flush thread: brings the log to the disk, off the owner's thread.

Under async flush it wakes every interval and syncs when enough waits; under sync flush it syncs as soon
as it is asked, and one sync covers everything appended before it began (group commit).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iotmq.store.commit_log import CommitLog
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
    ) -> None:
        """The whole log counts as flushed. `on_flushed` is called in the thread after a move or failure."""
        self._flushed = (log.appended_position, log.last_store_timestamp_ms)
        # Set once, by the first sync that failed.
        self.failure: OSError | None = None
        self.flushes = 0
        self.flush_s = 0.0
        self._log = log
        self._sync_file = sync_file
        self._on_flushed = on_flushed
        self._interval_s = settings.flush_interval_ms / 1000
        self._thorough_interval_s = settings.flush_thorough_interval_ms / 1000
        self._waiting_bytes_min = settings.flush_pages_min * PAGE_BYTES
        if settings.flush == "sync":
            # Every append asks; what an interval finds waiting all the same is flushed at once.
            self._waiting_bytes_min = 1
        self._is_stopping = False
        # A request the thread has not taken up yet; spares the event, which is the expensive part.
        self._is_requested = False
        self._event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="iotmq-store-flush", daemon=True)

    @property
    def flushed_position(self) -> int:
        """Below it everything is on the disk."""
        return self._flushed[0]

    def start_at(self, position: int) -> None:
        """An empty log now begins at `position`."""
        self._flushed = (position, 0)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request(self) -> None:
        """Have everything appended so far flushed soon; returns at once. Any thread."""
        if not self._is_requested:
            self._is_requested = True
            self._event.set()

    def stop(self) -> None:
        """End the thread, after the flush that may be under way. Nothing more is flushed by it."""
        self._is_stopping = True
        self._event.set()
        if self._thread.is_alive():
            self._thread.join()

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
        try:
            for segment in self._log.segments_between(start_position, end_position):
                segment.sync(self._sync_file)
                if segment.end_position <= end_position:
                    self._log.release_descriptor(segment)
        except OSError as error:
            self.failure = error
            logger.critical(
                "cannot bring positions %d..%d of the log to the disk: %s. The store takes no more records; "
                "what it acknowledged before is safe up to %d. Check the disk, then restart.",
                start_position,
                end_position,
                error,
                start_position,
            )
            return False
        self.flush_s += time.monotonic() - began_s
        self.flushes += 1
        self._flushed = (end_position, timestamp_ms)
        return True

    def flushed(self) -> tuple[int, int]:
        """(`flushed_position`, store time in ms of the last record before it)."""
        return self._flushed

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
