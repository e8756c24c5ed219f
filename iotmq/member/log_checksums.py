"""Checksums of ranges of a member's log, for operators who compare members (request 30097).

A range is asked for in one of two ways. Either the member takes whole records from a position on and says
where they end, or it takes exactly the bytes that are named, whatever stands there. So one member finds the
pieces, and the others need not have records at the same places. Of the blank at the end of a file only the
header counts: behind it members may have different bytes.

The bytes are read by another thread, a bounded step at a time, at the rate that was asked for.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from iotmq import limits
from iotmq.clock import Clock
from iotmq.errors import RequestError, StoreCorruptError
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.replicated.member_log import FoundRecord, StoreLog
from iotmq.supervised import end

# Read at a time: some milliseconds from a disk, and less than one of the processor.
STEP_BYTES: Final = 1024 * 1024


class LogChecksum(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, as JSON."""

    end: int
    """Behind the last byte that counts."""
    next_position: int
    """Where the next record begins: past `end` over a blank."""
    crc32: int
    count: int
    """Records, a blank among them; 0 where exact bytes were asked for."""
    found: FoundRecord | None
    """The record there, where it is one or may be one."""


class LogChecksums:
    """Computes what is asked for. On the loop's thread; the bytes are read by others."""

    def __init__(self, log: StoreLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._tasks: dict[asyncio.Task[None], ServerConnection] = {}

    def handle(self, connection: ServerConnection, request: Command, *, confirmed: int) -> None:
        """Answer later about what is below `confirmed`. RequestError for what is invalid or too much."""
        if len(self._tasks) >= limits.REPLICATION_CHECKSUMS_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"{limits.REPLICATION_CHECKSUMS_MAX} checksums are computed already: ask again later",
            )
        position = request.integer("position", minimum=0, maximum=2**62 - 1)
        stop = request.integer("end", minimum=0, maximum=2**62 - 1)
        bytes_max = request.integer("bytesMax", 0, minimum=0, maximum=limits.REPLICATION_CHECKSUM_BYTES_MAX)
        bytes_per_s = request.integer(
            "bytesPerSecond",
            minimum=limits.REPLICATION_CHECKSUM_BYTES_PER_S_MIN,
            maximum=limits.REPLICATION_CHECKSUM_BYTES_PER_S_MAX,
        )
        if not self._log.oldest <= position < stop <= confirmed:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the log is confirmed from {self._log.oldest} to {confirmed}, not from {position} to {stop}",
            )
        work: Coroutine[Any, Any, LogChecksum]
        if bytes_max:
            work = self._records(position, bytes_max, stop, bytes_per_s)
        elif stop - position <= limits.REPLICATION_CHECKSUM_BYTES_MAX:
            work = self._exactly(position, stop, bytes_per_s)
        else:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"{stop - position} bytes at once are more than {limits.REPLICATION_CHECKSUM_BYTES_MAX}",
            )
        task = asyncio.get_running_loop().create_task(self._answer(connection, request, work))
        self._tasks[task] = connection
        task.add_done_callback(self._tasks.pop)

    def connection_lost(self, connection: ServerConnection) -> None:
        """Compute nothing more for a connection."""
        for task, asker in self._tasks.items():
            if asker is connection:
                task.cancel()

    async def stop(self) -> None:
        """End all work."""
        await end(list(self._tasks))

    async def _answer(
        self, connection: ServerConnection, request: Command, work: Coroutine[Any, Any, LogChecksum]
    ) -> None:
        try:
            body = msgspec.json.encode(await work)
        except (StoreCorruptError, ValueError) as error:
            # Damage, or bytes that retention has deleted meanwhile.
            connection.reply(request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)))
            return
        connection.reply(request.reply(ResponseCode.SUCCESS, body=body))

    async def _records(self, position: int, bytes_max: int, stop: int, bytes_per_s: int) -> LogChecksum:
        began_s = self._clock.monotonic_s()
        start = following = position
        checksum = count = 0
        while following == position < min(stop, start + bytes_max):
            # Read by another thread first: the loop does not wait for the disk to find records.
            room = min(start + bytes_max - position, STEP_BYTES)
            await asyncio.to_thread(zlib.crc32, self._log.read_raw(position, room, stop))
            step_end, step_following, step_count = self._log.whole_records(position, room, stop)
            if count and step_end - start > bytes_max:
                break
            view = self._log.read_raw(position, step_end - position, step_end)
            checksum = await asyncio.to_thread(zlib.crc32, view, checksum)
            position, following, count = step_end, step_following, count + step_count
            await self._pace(position - start, began_s, bytes_per_s)
        found = self._log.found_at(start, stop) if count == 1 else None
        return LogChecksum(end=position, next_position=following, crc32=checksum, count=count, found=found)

    async def _exactly(self, position: int, stop: int, bytes_per_s: int) -> LogChecksum:
        began_s = self._clock.monotonic_s()
        start, checksum = position, 0
        while position < stop:
            view = self._log.read_raw(position, STEP_BYTES, stop)
            checksum = await asyncio.to_thread(zlib.crc32, view, checksum)
            position += len(view)
            await self._pace(position - start, began_s, bytes_per_s)
        found = self._log.found_at(start, stop) if stop - start <= limits.RECORD_BYTES_MAX else None
        return LogChecksum(end=stop, next_position=stop, crc32=checksum, count=0, found=found)

    async def _pace(self, size: int, began_s: float, bytes_per_s: int) -> None:
        due_s = began_s + size / bytes_per_s
        await asyncio.sleep(max(0.0, due_s - self._clock.monotonic_s()))
