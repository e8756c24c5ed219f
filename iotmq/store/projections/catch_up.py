"""Giving a projection what it has not seen of the log, in pieces, with a word now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from iotmq.store.projections.log_scan import marker_bounds

if TYPE_CHECKING:
    from iotmq.store.log.commit_log import CommitLog
    from iotmq.store.projections.projection import Projection

# Told of a projection's name, the position it has reached and the one it goes to.
CatchUpProgress = Callable[[str, int, int], object]

# The log is given in pieces of about this size.
CATCH_UP_BYTES: Final = 8 * 1024 * 1024
# A catch-up that takes longer says how far it is, so often.
SAID_EVERY_S: Final = 5.0

logger = logging.getLogger("iotmq.store")


def catch_up(
    log: CommitLog,
    projection: Projection,
    end_position: int,
    *,
    verify: Callable[[int], int],
    progress: Callable[[int], object] | None = None,
) -> None:
    """Apply the log up to `end_position`; `progress` is told the position after each piece.

    `verify` checks and repairs a piece of the log, from a position on, that nobody has looked at in this
    run, and says where it ends. Raises what `apply` raises; the projection keeps what it has.
    """
    # Where there was a record once there may be the middle of a marker now, which holds nothing.
    start_position = marker_bounds(log, max(projection.applied_position, log.min_position))[1]
    while start_position < end_position:
        limit_position = end_position
        if start_position < log.checked_position:
            limit_position = min(end_position, verify(start_position))
        start_position, next_position = log.records(start_position, limit_position, CATCH_UP_BYTES)
        view = log.view(start_position, next_position)
        projection.apply(view, start_position, next_position)
        start_position = next_position
        if progress is not None:
            progress(next_position)
    if projection.applied_position < end_position:
        # All that was left of the log was deleted by retention, or is a marker.
        projection.apply(memoryview(b""), end_position, end_position)


class CatchUpReport:
    """A `progress` that logs how far a long catch-up is, unless somebody else wants to know."""

    def __init__(
        self, name: str, start_position: int, end_position: int, progress: CatchUpProgress | None = None
    ) -> None:
        self._name = name
        self._progress = progress
        self._start_position = start_position
        self._end_position = end_position
        self._began_s = self._said_s = time.monotonic()

    def __call__(self, position: int) -> None:
        """Take notice of a position."""
        if self._progress is not None:
            self._progress(self._name, position, self._end_position)
            return
        now_s = time.monotonic()
        is_over = position >= self._end_position
        if now_s - self._said_s < SAID_EVERY_S and not (is_over and self._said_s > self._began_s):
            return
        self._said_s = now_s
        size = self._end_position - self._start_position
        share = (position - self._start_position) / size if size else 1.0
        logger.info(
            "projection %s has caught up %d%% of %d MB in %.0f s",
            self._name, int(share * 100), size // 1_000_000, now_s - self._began_s,
        )  # fmt: skip
