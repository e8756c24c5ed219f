"""The flush thread: brings the log to the disk, off the owner's thread.

Under async flush it wakes every interval and syncs when enough waits; under sync flush it syncs as soon
as it is asked, and one sync covers everything appended before it began (group commit). It also writes
the checkpoint every now and then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iotmq.store.checkpoint import Checkpointer
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
        checkpointer: Checkpointer,
        sync_file: Callable[[int], object],
        on_flushed: Callable[[], None],
    ) -> None:
        """The whole log counts as flushed. `on_flushed` is called in the thread after a move or failure."""
        self.flushed_position = log.appended_position
        # Set once, by the first sync that failed.
        self.failure: OSError | None = None
        self.flushes = 0
        self.flush_s = 0.0
        self._log = log
        self._checkpointer = checkpointer
        self._sync_file = sync_file
        self._on_flushed = on_flushed
        self._interval_s = settings.flush_interval_ms / 1000
        self._thorough_interval_s = settings.flush_thorough_interval_ms / 1000
        self._checkpoint_interval_s = settings.checkpoint_interval_ms / 1000
        self._waiting_bytes_min = settings.flush_pages_min * PAGE_BYTES
        if settings.flush == "sync":
            # Whatever was appended was asked for; the interval only serves the checkpoint.
            self._interval_s = self._checkpoint_interval_s
            self._waiting_bytes_min = 0
        self._is_stopping = False
        # A request the thread has not taken up yet; spares the event, which is the expensive part.
        self._is_requested = False
        self._event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="iotmq-store-flush", daemon=True)

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
        end_position = self._log.appended_position
        if end_position <= start_position:
            return False
        began_s = time.monotonic()
        try:
            for segment in self._log.segments_between(start_position, end_position):
                segment.sync(self._sync_file)
                if segment.end_position <= end_position:
                    segment.release_descriptor()
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
        self.flushed_position = end_position
        return True

    def flush_and_checkpoint(self) -> None:
        """Flush the log, sync the queues, write the checkpoint. Raises OSError when the latter fail."""
        self._checkpointer.begin(self._log.last_store_timestamp_ms)
        if self.flush() or self.failure is not None:
            self._on_flushed()
        self._checkpointer.finish(self.flushed_position)

    def _run(self) -> None:
        now_s = time.monotonic()
        flushed_s = checkpointed_s = now_s
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
            if now_s - checkpointed_s >= self._checkpoint_interval_s and self.failure is None:
                checkpointed_s = now_s
                self._checkpoint()

    def _checkpoint(self) -> None:
        try:
            self.flush_and_checkpoint()
        except OSError as error:
            # Costs only time at the next start, so appends go on.
            logger.warning("cannot write the checkpoint; a start after a crash will take longer: %s", error)
