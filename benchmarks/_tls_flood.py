"""Handshakes without end, from a process of its own.

    python -m benchmarks._tls_flood PORT CA_FILE KIND SECONDS

Of the kind "full" each is completed, by 16 clients; of the kind "hello" a ClientHello is sent and not
followed up, and the connection is reset some hundred later. Prints how many there were.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Final

_CLIENTS: Final = 16
_HELD: Final = 500
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


def full(port: int, context: ssl.SSLContext, end_s: float) -> int:
    """How many handshakes were completed."""

    def client(_: int) -> int:
        count = 0
        while time.monotonic() < end_s:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port)) as raw,
                context.wrap_socket(raw, server_hostname="localhost"),
            ):
                count += 1
        return count

    with ThreadPoolExecutor(_CLIENTS) as threads:
        return sum(threads.map(client, range(_CLIENTS)))


def hello(port: int, context: ssl.SSLContext, end_s: float) -> int:
    """How many were begun."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    record = outgoing.read()
    held: deque[socket.socket] = deque()
    count = 0
    while time.monotonic() < end_s:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        with contextlib.suppress(OSError):
            raw.connect(("127.0.0.1", port))
            raw.sendall(record)
            count += 1
        held.append(raw)
        if len(held) > _HELD:
            held.popleft().close()
    for raw in held:
        raw.close()
    return count


if __name__ == "__main__":
    _, port, ca_file, kind, seconds = sys.argv
    flood = {"full": full, "hello": hello}[kind]
    trusting = ssl.create_default_context(cafile=ca_file)
    print(flood(int(port), trusting, time.monotonic() + float(seconds)))
