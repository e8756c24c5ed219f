"""The connection of a follower to its master: made, heard on, lost, and ended."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from iotmq.errors import ConnectionClosedError, RequestError, TableCopyError
from iotmq.member.peers import CONNECT_S, PeerConnector
from iotmq.member.table_stream import TableStream
from iotmq.member.wire import decode
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.replication.messages import Message

_REFUSAL_CHARACTERS_KEPT: Final = 1_000


class MasterEvents(Protocol):
    """Hear what becomes of the connection."""

    @property
    def is_running(self) -> bool:
        """Return False once nothing is of interest any more."""

    def master_connected(self, number: int) -> None:
        """The connection to a master is there."""

    def master_unreachable(self, number: int, *, is_refused: bool) -> None:
        """No connection could be made; `is_refused`: nothing listens there."""

    def master_lost(self, number: int) -> None:
        """The connection has ended, and not from here."""

    def master_says(self, number: int, message: Message) -> None:
        """A message has come."""

    def alarm(self, text: str) -> None:
        """The operator has to know this."""


class MasterLink:
    """One connection at a time, to one master after the other."""

    def __init__(
        self,
        connector: PeerConnector,
        tables: TableStream,
        events: MasterEvents,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`tables` are given the master's; `spawn` runs a task as long as the run of the member lasts."""
        self._connector = connector
        self._tables = tables
        self._events = events
        self._spawn = spawn
        self._link: ClientConnection | None = None
        self._number = 0
        # The member that a connection is being made to, 0 for none, and how many were begun.
        self._connecting = 0
        self._connects_count = 0

    @property
    def is_open(self) -> bool:
        """Return whether the connection is there."""
        return self._link is not None

    def connect(self, number: int) -> None:
        """Begin to connect to a member."""
        # A connection that takes its time is not begun anew: far away, none would ever come about.
        if self._connecting != number:
            self._connecting = number
            self._connects_count += 1
            self._spawn(self._connect(number, self._connects_count))

    def disconnect(self) -> None:
        """End the connection, or what was to become one."""
        self._connects_count += 1
        self._connecting = 0
        self._drop()

    def send(self, command: Command) -> None:
        """Send something, if there is a connection."""
        if self._link is not None:
            self._link.send_oneway(command)

    async def _connect(self, number: int, count: int) -> None:
        try:
            link = await self._connector.connect(
                number, on_request=self._received, on_lost=self._lost, timeout_s=CONNECT_S
            )
        except ConnectionClosedError as error:
            if count == self._connects_count:
                self._connecting = 0
                is_refused = isinstance(error.__cause__, ConnectionRefusedError)
                self._events.master_unreachable(number, is_refused=is_refused)
            return
        if count != self._connects_count or not self._events.is_running:
            link.abort("not wanted any more")
            return
        self._connecting = 0
        self._drop()
        self._link, self._number = link, number
        self._tables.begin()
        self._events.master_connected(number)

    def _received(self, connection: ClientConnection, request: Command) -> None:
        if connection is not self._link or not self._events.is_running:
            return
        if request.code != RequestCode.MEMBER_MESSAGE:
            return
        if request.ext.get("kind") == "refused":
            self._events.alarm(request.text("text", "")[:_REFUSAL_CHARACTERS_KEPT])
            return
        try:
            if request.ext.get("kind") == "table":
                self._tables.take(connection, request)
                return
            message = decode(request)
        except (RequestError, TableCopyError) as error:
            self._events.alarm(f"member {self._number} sends what no master sends: {error}")
            connection.abort("malformed")
            return
        self._events.master_says(self._number, message)

    def _lost(self, connection: ClientConnection) -> None:
        if connection is self._link:
            self._link = None
            self._events.master_lost(self._number)

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.abort("followed no more")
