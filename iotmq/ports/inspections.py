"""Answer operators who look into one process: each part of it that has something to show has a name.

A question is a name and some bytes, and so is an answer; what they mean is between the part and who asks it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from iotmq import limits
from iotmq.errors import RefusedError, RequestError

logger = logging.getLogger(__name__)

LOCAL_FRONT_END: Final = "local"
"""The name of the front end in the process of a broker."""
KICK: Final = "kick"
TRACES: Final = "traces"
TRACE_CHANGES: Final = "trace_changes"
CHANGING_INSPECTIONS: Final = frozenset({KICK, TRACE_CHANGES})
"""Those that do something to others, so that audit records have them."""

Inspection: TypeAlias = Callable[[bytes], Awaitable[bytes]]
InspectionDone: TypeAlias = Callable[[bytes | RequestError], None]

# Response codes of the native protocol.
_BUSY: Final = 2
_UNAVAILABLE: Final = 14
_TIMED_OUT: Final = 207
_TIMEOUT_S: Final = 5.0
_NAME_SHOWN: Final = 80


class Inspections:
    """The parts of one process that answer, by name; a bounded number of answers is worked on at a time."""

    def __init__(self, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._handlers: dict[str, Inspection] = {}
        self._running: set[asyncio.Task[None]] = set()
        self.answered_total = 0
        self.failed_total = 0

    def add(self, name: str, handler: Inspection) -> None:
        """Have questions of a name answered. ValueError when the name has a handler already.

        RequestError is passed on to who asks; other exceptions are logged, and named to him.
        """
        if name in self._handlers:
            raise ValueError(f"the inspection {name} is answered already")
        self._handlers[name] = handler

    def ask(self, name: str, body: bytes, done: InspectionDone) -> None:
        """Have a question answered: `done` is called once, possibly before this returns."""
        handler = self._handlers.get(name)
        if handler is None:
            known = ", ".join(sorted(self._handlers)) or "nothing"
            done(RefusedError(f"there is no inspection {name[:_NAME_SHOWN]!r} here: there are {known}"))
        elif len(body) > limits.INSPECTION_QUESTION_BYTES_MAX:
            done(RefusedError(f"a question has {limits.INSPECTION_QUESTION_BYTES_MAX} bytes at most"))
        elif len(self._running) >= limits.INSPECTIONS_PENDING_MAX:
            done(RequestError(_BUSY, f"{len(self._running)} inspections are being answered; ask again later"))
        else:
            task = asyncio.ensure_future(self._answer(name, handler, body, done))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def stop(self) -> None:
        """Answer nothing more."""
        for task in self._running:
            task.cancel()

    async def _answer(self, name: str, handler: Inspection, body: bytes, done: InspectionDone) -> None:
        outcome: bytes | RequestError
        try:
            async with asyncio.timeout(self._timeout_s):
                outcome = await handler(body)
            if len(outcome) > limits.INSPECTION_ANSWER_BYTES_MAX:
                outcome = RefusedError(
                    f"the answer of the inspection {name} has {len(outcome)} bytes, and "
                    f"{limits.INSPECTION_ANSWER_BYTES_MAX} at most are sent: ask for less"
                )
        except RequestError as error:
            outcome = error
        except TimeoutError:
            outcome = RequestError(_TIMED_OUT, f"the inspection {name} took over {self._timeout_s:g} s")
        except asyncio.CancelledError:
            done(RequestError(_UNAVAILABLE, "the process stops"))
            raise
        except Exception as error:
            logger.exception("an inspection failed", extra={"inspection": name})
            outcome = RefusedError(f"the inspection {name} failed: {type(error).__name__}: {error}"[:512])
        if isinstance(outcome, RequestError):
            self.failed_total += 1
        else:
            self.answered_total += 1
        done(outcome)
