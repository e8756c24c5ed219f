"""Plain connections on the front end's own epoll descriptor: many at once, full sockets, and how they end."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from eventually import soon
from fake_gateway import RawClient, ScriptedGateway, connect_packet

from iotmq.mqtt import reason_codes
from iotmq.mqtt.bans import Ban
from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.listen import listeners
from iotmq.mqtt_front.listen.listeners import _listen_tcp
from iotmq.mqtt_front.listen.sockets import SocketLink, Sockets
from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.settings.mqtt import MqttSettings

pytestmark = pytest.mark.uvloop

CONNACK = (packets.CONNACK << 4, b"\0\0")
# Past what one callback serves.
MANY = 600
PAYLOAD = bytes(1 << 20)
FLOOD_MESSAGES = 16
FLOOD_BYTES = FLOOD_MESSAGES * (1 + 3 + 2 + 1 + len(PAYLOAD))


@asynccontextmanager
async def running() -> AsyncIterator[MqttFront]:
    front = MqttFront(MqttSettings(listen_port=0, queued_bytes_max=1 << 26), ScriptedGateway())
    await front.start()
    try:
        yield front
    finally:
        await front.stop()


def devices(front: MqttFront) -> list[Device]:
    return list(front.parts.sessions.devices())


async def the_device(front: MqttFront) -> Device:
    await soon(lambda: len(front.parts.sessions) == 1, "it has its session")
    return devices(front)[0]


async def connected(front: MqttFront) -> tuple[RawClient, Device]:
    client = await RawClient.connect(front.port, "d")
    device = await the_device(front)
    assert isinstance(device.transport, SocketLink)
    return client, device


def flood(device: Device) -> None:
    """Have it sent more than sockets hold: FLOOD_BYTES."""
    for _ in range(FLOOD_MESSAGES):
        assert device.deliver_message(b"t", PAYLOAD, 0)
    device.after_answer()
    device.group.end_turn()
    assert device.is_write_paused


async def test_many_connections_in_one_turn() -> None:
    async with running() as front:
        clients = [await RawClient.dial(front.port) for _ in range(MANY)]
        for number, client in enumerate(clients):
            client.send(connect_packet(f"d{number}"))
        for client in clients:
            assert await client.packet() == CONNACK
        for client in clients:
            client.send(packets.PINGREQ_PACKET)
        for client in clients:
            assert await client.packet() == (packets.PINGRESP << 4, b"")


async def test_its_addresses() -> None:
    async with running() as front:
        client, device = await connected(front)
        transport = device.transport
        assert transport is not None
        assert transport.get_extra_info("sockname") == ("127.0.0.1", front.port)
        assert transport.get_extra_info("peername")[0] == "127.0.0.1"
        assert transport.get_extra_info("ssl_object", "none") == "none"
        client.close()
        await soon(lambda: not devices(front), "it is gone")
        assert transport.get_extra_info("peername") is None
        assert transport.is_closing()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")
async def test_an_address_of_ipv6() -> None:
    front = MqttFront(MqttSettings(listen_host="::1", listen_port=0), ScriptedGateway())
    await front.start()
    loop = asyncio.get_running_loop()
    try:
        with socket.socket(socket.AF_INET6) as peer, socket.socket(socket.AF_INET6) as banned:
            peer.setblocking(False)
            await loop.sock_connect(peer, ("::1", front.port))
            await loop.sock_sendall(peer, connect_packet("d"))
            device = await the_device(front)
            assert device.address == "::1"
            front.parts.guard.bans.put(Ban(kind="network", value="::/64"))
            banned.setblocking(False)
            await loop.sock_connect(banned, ("::1", front.port))
            assert await loop.sock_recv(banned, 1) == b""
    finally:
        await front.stop()


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_an_end_by_the_server(how: str) -> None:
    async with running() as front:
        client, device = await connected(front)
        assert device.transport is not None
        getattr(device.transport, how)()
        getattr(device.transport, how)()
        assert await client.rest() == b""
        await soon(lambda: device.transport is None, "the device was told")


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_an_end_by_the_device(how: str) -> None:
    async with running() as front:
        client, device = await connected(front)
        getattr(client, how)()
        await soon(lambda: device.transport is None, "the device was told")


async def test_a_peer_that_goes_while_it_is_not_read_is_noticed_when_it_is_read_again() -> None:
    async with running() as front:
        client, device = await connected(front)
        transport = device.transport
        assert transport is not None
        transport.pause_reading()
        assert not transport.is_reading()
        client.send(packets.PINGREQ_PACKET)
        client.abort()
        # Nobody is kept busy by what epoll says of it meanwhile.
        used_s = time.thread_time()
        await asyncio.sleep(0.3)
        assert time.thread_time() - used_s < 0.2
        assert device.transport is transport
        transport.resume_reading()
        await soon(lambda: device.transport is None, "the device was told")


async def test_what_comes_while_it_is_not_read_is_read_later() -> None:
    async with running() as front:
        client, device = await connected(front)
        assert device.transport is not None
        for is_seen in (False, True):
            device.transport.pause_reading()
            client.send(packets.PINGREQ_PACKET)
            if is_seen:
                await asyncio.sleep(0.05)
            device.transport.resume_reading()
            assert await client.packet() == (packets.PINGRESP << 4, b"")


async def test_a_full_socket_pauses_writing_and_loses_nothing() -> None:
    async with running() as front:
        peer = socket.create_connection(("127.0.0.1", front.port))
        peer.setblocking(False)
        peer.send(connect_packet("slow"))
        device = await the_device(front)
        transport = device.transport
        assert transport is not None
        flood(device)
        assert transport.get_write_buffer_size() > 65536
        device.close(reason_codes.KEEP_ALIVE_TIMEOUT)
        device.finish()
        assert transport.is_closing()
        received = await received_all(peer)
        assert received == 4 + FLOOD_BYTES
        await soon(lambda: device.transport is None, "the device was told")


async def received_all(peer: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    total = 0
    while data := await loop.sock_recv(peer, 1 << 20):
        total += len(data)
    peer.close()
    return total


async def test_a_slow_peer_is_written_to_again() -> None:
    async with running() as front:
        peer = socket.create_connection(("127.0.0.1", front.port))
        peer.setblocking(False)
        peer.send(connect_packet("slow"))
        device = await the_device(front)
        flood(device)
        loop = asyncio.get_running_loop()
        left = 4 + FLOOD_BYTES
        while left:
            left -= len(await loop.sock_recv(peer, 1 << 20))
        await soon(lambda: not device.is_write_paused, "it may write again")
        peer.send(packets.PINGREQ_PACKET)
        assert await loop.sock_recv(peer, 100) == packets.PINGRESP_PACKET
        peer.close()


async def test_what_a_slow_peer_has_taken_holds_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is always something for it that waits; its buffer stays as small as that."""

    def listen_with_little_room(*arguments: Any, **options: Any) -> socket.socket:
        listener = _listen_tcp(*arguments, **options)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        return listener

    monkeypatch.setattr(listeners, "_listen_tcp", listen_with_little_room)
    payload, total = bytes(8_000), 8 << 20
    async with running() as front:
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        peer.connect(("127.0.0.1", front.port))
        peer.setblocking(False)
        peer.send(connect_packet("slow"))
        device = await the_device(front)
        transport = device.transport
        assert isinstance(transport, SocketLink)
        loop = asyncio.get_running_loop()
        sent, received = 4, 0
        while sent < total:
            if device.is_write_paused:
                received += len(await loop.sock_recv(peer, 4_096))
                continue
            assert device.deliver_message(b"t", payload, 0)
            device.after_answer()
            device.group.end_turn()
            sent += 1 + 2 + 2 + 1 + len(payload)
        assert transport.buffer_bytes <= 4 * 65_536
        while received < sent:
            received += len(await loop.sock_recv(peer, 65_536))
        assert received == sent
        peer.close()


async def test_a_peer_that_resets_a_full_socket() -> None:
    async with running() as front:
        peer = socket.create_connection(("127.0.0.1", front.port))
        peer.send(connect_packet("slow"))
        device = await the_device(front)
        flood(device)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        await soon(lambda: device.transport is None, "the device was told")


async def test_no_more_files(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is accepted for a second, and then again; who is connected does not notice."""
    async with running() as front:
        client, _ = await connected(front)
        with socket.socket() as waiting:
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (used_files(), limits[1]))
            try:
                waiting.connect(("127.0.0.1", front.port))
                await soon(lambda: "cannot be accepted" in caplog.text, "it is said")
                await client.ping()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert vars(caplog.records[-1])["detail"] == os.strerror(errno.EMFILE)
            waiting.send(connect_packet("later"))
            await soon(lambda: len(devices(front)) == 2, "it is accepted")


def used_files() -> int:
    """The lowest number that is no open file's: with it as the limit there is no other one."""
    free = os.dup(0)
    os.close(free)
    return free


async def test_a_device_that_fails_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async with running() as front:
        good, _ = await connected(front)
        bad = await RawClient.dial(front.port)
        front.device_events, kept = fail, front.device_events  # type: ignore[method-assign]
        bad.send(connect_packet("bad"))
        assert await bad.rest() == b""
        front.device_events = kept  # type: ignore[method-assign]
        await good.ping()
        assert "background work failed" in caplog.text


async def test_a_connection_that_gets_no_device_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Device:
        raise ZeroDivisionError

    sockets = Sockets(asyncio.get_running_loop())
    listener = _listen_tcp("127.0.0.1", 0, is_shared=False)
    sockets.listen(listener, fail)
    peers = [await RawClient.dial(listener.getsockname()[1]) for _ in range(3)]
    for peer in peers:
        assert await peer.rest() == b""
    assert sockets.count == 0
    assert "background work failed" in caplog.text
    sockets.close()


def test_connections_have_what_their_listener_has() -> None:
    with (
        _listen_tcp("127.0.0.1", 0, is_shared=False) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
