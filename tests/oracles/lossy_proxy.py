"""A proxy for MQTT 3.1.1 that forgets some of the messages a server sends, and counts them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from scripted_server import packet_size, parse_publish
from socket_server import SocketServer


class LossyProxy(SocketServer):
    """`with` starts it and ends it. `forgets(n)`: is the nth message of a connection lost, from 0?

    With `repeats(n)` one is sent twice. Only messages with QoS 0 are: of others the server would hear.
    """

    def __init__(
        self,
        port: int,
        *,
        forgets: Callable[[int], bool] = lambda _: False,
        repeats: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._target = ("127.0.0.1", port)
        self._forgets = forgets
        self._repeats = repeats
        self._lock = threading.Lock()
        self.lost = 0
        self.repeated = 0
        super().__init__()

    def connected(self, connection: socket.socket) -> None:
        server = socket.create_connection(self._target)
        self.keep(server)
        for one in (connection, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.spawn(self._carry, connection, server)
        self.spawn(self._carry_packets, server, connection)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _carry_packets(self, source: socket.socket, target: socket.socket) -> None:
        held, count = b"", 0
        with suppress(OSError):
            while data := source.recv(65_536):
                held += data
                passed = bytearray()
                while (size := packet_size(held)) is not None and len(held) >= size:
                    packet, held = held[:size], held[size:]
                    copies = 1
                    if packet[0] & 0xF0 == 0x30:
                        assert parse_publish(packet)[0] == 0, "only QoS 0 can be lost without a word"
                        copies = 0 if self._forgets(count) else 2 if self._repeats(count) else 1
                        count += 1
                        with self._lock:
                            self.lost += copies == 0
                            self.repeated += copies == 2
                    passed += packet * copies
                target.sendall(passed)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
