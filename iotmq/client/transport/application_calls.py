"""Call functions of the application: listeners, checks and the work inside a transaction."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from iotmq.errors import ClientError

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

STOPPED_INSIDE: Final = (
    "stop() inside a function that is called by what it stops would wait for itself: set an event there, and "
    "stop where the event is waited for"
)


class TimedCall(Protocol):
    """Define the time that a function of the application has."""

    def suspend(self) -> None:
        """Let no time pass: the function has not begun."""

    def in_progress(self) -> None:
        """Give it the whole time from now on."""


TIMED_CALL: Final[ContextVar[TimedCall | None]] = ContextVar("TIMED_CALL", default=None)
"""The call that the present task makes, if its time is limited."""


async def call_application(function: Callable[P, T | Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a plain or a coroutine function and return its result; its exceptions are raised.

    CancelledError when, and only when, the calling task is cancelled, whatever the function makes of that. A
    function that waits for a task or a pool that somebody else cancelled has failed as with any error
    (ClientError), and must not end the caller's task.
    """
    try:
        outcome = function(*args, **kwargs)
        if not inspect.isawaitable(outcome):
            return outcome
        result = await outcome
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        raise ClientError("the application's function waited for something that was cancelled") from error
    except Exception as error:
        if _is_cancelled():
            raise asyncio.CancelledError from error
        raise
    if _is_cancelled():
        raise asyncio.CancelledError
    return result


async def end_calls(tasks: Collection[asyncio.Task[Any]], *, within_s: float, what: str) -> int:
    """Cancel tasks that call functions of the application, and wait for their ends `within_s` seconds.

    Returns how many have not ended: `what` swallows its cancellation, and is left behind. They are logged.
    """
    for task in tasks:
        task.cancel()
    if not tasks:
        return 0
    ended, left = await asyncio.wait(tasks, timeout=within_s)
    await asyncio.gather(*ended, return_exceptions=True)
    if left:
        _log.error("%s goes on after its cancellation: %d calls are left behind", what, len(left))
    return len(left)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
