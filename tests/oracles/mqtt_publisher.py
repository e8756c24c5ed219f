"""A small MQTT 3.1.1 publisher that knows at every moment what it sent and what was acknowledged.

It publishes numbered messages with QoS 1 to one topic, some unacknowledged at a time. When its connection
ends it connects again and sends again, in order, what was not acknowledged.
"""

from __future__ import annotations

import asyncio
import struct
from collections import OrderedDict

RETRY_S = 0.05
CONNECT_S = 5.0


class Publisher:
    """Publishes `NAME-0`, `NAME-1`, ... to `topic` from `run` until `stop_after` numbers are acknowledged."""

    def __init__(
        self, port: int, name: str, topic: str, *, window: int = 20, padding: int = 0, pause_s: float = 0.0
    ) -> None:
        """With a pause, it comes after each window, which is acknowledged as a whole then."""
        self.name = name
        self.topic = topic
        self._port = port
        self._window = window
        self._pause_s = pause_s
        self._padding = b"." * padding
        self._next_number = 0
        self._stop_after: int | None = None
        # Packet id -> number, in the order of sending.
        self._unacknowledged: OrderedDict[int, int] = OrderedDict()
        self._writer: asyncio.StreamWriter | None = None
        self.acknowledged: list[int] = []
        """Numbers in the order of their PUBACKs."""
        self.resent: dict[int, int] = {}
        """Number -> how often it was sent again."""
        self.connections = 0

    @property
    def sent_count(self) -> int:
        return self._next_number

    @property
    def unacknowledged_count(self) -> int:
        return len(self._unacknowledged)

    def body(self, number: int) -> bytes:
        return f"{self.name}-{number}".encode() + self._padding

    def finish(self) -> None:
        """Publish nothing new; `run` returns when everything is acknowledged."""
        self._stop_after = self._next_number

    @property
    def _is_done(self) -> bool:
        return self._stop_after is not None and not self._unacknowledged

    async def run(self) -> None:
        """Until `finish` was called and the last PUBACK is there, over any number of connections."""
        while not self._is_done:
            try:
                async with asyncio.timeout(CONNECT_S):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                    self._writer = writer
                    writer.write(_connect(self.name))
                    if await reader.readexactly(4) != b"\x20\x02\x00\x00":
                        raise ConnectionError("CONNACK refuses")
                self.connections += 1
                await self._publish(reader, writer)
            except (OSError, EOFError, TimeoutError):
                await asyncio.sleep(RETRY_S)
            finally:
                if self._writer is not None:
                    self._writer.close()
                    self._writer = None

    async def _publish(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for packet_id, number in self._unacknowledged.items():
            self.resent[number] = self.resent.get(number, 0) + 1
            writer.write(self._packet(packet_id, number, is_duplicate=True))
        while not self._is_done:
            may_fill = self._stop_after is None and not (self._pause_s and self._unacknowledged)
            while may_fill and len(self._unacknowledged) < self._window:
                number = self._next_number
                self._next_number += 1
                packet_id = number % 65_535 + 1
                self._unacknowledged[packet_id] = number
                writer.write(self._packet(packet_id, number, is_duplicate=False))
            await writer.drain()
            head, size, packet_id = struct.unpack(">BBH", await reader.readexactly(4))
            assert (head, size) == (0x40, 2), f"not a PUBACK: {head:#x}"
            # PUBACKs come in the order of their PUBLISHes [MQTT-4.6.0-2].
            oldest, number = next(iter(self._unacknowledged.items()))
            assert packet_id == oldest, f"PUBACK {packet_id} before {oldest}"
            del self._unacknowledged[oldest]
            self.acknowledged.append(number)
            if self._pause_s and not self._unacknowledged:
                await asyncio.sleep(self._pause_s)
        writer.write(b"\xe0\x00")
        await writer.drain()

    def _packet(self, packet_id: int, number: int, *, is_duplicate: bool) -> bytes:
        topic = self.topic.encode()
        rest = struct.pack(">H", len(topic)) + topic + struct.pack(">H", packet_id) + self.body(number)
        return bytes([0x3A if is_duplicate else 0x32]) + remaining_length(len(rest)) + rest


def remaining_length(size: int) -> bytes:
    """Section 2.2.3 of the specification."""
    encoded = bytearray()
    while True:
        size, digit = divmod(size, 128)
        encoded.append(digit | (0x80 if size else 0))
        if not size:
            return bytes(encoded)


def _connect(client_id: str) -> bytes:
    name = client_id.encode()
    rest = b"\x00\x04MQTT\x04\x02\x00\x3c" + struct.pack(">H", len(name)) + name
    return b"\x10" + remaining_length(len(rest)) + rest
