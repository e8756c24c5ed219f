"""Allocate disk blocks in a thread ahead of the writer, because file systems may take long over it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

# How long a failed attempt keeps both this thread and the writer from trying again.
RETRY_S = 1.0

logger = logging.getLogger("iotmq.store")


class AheadAllocator:
    """Calls `make_room_ahead` in a thread of its own whenever asked.

    A failure is only logged: the writer meets it itself if it really gets to the end of its room.
    """

    def __init__(self, make_room_ahead: Callable[[], None]) -> None:
        # Whether the last attempt failed.
        self.is_failing = False
        self._make_room_ahead = make_room_ahead
        self._is_requested = False
        self._stopping = threading.Event()
        self._event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="iotmq-store-allocate", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request(self) -> None:
        """Have room made soon; returns at once and costs nothing while a request is pending."""
        if not self._is_requested:
            self._is_requested = True
            self._event.set()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._event.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._event.wait()
            self._event.clear()
            if self._stopping.is_set():
                return
            try:
                self._make_room_ahead()
                self.is_failing = False
            except OSError as error:
                if not self.is_failing:
                    self.is_failing = True
                    logger.warning("cannot take disk blocks ahead of need: %s", error)
                self._stopping.wait(RETRY_S)
            self._is_requested = False
