"""MQTT in WebSockets by TLS: what is other than without."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from certificates import make_certificate, make_root
from eventually import soon
from fake_gateway import RawClient, connect_packet
from front_site import Site, running, tick_quickly
from websocket_peer import BINARY, PING, PONG, TEXT, WebSocketPeer, frame, request

from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.settings.listeners import CertificateSettings, ListenerSettings

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there")


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    tick_quickly(monkeypatch)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[ListenerSettings, str]:
    """A listener, and the file with the root of its certificate."""
    directory: Path = tmp_path_factory.mktemp("certificates")
    root = make_root(directory)
    shown = make_certificate(directory, root)
    certificate = CertificateSettings(certificate_file=shown.certificate, key_file=shown.key)
    return ListenerSettings(name="web", transport="wss", certificates=(certificate,)), root.certificate


@pytest.fixture
async def site(certified: tuple[ListenerSettings, str]) -> AsyncIterator[Site]:
    async with running(listeners=(certified[0],)) as site:
        site.gateway.automatic = 0
        yield site


@pytest.fixture
def trust(certified: tuple[ListenerSettings, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certified[1])
    context.check_hostname = False
    return context


def port(site: Site) -> int:
    return int(site.front.addresses["web"].rpartition(":")[2])


async def connected(site: Site, trust: ssl.SSLContext) -> tuple[WebSocketPeer, RawClient]:
    """With an open session."""
    peer = await WebSocketPeer.connect(port(site), tls=trust)
    client = peer.mqtt()
    client.send(connect_packet("d"))
    assert await client.packet() == (packets.CONNACK << 4, b"\0\0")
    return peer, client


async def test_messages_of_any_size_both_ways(site: Site, trust: ssl.SSLContext) -> None:
    _, client = await connected(site, trust)
    assert await client.subscribe(("t", 0)) == [0]
    for number, size in enumerate((0, 125, 126, 9_000, 65_535, 65_536, 95_000), 1):
        client.send(packets.encode_publish("p", b"m" * size, qos=1, packet_id=number))
        assert await client.puback() == number
        assert site.gateway.handed[-1].payloads == [b"m" * size]
        site.gateway.push("t", b"m" * size, "t", qos=0)
        site.gateway.push("t", b"small", "t", qos=0)
        assert await client.publish_received() == ("t", b"m" * size, 0)
        assert await client.publish_received() == ("t", b"small", 0)


async def test_the_request_and_frames_in_pieces_of_one_byte(site: Site, trust: ssl.SSLContext) -> None:
    peer = await WebSocketPeer.dial(port(site), trust)
    for byte in request() + frame(connect_packet("d")) + frame(b"p", opcode=PING):
        peer.send(bytes([byte]))
        await asyncio.sleep(0)
    assert (await peer.response())[0] == 101
    assert await peer.frame() == (BINARY, b"\x20\x02\0\0")
    assert await peer.frame() == (PONG, b"p")


async def test_refused_closed_and_stopped(site: Site, trust: ssl.SSLContext) -> None:
    refused = await WebSocketPeer.dial(port(site), trust)
    refused.send(request("/other"))
    assert (await refused.response())[0] == 404
    wrong, _ = await connected(site, trust)
    wrong.send(frame(b"text", opcode=TEXT))
    assert await wrong.closed() == 1003
    unmasked = await WebSocketPeer.connect(port(site), tls=trust)
    unmasked.send(frame(b"", mask=None))
    assert await unmasked.closed() == 1002
    await site.gone("websocket_error", 2)
    open_one, _ = await connected(site, trust)
    closed = asyncio.create_task(open_one.closed())
    await site.stop()
    assert await closed == 1001


async def test_a_subscriber_that_never_reads_has_bounded_memory(site: Site, trust: ssl.SSLContext) -> None:
    peer, client = await connected(site, trust)
    assert await client.subscribe(("t", 0)) == [0]
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    pushed = 0
    for _ in range(400):
        site.gateway.push("t", b"m" * 90_000, "t", qos=0)
        pushed += 1
        await asyncio.sleep(0)
    await soon(lambda: site.number("iotmq_mqtt_dropped_total") > 0, "some were dropped")
    peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
    dropped = int(site.number("iotmq_mqtt_dropped_total"))
    for _ in range(pushed - dropped):
        assert await client.publish_received() == ("t", b"m" * 90_000, 0)
    await client.ping()
