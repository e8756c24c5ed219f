"""A server that does what a script says for each connection, and the packets scripts are made of."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loadtest.swarm import STAMP_BYTES

CONNACK = b"\x20\x02\x00\x00"
SUBACK = b"\x90\x03\x00\x01\x01"
STAMP_MAGIC = 0x53574D31


class Peer:
    """The server's side of one accepted connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.held = b""

    def packet(self) -> bytes:
        """The next whole packet; b"" at the end of the stream."""
        while True:
            size = packet_size(self.held)
            if size is not None and len(self.held) >= size:
                packet, self.held = self.held[:size], self.held[size:]
                return packet
            data = self.socket.recv(65_536)
            if not data:
                return b""
            self.held += data

    def greet(self) -> None:
        assert self.packet()[:1] == b"\x10"
        self.socket.sendall(CONNACK)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)


@contextmanager
def scripted(script: Callable[[Peer], None], connections: int = 1) -> Iterator[int]:
    """A server that runs the script for each connection; yields its port, re-raises what a script raised."""
    failures: list[BaseException] = []
    sockets: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        try:
            script(Peer(connection))
        except OSError:
            pass
        except BaseException as error:
            failures.append(error)

    def accept() -> None:
        threads = []
        for _ in range(connections):
            try:
                connection = listener.accept()[0]
            except OSError:
                break
            sockets.append(connection)
            threads.append(threading.Thread(target=serve, args=(connection,)))
            threads[-1].start()
        for thread in threads:
            thread.join(10)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield listener.getsockname()[1]
        finally:
            # The swarm is closed by now, so scripts come to the end of their streams.
            acceptor.join(20)
            for one in sockets:
                one.close()
    if failures:
        raise failures[0]


def parse_publish(packet: bytes) -> tuple[int, bytes, bytes]:
    """(packet id, topic, payload); the id is 0 for QoS 0."""
    at = 1
    while packet[at] >= 0x80:
        at += 1
    at += 1
    size = int.from_bytes(packet[at : at + 2], "big")
    topic, at = packet[at + 2 : at + 2 + size], at + 2 + size
    if packet[0] & 6:
        return int.from_bytes(packet[at : at + 2], "big"), topic, packet[at + 2 :]
    return 0, topic, packet[at:]


def puback(packet_id: int) -> bytes:
    return b"\x40\x02" + packet_id.to_bytes(2, "big")


def stamped(publisher: int, sequence: int, time_ns: int, size: int = STAMP_BYTES) -> bytes:
    return struct.pack(">IIQQ", STAMP_MAGIC, publisher, sequence, time_ns).ljust(size, b"x")


def publish_packet(payload: bytes, *, qos: int = 0, packet_id: int = 7) -> bytes:
    body = b"\x00\x01t" + (packet_id.to_bytes(2, "big") if qos else b"") + payload
    size, length = len(body), b""
    while True:
        size, digit = divmod(size, 128)
        length += bytes([digit | (0x80 if size else 0)])
        if not size:
            return bytes([0x30 | qos << 1]) + length + body


def packet_size(data: bytes) -> int | None:
    """The bytes of the packet at the beginning, once its header is there."""
    remaining, shift = 0, 0
    for at, digit in enumerate(data[1:5], start=1):
        remaining |= (digit & 0x7F) << shift
        if digit < 0x80:
            return at + 1 + remaining
        shift += 7
    return None
