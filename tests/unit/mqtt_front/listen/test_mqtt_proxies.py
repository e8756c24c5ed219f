"""MQTT behind load balancers that say whose a connection is: the PROXY protocol on every transport."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from certificates import Certificate, make_certificate, make_root
from eventually import soon
from fake_gateway import RawClient, connect_packet
from front_metrics import number_at
from listener_site import config, directory_for_sockets
from listener_site import running as running_with

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.listen.proxy_header import SIGNATURE
from iotmq.mqtt_front.server import MqttFront

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there")

CONNACK = (packets.CONNACK << 4, b"\0\0")
LINE = b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n"
IPV4 = bytes([192, 0, 2, 1, 198, 51, 100, 2]) + struct.pack(">HH", 56324, 443)


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack(">BH", kind, len(value)) + value


def block(*rest: bytes, command: int = 0x21, kind: int = 0x11) -> bytes:
    body = b"".join(rest)
    return SIGNATURE + struct.pack(">BBH", command, kind, len(body)) + body


VERIFIED = tlv(0x20, struct.pack(">BI", 7, 0) + tlv(0x22, b"device-7"))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Certificate, Certificate]:
    directory = tmp_path_factory.mktemp("certificates")
    root = make_root(directory)
    return root, make_certificate(directory, root)


@pytest.fixture
def directory() -> Iterator[Path]:
    with directory_for_sockets() as directory:
        yield directory


def listener(transport: str = "tcp", **more: Any) -> dict[str, Any]:
    return {"name": "behind", "transport": transport, "proxy_protocol": True, **more}


def running(*listeners: dict[str, Any], **mqtt: Any) -> AbstractAsyncContextManager[MqttFront]:
    return running_with(*listeners, allow_anonymous_remote=True, **mqtt)


async def raw_connection(front: MqttFront) -> socket.socket:
    address = front.addresses["behind"]
    raw = socket.socket(socket.AF_UNIX if address.startswith("/") else socket.AF_INET)
    raw.setblocking(False)
    target = address if address.startswith("/") else ("127.0.0.1", int(address.rpartition(":")[2]))
    await asyncio.get_running_loop().sock_connect(raw, target)
    return raw


async def on(raw: socket.socket) -> RawClient:
    """A client of packets on a connection that has said something already."""
    dialled = asyncio.open_unix_connection if raw.family == socket.AF_UNIX else asyncio.open_connection
    return RawClient(*await dialled(sock=raw))


async def dial(front: MqttFront, *chunks: bytes) -> RawClient:
    """The chunks one by one, each in the front end's hands before the next."""
    raw = await raw_connection(front)
    for chunk in chunks:
        await asyncio.get_running_loop().sock_sendall(raw, chunk)
        if len(chunks) > 1:
            await asyncio.sleep(0)
    return await on(raw)


async def end_of(client: RawClient) -> bytes:
    return await client.rest()


def device_of(front: MqttFront, client_id: str = "d") -> Device:
    (device,) = [device for device in front.parts.sessions.devices() if device.client_id == client_id]
    return device


def address_of(front: MqttFront) -> str | None:
    device = device_of(front)
    return device.peer.address_on(device.transport)


def value(front: MqttFront, name: str, **labels: str) -> float:
    return number_at(front, "behind", name, **labels)


def not_arrived(front: MqttFront, reason: str) -> float:
    return value(front, "not_arrived_total", reason=reason)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"proxy_trusted": ["10.0.0.1/8"]}, "proxy_trusted: 10.0.0.1/8 has host bits set"),
        ({"proxy_trusted": ["example.org"]}, "proxy_trusted: 'example.org' does not appear"),
        ({"proxy_trusted": []}, r"listeners\[0\]\.proxy_trusted"),
        ({"proxy_trusted": ["::/0"] * (limits.PROXY_NETWORKS_MAX + 1)}, r"listeners\[0\]\.proxy_trusted"),
        ({"proxy_protocol": False, "proxy_identity_trusted": True}, "means nothing without proxy_protocol"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(listener() | settings)


def test_settings_at_their_limit() -> None:
    networks = ["::/0"] * limits.PROXY_NETWORKS_MAX
    assert config(listener(proxy_trusted=networks), allow_anonymous_remote=True)


@pytest.mark.parametrize("header", [LINE, block(IPV4)], ids=["line", "block"])
@pytest.mark.parametrize("way", ["at once", "header first", "byte by byte", "all bytes"])
async def test_a_header_then_mqtt(header: bytes, way: str) -> None:
    chunks = {
        "at once": [header + connect_packet("d")],
        "header first": [header, connect_packet("d")],
        "byte by byte": [*(header[at : at + 1] for at in range(len(header))), connect_packet("d")],
        "all bytes": [bytes([byte]) for byte in header + connect_packet("d")],
    }[way]
    async with running(listener()) as front:
        client = await dial(front, *chunks)
        assert await client.packet() == CONNACK
        assert device_of(front).peer.address == "192.0.2.1"
        assert address_of(front) == "192.0.2.1"
        assert value(front, "connections") == 1
        assert value(front, "arriving") == 0
        await client.ping()


@pytest.mark.parametrize(
    "header",
    [
        block(command=0x20, kind=0),
        block(IPV4, command=0x20),
        b"PROXY UNKNOWN\r\n",
        block(bytes(216), kind=0x31),
    ],
)
async def test_where_a_proxy_does_not_say_whose_it_is_the_socket_counts(header: bytes) -> None:
    async with running(listener()) as front:
        client = await dial(front, header + connect_packet("d"))
        assert await client.packet() == CONNACK
        assert device_of(front).peer.address is None
        assert address_of(front) == "127.0.0.1"
        client.close()


async def test_behind_a_unix_socket(directory: Path) -> None:
    there = listener("unix", socket_path=str(directory / "s"), proxy_trusted=["192.0.2.99/32"])
    async with running(there) as front:
        for count, header in enumerate((LINE, block(IPV4), b"PROXY UNKNOWN\r\n"), 1):
            client = await dial(front, header + connect_packet("d"))
            assert await client.packet() == CONNACK
            assert address_of(front) == (None if count == 3 else "192.0.2.1")
            client.close()
            await soon(lambda: value(front, "connections") == 0, "its end is seen")


@pytest.mark.parametrize("way", ["at once", "apart"])
async def test_before_tls(certificates: tuple[Certificate, Certificate], way: str) -> None:
    root, own = certificates
    shown = [{"certificate_file": own.certificate, "key_file": own.key}]
    async with running(listener("tls", certificates=shown)) as front:

        def talk() -> bytes:
            context = ssl.create_default_context(cafile=root.certificate)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            encrypted = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            port = int(front.addresses["behind"].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), 10) as raw:
                if way == "apart":
                    raw.sendall(block(IPV4))
                waiting = [encrypted.do_handshake, lambda: encrypted.write(connect_packet("d")), None]
                found = b""
                before = block(IPV4) if way == "at once" else b""
                while not found:
                    try:
                        if waiting[0] is None:
                            found = encrypted.read(100)
                        else:
                            waiting[0]()
                            waiting.pop(0)
                    except ssl.SSLWantReadError:
                        raw.sendall(before + outgoing.read())
                        before = b""
                        incoming.write(raw.recv(65_536))
                asyncio.run_coroutine_threadsafe(look(), loop).result(10)
                return found

        async def look() -> None:
            assert device_of(front).peer.address == "192.0.2.1"

        loop = asyncio.get_running_loop()
        assert await asyncio.to_thread(talk) == b"\x20\x02\0\0"


async def test_before_a_websocket() -> None:
    request = (
        b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    connect = connect_packet("d")
    frame = bytes([0x82, 0x80 | len(connect)]) + bytes(4) + connect
    async with running(listener("ws", allowed_origins=["*"])) as front:
        raw = await raw_connection(front)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(raw, LINE + request)
        found = b""
        async with asyncio.timeout(10):
            while b"\r\n\r\n" not in found:
                found += await loop.sock_recv(raw, 1_000)
            assert found.startswith(b"HTTP/1.1 101 ")
            await loop.sock_sendall(raw, frame)
            assert (await loop.sock_recv(raw, 100)).endswith(b"\x20\x02\0\0")
        assert device_of(front).peer.address == "192.0.2.1"
        raw.close()


async def test_what_a_proxy_knows_is_known_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    header = block(IPV4, tlv(2, b"mqtt.example.org"), tlv(5, b"C0FFEE-1"), VERIFIED)
    async with running(listener(proxy_identity_trusted=True, client_identity_is_user=True)) as front:
        client = await dial(front, header + connect_packet("d"))
        assert await client.packet() == CONNACK
        peer = device_of(front).peer
        assert peer.certificate_identity == "device-7"
        assert peer.is_certificate_user
        client.send(connect_packet("d"))  # a second CONNECT
        assert await end_of(client) == b""
        await soon(lambda: value(front, "connections") == 0, "it is over")
    fields = caplog.records[-1].__dict__
    assert fields["peer"] == "192.0.2.1"
    assert fields["server_name"] == "mqtt.example.org"
    assert fields["proxy_id"] == "C0FFEE-1"
    assert fields["identity"] == "device-7"


async def test_a_log_line_about_bad_input_has_the_address_without_a_proxy_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as front:
        client = await RawClient.connect(front.port, "d")
        client.send(connect_packet("d"))
        assert await end_of(client) == b""
        await soon(lambda: not list(front.parts.sessions.devices()), "it is over")
    assert caplog.records[-1].__dict__["peer"] == "127.0.0.1"


async def test_an_identity_counts_only_where_it_is_to_be_trusted() -> None:
    async with running(listener()) as front:
        client = await dial(front, block(IPV4, VERIFIED) + connect_packet("d"))
        assert await client.packet() == CONNACK
        assert device_of(front).peer.certificate_identity is None
        client.close()
    unverified = tlv(0x20, struct.pack(">BI", 7, 19) + tlv(0x22, b"device-7"))
    async with running(listener(proxy_identity_trusted=True, client_identity_is_user=True)) as front:
        client = await dial(front, block(IPV4, unverified) + connect_packet("d"))
        assert await client.packet() == (packets.CONNACK << 4, b"\0\5")
        client.close()
    asks_nobody = listener(proxy_identity_trusted=True, client_identity_is_user=True, chain=["anonymous"])
    async with running(asks_nobody) as front:
        client = await dial(front, block(IPV4, unverified) + connect_packet("d"))
        assert await client.packet() == CONNACK
        assert device_of(front).peer.certificate_identity is None
        assert device_of(front).user is device_of(front).identity is None
        client.close()


@pytest.mark.parametrize(
    "bytes_sent",
    [
        connect_packet("d"),
        b"PROXY TCP4 192.0.2.1\r\n",
        block(IPV4, command=0x22),
        block(IPV4, tlv(3, bytes(4))),
        block(bytes(limits.PROXY_HEADER_BYTES_MAX - 15)),
        b"PROXY UNKNOWN " + b"x" * 200,
    ],
)
async def test_what_is_no_header_is_closed_and_counted(bytes_sent: bytes) -> None:
    async with running(listener()) as front:
        old = await dial(front, LINE + connect_packet("old"))
        assert await old.packet() == CONNACK
        for count in (1, 2):
            client = await dial(front, bytes_sent)
            assert await end_of(client) == b""
            assert not_arrived(front, "proxy_header") == count
        await old.ping()


async def test_others_than_the_trusted_proxies_are_closed_and_counted() -> None:
    async with running(listener(proxy_trusted=["192.0.2.0/24", "2001:db8::/32"])) as front:
        client = await dial(front)
        assert await end_of(client) == b""
        assert not_arrived(front, "untrusted_proxy") == 1


async def test_a_proxy_of_ipv4_at_a_port_of_ipv6_is_the_same_proxy() -> None:
    there = listener(listen_host="::ffff:127.0.0.1", proxy_trusted=["127.0.0.1/32"])
    async with running(there) as front:
        client = await dial(front, LINE + connect_packet("d"))
        assert await client.packet() == CONNACK
        client.close()


@pytest.mark.parametrize("begun", [b"", b"PROXY TCP4 ", block(IPV4)[:-1]])
async def test_a_header_has_its_time(begun: bytes) -> None:
    async with running(listener(handshake_timeout_s=0.1)) as front:
        client = await dial(front, begun)
        assert await end_of(client) == b""
        assert not_arrived(front, "timeout") == 1
        assert value(front, "arriving") == 0


@pytest.mark.parametrize("begun", [b"", b"PROXY TCP4 ", LINE])
async def test_those_who_leave_are_forgotten(begun: bytes) -> None:
    async with running(listener()) as front:
        (await dial(front, begun)).abort()
        await soon(lambda: value(front, "arriving") + value(front, "connections") == 0, "nothing is left")
        client = await dial(front, LINE + connect_packet("d"))
        assert await client.packet() == CONNACK
        client.close()


async def test_connections_without_a_header_count_among_the_connections() -> None:
    async with running(listener(), connections_max=2) as front:
        silent = [await dial(front) for _ in range(2)]
        await soon(lambda: value(front, "arriving") == 2, "they are accepted")
        assert await end_of(await dial(front)) == b""
        assert not_arrived(front, "room") == 1
        for client in silent:
            client.close()
        await soon(lambda: value(front, "arriving") == 0, "their end is seen")
        client = await dial(front, LINE + connect_packet("d"))
        assert await client.packet() == CONNACK
        client.close()
