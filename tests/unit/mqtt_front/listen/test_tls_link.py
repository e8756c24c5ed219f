"""Connections by TLS on the front end's own sockets: records of every size, both ends, what peers may ask."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import shutil
import socket
import ssl
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from certificates import Certificate, make_certificate, make_root
from eventually import soon
from fake_gateway import RawClient, ScriptedGateway, connect_packet
from front_metrics import number_at
from listener_site import running

from iotmq import limits
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.listen import tls_link
from iotmq.mqtt_front.listen.own_handshakes import OwnHandshakes
from iotmq.mqtt_front.listen.tls_link import TlsLink
from iotmq.mqtt_front.server import MqttFront

pytestmark = [
    pytest.mark.uvloop,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there"),
    pytest.mark.skipif(not tls_link.can_shake_hands(), reason="this Python keeps its OpenSSL to itself"),
]

CONNACK = packets.encode_connack(session_present=False, code=0)
PUBLISHES = 3_000
# As tls_link.pyx has them: records that are read in one go, and those of them that may bring nothing.
READS_MAX = 256
IDLE_RECORDS_MAX = 32


class Files:
    """A root and the server's certificate, made once."""

    def __init__(self, directory: Path) -> None:
        self.root = make_root(directory)
        self.server = make_certificate(directory, self.root)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


def listener(certificate: Certificate, **more: Any) -> dict[str, Any]:
    shown = {"certificate_file": certificate.certificate, "key_file": certificate.key}
    return {"name": "safe", "transport": "tls", "certificates": [shown], **more}


def port_of(front: MqttFront) -> int:
    return int(front.addresses["safe"].rpartition(":")[2])


def devices_of(front: MqttFront) -> list[Device]:
    return list(front.parts.sessions.devices())


def gateway_of(front: MqttFront) -> ScriptedGateway:
    gateway = front._gateway
    assert isinstance(gateway, ScriptedGateway)
    return gateway


async def published(front: MqttFront, count: int) -> list[bytes]:
    """What devices have published, when it is so much."""
    await soon(lambda: len(payloads(front)) >= count, "it arrives")
    return payloads(front)


def payloads(front: MqttFront) -> list[bytes]:
    gateway = gateway_of(front)
    return [payload for handed in gateway.handed for payload in handed.payloads]


class Peer:
    """A client whose records are made in memory, so that a test says what goes out in one piece."""

    def __init__(self, front: MqttFront, files: Files) -> None:
        self._port = port_of(front)
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=files.root.certificate)
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self.raw = socket.socket()
        self.raw.setblocking(False)

    async def handshake(self, behind: bytes = b"") -> None:
        """Shake hands, with the records of `behind` in one piece with the last part of it."""
        await self._loop.sock_connect(self.raw, ("127.0.0.1", self._port))
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self.flush()
                self._incoming.write(await self._loop.sock_recv(self.raw, 65_536))
        if behind:
            self.tls.write(behind)
        await self.flush()

    async def connect(self, client_id: str = "d") -> None:
        await self.handshake(connect_packet(client_id))
        assert await self.read(len(CONNACK)) == CONNACK

    async def flush(self) -> None:
        await self._loop.sock_sendall(self.raw, self._outgoing.read())

    async def send(self, *records: bytes) -> None:
        for record in records:
            self.tls.write(record)
        await self.flush()

    async def read(self, size: int) -> bytes:
        """So many bytes, or those until the end that was announced."""
        found = bytearray()
        async with asyncio.timeout(20):
            while len(found) < size:
                try:
                    if not (data := self.tls.read(size - len(found))):
                        break
                    found += data
                except ssl.SSLWantReadError:
                    if data := await self._loop.sock_recv(self.raw, 1 << 20):
                        self._incoming.write(data)
                    else:
                        self._incoming.write_eof()
                except ssl.SSLZeroReturnError:
                    break
        return bytes(found)


async def connected(front: MqttFront, files: Files) -> tuple[Peer, Device]:
    peer = Peer(front, files)
    await peer.connect()
    (device,) = devices_of(front)
    return peer, device


async def test_the_transport_is_a_link_with_addresses(files: Files) -> None:
    async with running(listener(files.server)) as front:
        peer, device = await connected(front, files)
        transport = device.transport
        assert isinstance(transport, TlsLink)
        assert transport.get_extra_info("sockname") == ("127.0.0.1", port_of(front))
        assert transport.get_extra_info("peername") == peer.raw.getsockname()
        assert transport.get_extra_info("peercert") is None, "it was read when the handshake was over"
        peer.raw.close()


async def test_a_connect_in_one_piece_with_the_handshake(files: Files) -> None:
    """OpenSSL has read it by then, and the kernel says nothing about it any more."""
    async with running(listener(files.server)) as front:
        peer = Peer(front, files)
        publish = packets.encode_publish("a", b"early", qos=0)
        await peer.handshake(connect_packet("d") + publish + packets.PINGREQ_PACKET)
        assert await peer.read(len(CONNACK) + 2) == CONNACK + packets.PINGRESP_PACKET
        assert await published(front, 1) == [b"early"]
        peer.raw.close()


async def test_many_small_records_in_one_piece(files: Files) -> None:
    async with running(listener(files.server)) as front:
        gateway_of(front).automatic = 0
        peer, _ = await connected(front, files)
        sent = [b"%d" % number for number in range(PUBLISHES)]
        await peer.send(*(packets.encode_publish("a", payload, qos=0) for payload in sent))
        await peer.send(packets.PINGREQ_PACKET)
        assert await peer.read(2) == packets.PINGRESP_PACKET
        assert await published(front, len(sent)) == sent
        peer.raw.close()


async def test_records_larger_than_a_share_of_a_turn(files: Files) -> None:
    """A device with few tokens is read in small pieces: the kernel does not know of the rest of a record."""
    limited = {"client": {"bytes_in_per_s": 400_000, "bytes_in_burst": 1_500}}
    async with running(listener(files.server), device_limits=limited) as front:
        gateway_of(front).automatic = 0
        peer, _ = await connected(front, files)
        sent = [bytes([number]) * 16_000 for number in range(10)]
        await peer.send(
            *(packets.encode_publish("a", payload, qos=0) for payload in sent), packets.PINGREQ_PACKET
        )
        assert await peer.read(2) == packets.PINGRESP_PACKET
        assert await published(front, len(sent)) == sent
        peer.raw.close()


@pytest.mark.parametrize("how", ["notify", "half", "cut", "reset"])
async def test_an_end_by_the_device(files: Files, how: str) -> None:
    async with running(listener(files.server)) as front:
        peer, device = await connected(front, files)
        if how == "notify":
            with pytest.raises(ssl.SSLWantReadError):
                peer.tls.unwrap()
            await peer.flush()
            assert await peer.read(1) == b"", "it is answered in kind"
        elif how == "half":
            peer.raw.shutdown(socket.SHUT_WR)
        elif how == "cut":
            peer.raw.close()
        else:
            peer.raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.raw.close()
        await soon(lambda: device.transport is None, "the device was told")
        assert number_at(front, "safe", "connections") == 0
        peer.raw.close()


async def test_an_end_by_the_server_is_announced(files: Files) -> None:
    async with running(listener(files.server)) as front:
        peer, device = await connected(front, files)
        await peer.send(b"\xf0\x00")  # of a type that 3.1.1 does not have
        assert await peer.read(1) == b"", "close_notify, not just an end of bytes"
        await soon(lambda: device.transport is None, "the device was told")
        peer.raw.close()


@pytest.mark.parametrize("what", ["garbage", "changed"])
async def test_records_that_do_not_decrypt_end_their_connection_only(files: Files, what: str) -> None:
    async with running(listener(files.server)) as front:
        peer, device = await connected(front, files)
        plain = await RawClient.connect(front.port, "plain")
        if what == "garbage":
            await asyncio.get_running_loop().sock_sendall(peer.raw, b"\x17\x03\x03\x00\x20" + bytes(32))
        else:
            peer.tls.write(packets.PINGREQ_PACKET)
            record = bytearray(peer._outgoing.read())
            record[-1] ^= 1
            await asyncio.get_running_loop().sock_sendall(peer.raw, record)
        await soon(lambda: device.transport is None, "the device was told")
        with pytest.raises(ssl.SSLError):
            await peer.read(1)
        await plain.ping()
        peer.raw.close()


async def test_a_full_socket_pauses_writing_and_loses_nothing(files: Files) -> None:
    payload, count = bytes(1 << 20), 16
    async with running(listener(files.server), queued_bytes_max=1 << 26) as front:
        peer, device = await connected(front, files)
        for _ in range(count):
            assert device.deliver_message(b"t", payload, 0)
        device.after_answer()
        device.group.end_turn()
        assert device.is_write_paused
        device.close(reason_codes.KEEP_ALIVE_TIMEOUT)
        device.finish()
        assert device.transport is not None
        assert device.transport.is_closing()
        size = count * (1 + 3 + 2 + 1 + len(payload))
        assert len(await peer.read(size + 1)) == size, "all of it, and then the announced end"
        await soon(lambda: device.transport is None, "the device was told")
        peer.raw.close()


async def test_a_part_of_a_record_does_not_keep_a_silent_device(files: Files) -> None:
    """Only what is decrypted counts as a sign of life."""
    async with running(listener(files.server)) as front:
        peer, device = await connected(front, files)
        received_s = device.last_received_s
        front.parts.group.now_s += 5
        peer.tls.write(packets.PINGREQ_PACKET)
        record = peer._outgoing.read()
        loop = asyncio.get_running_loop()
        for byte in record[:-1]:
            await loop.sock_sendall(peer.raw, bytes([byte]))
        other = await RawClient.connect(front.port, "other")
        await other.ping()
        assert device.last_received_s == received_s
        await loop.sock_sendall(peer.raw, record[-1:])
        assert await peer.read(2) == packets.PINGRESP_PACKET
        assert device.last_received_s > received_s
        peer.raw.close()


async def by_openssl(
    front: MqttFront, files: Files, version: str, *typed: tuple[bytes, bytes]
) -> list[bytes]:
    """Type into the openssl command, in which a letter at the beginning of a line is a command to it.

    Each piece has words that it shows then; returns what it has shown by the time of each, or its end.
    """
    process = await asyncio.create_subprocess_exec(
        *("openssl", "s_client", "-connect", f"127.0.0.1:{port_of(front)}", f"-tls{version}"),
        *("-CAfile", files.root.certificate),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    found = []
    async with asyncio.timeout(20):
        for line, expected in ((connect_packet("d"), CONNACK), *typed):
            if process.stdin.transport.is_closing():
                break
            process.stdin.write(line)
            shown = b""
            while expected not in shown and (data := await process.stdout.read(4_096)):
                shown += data
            found.append(shown)
        if process.returncode is None:
            process.kill()
        await process.wait()
    return found[1:]


async def test_keys_are_renewed_when_the_device_asks(files: Files) -> None:
    async with running(listener(files.server)) as front:
        renewed = (b"K\n", b"KEYUPDATE"), (b"k\n", b"KEYUPDATE")
        pinged = packets.PINGREQ_PACKET, packets.PINGRESP_PACKET
        shown = await by_openssl(front, files, "1_3", pinged, *renewed, pinged, *renewed, pinged)
        assert len(shown) == 7
        assert packets.PINGRESP_PACKET in shown[-1]


def renew_keys(peer: Peer, count: int) -> None:
    """Write so many requests for other keys, which the standard library has no function for."""
    import _ssl

    library = ctypes.CDLL(_ssl.__file__)
    connection = ctypes.c_void_p.from_address(id(peer.tls._sslobj) + tls_link_place())  # type: ignore[attr-defined]
    for _ in range(count):
        assert library.SSL_key_update(connection, 0) == 1
        assert library.SSL_do_handshake(connection) == 1


def tls_link_place() -> int:
    """Return where Python's object of a connection has OpenSSL's, as tls_link.pyx knows it."""
    return object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)


@pytest.mark.parametrize("behind", [b"", packets.PINGREQ_PACKET], ids=["nothing", "data"])
async def test_records_without_data_do_not_keep_the_loop(files: Files, behind: bytes) -> None:
    """OpenSSL itself would read on as long as they come, and nobody else would have a turn."""
    async with running(listener(files.server)) as front:
        peer, device = await connected(front, files)
        plain = await RawClient.connect(front.port, "plain")
        for _ in range(3):
            renew_keys(peer, IDLE_RECORDS_MAX - 1)
            await peer.send(packets.PINGREQ_PACKET)
            assert await peer.read(2) == packets.PINGRESP_PACKET
        if behind:
            peer.tls.write(behind)
        renew_keys(peer, IDLE_RECORDS_MAX + 2)
        await peer.send(packets.PINGREQ_PACKET)
        await soon(lambda: device.transport is None, "it is closed")
        await plain.ping()
        peer.raw.close()


async def test_small_records_are_read_some_in_each_turn(files: Files) -> None:
    async with running(listener(files.server)) as front:
        peer, device = await connected(front, files)
        before, most = front.parts.group.received_bytes, 0
        peer.tls.write(b"\x30\xff\xff\x03\x00\x01a")  # a part of a PUBLISH
        for _ in range(20 * READS_MAX):
            peer.tls.write(b"x")
        await peer.flush()
        while (received := front.parts.group.received_bytes) < before + 7 + 20 * READS_MAX:
            await asyncio.sleep(0)
            most = max(most, front.parts.group.received_bytes - received)
        # In a turn epoll may name it, and what it had left behind is read.
        assert most <= 2 * READS_MAX + 7
        assert device.transport is not None
        peer.raw.close()


async def test_a_handshake_is_not_begun_anew(files: Files) -> None:
    async with running(listener(files.server)) as front:
        plain = await RawClient.connect(front.port, "plain")
        shown = await by_openssl(front, files, "1_2", (b"R\n", b"no renegotiation"))
        assert b"no renegotiation" in shown[0]
        assert number_at(front, "safe", "handshakes_total", resumed="false") == 1
        await plain.ping()


async def test_a_few_handshakes_go_on_in_a_turn_of_the_loop(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(listener(files.server)) as front:
        loop = asyncio.get_running_loop()
        starting = front.parts.listeners._handshakes["safe"]._starting
        assert isinstance(starting, OwnHandshakes)
        went_on, step = Counter[int](), starting._step
        next_turn = starting._ready._next_turn
        go_on = next_turn._action
        turns = 0

        def counted(link: TlsLink) -> None:
            went_on[turns] += 1
            step(link)

        def turn() -> None:
            nonlocal turns
            turns += 1
            go_on()

        peers = [Peer(front, files) for _ in range(9)]
        waiting = list[bytes]()
        for peer in peers:
            await loop.sock_connect(peer.raw, ("127.0.0.1", port_of(front)))
            with pytest.raises(ssl.SSLWantReadError):
                peer.tls.do_handshake()
            await peer.flush()
            while True:
                peer._incoming.write(await loop.sock_recv(peer.raw, 65_536))
                try:
                    peer.tls.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                break
            waiting.append(peer._outgoing.read())
        monkeypatch.setattr(starting, "_step", counted)
        monkeypatch.setattr(next_turn, "_action", turn)
        for peer, last in zip(peers, waiting, strict=True):
            peer.raw.send(last)
        await soon(lambda: number_at(front, "safe", "handshakes_total", resumed="false") == 9, "all are done")
        assert went_on.total() == 9
        assert max(went_on.values()) == limits.TLS_HANDSHAKES_PER_TURN
        for peer in peers:
            peer.raw.close()


async def test_a_device_that_cannot_be_taken_ends_alone(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async with running(listener(files.server)) as front:
        good, _ = await connected(front, files)
        kept, front.device_connected = front.device_connected, fail  # type: ignore[method-assign]
        bad = Peer(front, files)
        # In TLS 1.3 a client hears of it only after its own part of the handshake.
        await bad.handshake()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await bad.read(1)
        front.device_connected = kept  # type: ignore[method-assign]
        await good.send(packets.PINGREQ_PACKET)
        assert await good.read(2) == packets.PINGRESP_PACKET
        assert "background work failed" in caplog.text
        assert number_at(front, "safe", "arriving") == 0
        good.raw.close()


async def test_what_is_over_is_freed(files: Files) -> None:
    async with running(listener(files.server)) as front:
        peer, device = await connected(front, files)
        link = weakref.ref(device.transport)
        gc.disable()
        try:
            peer.raw.close()
            await soon(lambda: device.transport is None, "the device was told")
            await asyncio.sleep(0)
            assert link() is None
        finally:
            gc.enable()


async def test_the_event_loop_does_it_where_openssl_is_not_to_be_had(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_link, "_PYTHON_UNKNOWN", (3, 0))
    monkeypatch.setattr(tls_link, "_is_possible", None)
    assert not tls_link.can_shake_hands()
    async with running(listener(files.server)) as front:
        peer, device = await connected(front, files)
        assert not isinstance(device.transport, TlsLink)
        await peer.send(packets.encode_publish("a", bytes(90_000), qos=0), packets.PINGREQ_PACKET)
        assert await peer.read(2) == packets.PINGRESP_PACKET
        assert await published(front, 1) == [bytes(90_000)]
        peer.raw.close()
