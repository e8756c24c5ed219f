"""Bring the log to the disk when a broker stops: for senders that wait, and for the offsets of delays."""

from __future__ import annotations

import asyncio
from typing import Final

from iotmq.broker.writing.message_writer import MessageWriter
from iotmq.store.store import Store

_LAST_FLUSH_S: Final = 1.0


async def finish_flushes(writer: MessageWriter, store: Store) -> None:
    """Wait up to a second until everything appended is on the disk and no batch waits for its commit.

    The writer is closed. delayOffset.json counts only deliveries that are on the disk, and another broker of
    the file format delivers again what it does not count.
    """
    if store.flushed_position >= store.appended_position and not writer.waiting_count:
        return
    finished = asyncio.Event()
    store.when_flushed(store.appended_position, finished.set)
    store.request_flush()
    try:
        async with asyncio.timeout(_LAST_FLUSH_S):
            await finished.wait()
    except TimeoutError:
        pass
