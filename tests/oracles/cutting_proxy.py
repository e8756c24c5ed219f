"""A TCP proxy in a thread that cuts each connection after so many bytes, as a bad network does."""

from __future__ import annotations

import random
import select
import socket
import threading
from contextlib import suppress
from typing import Self


class CuttingProxy:
    """`with` starts it and ends it. The first `cuts` connections end after `cut_bytes` of both directions.

    Where exactly is up to chance, whose seed makes a run repeatable as far as the network is.
    """

    def __init__(self, port: int, *, cuts: int, cut_bytes: tuple[int, int], seed: int = 1) -> None:
        self._target = ("127.0.0.1", port)
        self._chance = random.Random(seed)
        self._cuts_left = cuts
        self._cut_bytes = cut_bytes
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.close()
        self._thread.join()
        self._listener.close()
        self._woken.close()

    def _run(self) -> None:
        while self._woken not in select.select([self._listener, self._woken], [], [])[0]:
            client, _ = self._listener.accept()
            with client, socket.create_connection(self._target) as server, suppress(OSError):
                if not self._carry(client, server):
                    return

    def _carry(self, client: socket.socket, server: socket.socket) -> bool:
        """One connection at a time; false when the proxy is to end."""
        left = None
        if self._cuts_left:
            self._cuts_left -= 1
            left = self._chance.randint(*self._cut_bytes)
        while True:
            ready = select.select([client, server, self._woken], [], [])[0]
            if self._woken in ready:
                return False
            for source, target in ((client, server), (server, client)):
                if source not in ready:
                    continue
                data = source.recv(65_536)
                if not data:
                    return True
                if left is not None and len(data) >= left:
                    # In the middle of whatever this is.
                    target.sendall(data[:left])
                    self.cuts += 1
                    return True
                if left is not None:
                    left -= len(data)
                target.sendall(data)
