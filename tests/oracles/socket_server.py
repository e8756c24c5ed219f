"""A server of threads for tests: accepts any number of connections, and ends all of them."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self


class SocketServer(ABC):
    """`with` starts it and ends it, with the threads and sockets of its connections."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self.spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for one in self._sockets:
            one.close()

    @abstractmethod
    def connected(self, connection: socket.socket) -> None:
        """Begin with a connection that was accepted, without waiting; `spawn` does what waits."""

    def keep(self, connection: socket.socket) -> None:
        """End that connection with the server, too."""
        self._sockets.append(connection)

    def spawn(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call something in a thread of its own, until it returns or its socket ends."""

        def run() -> None:
            with suppress(OSError):
                call(*arguments)

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            connection = self._listener.accept()[0]
            self.keep(connection)
            self.connected(connection)
