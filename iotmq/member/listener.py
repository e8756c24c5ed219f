"""One native port for both roles of a member: a follower passes requests of clients on to the master."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from iotmq.errors import RequestError
from iotmq.event_loop import happens_within
from iotmq.member.copying import COPY_CODES
from iotmq.member.peers import PeerConnector
from iotmq.member.relay import Relay
from iotmq.message.hosts import encode_host
from iotmq.metrics import Metric
from iotmq.remoting.codes import IS_MASTER_FIELD, LanguageCode, RequestCode, ResponseCode, Version
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
    {
        RequestCode.MEMBER_MESSAGE,
        RequestCode.GET_MEMBER_STATUS,
        RequestCode.HAND_OVER,
        RequestCode.ADD_MEMBER,
        RequestCode.REMOVE_MEMBER,
        RequestCode.GET_LOG_CHECKSUM,
        *COPY_CODES,
    }
)
# The codes of requests of iotmq's own.
_OWN_CODES: Final = 30_001
_OWN_CODES_END: Final = 31_000
# Clients of a master that stops have so long to take what was answered.
_CLOSE_S: Final = 0.2


class MemberRequests(Protocol):
    """Answer requests of other members and of operators about the replication."""

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        """Answer as a server's handler does."""

    def check_member(self, connection: ServerConnection, request: Command) -> None:
        """Return for a request that only members send, when access control allows it, else RequestError."""

    def connection_lost(self, connection: ServerConnection) -> None:
        """A connection that was accepted has ended."""


class MemberListener:
    """Listens as long as the process runs; the broker has a `Seat` at it while it serves."""

    def __init__(self, listening: Listening, *, tls: ServerTls | None, connector: PeerConnector) -> None:
        self._server = RemotingServer(self, listening, handle_run=self._handle_run, tls=tls)
        self._seat: Seat | None = None
        # A broker that clients are taken from.
        self._leaving: Seat | None = None
        # Connections of iotmq's own clients, but for those that only send: they look for the master
        # themselves, and have to see that what they have at this one has ended.
        self._own: set[ServerConnection] = set()
        # Connections of members, which stay when the role changes.
        self._links: set[ServerConnection] = set()
        self.members: MemberRequests | None = None
        """Those who answer other members; None while this one begins anew."""
        self.refusal: Callable[[], str] = lambda: "this member has not started"
        """Why clients are refused while no broker serves."""
        self.master: Callable[[], int | None] = lambda: None
        """The number of the member recorded as master; None when that is this one, or nobody."""
        self._relay = Relay(
            connector,
            master=lambda: self.master(),
            refusal=lambda: self.refusal(),
            is_own=self._own.__contains__,
        )
        # Clients that came by way of another member. They are not passed on again.
        self._relayed: set[ServerConnection] = set()
        # Connections that end because a broker leaves; set when the last one has gone.
        self._ending: set[ServerConnection] = set()
        self._emptied: asyncio.Event | None = None

    @property
    def port(self) -> int:
        """Return the port listened on."""
        return self._server.port

    async def start(self) -> None:
        """Listen. OSError when the port is taken."""
        await self._server.start()
        self._relay.start()

    async def stop(self) -> None:
        """End all connections."""
        await self._server.stop()
        await self._relay.stop()

    def seat(self, handler: RequestHandler, handle_run: RunHandler) -> Seat:
        """Return the place of a broker that will serve clients."""
        return Seat(self, handler, handle_run)

    def metrics(self) -> Iterable[Metric]:
        yield from self._server.metrics()
        yield from self._relay.metrics()

    # The server's handler.

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        if request.code in MEMBER_CODES:
            if self.members is None:
                raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "this member begins anew")
            if connection in self._relayed:
                raise RequestError(ResponseCode.NO_PERMISSION, "a client is no member")
            return self._handle_member(self.members, connection, request)
        if _is_own(request):
            self._own.add(connection)
        if request.code == RequestCode.RELAY_CLIENT:
            return self._introduce(connection, request)
        if self._seat is not None:
            return self._seat.handler.handle(connection, request)
        if connection in self._relayed:
            return request.reply(
                ResponseCode.SERVICE_NOT_AVAILABLE, remark=self.refusal(), ext={IS_MASTER_FIELD: "false"}
            )
        self._relay.handle(connection, request)
        return None

    def _handle_member(
        self, members: MemberRequests, connection: ServerConnection, request: Command
    ) -> Command | None:
        """Have a request of a member or an operator handled. Members begin with one that makes them known."""
        is_first = connection not in self._links and (
            request.code in COPY_CODES or request.ext.get("kind") == "open"
        )
        if is_first:
            # Before: what follows from it may concern all clients.
            self._links.add(connection)
        try:
            return members.handle(connection, request)
        except RequestError:
            if is_first:
                self._links.discard(connection)
            raise

    def _introduce(self, connection: ServerConnection, request: Command) -> Command:
        """Take a connection as that of another member's client."""
        if self._seat is None or self.members is None:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, self.refusal())
        self.members.check_member(connection, request)
        if connection in self._relayed or connection in self._links:
            raise RequestError(ResponseCode.NO_PERMISSION, "the connection is somebody else's already")
        host, port = request.text("host"), request.integer("port", minimum=0, maximum=65_535)
        try:
            encode_host(host, port)
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"invalid client address: {error}") from None
        self._relayed.add(connection)
        connection.peer = (host, port)
        return request.reply(ResponseCode.SUCCESS)

    def connection_lost(self, connection: ServerConnection) -> None:
        self._links.discard(connection)
        self._relayed.discard(connection)
        self._own.discard(connection)
        self._relay.connection_lost(connection)
        if self.members is not None:
            self.members.connection_lost(connection)
        seat = self._leaving or self._seat
        if seat is not None:
            seat.handler.connection_lost(connection)
        self._ending.discard(connection)
        if self._emptied is not None and not self._ending:
            self._emptied.set()

    def _handle_run(self, connection: ServerConnection, run: Run, at: int) -> int:
        seat = self._seat
        if seat is None:
            return at
        return seat.handle_run(connection, run, at)

    def take_seat(self, seat: Seat) -> None:
        """Give clients to a broker."""
        self._seat = seat
        self._relay.give_back(seat.handler)

    async def leave_seat(self, seat: Seat) -> None:
        """Take clients from a broker again.

        Those of RocketMQ that wait for nothing stay, and what they ask from now on is passed on. The others'
        connections end: they look for the master.
        """
        self._leaving, self._seat = seat, None
        kept = {connection for connection in self.clients() if self._may_stay(connection)}
        for connection in kept:
            seat.handler.connection_lost(connection)
        ended = [connection for connection in self.clients() if connection not in kept]
        for connection in ended:
            connection.close("no master any more")
        self._ending.update(ended)
        if self._ending:
            self._emptied = asyncio.Event()
            await happens_within(self._emptied, _CLOSE_S)
            self._emptied = None
            for connection in list(self._ending):
                connection.abort("no master any more")
            self._ending.clear()
        self._leaving = None
        for connection in kept:
            connection.resume()

    def _may_stay(self, connection: ServerConnection) -> bool:
        return not (
            connection.requests_held
            or connection.is_closed
            or connection in self._own
            or connection in self._relayed
        )

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


def _is_own(request: Command) -> bool:
    """Return whether only iotmq's own clients send such requests."""
    return _OWN_CODES <= request.code < _OWN_CODES_END or (
        request.version == Version.OURS and request.language == LanguageCode.PYTHON
    )
