"""What comes to an open port that should not, and a way to send it: for tests of bad input and fuzzing."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import time

# What scanners, browsers and misconfigured clients say first.
TLS_HELLO = bytes.fromhex(
    "16030100ba010000b603035ab1c6f09b4f6c5d2f3e4a5b6c7d8e9fa0b1c2d3e4f5061728394a5b6c7d8e9f20"
) + bytes(range(140))
STRANGERS = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "tls": TLS_HELLO,
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "redis": b"*1\r\n$4\r\nPING\r\n",
    "newlines": b"\r\n" * 200,
    "zeros": bytes(4_000),
    "ones": b"\xff" * 4_000,
    "noise": random.Random(1).randbytes(4_000),
}

CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01d"
CONNACK = b"\x20\x02\x00\x00"


def frame(header: bytes, body: bytes = b"", *, kind: int = 0) -> bytes:
    """A frame of the native protocol around any header bytes."""
    size = 4 + len(header) + len(body)
    return struct.pack(">IBBH", size, kind, len(header) >> 16, len(header) & 0xFFFF) + header + body


def request(
    code: int, fields: dict[str, object] | None = None, body: bytes = b"", *, opaque: int = 7
) -> bytes:
    """A request as a JSON frame."""
    header = {
        "code": code, "flag": 0, "language": "OTHER", "opaque": opaque, "version": 0,
        "extFields": fields or {},
    }  # fmt: skip
    return frame(json.dumps(header).encode(), body)


class Peer:
    """A plain connection that says what it likes and reads what comes back."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 5)
        self.received = b""
        self.is_closed = False
        """The other side ended it."""

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send; an end of the connection meanwhile is not an error here."""
        try:
            self._socket.sendall(data)
        except OSError:
            self.is_closed = True

    def finish(self) -> None:
        """Say that nothing more comes."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def read_until(self, size: int | None = None, *, within_s: float = 10.0) -> bytes:
        """What was received once there are `size` bytes, the other side ended, or the time is over."""
        deadline_s = time.monotonic() + within_s
        while not self.is_closed and (size is None or len(self.received) < size):
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                break
            self._socket.settimeout(remaining_s)
            try:
                data = self._socket.recv(65_536)
            except TimeoutError:
                break
            except OSError:
                data = b""
            if not data:
                self.is_closed = True
            self.received += data
        return self.received


def answers_of(data: bytes) -> list[dict[str, object]]:
    """The headers of all whole frames in `data`."""
    headers: list[dict[str, object]] = []
    while len(data) >= 8:
        size, _kind, high, low = struct.unpack_from(">IBBH", data)
        if len(data) < 4 + size:
            break
        headers.append(json.loads(data[8 : 8 + (high << 16 | low)]))
        data = data[4 + size :]
    return headers
