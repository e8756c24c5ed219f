"""What a broker that stops still waits for: the group commits under way have answered their senders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from iotmq.broker.intake import Intake

_LAST_FLUSH_S: Final = 1.0


async def finish_flushes(intake: Intake, request_flush: Callable[[], object]) -> None:
    """Return when no batch waits for its commit any more, or after a second."""
    if not intake.waiting_count:
        return
    request_flush()
    finished = asyncio.Event()

    def look() -> None:
        if not intake.waiting_count:
            finished.set()

    intake.add_confirmed_listener(look)
    try:
        async with asyncio.timeout(_LAST_FLUSH_S):
            await finished.wait()
    except TimeoutError:
        pass
