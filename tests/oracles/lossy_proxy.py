"""A proxy for MQTT 3.1.1 that forgets some of the messages a server sends, and counts them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from scripted_server import parse_publish


class LossyProxy:
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
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
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

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(self._target)
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [client, server]
                for carry in ((self._carry, client, server), (self._carry_packets, server, client)):
                    thread = threading.Thread(target=carry[0], args=carry[1:])
                    self._threads.append(thread)
                    thread.start()

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
                while (size := _packet_size(held)) is not None and len(held) >= size:
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


def _packet_size(data: bytes) -> int | None:
    remaining, shift = 0, 0
    for at, digit in enumerate(data[1:5], start=1):
        remaining |= (digit & 0x7F) << shift
        if digit < 0x80:
            return at + 1 + remaining
        shift += 7
    return None
