"""Standard input and output, which may block for as long as they like, beside an event loop that must not.

Threads do the reading and writing: one piece at a time, so that memory stays bounded by the slower side.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import AsyncIterator
from typing import BinaryIO, Final, Self

from iotmq.errors import MessageRefusedError
from iotmq.mqtt.codec.packets import REMAINING_LENGTH_MAX

_CHUNK_BYTES: Final = 64 * 1024
_CHUNKS_AHEAD: Final = 2


async def chunks_of(stream: BinaryIO) -> AsyncIterator[bytes]:
    """Yield the input in pieces until its end."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    ahead = threading.Semaphore(_CHUNKS_AHEAD)

    def read() -> None:
        while True:
            ahead.acquire()
            piece: bytes | OSError
            try:
                piece = os.read(stream.fileno(), _CHUNK_BYTES)
            except OSError as error:
                piece = error
            except ValueError:
                piece = b""  # closed under our hands: nobody wants more
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, piece)
            except RuntimeError:
                return  # the loop has ended: nobody waits
            if not isinstance(piece, bytes) or not piece:
                return

    # Not the loop's executor: that would wait at the end for a read that may never return.
    threading.Thread(target=read, name="standard input", daemon=True).start()
    while piece := await chunks.get():
        if isinstance(piece, OSError):
            raise piece
        yield piece
        ahead.release()


async def lines_of(stream: BinaryIO) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a stream without their line ends, some at a time."""
    begun: list[bytes] = []
    begun_bytes = 0
    async for chunk in chunks_of(stream):
        first, *lines = chunk.split(b"\n")
        begun.append(first)
        begun_bytes += len(first)
        if begun_bytes > REMAINING_LENGTH_MAX:
            raise MessageRefusedError(
                f"a line has more than {REMAINING_LENGTH_MAX:,} bytes, which no message has"
            )
        if not lines:
            continue
        complete = [b"".join(begun), *lines[:-1]]
        begun, begun_bytes = [lines[-1]], len(lines[-1])
        yield complete
    if begun_bytes:
        yield [b"".join(begun)]


async def all_of(stream: BinaryIO) -> bytes:
    """Everything there is; MessageRefusedError when it is more than a message can have."""
    pieces: list[bytes] = []
    size = 0
    async for chunk in chunks_of(stream):
        pieces.append(chunk)
        size += len(chunk)
        if size > REMAINING_LENGTH_MAX:
            raise MessageRefusedError(
                f"the input has more than {REMAINING_LENGTH_MAX:,} bytes, which no message has"
            )
    return b"".join(pieces)


class OutputWriter:
    """Writes to a stream in a thread of its own, from `with` on to its end."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        # None is the end.
        self._pieces: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        # A daemon, as the reader of standard input: a write may never return.
        threading.Thread(target=self._write_all, name="standard output", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pieces.put(None)

    async def write(self, data: bytes) -> None:
        """Returns when it was taken; raises OSError, BrokenPipeError among them."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._pieces.put((data, done))
        await done

    def _write_all(self) -> None:
        while (piece := self._pieces.get()) is not None:
            data, done = piece
            error: OSError | None = None
            try:
                self._stream.write(data)
                self._stream.flush()
            except OSError as failure:
                error = failure
            try:
                self._loop.call_soon_threadsafe(_settle, done, error)
            except RuntimeError:
                return  # the loop has ended: nobody waits


def _settle(done: asyncio.Future[None], error: OSError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
