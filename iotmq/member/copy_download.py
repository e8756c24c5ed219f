"""Take a copy of the master's data over the native protocol: several pieces on their way at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from iotmq.clock import Clock
from iotmq.errors import (
    BrokerError,
    ConnectionClosedError,
    IotmqError,
    RequestError,
    RequestTimeoutError,
    StoreCorruptError,
)
from iotmq.limits import COPY_PIECE_BYTES_MAX, COPY_READS_MAX
from iotmq.member.peers import PeerConnector
from iotmq.member.wire import encode_begin_copy
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.replicated.hot_copy import CopyList
from iotmq.replicated.incoming_copy import IncomingCopy, lock_directory
from iotmq.replication.cluster_state import Identity
from iotmq.supervised import to_its_end

_CONNECT_S: Final = 3.0
# The master's database is written to its disk first.
_BEGIN_S: Final = 120.0
_PIECE_S: Final = 30.0
# Pieces asked for ahead of those that are written, and written at a time.
_AHEAD: Final = COPY_READS_MAX
_WRITTEN_MAX: Final = 8
_SLOW_PIECE_BYTES_MIN: Final = 16 * 1024
# What the rate of the remaining time is taken from at least.
_RATE_S: Final = 1.0

logger = logging.getLogger("iotmq.replication")
T = TypeVar("T")


class CopyError(IotmqError):
    """The copy cannot be taken now; the text says why. It begins anew later."""


class _Wanted(NamedTuple):
    number: int
    at: int
    size: int
    answer: asyncio.Future[Command]


class CopyDownload:
    """One attempt."""

    def __init__(
        self,
        connector: PeerConnector,
        directory: Path,
        master: int,
        identity: Identity,
        *,
        bytes_per_s: int,
        clock: Clock,
    ) -> None:
        """`identity` is this member's; `bytes_per_s` 0 for as fast as it goes."""
        self._connector = connector
        self._directory = directory
        self.master = master
        self._identity = identity
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self.total_bytes = 0
        self.copied_bytes = 0
        self._is_installing = False

    @property
    def progress(self) -> str:
        """Return a sentence for operators."""
        text = f"copies the data of member {self.master}"
        if self._is_installing:
            return f"{text}: all of it is here, and is put in place"
        if not self.total_bytes:
            return f"{text}: asks for it"
        text = f"{text}: {self.copied_bytes / 1e9:.2f} of {self.total_bytes / 1e9:.2f} GB"
        remaining_s = self.remaining_s
        return text if remaining_s is None else f"{text}, {remaining_s:.0f} s left"

    @property
    def remaining_s(self) -> float | None:
        """Return how long it will take from here on; None while that cannot be told."""
        passed_s = self._clock.monotonic_s() - self._began_s
        if passed_s < _RATE_S or not self.copied_bytes:
            return None
        return (self.total_bytes - self.copied_bytes) * passed_s / self.copied_bytes

    async def run(self) -> Path | None:
        """Take it and put it in place. Return where what was there before is kept, None when it is not.

        Raises CopyError, StoreError, OSError; then everything is as it was, unless `finish_copy` says else.
        """
        threads = ThreadPoolExecutor(1, thread_name_prefix="iotmq-copy")
        loop = asyncio.get_running_loop()

        async def in_thread(call: Callable[[], T]) -> T:
            # A cancellation waits, too: the directory is nobody else's before.
            return await to_its_end(loop.run_in_executor(threads, call))

        try:
            lock = await in_thread(lambda: lock_directory(self._directory))
            try:
                return await self._run(in_thread)
            finally:
                lock.release()
        except (ConnectionClosedError, RequestTimeoutError, BrokerError, RequestError) as error:
            raise CopyError(
                f"the copy of member {self.master}'s data has not become whole: {error}"
            ) from error
        finally:
            threads.shutdown(wait=False)

    async def _run(self, in_thread: _InThread) -> Path | None:
        connection = await self._connector.connect(self.master, timeout_s=_CONNECT_S)
        incoming: IncomingCopy | None = None
        try:
            content = await self._begin(connection)
            incoming = await in_thread(lambda: IncomingCopy(self._directory, content))
            self.total_bytes = incoming.total_bytes
            logger.warning(
                "takes a copy of member %d's data: %d files, %d MB",
                self.master,
                len(content.files),
                incoming.total_bytes // 1_000_000,
            )
            await self._take(connection, incoming, in_thread)
            await _ask(connection, Command.request(RequestCode.END_COPY), _PIECE_S)
            self._is_installing = True
            return await in_thread(incoming.install)
        finally:
            connection.abort("copy over")
            if incoming is not None:
                await in_thread(incoming.close)

    async def _begin(self, connection: ClientConnection) -> CopyList:
        request = encode_begin_copy(self._identity, self._connector.introduction)
        answer = await _ask(connection, request, _BEGIN_S)
        try:
            return msgspec.json.decode(answer.body_bytes(), type=CopyList)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StoreCorruptError(
                f"the list of files of member {self.master} cannot be read: {error}"
            ) from error

    async def _take(self, connection: ClientConnection, incoming: IncomingCopy, in_thread: _InThread) -> None:
        """Ask for all pieces, and write them in their order."""
        began_s = self._began_s = self._clock.monotonic_s()
        limit = self._bytes_per_s
        # Of a slow copy, too, something is heard every second or so.
        size_max = (
            min(COPY_PIECE_BYTES_MAX, max(limit, _SLOW_PIECE_BYTES_MIN)) if limit else COPY_PIECE_BYTES_MAX
        )
        coming = incoming.pieces(size_max)
        wanted: deque[_Wanted] = deque()
        try:
            while True:
                while len(wanted) < (1 if limit else _AHEAD) and (piece := next(coming, None)) is not None:
                    fields = dict(zip(("file", "at", "size"), map(str, piece), strict=True))
                    answer = connection.request(Command.request(RequestCode.READ_COPY, fields), _PIECE_S)
                    wanted.append(_Wanted(*piece, answer))
                if not wanted:
                    return
                first = wanted[0]
                await first.answer
                # What has come of the same file meanwhile is written with it: a call in a thread waits for
                # this one to pause, and that can be longer than it takes to write.
                pieces: list[bytes | memoryview] = []
                while len(pieces) < _WRITTEN_MAX and wanted and _is_next(wanted[0], first.number):
                    pieces.append(_checked(incoming, wanted.popleft()))
                await in_thread(partial(incoming.write, first.number, first.at, pieces))
                self.copied_bytes = incoming.copied_bytes
                if limit:
                    ahead_s = self.copied_bytes / limit - (self._clock.monotonic_s() - began_s)
                    await asyncio.sleep(max(0.0, ahead_s))
        finally:
            for each in wanted:
                each.answer.cancel()


class _InThread(Protocol):
    """Run a call in the one thread of a copy."""

    async def __call__(self, call: Callable[[], T], /) -> T: ...


def _is_next(wanted: _Wanted, number: int) -> bool:
    """Return whether a piece is there that is written to the same file."""
    return wanted.number == number and wanted.answer.done()


def _checked(incoming: IncomingCopy, wanted: _Wanted) -> bytes | memoryview:
    """Return a piece that has come. Raises StoreCorruptError, and what the answer raises."""
    answer = _successful(wanted.answer.result())
    data = answer.body if isinstance(answer.body, memoryview) else answer.body_bytes()
    if len(data) != wanted.size:
        raise StoreCorruptError(f"the master sends {len(data)} bytes of {wanted.size}")
    incoming.check(wanted.number, wanted.at, data, answer.integer("crc", minimum=0, maximum=2**32 - 1))
    return data


async def _ask(connection: ClientConnection, request: Command, timeout_s: float) -> Command:
    return _successful(await connection.request(request, timeout_s))


def _successful(answer: Command) -> Command:
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError(answer.code, answer.remark or "no reason given")
    return answer
