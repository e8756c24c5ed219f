"""A listener that looks at the first byte before it decides: TLS (0x16) or plain.

The byte is peeked at, not read, so the transport that follows starts with an untouched socket: uvloop has no
way to hand bytes that were read already to a handshake. A connection that waits for its first byte costs a
socket and one entry in a table, no task and no buffer.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

from iotmq.remoting.tls import ServerTls
from iotmq.remoting.traffic import Traffic

logger = logging.getLogger("iotmq.remoting")

_TLS_HANDSHAKE: Final = 0x16
_ACCEPTED_AT_ONCE_MAX: Final = 128
# Out of file descriptors or memory: the kernel keeps the connections that wait.
_PAUSE_S: Final = 1.0
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


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
        self._listener = listener
        self._protocol = protocol
        self._tls = tls
        self._traffic = traffic
        self._has_room = has_room
        # Connections that have not said anything, and when they have to.
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        # What is becoming a transport, and how many of these shake hands.
        self._starting: set[asyncio.Task[None]] = set()
        self._handshakes_count = 0
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self._accept)

    @property
    def undecided_count(self) -> int:
        """Connections that are neither closed nor a transport yet."""
        return len(self._silent) + len(self._starting)

    def close(self) -> None:
        """Accept no more, and end what has not become a transport."""
        if self._pause is not None:
            self._pause.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
        for connection in list(self._silent):
            self._forget(connection)
            connection.close()
        for task in self._starting:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE_MAX):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause_accepting(error)
                    return
                raise
            self._take(connection)

    def _pause_accepting(self, error: OSError) -> None:
        logger.error("no connection can be accepted", extra={"detail": str(error), "pause_s": _PAUSE_S})
        self._loop.remove_reader(self._listener.fileno())

        def go_on() -> None:
            self._pause = None
            self._loop.add_reader(self._listener.fileno(), self._accept)

        self._pause = self._loop.call_later(_PAUSE_S, go_on)

    def _take(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
        if self._handshakes_count >= self._tls.handshakes_max:
            self._refuse(connection, "handshake", f"{self._handshakes_count} handshakes are under way")
            return
        self._start(connection, is_encrypted=True)

    def _start(self, connection: socket.socket, *, is_encrypted: bool) -> None:
        task = self._loop.create_task(self._connect(connection, is_encrypted=is_encrypted))
        self._starting.add(task)
        self._handshakes_count += is_encrypted

        def started(task: asyncio.Task[None]) -> None:
            self._starting.discard(task)
            self._handshakes_count -= is_encrypted
            if task.cancelled():
                connection.close()

        task.add_done_callback(started)

    async def _connect(self, connection: socket.socket, *, is_encrypted: bool) -> None:
        tls = self._tls
        peer = _peer_of(connection)
        try:
            if is_encrypted:
                await self._loop.connect_accepted_socket(
                    self._protocol,
                    connection,
                    ssl=tls.context,
                    ssl_handshake_timeout=tls.handshake_timeout_s,
                    ssl_shutdown_timeout=tls.handshake_timeout_s,
                )
                self._traffic.tls_connections += 1
            else:
                await self._loop.connect_accepted_socket(self._protocol, connection)
        except (OSError, ValueError) as error:
            # The transport has closed the socket.
            self._traffic.closed["handshake"] += 1
            self._traffic.warn("handshake failed", peer, "handshake", str(error))

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
