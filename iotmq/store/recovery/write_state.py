"""Whether the store takes records, and what whoever wants to append is told when it does not."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from iotmq.errors import StoreError, StoreFullError, StoreReadOnlyError
from iotmq.store.log.allocation import RETRY_S

if TYPE_CHECKING:
    from iotmq.clock import Clock
    from iotmq.store.log.flush import Flusher

_TOO_MANY_ERRNOS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
_FULL_ERRNOS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM))
# A disk that answers with these does not get better by waiting.
_BROKEN_ERRNOS = frozenset((errno.EROFS, errno.EIO))
_FOR_GOOD = float("inf")

logger = logging.getLogger("iotmq.store")


class WriteState:
    """The refusal that holds, and how it ends: with time, with room on the disk, or with the next start.

    An append asks `current` and the flusher's failure, and `check` when one of them is set.
    """

    def __init__(self, clock: Clock, flusher: Flusher) -> None:
        # While set, appends are refused with it until the time (monotonic seconds) after it.
        self.current: tuple[type[StoreError], str, float] | None = None
        # Batches refused.
        self.count = 0
        # Why no disk blocks will be given until the store is opened again; None while they are.
        self._allocation_failure: OSError | None = None
        self._clock = clock
        self._flusher = flusher

    @property
    def failure(self) -> str | None:
        """Return why the store takes no more records until it is opened again; None while it does."""
        if self._flusher.failure is not None:
            return f"a flush failed: {self._flusher.failure}"
        if self._allocation_failure is not None:
            return f"the disk gives no more blocks: {self._allocation_failure}"
        return None

    @property
    def reason(self) -> str | None:
        """Return why the next append will be refused; None when it will be tried."""
        if self.failure is not None:
            return self.failure
        if self.current is not None and self._clock.monotonic_s() < self.current[2]:
            return self.current[1]
        return None

    def check(self) -> None:
        """Raise the refusal that holds; forget it when its time is over."""
        failure = self.failure
        if failure is not None:
            self.count += 1
            raise StoreReadOnlyError(f"the store takes no more records: {failure}")
        if self.current is not None:
            error_class, text, end_s = self.current
            if self._clock.monotonic_s() < end_s:
                self.count += 1
                raise error_class(text)
            self.current = None

    def of_allocation(self, error: OSError) -> StoreError:
        """Return the error for disk blocks that were not given: to all appends for a while, or for good.

        It spares a full disk the same question for every batch, and gives a broken one up; what was appended
        before is still flushed, if the disk lets it be.
        """
        self.count += 1
        end_s = self._clock.monotonic_s() + RETRY_S
        if error.errno in _BROKEN_ERRNOS:
            end_s = _FOR_GOOD
            self._allocation_failure = error
            logger.critical(
                "cannot take disk blocks: %s. The store takes no more records; what it acknowledged before "
                "is safe up to %d. Check the disk, then restart.",
                error,
                self._flusher.flushed_position,
            )
        text = f"cannot take disk blocks: {error}"
        self.current = (refusal_of(error), text, end_s)
        return refusal_of(error)(text)

    def of_cut(self, error: OSError) -> StoreError:
        """Return the error for a log that could not be cut: nobody knows where it ends."""
        self._allocation_failure = error
        text = f"cannot cut the log: {error}"
        logger.critical("%s. The store takes no more records. Check the disk, then restart.", text)
        self.current = (StoreReadOnlyError, text, _FOR_GOOD)
        return StoreReadOnlyError(text)

    def of_one_queue(self, error: OSError) -> StoreError:
        """Return the error for an append to a queue whose file cannot be opened or mapped; others go on."""
        self.count += 1
        return StoreError(f"no more queue files can be opened or mapped: {error}")

    def follow_disk(self, text: str | None) -> None:
        """Refuse with retention's `text` while a disk is too full; None takes that back."""
        if self._allocation_failure is not None:
            return
        if text is not None:
            self.current = (StoreFullError, text, _FOR_GOOD)
        elif self.current is not None and self.current[2] == _FOR_GOOD:
            self.current = None

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """In here a disk past its watermark refuses nothing; one that is really full still does."""
        refusal = self.current
        if refusal is None or refusal[2] != _FOR_GOOD or self.failure is not None:
            yield
            return
        self.current = None
        try:
            yield
        finally:
            self.current = self.current or refusal

    def close(self) -> None:
        """The store is closed."""
        self.current = (StoreError, "the store is closed", _FOR_GOOD)


def is_of_one_queue(error: OSError, queues_directory: str) -> bool:
    """A process may only have so many files mapped: those it has can still be appended to."""
    return error.errno in _TOO_MANY_ERRNOS and str(error.filename).startswith(queues_directory)


def refusal_of(error: OSError) -> type[StoreError]:
    """Return whether waiting may help: StoreFullError, or StoreReadOnlyError."""
    return StoreFullError if error.errno in _FULL_ERRNOS else StoreReadOnlyError
