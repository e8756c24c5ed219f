"""Supervise background work: log and count what it raises, and begin it again.

A task whose exception nobody looks at ends without a word, and what it kept alive is dead while every check
is green. So every task without an end of its own is made by `supervise`, and what a timer calls again and
again stands in `surviving`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Final, TypeVar

from iotmq.metrics import Metric, samples_by

T = TypeVar("T")

logger = logging.getLogger(__name__)

# What fails at once each time must not keep the loop busy.
_PAUSE_S: Final = 1.0


class Failures:
    """Counts failures of background work of this process by its name, which is always one in the code."""

    def __init__(self) -> None:
        self._count_of: Counter[str] = Counter()

    def count(self, name: str) -> int:
        """Return the failures of one kind of work so far."""
        return self._count_of[name]

    def note(self, name: str) -> None:
        """Count and log the exception that is being handled."""
        self._count_of[name] += 1
        logger.exception("background work failed and goes on", extra={"work": name})

    def metrics(self) -> Iterable[Metric]:
        """Report one sample for each kind of work that has failed."""
        text = "Unexpected exceptions in background work."
        return samples_by("work", "iotmq_background_failures_total", text, self._count_of)


FAILURES: Final = Failures()
"""Those of this process."""


class surviving:  # noqa: N801 - used as a statement, as those of contextlib
    """Note what the block raises and go on behind it; only a cancellation of this task passes."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        if isinstance(error, asyncio.CancelledError):
            # Without a cancellation of ours it is somebody else's, from a future that was waited for.
            if _is_cancelled():
                return False
        elif not isinstance(error, Exception):
            return False
        FAILURES.note(self._name)
        return True


def supervise(
    name: str, work: Callable[[], Awaitable[None]], *, pause_s: float = _PAUSE_S
) -> asyncio.Task[None]:
    """Start a task that does the work until it returns, and again after a pause when it raises."""
    return asyncio.ensure_future(_go_on(name, work, pause_s))


async def repeat(interval_s: float, action: Callable[[], object]) -> None:
    """Do something every so often, first after one interval: work for `supervise`."""
    while True:
        await asyncio.sleep(interval_s)
        action()


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait for their ends."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def to_its_end(work: asyncio.Future[T]) -> T:
    """Wait for what a thread does; a cancellation takes effect when it is done.

    The thread goes on in any case, and until its end nobody else may be at the file that it writes.
    """
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


async def _go_on(name: str, work: Callable[[], Awaitable[None]], pause_s: float) -> None:
    while True:
        with surviving(name):
            await work()
            return
        await asyncio.sleep(pause_s)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
