"""The load engine in WebSockets: against a front end, and against servers with frames of their own making."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import uvloop
from fake_gateway import ScriptedGateway

from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.settings.listeners import ListenerSettings
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from loadtest.swarm import Plan, Swarm, SwarmError

GRANTED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
CONNACK = b"\x20\x02\x00\x00"


@contextmanager
def front_end() -> Iterator[int]:
    """A front end that stores nothing and acknowledges all, in a thread; the port of its WebSockets."""
    loop = uvloop.new_event_loop()
    gateway = ScriptedGateway()
    gateway.automatic = 0
    listener = ListenerSettings(name="web", transport="ws")
    front = MqttFront(MqttSettings(listen_port=0, listeners=(listener,)), gateway)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(front.start(), loop).result(10)
        yield int(front.addresses["web"].rpartition(":")[2])
        asyncio.run_coroutine_threadsafe(front.stop(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@contextmanager
def scripted(script: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that runs the script for one connection; its port."""

    def serve() -> None:
        connection = listener.accept()[0]
        with connection:
            connection.settimeout(10)
            script(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def received(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        data = connection.recv(size - len(found))
        assert data, f"the end came after {found!r}"
        found += data
    return found


def asked(connection: socket.socket) -> bytes:
    """The request for a WebSocket."""
    found = b""
    while not found.endswith(b"\r\n\r\n"):
        found += received(connection, 1)
    return found


@pytest.mark.parametrize("payload_bytes", [30, 100, 200, 70_000])
def test_every_message_is_acknowledged_by_a_front_end(payload_bytes: int) -> None:
    """A message and its frame's header have lengths of one, two and eight bytes."""
    plan = Plan(
        publishers=3, idle=2, window=20, messages_max=200, payload_bytes=payload_bytes, websocket_path="/mqtt"
    )
    with front_end() as port, Swarm(replace(plan, port=port, seconds=20, warmup_s=0)) as swarm:
        swarm.connect()
        report = swarm.publish()
    assert report.counters["acknowledged"] == report.counters["published"] == 200
    assert report.violations == report.counters["lost"] == 0


def test_frames_of_a_server_may_be_cut_anywhere_and_have_pings_between() -> None:
    def script(connection: socket.socket) -> None:
        assert asked(connection).startswith(b"GET /here HTTP/1.1\r\n")
        whole = GRANTED + b"\x02\x01" + CONNACK[:1] + b"\x89\x02hi" + b"\x80\x7e\x00\x03" + CONNACK[1:]
        assert received_connect(connection, whole)
        header = received(connection, 6)
        assert header == b"\x82" + bytes([0x80 | 30 + 9]) + b"\0\0\0\0"
        assert received(connection, 39)[:2] == b"\x32\x25"
        for byte in b"\x82\x7f\0\0\0\0\0\0\0\x04" + b"\x40\x02\x00\x01":
            connection.sendall(bytes([byte]))
        # DISCONNECT, when the swarm goes.
        assert received(connection, 8) == b"\x82\x82\0\0\0\0\xe0\x00"

    def received_connect(connection: socket.socket, answer: bytes) -> bool:
        for at in range(len(GRANTED)):
            connection.sendall(answer[at : at + 1])
        first, size, *mask = received(connection, 6)
        assert (first, mask) == (0x82, [0, 0, 0, 0])
        connect = received(connection, size & 0x7F)
        connection.sendall(answer[len(GRANTED) :])
        return connect[:1] == b"\x10"

    plan = Plan(publishers=1, window=1, messages_max=1, topic="t/7", payload_bytes=30, websocket_path="/here")
    with scripted(script) as port:
        with Swarm(replace(plan, port=port, seconds=10, warmup_s=0)) as swarm:
            swarm.connect()
            report = swarm.publish()
        assert report.counters["acknowledged"] == 1
        assert report.violations == 0


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\n\r\n",
        GRANTED + b"\x82\x84\0\0\0\0" + CONNACK,  # masked
        GRANTED + b"\x81\x02hi",
        b"x" * 9_000,
    ],
)
def test_what_is_no_websocket_ends_the_connection(answer: bytes) -> None:
    def script(connection: socket.socket) -> None:
        asked(connection)
        connection.sendall(answer)
        while connection.recv(100):
            pass

    with scripted(script) as port:
        plan = Plan(idle=1, websocket_path="/mqtt", connect_timeout_s=10, port=port)
        with pytest.raises(SwarmError), Swarm(plan) as swarm:
            swarm.connect()
