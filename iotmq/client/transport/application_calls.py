"""Call functions of the application: listeners, checks and the work inside a transaction."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final, ParamSpec, Protocol, TypeVar

from iotmq.errors import ClientError

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

    CancelledError only when the calling task is cancelled. A function that waits for a task or a pool that
    somebody else cancelled has failed as with any error (ClientError), and must not end the caller's task.
    """
    try:
        outcome = function(*args, **kwargs)
        return await outcome if inspect.isawaitable(outcome) else outcome
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ClientError("the application's function waited for something that was cancelled") from error
