"""Tell clients that wait when the master of a broker name is another (request 30080)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from iotmq.errors import RequestError
from iotmq.limits import MASTER_WATCH_MS_MAX, MASTER_WATCHERS_MAX
from iotmq.registry.routes import Master
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

_RUN_BYTES: Final = 8


class _MasterDocument(msgspec.Struct):
    address: str
    epoch: int


class _MastersDocument(msgspec.Struct):
    version: str
    masters: dict[str, _MasterDocument]


class MasterWatches:
    """Requests parked until the table of masters changes, one for each connection.

    `masters` is read once for each change that somebody is told, whatever the number of those who wait.
    """

    def __init__(self, masters: Callable[[], dict[str, Master]]) -> None:
        self._masters = masters
        self._watchers_max = MASTER_WATCHERS_MAX
        # Another one in each run of a registry, which counts from 0 again.
        self._run = secrets.token_hex(_RUN_BYTES)
        self._changes_count = 0
        # The answer to everybody, until the table changes.
        self._body: bytes | None = None
        self._parked: dict[ServerConnection, tuple[Command, asyncio.TimerHandle]] = {}
        # Set while those who wait are told in the next turn.
        self._wake: asyncio.Handle | None = None
        self.wakes_count = 0

    @property
    def count(self) -> int:
        """Return how many requests wait."""
        return len(self._parked)

    def changed(self) -> None:
        """Note that the table may be another; those who wait are told once for all changes of a turn."""
        self._changes_count += 1
        self._body = None
        if self._parked and self._wake is None:
            self._wake = asyncio.get_running_loop().call_soon(self._tell_all)

    def watch(self, connection: ServerConnection, request: Command, *, wait_s_max: float) -> Command | None:
        """Answer at once when the table is another than the asker's, else when it is or the time is over.

        A connection that asks again has its former request answered. RequestError when too many wait.
        """
        known = request.text("version", "")
        timeout_ms = request.integer("timeoutMillis", minimum=0, maximum=MASTER_WATCH_MS_MAX)
        self._end(connection)
        if known != self._version or not timeout_ms:
            return self._answer(request)
        if len(self._parked) >= self._watchers_max:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, f"{len(self._parked)} clients wait for another master already"
            )
        timer = asyncio.get_running_loop().call_later(
            min(timeout_ms / 1000, wait_s_max), self._end, connection
        )
        self._parked[connection] = (request, timer)
        return None

    def forget(self, connection: ServerConnection) -> None:
        """Drop what a connection that has ended waits for."""
        parked = self._parked.pop(connection, None)
        if parked is not None:
            parked[1].cancel()

    def stop(self) -> None:
        """Drop everything; the connections are about to end."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        for connection in list(self._parked):
            self.forget(connection)

    @property
    def _version(self) -> str:
        return f"{self._run}-{self._changes_count}"

    def _answer(self, request: Command) -> Command:
        if self._body is None:
            masters = {
                name: _MasterDocument(master.address, master.epoch)
                for name, master in self._masters().items()
            }
            self._body = msgspec.json.encode(_MastersDocument(self._version, masters))
        return request.reply(ResponseCode.SUCCESS, body=self._body)

    def _end(self, connection: ServerConnection) -> None:
        """Answer the request that a connection waits for, if it does."""
        parked = self._parked.pop(connection, None)
        if parked is not None:
            request, timer = parked
            timer.cancel()
            connection.reply(self._answer(request))

    def _tell_all(self) -> None:
        self._wake = None
        self.wakes_count += 1
        for connection in list(self._parked):
            self._end(connection)
