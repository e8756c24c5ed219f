"""Serve copies of a master's data to members that have to begin with one (requests 30093 to 30095).

A follower begins a copy, reads it in pieces, and ends it; meanwhile the log keeps what the copy has. A copy
also ends with its connection, and when nothing is read of it for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from iotmq.clock import Clock
from iotmq.errors import IotmqError, RequestError
from iotmq.limits import COPY_PIECE_BYTES_MAX, COPY_READS_MAX, REPLICATION_COPIES_MAX
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.replicated.hot_copy import COPIES_DIRECTORY, HotCopy
from iotmq.replicated.member_store import MemberStore

COPY_CODES: Final = frozenset({RequestCode.BEGIN_COPY, RequestCode.READ_COPY, RequestCode.END_COPY})
IDLE_S: Final = 30.0
# Reads wait for the disk; more of them at a time gain nothing and take the processor from messages.
_THREADS_MAX: Final = 2

logger = logging.getLogger("iotmq.replication")
T = TypeVar("T")


class _Copy:
    """One copy that is under way."""

    def __init__(self, member: int, connection: ServerConnection, hot: HotCopy, now_s: float) -> None:
        self.member = member
        self.connection = connection
        self.hot = hot
        self.active_s = now_s
        # False until its files are listed.
        self.is_ready = False
        self.is_ended = False
        # Requests in threads; its directory is deleted after the last of them.
        self.reads_count = 0


class Copies:
    """The copies that a run of a member serves while it is master."""

    def __init__(self, opened: MemberStore, *, clock: Clock) -> None:
        self._opened = opened
        self._clock = clock
        self._directory = opened.store.directory / COPIES_DIRECTORY
        self._threads = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="iotmq-copy")
        self._copies: list[_Copy] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._begun_count = 0
        self._sent_bytes = 0

    @property
    def held_position(self) -> int | None:
        """Return the position from which on copies need the log; None when there are none."""
        return min((copy.hot.held_position for copy in self._copies), default=None)

    def handle(self, connection: ServerConnection, request: Command, *, member: int) -> Command | None:
        """Answer a request of a member about its copy; RequestError when that cannot be."""
        if request.code == RequestCode.BEGIN_COPY:
            self._begin(connection, request, member)
            return None
        copy = next((c for c in self._copies if c.connection is connection and not c.is_ended), None)
        if copy is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this connection has no copy: begin one")
        copy.active_s = self._clock.monotonic_s()
        if request.code == RequestCode.END_COPY:
            logger.info("member %d has its copy of this member's data", copy.member)
            self._end(copy)
            return request.reply(ResponseCode.SUCCESS)
        self._read(copy, request)
        return None

    def connection_lost(self, connection: ServerConnection) -> None:
        """A connection has ended; perhaps it had a copy."""
        for copy in list(self._copies):
            if copy.connection is connection:
                self._give_up(copy, "its connection has ended")

    def expire(self) -> None:
        """End copies of which nothing is read; to be called every second or so."""
        now_s = self._clock.monotonic_s()
        for copy in list(self._copies):
            if now_s - copy.active_s >= IDLE_S and not copy.reads_count:
                self._give_up(copy, f"nothing was read of it for {IDLE_S:.0f} s")
                copy.connection.close("idle copy")

    async def stop(self) -> None:
        """End all copies, and begin none any more; the store may be closed afterwards."""
        self._is_stopping = True
        for copy in list(self._copies):
            self._give_up(copy, "this member stops, or is master no more")
            copy.connection.close("no master any more")
        # The end of a read has its copy's directory deleted, by another task.
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown(wait=False)

    def metrics(self) -> Iterator[Metric]:
        yield from samples(
            (
                "iotmq_replication_copies",
                "Copies of this member's data that others take now.",
                len(self._copies),
            ),
            (
                "iotmq_replication_copies_total",
                "Copies of this member's data begun by others.",
                self._begun_count,
            ),
            (
                "iotmq_replication_copy_sent_bytes_total",
                "Bytes sent for copies of this member's data.",
                self._sent_bytes,
            ),
        )

    def _begin(self, connection: ServerConnection, request: Command, member: int) -> None:
        if self._is_stopping:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "this member begins anew")
        for copy in list(self._copies):
            if copy.member == member:
                self._give_up(copy, "it begins anew")
        if len(self._copies) >= REPLICATION_COPIES_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, f"{len(self._copies)} members take copies now: try again later"
            )
        try:
            hot = HotCopy(self._opened, self._directory / str(self._begun_count))
        except IotmqError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"no copy can be made: {error}") from error
        self._begun_count += 1
        copy = _Copy(member, connection, hot, self._clock.monotonic_s())
        self._copies.append(copy)
        self._answer(copy, request, self._prepare(copy, request))

    async def _prepare(self, copy: _Copy, request: Command) -> Command:
        await self._in_thread(copy.hot.prepare)
        content = copy.hot.list_files()
        copy.is_ready = True
        logger.warning(
            "member %d takes a copy of this member's data: %d files, %d MB",
            copy.member,
            len(content.files),
            copy.hot.total_bytes // 1_000_000,
        )
        return request.reply(ResponseCode.SUCCESS, body=msgspec.json.encode(content))

    def _read(self, copy: _Copy, request: Command) -> None:
        if not copy.is_ready or copy.reads_count >= COPY_READS_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"{copy.reads_count} requests about this copy wait: {COPY_READS_MAX} may",
            )
        number = request.integer("file", minimum=0, maximum=2**31)
        at = request.integer("at", minimum=0, maximum=2**62)
        size = request.integer("size", minimum=1, maximum=COPY_PIECE_BYTES_MAX)
        self._answer(copy, request, self._piece(copy, request, number, at, size))

    async def _piece(self, copy: _Copy, request: Command, number: int, at: int, size: int) -> Command:
        data, checksum = await self._in_thread(partial(copy.hot.read, number, at, size))
        self._sent_bytes += len(data)
        return request.reply(ResponseCode.SUCCESS, ext={"crc": str(checksum)}, body=data)

    def _answer(self, copy: _Copy, request: Command, work: Coroutine[Any, Any, Command]) -> None:
        """Answer when the work is done; count it meanwhile."""

        async def main() -> None:
            try:
                response = await work
            except (IotmqError, OSError, ValueError) as error:
                logger.warning("a request of member %d about its copy failed: %s", copy.member, error)
                response = request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)[:500])
            finally:
                copy.reads_count -= 1
                copy.active_s = self._clock.monotonic_s()
            copy.connection.reply(response)
            self._remove_ended()

        copy.reads_count += 1
        self._spawn(main())

    def _give_up(self, copy: _Copy, reason: str) -> None:
        logger.warning("the copy that member %d takes ends before it is whole: %s", copy.member, reason)
        self._end(copy)

    def _end(self, copy: _Copy) -> None:
        """Let go of the log; the directory goes after the last read."""
        copy.is_ended = True
        self._remove_ended()

    def _remove_ended(self) -> None:
        for copy in [copy for copy in self._copies if copy.is_ended and not copy.reads_count]:
            self._copies.remove(copy)
            self._spawn(self._close(copy))

    async def _close(self, copy: _Copy) -> None:
        try:
            await self._in_thread(copy.hot.close)
        except OSError as error:
            # The next start tries again.
            logger.warning("what a copy had of its own cannot be deleted: %s", error)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
