"""One native port for both roles of a member: other members always reach it, clients only a master."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from iotmq.errors import RequestError
from iotmq.event_loop import happens_within
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import IS_MASTER_FIELD, RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import Run
from iotmq.remoting.server import (
    Listening,
    RemotingServer,
    RequestHandler,
    RunHandler,
    ServerConnection,
)
from iotmq.remoting.tls.files import ServerTls

MEMBER_CODES: Final = frozenset(
    {RequestCode.MEMBER_MESSAGE, RequestCode.GET_MEMBER_STATUS, RequestCode.HAND_OVER}
)
# Clients of a master that stops have so long to take what was answered.
_CLOSE_S: Final = 0.2


class MemberRequests(Protocol):
    """Answer requests of other members and of operators about the replication."""

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        """Answer as a server's handler does."""

    def connection_lost(self, connection: ServerConnection) -> None:
        """A connection that was accepted has ended."""


class MemberListener:
    """Listens as long as the process runs; the broker has a `Seat` at it while it serves."""

    def __init__(self, listening: Listening, *, tls: ServerTls | None) -> None:
        self._server = RemotingServer(self, listening, handle_run=self._handle_run, tls=tls)
        self._seat: Seat | None = None
        # Connections of members, which stay when the role changes.
        self._links: set[ServerConnection] = set()
        self.members: MemberRequests | None = None
        """Those who answer other members; None while this one begins anew."""
        self.refusal: Callable[[], str] = lambda: "this member has not started"
        """Why clients are refused while no broker serves."""
        self._refused_count = 0
        # Set when the last client has gone that a broker leaves.
        self._emptied: asyncio.Event | None = None

    @property
    def port(self) -> int:
        """Return the port listened on."""
        return self._server.port

    async def start(self) -> None:
        """Listen. OSError when the port is taken."""
        await self._server.start()

    async def stop(self) -> None:
        """End all connections."""
        await self._server.stop()

    def seat(self, handler: RequestHandler, handle_run: RunHandler) -> Seat:
        """Return the place of a broker that will serve clients."""
        return Seat(self, handler, handle_run)

    def metrics(self) -> Iterable[Metric]:
        yield from self._server.metrics()
        yield from samples(
            (
                "iotmq_replication_refused_requests_total",
                "Requests of clients refused because another member is master.",
                self._refused_count,
            )
        )

    # The server's handler.

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        if request.code in MEMBER_CODES:
            if self.members is None:
                raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "this member begins anew")
            self._links.add(connection)
            return self.members.handle(connection, request)
        if self._seat is None:
            self._refused_count += 1
            return request.reply(
                ResponseCode.SERVICE_NOT_AVAILABLE, remark=self.refusal(), ext={IS_MASTER_FIELD: "false"}
            )
        return self._seat.handler.handle(connection, request)

    def connection_lost(self, connection: ServerConnection) -> None:
        self._links.discard(connection)
        if self.members is not None:
            self.members.connection_lost(connection)
        if self._seat is not None:
            self._seat.handler.connection_lost(connection)
        if self._emptied is not None and not self.clients():
            self._emptied.set()

    def _handle_run(self, connection: ServerConnection, run: Run, at: int) -> int:
        seat = self._seat
        if seat is None:
            return at
        return seat.handle_run(connection, run, at)

    def take_seat(self, seat: Seat) -> None:
        """Give clients to a broker."""
        self._seat = seat

    async def leave_seat(self, seat: Seat) -> None:
        """Take clients from a broker again, and end their connections: they look for the master."""
        for connection in self.clients():
            connection.close("no master any more")
        if self.clients():
            self._emptied = asyncio.Event()
            await happens_within(self._emptied, _CLOSE_S)
            self._emptied = None
            for connection in self.clients():
                connection.abort("no master any more")
        if self._seat is seat:
            self._seat = None

    def clients(self) -> list[ServerConnection]:
        """Return the connections that are no members'."""
        return [connection for connection in self._server.connections if connection not in self._links]


class Seat:
    """A broker's place at the listener: what a server of its own would be to it."""

    def __init__(self, listener: MemberListener, handler: RequestHandler, handle_run: RunHandler) -> None:
        self._listener = listener
        self.handler = handler
        self.handle_run = handle_run

    @property
    def port(self) -> int:
        """Return the port listened on."""
        return self._listener.port

    async def start(self) -> None:
        """Serve clients."""
        self._listener.take_seat(self)

    async def stop(self) -> None:
        """Serve them no more."""
        await self._listener.leave_seat(self)

    def metrics(self) -> Iterable[Metric]:
        """Nothing: the listener reports for itself."""
        return ()
