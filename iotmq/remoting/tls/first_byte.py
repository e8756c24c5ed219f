"""A listener that looks at the first byte before it decides: TLS (0x16) or plain.

The byte is peeked at, not read, so the transport that follows starts with an untouched socket: uvloop has no
way to hand bytes that were read already to a handshake. A connection that waits for its first byte costs a
socket and one entry in a table, no task and no buffer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from iotmq.remoting.tls.accepting import Acceptor, Starting
from iotmq.remoting.tls.files import ServerTls
from iotmq.remoting.traffic import Traffic

_TLS_HANDSHAKE: Final = 0x16


class FirstByteListener:
    """Accepts on one address and makes a plain or an encrypted transport of each connection."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        tls: ServerTls,
        traffic: Traffic,
        *,
        has_room: Callable[[int], bool],
    ) -> None:
        """`listener` is bound and listens; `has_room` says whether so many more connections may be open."""
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._tls = tls
        self._traffic = traffic
        self._has_room = has_room
        # Connections that have not said anything, and when they have to.
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._starting = Starting()
        self._acceptor = Acceptor(listener, self._accepted)

    @property
    def undecided_count(self) -> int:
        """Connections that are neither closed nor a transport yet."""
        return len(self._silent) + len(self._starting)

    def close(self) -> None:
        """Accept no more, and end what has not become a transport."""
        self._acceptor.close()
        for connection in list(self._silent):
            self._forget(connection)
            connection.close()
        self._starting.cancel()

    def _accepted(self, connection: socket.socket, _: object) -> None:
        if not self._has_room(self.undecided_count + 1):
            self._refuse(connection, "refused", "too many connections")
            return
        self._silent[connection] = self._loop.call_later(
            self._tls.handshake_timeout_s, self._overdue, connection
        )
        self._loop.add_reader(connection.fileno(), self._look, connection)
        # A client that speaks first has often done so by now.
        self._look(connection)

    def _look(self, connection: socket.socket) -> None:
        try:
            first = connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._forget(connection)
        if not first:
            connection.close()
        elif first[0] == _TLS_HANDSHAKE:
            self._begin_handshake(connection)
        elif self._tls.is_enforced:
            self._refuse(connection, "plain", "this port takes encrypted connections only")
        else:
            self._start(connection, is_encrypted=False)

    def _overdue(self, connection: socket.socket) -> None:
        self._forget(connection)
        if self._tls.is_enforced:
            self._refuse(connection, "handshake", "no handshake in time")
        else:
            self._start(connection, is_encrypted=False)

    def _begin_handshake(self, connection: socket.socket) -> None:
        if self._starting.handshakes_count >= self._tls.handshakes_max:
            self._refuse(
                connection, "handshake", f"{self._starting.handshakes_count} handshakes are under way"
            )
            return
        self._start(connection, is_encrypted=True)

    def _start(self, connection: socket.socket, *, is_encrypted: bool) -> None:
        peer = _peer_of(connection)

        def done(error: Exception | None) -> None:
            if error is not None:
                self._traffic.closed["handshake"] += 1
                self._traffic.warn("handshake failed", peer, "handshake", str(error))
            else:
                self._traffic.tls_connections += is_encrypted

        self._starting.start(connection, self._protocol, self._tls if is_encrypted else None, done)

    def _refuse(self, connection: socket.socket, reason: str, detail: str) -> None:
        self._traffic.closed[reason] += 1
        self._traffic.warn("connection closed", _peer_of(connection), reason, detail)
        connection.close()

    def _forget(self, connection: socket.socket) -> None:
        timer = self._silent.pop(connection, None)
        if timer is not None:
            timer.cancel()
        self._loop.remove_reader(connection.fileno())


def _peer_of(connection: socket.socket) -> tuple[str, int]:
    try:
        host, port, *_ = connection.getpeername()
    except OSError:
        return "", 0
    return str(host), int(port)
