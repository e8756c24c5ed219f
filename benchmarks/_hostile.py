"""Hostile connections to a gateway, from a process of its own.

    python -m benchmarks._hostile PORT CONNECTIONS ADDRESSES

A quarter each: `half-open` says nothing or begins a CONNECT and stops; `guessing` tries passwords; `slow` has
an account, and sends a packet of 1 MB byte by byte; `flooding` has one, too, and publishes as fast as it is
read. They come from 127.1.0.1 and further addresses. Who is closed comes back a second later. Prints a line
of JSON when all have tried once, and one at the end of its input.
"""

from __future__ import annotations

import errno
import heapq
import json
import os
import selectors
import socket
import sys
import time
from collections import Counter
from typing import Final

from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect

KINDS: Final = ("half-open", "guessing", "slow", "flooding")
PASSWORD: Final = b"hostile"
_PAUSE_S: Final = 1.0
_DRIP_S: Final = 1.0
_FLOOD: Final = packets.encode_publish("devices/hostile/flood", b"x" * 50, qos=0, packet_id=0) * 200
_LARGE: Final = packets.encode_publish("devices/hostile/slow", b"x" * 1_000_000, qos=0, packet_id=0)[:1_000]


class Attacker:
    """One connection, again and again."""

    def __init__(self, number: int, port: int, addresses: int) -> None:
        self.number = number
        self.kind = KINDS[number % len(KINDS)]
        self.port = port
        place = number % addresses
        self.address = f"127.1.{place >> 8}.{(place & 255) + 1}"
        self.socket: socket.socket | None = None
        self.rest = b""
        self.dripped = 0
        self.is_open = False

    def dial(self) -> socket.socket | None:
        connection = socket.socket()
        connection.setblocking(False)
        try:
            connection.bind((self.address, 0))
            if connection.connect_ex(("127.0.0.1", self.port)) not in (0, errno.EINPROGRESS):
                raise OSError
        except OSError:
            connection.close()
            return None
        self.socket = connection
        self.is_open = False
        self.dripped = 0
        self.rest = self._greeting()
        return connection

    def _greeting(self) -> bytes:
        password = PASSWORD if self.kind in ("slow", "flooding") else b"guess %d" % time.monotonic_ns()
        whole = packets.encode_connect(Connect(f"hostile-{self.number}", True, 60, None, "hostile", password))
        if self.kind == "half-open":
            return whole[: self.number % 5]
        return whole


class Attack:
    def __init__(self, port: int, connections: int, addresses: int) -> None:
        self.attackers = [Attacker(number, port, addresses) for number in range(connections)]
        self.selector = selectors.EpollSelector()
        self.due: list[tuple[float, int, str]] = []
        self.counts: Counter[str] = Counter()
        now_s = time.monotonic()
        for attacker in self.attackers:
            # All of them within two seconds.
            heapq.heappush(self.due, (now_s + 2 * attacker.number / connections, attacker.number, "dial"))

    def run(self) -> None:
        os.set_blocking(sys.stdin.fileno(), False)
        self.selector.register(sys.stdin, selectors.EVENT_READ, None)
        begins_s = time.monotonic()
        is_told = False
        while True:
            now_s = time.monotonic()
            if not is_told and now_s - begins_s > 4:
                is_told = True
                print(json.dumps(self.counts), flush=True)
            while self.due and self.due[0][0] <= now_s:
                _, number, what = heapq.heappop(self.due)
                self._do(self.attackers[number], what, now_s)
            pause_s = min(0.2, max(0.0, self.due[0][0] - now_s)) if self.due else 0.2
            for key, mask in self.selector.select(pause_s):
                if key.data is None:
                    print(json.dumps(self.counts), flush=True)
                    return
                self._ready(key.data, mask)

    def _do(self, attacker: Attacker, what: str, now_s: float) -> None:
        if what == "dial":
            connection = attacker.dial()
            if connection is None:
                heapq.heappush(self.due, (now_s + _PAUSE_S, attacker.number, "dial"))
            else:
                self.counts["dialled"] += 1
                self.selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, attacker)
        elif attacker.socket is not None and attacker.is_open:
            if attacker.kind == "slow" and attacker.dripped < len(_LARGE):
                attacker.rest += _LARGE[attacker.dripped : attacker.dripped + 1]
                attacker.dripped += 1
                heapq.heappush(self.due, (now_s + _DRIP_S, attacker.number, "drip"))
            elif attacker.kind == "flooding":
                attacker.rest = attacker.rest or _FLOOD
            self._write(attacker)

    def _ready(self, attacker: Attacker, mask: int) -> None:
        assert attacker.socket is not None
        if mask & selectors.EVENT_READ:
            try:
                got = attacker.socket.recv(4_096)
            except BlockingIOError:
                got = b"?"
            except OSError:
                got = b""
            if not got:
                self._lost(attacker)
                return
            if not attacker.is_open and got[:1] == b"\x20" and got[3:4] == b"\0":
                attacker.is_open = True
                self.counts["let in"] += 1
                heapq.heappush(self.due, (time.monotonic(), attacker.number, "drip"))
        if mask & selectors.EVENT_WRITE:
            self._write(attacker)

    def _write(self, attacker: Attacker) -> None:
        assert attacker.socket is not None
        try:
            while attacker.rest:
                sent = attacker.socket.send(attacker.rest)
                self.counts["sent bytes"] += sent
                attacker.rest = attacker.rest[sent:]
                if not attacker.rest and attacker.is_open and attacker.kind == "flooding":
                    # As much again a tenth of a second later, if it is read.
                    heapq.heappush(self.due, (time.monotonic() + 0.1, attacker.number, "flood"))
        except BlockingIOError:
            self.selector.modify(attacker.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, attacker)
            return
        except OSError:
            self._lost(attacker)
            return
        self.selector.modify(attacker.socket, selectors.EVENT_READ, attacker)

    def _lost(self, attacker: Attacker) -> None:
        assert attacker.socket is not None
        self.selector.unregister(attacker.socket)
        attacker.socket.close()
        attacker.socket = None
        attacker.is_open = False
        self.counts["closed"] += 1
        heapq.heappush(self.due, (time.monotonic() + _PAUSE_S, attacker.number, "dial"))


if __name__ == "__main__":
    Attack(*(int(word) for word in sys.argv[1:4])).run()
