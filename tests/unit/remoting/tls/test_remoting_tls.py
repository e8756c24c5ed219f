"""Native connections by TLS: what is taken when, limits, renewed certificates; on asyncio and uvloop."""

from __future__ import annotations

import asyncio
import errno
import shutil
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from certificates import Certificate, make_certificate, make_root
from eventually import soon
from loop_turns import LoopTurns, turn_s_max

from iotmq import limits
from iotmq.errors import ConfigError, ConnectionClosedError
from iotmq.registry.settings import RegistrySettings
from iotmq.remoting.blocking import BlockingConnection
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.frames.frame import encode
from iotmq.remoting.server import Listening, RemotingServer, ServerConnection
from iotmq.remoting.tls import files as tls_files
from iotmq.remoting.tls.context import CertificateFiles, ContextSettings
from iotmq.remoting.tls.files import ServerTls, client_tls, server_tls

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there")

WAIT_S = 30.0
LARGE_BYTES = 3 * 1024 * 1024
SLOW = 10
SLOW_S = 0.001


class Files:
    """A root, a server's certificate and a client's, made once for all tests."""

    def __init__(self, directory: Path) -> None:
        self.root = make_root(directory)
        self.server = make_certificate(directory, self.root)
        self.other_server = make_certificate(directory, self.root, "other")
        self.client = make_certificate(directory, self.root, "client")
        self.stranger = make_root(directory, "stranger")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


class Handler:
    def __init__(self) -> None:
        self.peers: list[tuple[str, int]] = []
        self.lost = 0

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        self.peers.append(connection.peer)
        if request.code == SLOW:
            until_s = time.thread_time() + SLOW_S
            while time.thread_time() < until_s:
                pass
        if request.code == 5:
            return request.reply(0, body=[memoryview(bytes(LARGE_BYTES))])
        return request.reply(0, ext=request.ext, body=request.body)

    def connection_lost(self, connection: ServerConnection) -> None:
        self.lost += 1


def context_settings(certificate: Certificate, **more: Any) -> ContextSettings:
    return ContextSettings(certificates=(CertificateFiles(*certificate),), **more)


def tls_of(certificate: Certificate, **more: Any) -> ServerTls:
    return ServerTls(context_settings(certificate), **more)


@asynccontextmanager
async def serving(tls: ServerTls | None, **more: Any) -> AsyncIterator[tuple[RemotingServer, Handler]]:
    handler = Handler()
    server = RemotingServer(handler, Listening(**more), tls=tls)
    await server.start()
    try:
        yield server, handler
    finally:
        await server.stop()


def count(server: RemotingServer, name: str, reason: str = "") -> float:
    for metric in server.metrics():
        if metric.name == name and (not reason or ("reason", reason) in metric.labels):
            return metric.value
    raise AssertionError(name)


def closed(server: RemotingServer, reason: str) -> float:
    return count(server, "iotmq_remoting_connections_closed_total", reason)


async def echo(
    server: RemotingServer, tls: ssl.SSLContext | None, host: str = "127.0.0.1"
) -> ClientConnection:
    connection = await ClientConnection.connect(host, server.port, tls=tls, timeout_s=WAIT_S)
    response = await connection.request(Command.request(1, {"a": "b"}, b"body"), timeout_s=WAIT_S)
    assert (response.ext, bytes(response.body_bytes())) == ({"a": "b"}, b"body")
    return connection


async def test_all_that_comes_with_the_end_of_an_encrypted_peer_holds_nobody_up(files: Files) -> None:
    async with serving(tls_of(files.server)) as (server, handler):
        trusting = client_tls(ca_file=files.root.certificate)
        with LoopTurns() as turns:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting)
            request = Command.request(SLOW, oneway=True)
            writer.write(b"".join(bytes(part) for part in encode(request)) * 100)
            writer.close()
            await soon(lambda: handler.lost, "the end of the connection")
        assert len(handler.peers) == 100
        assert turns.longest_s < turn_s_max()


async def test_plain_and_encrypted_connections_share_a_port(files: Files) -> None:
    async with serving(tls_of(files.server)) as (server, handler):
        trusting = client_tls(ca_file=files.root.certificate)
        plain, encrypted = await echo(server, None), await echo(server, trusting)
        assert [host for host, _ in handler.peers] == ["127.0.0.1", "127.0.0.1"]
        assert handler.peers[0][1] != handler.peers[1][1] != 0
        assert count(server, "iotmq_remoting_tls_connections_total") == 1
        for connection in (plain, encrypted):
            large = await connection.request(Command.request(5), timeout_s=WAIT_S)
            assert len(large.body_bytes()) == LARGE_BYTES
            await connection.close()
        await soon(lambda: handler.lost == 2, "both ends are seen", within_s=WAIT_S)


async def test_a_name_in_the_certificate_will_do(files: Files) -> None:
    async with serving(tls_of(files.server)) as (server, _):
        connection = await echo(server, client_tls(ca_file=files.root.certificate), host="localhost")
        await connection.close()


async def test_a_certificate_of_somebody_else_is_refused_by_the_client(files: Files) -> None:
    async with serving(tls_of(files.server)) as (server, _):
        with pytest.raises(ConnectionClosedError, match="by TLS"):
            await echo(server, client_tls(ca_file=files.stranger.certificate))
        unchecked = await echo(server, client_tls(is_verified=False))
        await unchecked.close()
        await soon(lambda: closed(server, "handshake") == 1, "the failure is counted", within_s=WAIT_S)


async def test_enforcing_takes_encrypted_connections_only(files: Files) -> None:
    async with serving(tls_of(files.server, is_enforced=True)) as (server, handler):
        with pytest.raises(ConnectionClosedError):
            await echo(server, None)
        assert closed(server, "plain") == 1
        assert handler.peers == []
        connection = await echo(server, client_tls(ca_file=files.root.certificate))
        await connection.close()


async def test_client_certificates_may_be_demanded(files: Files) -> None:
    async with serving(ServerTls(context_settings(files.server, client_ca_file=files.root.certificate))) as (
        server,
        handler,
    ):
        ca_file = files.root.certificate
        with pytest.raises(ConnectionClosedError):
            await echo(server, client_tls(ca_file=ca_file))
        assert handler.peers == []
        known = client_tls(
            ca_file=ca_file, certificate_file=files.client.certificate, key_file=files.client.key
        )
        connection = await echo(server, known)
        await connection.close()


async def test_a_listener_without_tls_ends_a_handshake(files: Files) -> None:
    async with serving(None) as (server, _):
        with pytest.raises(ConnectionClosedError):
            await echo(server, client_tls(ca_file=files.root.certificate))


async def connect_raw(server: RemotingServer) -> socket.socket:
    raw = socket.socket()
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", server.port))
    return raw


async def received(raw: socket.socket) -> bytes:
    """What comes next; empty for the end, whichever way it came."""
    try:
        async with asyncio.timeout(WAIT_S):
            return await asyncio.get_running_loop().sock_recv(raw, 1_000)
    except ConnectionResetError:
        return b""


async def test_a_handshake_has_its_time(files: Files) -> None:
    async with serving(tls_of(files.server, handshake_timeout_s=0.2)) as (server, handler):
        raw = await connect_raw(server)
        with raw:
            # The beginning of a ClientHello, and no more.
            await asyncio.get_running_loop().sock_sendall(raw, b"\x16\x03\x01")
            assert await received(raw) == b""
        await soon(lambda: closed(server, "handshake") == 1, "the failure is counted", within_s=WAIT_S)
        assert handler.lost == 0


async def test_a_silent_peer_is_plain_after_its_time_and_refused_when_tls_is_enforced(files: Files) -> None:
    async with serving(tls_of(files.server, handshake_timeout_s=0.1)) as (server, _):
        raw = await connect_raw(server)
        with raw:
            await soon(lambda: len(list(server.connections)) == 1, "it is taken as plain", within_s=WAIT_S)
            frame = b'{"code":1,"opaque":7}'
            await asyncio.get_running_loop().sock_sendall(
                raw, struct.pack(">ii", 4 + len(frame), len(frame)) + frame
            )
            assert b'"opaque":7' in await received(raw)
    enforcing = tls_of(files.server, handshake_timeout_s=0.1, is_enforced=True)
    async with serving(enforcing) as (server, _):
        raw = await connect_raw(server)
        with raw:
            assert await received(raw) == b""
        assert closed(server, "handshake") == 1


async def test_so_many_shake_hands_at_a_time(files: Files) -> None:
    assert limits.TLS_HANDSHAKES_MAX > 2
    async with serving(tls_of(files.server, handshakes_max=2)) as (server, _):
        loop = asyncio.get_running_loop()
        shaking = [await connect_raw(server) for _ in range(2)]
        for raw in shaking:
            await loop.sock_sendall(raw, b"\x16\x03\x01")
        await soon(
            lambda: server._listeners[0]._starting.handshakes_count == 2,
            "two are shaking hands",
            within_s=WAIT_S,
        )
        third = await connect_raw(server)
        await loop.sock_sendall(third, b"\x16\x03\x01")
        assert await received(third) == b""
        assert closed(server, "handshake") == 1
        # Plain ones do not wait for that.
        plain = await echo(server, None)
        await plain.close()
        for raw in (*shaking, third):
            raw.close()


async def shaken_hands(raw: socket.socket, context: ssl.SSLContext) -> None:
    """Do the handshake, and leave unread and unanswered whatever comes then."""
    loop = asyncio.get_running_loop()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    is_done = False
    while not is_done:
        try:
            session.do_handshake()
            is_done = True
        except ssl.SSLWantReadError:
            pass
        await loop.sock_sendall(raw, outgoing.read())
        if not is_done:
            incoming.write(await loop.sock_recv(raw, 1 << 16))


async def test_who_does_not_say_goodbye_counts_for_so_long_and_no_longer(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TLS_SHUTDOWN_S", 0.5)
    loop = asyncio.get_running_loop()
    async with serving(tls_of(files.server), connections_max=1) as (server, _):
        silent = await connect_raw(server)
        await shaken_hands(silent, client_tls(ca_file=files.root.certificate))
        await soon(lambda: list(server.connections), "it is there", within_s=WAIT_S)
        (connection,) = server.connections
        began_s = loop.time()
        connection.close()
        second = await connect_raw(server)
        assert await received(second) == b""
        assert closed(server, "refused") == 1
        await soon(lambda: not list(server.connections), "it is gone", within_s=WAIT_S)
        assert loop.time() - began_s >= 0.5
        for raw in (silent, second):
            raw.close()
        third = await echo(server, None)
        await third.close()


async def test_silent_connections_count_among_the_connections(files: Files) -> None:
    async with serving(tls_of(files.server), connections_max=2) as (server, _):
        silent = [await connect_raw(server) for _ in range(2)]
        third = await connect_raw(server)
        assert await received(third) == b""
        assert closed(server, "refused") == 1
        for raw in (*silent, third):
            raw.close()
        await soon(
            lambda: server._listeners[0].undecided_count == 0, "those that left are gone", within_s=WAIT_S
        )
        connection = await echo(server, None)
        await connection.close()


def copy(source: Certificate, target: Certificate) -> None:
    for one, other in zip(source, target, strict=True):
        # As certificate tools do it: a new file takes the name.
        fresh = Path(other + ".new")
        shutil.copy(one, fresh)
        fresh.replace(other)


def serial(context: ssl.SSLContext, port: int) -> str:
    with (
        socket.create_connection(("127.0.0.1", port), WAIT_S) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as encrypted,
    ):
        found = encrypted.getpeercert()
    assert found is not None
    return str(found["serialNumber"])


async def test_a_changed_certificate_that_cannot_be_read_for_a_moment_is_read_the_next_time(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(settings: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    used = Certificate(str(tmp_path / "used.pem"), str(tmp_path / "used.key"))
    copy(files.server, used)
    tls = tls_of(used)
    before = tls.context
    copy(files.other_server, used)
    with monkeypatch.context() as patch:
        patch.setattr(tls_files, "server_context", fail)
        await tls.reload()
    assert (tls.context is before, tls.failed_reloads_count) == (True, 1)
    for _ in range(2):
        await tls.reload()
        assert (tls.context is before, tls.reloads_count) == (False, 1)


async def test_a_changed_certificate_is_used_for_new_connections_and_old_ones_go_on(
    files: Files, tmp_path: Path
) -> None:
    used = Certificate(str(tmp_path / "used.pem"), str(tmp_path / "used.key"))
    copy(files.server, used)
    tls = tls_of(used)
    trusting = client_tls(ca_file=files.root.certificate)
    async with serving(tls) as (server, _):
        old = await echo(server, trusting)
        before = await asyncio.to_thread(serial, trusting, server.port)
        # Half a change: the certificate without its key.
        shutil.copy(files.other_server.certificate, used.certificate)
        await tls.reload()
        assert await asyncio.to_thread(serial, trusting, server.port) == before
        assert count(server, "iotmq_remoting_tls_failed_reloads_total") == 1
        copy(files.other_server, used)
        await tls.reload()
        assert await asyncio.to_thread(serial, trusting, server.port) != before
        assert count(server, "iotmq_remoting_tls_reloads_total") == 1
        # Nothing changed: nothing is read.
        await tls.reload()
        assert tls.reloads_count == 1
        response = await old.request(Command.request(1), timeout_s=WAIT_S)
        assert response.code == 0
        await old.close()


async def test_the_blocking_client_encrypts_too(files: Files) -> None:
    async with serving(tls_of(files.server, is_enforced=True)) as (server, _):

        def exchange() -> int:
            with BlockingConnection(
                "127.0.0.1", server.port, WAIT_S, tls=client_tls(ca_file=files.root.certificate)
            ) as connection:
                assert connection.request(Command.request(1, body=b"x" * 100_000)).body_bytes()
                return len(connection.request(Command.request(5)).body_bytes())

        assert await asyncio.to_thread(exchange) == LARGE_BYTES

        def distrust() -> None:
            BlockingConnection("127.0.0.1", server.port, WAIT_S, tls=client_tls())

        with pytest.raises(ConnectionClosedError, match="certificate"):
            await asyncio.to_thread(distrust)


async def test_the_stop_ends_what_shakes_hands_and_what_is_silent(files: Files) -> None:
    async with serving(tls_of(files.server)) as (server, _):
        silent, shaking = await connect_raw(server), await connect_raw(server)
        await asyncio.get_running_loop().sock_sendall(shaking, b"\x16\x03\x01")
        await soon(lambda: server._listeners[0].undecided_count == 2, "both are accepted", within_s=WAIT_S)
        connection = await echo(server, client_tls(ca_file=files.root.certificate))
    for raw in (silent, shaking):
        with raw:
            assert await received(raw) == b""
    with pytest.raises(ConnectionClosedError):
        await connection.request(Command.request(1), timeout_s=WAIT_S)


def test_modes_and_files_that_do_not_go_together(files: Files, tmp_path: Path) -> None:
    def settings(mode: str, **files: str) -> RegistrySettings:
        return RegistrySettings(**{"tls_mode": mode, **{f"tls_{name}": file for name, file in files.items()}})

    assert server_tls(settings("permissive")) is None
    good = {"certificate_file": files.server.certificate, "key_file": files.server.key}
    assert server_tls(settings("disabled", **good)) is None
    made = server_tls(settings("enforcing", **good))
    assert made is not None
    assert made.is_enforced
    with pytest.raises(ConfigError, match="enforcing"):
        server_tls(settings("enforcing"))
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        server_tls(settings("permissive", certificate_file=str(tmp_path / "nowhere.pem")))
    with pytest.raises(ConfigError, match="cannot be used"):
        server_tls(settings("permissive", **{**good, "key_file": files.client.key}))
    with pytest.raises(ConfigError, match="cannot be used"):
        client_tls(ca_file=str(tmp_path / "nowhere.pem"))


def test_a_key_with_a_password_is_refused_and_not_asked_for(files: Files, tmp_path: Path) -> None:
    locked = str(tmp_path / "locked.key")
    words = ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", files.server.key, "-out", locked]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    with pytest.raises(ConfigError, match="password"):
        tls_of(Certificate(files.server.certificate, locked))


async def test_a_peer_that_does_not_read_costs_bounded_memory_and_gets_all_when_it_does(files: Files) -> None:
    requests = 40
    async with serving(tls_of(files.server)) as (server, handler):

        def talk() -> int:
            frame = b'{"code":5,"opaque":7}'
            asked = struct.pack(">ii", 4 + len(frame), len(frame)) + frame
            context = client_tls(ca_file=files.root.certificate)
            with (
                socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw,
                context.wrap_socket(raw, server_hostname="127.0.0.1") as peer,
            ):
                peer.sendall(asked * requests)
                asyncio.run_coroutine_threadsafe(full(), loop).result(WAIT_S)
                received = 0
                while received < requests * LARGE_BYTES:
                    received += len(peer.recv(1 << 20))
                return received

        async def full() -> None:
            """Wait until the server answers no more of it, and look at what it holds."""
            (connection,) = server.connections
            await soon(lambda: connection.is_congested, "the peer is behind", within_s=WAIT_S)
            transport = connection._transport
            assert transport is not None
            assert transport.get_write_buffer_size() < 3 * LARGE_BYTES
            assert len(handler.peers) < requests

        loop = asyncio.get_running_loop()
        assert await asyncio.to_thread(talk) >= requests * LARGE_BYTES
        assert len(handler.peers) == requests


@pytest.mark.parametrize(("days", "is_warned"), [(30, False), (13, True), (-1, True)])
def test_it_is_known_when_a_certificate_expires(
    files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int, is_warned: bool
) -> None:
    made = make_certificate(tmp_path, files.root, days=days)
    tls = ServerTls(context_settings(made, client_ca_file=files.root.certificate))
    (expires,) = [metric.value for metric in tls.metrics(()) if metric.name.endswith("_expires_seconds")]
    assert abs(expires - time.time() - days * 86_400) < 600
    assert ("expires soon" in caplog.text) == is_warned
