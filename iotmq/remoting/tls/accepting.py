"""Accept sockets and turn them into transports."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from iotmq import limits
from iotmq.remoting.tls.files import ServerTls

logger = logging.getLogger("iotmq.remoting")

#: Gets a connection and the address it came from; the connection does not block.
TakeSocket: TypeAlias = Callable[[socket.socket, Any], None]

# In a turn of the loop: each costs some 50 microseconds, and those who are connected wait.
_ACCEPTED_AT_ONCE_MAX: Final = 16
# Out of file descriptors or memory: the kernel keeps the connections that wait.
_PAUSE_S: Final = 1.0
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


async def listening_sockets(host: str, port: int, *, backlog: int) -> list[socket.socket]:
    """Return sockets that listen on every address of a host. OSError when one of them is taken.

    The first one's port is everybody's when a free one is asked for.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listening: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            listening.append(socket.create_server((str(address[0]), port), family=family, backlog=backlog))
            port = listening[0].getsockname()[1]
    except BaseException:
        for each in listening:
            each.close()
        raise
    return listening


class Acceptor:
    """Accepts on a socket that listens, for those who look at connections before they are transports."""

    def __init__(self, listener: socket.socket, take: TakeSocket) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._take = take
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        if listener.family != socket.AF_UNIX:
            # Connections have it from their listener, which saves a call for each.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more."""
        if self._pause is not None:
            self._pause.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE_MAX):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause_accepting(error)
                    return
                raise
            connection.setblocking(False)
            self._take(connection, address)

    def _pause_accepting(self, error: OSError) -> None:
        logger.error("no connection can be accepted", extra={"detail": str(error), "pause_s": _PAUSE_S})
        self._loop.remove_reader(self._listener.fileno())

        def go_on() -> None:
            self._pause = None
            self._loop.add_reader(self._listener.fileno(), self._accept)

        self._pause = self._loop.call_later(_PAUSE_S, go_on)


class Starting:
    """Sockets that become transports, some of them by a handshake."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.handshakes_count = 0
        """How many of them shake hands."""

    def __len__(self) -> int:
        return len(self._tasks)

    def cancel(self) -> None:
        """End them all."""
        for task in self._tasks:
            task.cancel()

    def start(
        self,
        connection: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ServerTls | None,
        done: Callable[[OSError | ValueError | None], None],
    ) -> None:
        """Make a transport, encrypted when there is `tls`. `done` hears of the end, with None for a good one.

        It does not hear of a cancelled one.
        """
        task = self._loop.create_task(self._connect(connection, protocol, tls, done))
        is_encrypted = tls is not None
        self._tasks.add(task)
        self.handshakes_count += is_encrypted

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self.handshakes_count -= is_encrypted
            if task.cancelled():
                connection.close()

        task.add_done_callback(ended)

    async def _connect(
        self,
        connection: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ServerTls | None,
        done: Callable[[OSError | ValueError | None], None],
    ) -> None:
        try:
            if tls is None:
                await self._loop.connect_accepted_socket(protocol, connection)
            else:
                await self._loop.connect_accepted_socket(
                    protocol,
                    connection,
                    ssl=tls.context,
                    ssl_handshake_timeout=tls.handshake_timeout_s,
                    ssl_shutdown_timeout=limits.TLS_SHUTDOWN_S,
                )
        except (OSError, ValueError) as error:
            # The transport has closed the socket.
            done(error)
        else:
            done(None)
