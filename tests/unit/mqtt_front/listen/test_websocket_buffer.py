"""How much memory a WebSocket is read into: picows' buffer, which doubles whenever it was filled."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from fake_gateway import Front, connect_packet
from picows.picows import WSProtocol
from websocket_peer import frame, request

from iotmq.mqtt.codec import packets
from iotmq.mqtt.server.publish_sink import CollectingSink
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.listen.websocket import WebSocketCounts, WebSocketProtocol
from iotmq.mqtt_front.listen.websocket_upgrade import UpgradeRules

RULES = UpgradeRules("/mqtt", frozenset(), is_subprotocol_required=True)


class Transport:
    """One that never has anything to write left."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.is_reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket if name == "socket" else default

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class Reading:
    """A connection that is given bytes as fast as it has room for them."""

    def __init__(self, connection: socket.socket, packet_bytes_max: int) -> None:
        self.sink = CollectingSink()
        self.front = Front(self.sink, packet_bytes_max=packet_bytes_max)
        device = Device(self.front.group, self.front.settings)
        self.protocol = WebSocketProtocol(device, RULES, WebSocketCounts())
        self.transport = Transport(connection)
        self.protocol.connection_made(self.transport)  # type: ignore[arg-type]
        self.largest_read = 0

    def take(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            buffer = memoryview(self.protocol.get_buffer(-1))
            size = min(len(buffer), len(data) - at)
            buffer[:size] = data[at : at + size]
            self.protocol.buffer_updated(size)
            self.largest_read = max(self.largest_read, size)
            at += size
            self.front.loop.run()

    @property
    def buffer_bytes(self) -> int:
        """Of picows' buffer, which is empty."""
        return len(WSProtocol.get_buffer(self.protocol, -1))


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        yield accepted


async def test_small_frames_without_end(connection: socket.socket) -> None:
    reading = Reading(connection, packet_bytes_max=1024 * 1024)
    reading.take(request())
    assert reading.buffer_bytes < 2_048, "of one that does nothing"
    reading.take(frame(connect_packet("d")))
    message = frame(packets.encode_publish("t", b"m" * 100, qos=0))
    reading.take(message * 20_000)
    assert reading.transport.is_reading
    assert 14 * 1024 < reading.buffer_bytes < 29 * 1024
    assert len(reading.sink.published) == 20_000


@pytest.mark.parametrize("size", [20_000, 100_000, 500_000, 1_000_000])
async def test_large_frames(connection: socket.socket, size: int) -> None:
    reading = Reading(connection, packet_bytes_max=1024 * 1024)
    reading.take(request() + frame(connect_packet("d")))
    message = frame(packets.encode_publish("t", b"m" * size, qos=0))
    for _ in range(5):
        reading.take(message)
    assert size < reading.buffer_bytes < max(3.1 * size, 64 * 1024)
    reading.take(message * 5)
    assert reading.buffer_bytes < max(3.1 * size, 64 * 1024)
    assert len(reading.sink.published) == 10


async def test_a_read_is_no_more_than_the_share_of_a_turn(connection: socket.socket) -> None:
    reading = Reading(connection, packet_bytes_max=1024 * 1024)
    reading.take(request() + frame(connect_packet("d")))
    message = frame(packets.encode_publish("t", b"m" * 900_000, qos=0))
    reading.take(message * 3)
    assert reading.largest_read <= 256 * 1024
