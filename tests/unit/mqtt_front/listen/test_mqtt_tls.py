"""MQTT by TLS: who gets in, with which certificate, what a flood costs, and files that change meanwhile."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import time
import warnings
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from certificates import Certificate, make_certificate, make_revocation_list, make_root
from eventually import soon
from fake_gateway import RawClient, ScriptedGateway, connect_packet
from front_metrics import number_at
from listener_site import config, running

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.listen import handshakes
from iotmq.mqtt_front.listen.handshakes import Handshakes
from iotmq.mqtt_front.listen.tls import listener_tls
from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.settings.listeners import ListenerSettings

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there")

CONNACK = (packets.CONNACK << 4, b"\0\0")
NAMES = (
    "URI:urn:device:7,email:seven@example.org,DNS:seven.example.org,DNS:other.example.org,URI:urn:device:8"
)


class Files:
    """Certificates, made once for all tests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = make_root(directory)
        self.server = make_certificate(directory, self.root)
        self.wild = make_certificate(
            directory, self.root, "wild", alternatives="DNS:*.wild.example.org,DNS:Exact.example.org"
        )
        self.named = make_certificate(directory, self.root, "named.example.org", alternatives="")
        self.device = make_certificate(directory, self.root, "device-7", alternatives=NAMES)
        self.revoked = make_certificate(directory, self.root, "revoked")
        self.expired = make_certificate(directory, self.root, "expired", days=-1)
        self.stranger = make_root(directory, "stranger")
        self.strange = make_certificate(directory, self.stranger, "strange")
        self.revocations = make_revocation_list(directory, self.root, self.revoked)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


def table(certificate: Certificate) -> dict[str, str]:
    return {"certificate_file": certificate.certificate, "key_file": certificate.key}


def listener(*certificates: Certificate, **more: Any) -> dict[str, Any]:
    shown = [table(certificate) for certificate in certificates]
    return {"name": "safe", "transport": "tls", "certificates": shown, **more}


def port_of(front: MqttFront, name: str = "safe") -> int:
    return int(front.addresses[name].rpartition(":")[2])


def client_context(files: Files, certificate: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.root.certificate)
    if certificate is not None:
        context.load_cert_chain(certificate.certificate, certificate.key)
    return context


async def dial(
    front: MqttFront, files: Files, certificate: Certificate | None = None, name: str = "localhost"
) -> RawClient:
    return await RawClient.dial(port_of(front), ssl=client_context(files, certificate), server_hostname=name)


async def connected(
    front: MqttFront, files: Files, certificate: Certificate | None = None, client_id: str = "d"
) -> RawClient:
    client = await dial(front, files, certificate)
    client.send(connect_packet(client_id))
    assert await client.packet() == CONNACK
    return client


async def is_refused(front: MqttFront, files: Files, certificate: Certificate | None) -> bool:
    """In TLS 1.3 a client hears of it only after its own part of the handshake."""
    try:
        client = await dial(front, files, certificate)
        client.send(connect_packet("d"))
        return await client.rest() == b""
    except (ssl.SSLError, ConnectionError):
        return True


def value(front: MqttFront, name: str, **labels: str) -> float:
    return number_at(front, "safe", name, **labels)


def gateway_of(front: MqttFront) -> ScriptedGateway:
    gateway = front._gateway
    assert isinstance(gateway, ScriptedGateway)
    return gateway


def payloads(front: MqttFront) -> list[bytes]:
    """What devices have published."""
    return [payload for handed in gateway_of(front).handed for payload in handed.payloads]


def not_arrived(front: MqttFront, reason: str) -> float:
    return value(front, "not_arrived_total", reason=reason)


async def raw_connection(front: MqttFront) -> socket.socket:
    raw = socket.socket()
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port_of(front)))
    return raw


async def end_of(raw: socket.socket) -> bytes:
    """What comes until the end, whichever way that came."""
    found = b""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(10):
            while data := await loop.sock_recv(raw, 4_096):
                found += data
    except ConnectionResetError:
        pass
    return found


def client_hello() -> bytes:
    """The first record of a handshake."""
    context = ssl.create_default_context()
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"certificates": []}, "which have to have one"),
        ({"transport": "tcp"}, "which have to have one"),
        ({"transport": "tcp", "certificates": [], "client_ca_file": "x"}, "client_ca_file is for"),
        ({"client_crl_files": ["x"]}, "client_crl_files means nothing without client_ca_file"),
        ({"client_identity": "cn"}, "client_identity means nothing without client_ca_file"),
        ({"client_ca_file": "x", "client_identity_is_user": True}, "needs a client_identity"),
        ({"client_identity": "name"}, r"listeners\[0\]\.client_identity"),
        ({"tls_version_min": "1.1"}, r"listeners\[0\]\.tls_version_min"),
        ({"certificates": [{"key_file": "x"}]}, r"certificates\[0\]\.certificate_file is missing"),
        ({"certificates": [{"certificate_file": ""}]}, r"certificates\[0\]\.certificate_file"),
        ({"client_ca_file": "x" * (limits.FILE_NAME_BYTES_MAX + 1)}, "client_ca_file"),
        ({"listen_host": "0.0.0.0"}, "anybody who reaches"),
        (
            {"listen_host": "0.0.0.0", "client_ca_file": "x", "client_certificates": "optional"},
            "anybody who reaches",
        ),
    ],
)
def test_settings_that_do_not_go_together(files: Files, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(listener(files.server) | more)


def test_settings_at_their_limits(files: Files) -> None:
    most = {
        "certificates": [table(files.server)] * limits.MQTT_LISTENER_CERTIFICATES_MAX,
        "client_ca_file": "x" * limits.FILE_NAME_BYTES_MAX,
        "client_crl_files": ["x"] * limits.MQTT_LISTENER_CRL_FILES_MAX,
    }
    assert config(listener() | most)
    for name in ("certificates", "client_crl_files"):
        with pytest.raises(ConfigError, match=name):
            config(listener() | most | {name: most[name] + most[name][:1]})


def test_a_network_port_for_known_devices_only_needs_no_leave(files: Files) -> None:
    assert config(listener(files.server, listen_host="0.0.0.0", client_ca_file="x"))


async def test_files_that_are_no_use_are_named(files: Files, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere.pem")
    for more in (
        {"certificates": [table(files.server), {"certificate_file": nowhere}]},
        {"client_ca_file": nowhere},
        {"client_ca_file": files.root.certificate, "client_crl_files": [nowhere]},
    ):
        with pytest.raises(ConfigError, match=r"nowhere\.pem"):
            async with running(listener(files.server) | more):
                pass
    with pytest.raises(ConfigError, match=r"server\.pem"):
        async with running(listener(Certificate(files.server.certificate, files.device.key))):
            pass
    with pytest.raises(ConfigError, match=r"no cipher of TLS 1\.2 is called 'ROT13'"):
        async with running(listener(files.server, tls_ciphers="ROT13")):
            pass


def test_another_loop_is_refused(files: Files) -> None:
    async def start() -> None:
        async with running(listener(files.server)):
            pass

    with pytest.raises(ConfigError, match="listener safe: transport 'tls' needs the event loop of uvloop"):
        asyncio.Runner(loop_factory=asyncio.SelectorEventLoop).run(start())


async def test_a_device_by_tls_is_a_device_like_any_other(files: Files) -> None:
    async with running(listener(files.server)) as front:
        plain = await RawClient.connect(front.port, "plain")
        encrypted = await connected(front, files)
        assert await encrypted.subscribe(("a/#", 0)) == [0]
        gateway_of(front).automatic = 0
        gateway_of(front).push("a/b", b"x" * 90_000, "a/#", qos=0)
        assert (await encrypted.publish_received())[1] == b"x" * 90_000
        encrypted.send(
            *(packets.encode_publish("a/b", b"y" * 90_000, qos=1, packet_id=1 + at) for at in range(3))
        )
        assert [await encrypted.puback() for _ in range(3)] == [1, 2, 3]
        assert payloads(front) == [b"y" * 90_000] * 3
        await plain.ping()
        assert value(front, "connections") == 1
        assert value(front, "handshakes_total", resumed="false") == 1
        encrypted.close()
        await soon(lambda: value(front, "connections") == 0, "its end is seen")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("localhost", "server"),
        (None, "server"),
        ("a.wild.example.org", "wild"),
        ("EXACT.example.org", "wild"),
        ("exact.EXAMPLE.org", "wild"),
        ("a.b.wild.example.org", "server"),
        ("wild.example.org", "server"),
        ("named.example.org", "named.example.org"),
        ("unknown.example.org", "server"),
    ],
)
async def test_the_certificate_is_that_of_the_name_asked_for(
    files: Files, name: str | None, shown: str
) -> None:
    async with running(listener(files.server, files.wild, files.named)) as front:
        context = client_context(files)
        context.check_hostname = False

        def subject() -> str:
            with (
                socket.create_connection(("127.0.0.1", port_of(front)), 10) as raw,
                context.wrap_socket(raw, server_hostname=name) as encrypted,
            ):
                found = encrypted.getpeercert()
            assert found is not None
            return str(dict(part[0] for part in found["subject"])["commonName"])  # type: ignore[misc]

        assert await asyncio.to_thread(subject) == shown


async def test_the_application_protocol_is_mqtt_for_those_who_ask(files: Files) -> None:
    async with running(listener(files.server)) as front:
        for asked, answered in ((["mqtt"], "mqtt"), (["h2", "mqtt"], "mqtt"), (["h2"], None)):
            context = client_context(files)
            context.set_alpn_protocols(asked)
            client = await RawClient.dial(port_of(front), ssl=context, server_hostname="localhost")
            found = client._writer.get_extra_info("ssl_object")
            assert found.selected_alpn_protocol() == answered
            client.close()


@pytest.mark.parametrize(
    ("setting", "version", "is_taken"),
    [
        ("1.2", "1.2", True),
        ("1.2", "1.3", True),
        ("1.3", "1.2", False),
        ("1.3", "1.3", True),
        ("1.2", "1.1", False),
    ],
)
async def test_versions(files: Files, setting: str, version: str, is_taken: bool) -> None:
    versions = {
        "1.1": ssl.TLSVersion.TLSv1_1,
        "1.2": ssl.TLSVersion.TLSv1_2,
        "1.3": ssl.TLSVersion.TLSv1_3,
    }
    async with running(listener(files.server, tls_version_min=setting)) as front:
        context = client_context(files)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 1.1 has been given up by everybody
            context.minimum_version = context.maximum_version = versions[version]
        if version == "1.1":
            context.set_ciphers("ALL:@SECLEVEL=0")
        if is_taken:
            client = await RawClient.dial(port_of(front), ssl=context, server_hostname="localhost")
            client.send(connect_packet("d"))
            assert await client.packet() == CONNACK
            return
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await RawClient.dial(port_of(front), ssl=context, server_hostname="localhost")
        await soon(lambda: not_arrived(front, "handshake") == 1, "it is counted")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("certificates", [("server",), ("server", "wild")])
async def test_a_session_is_resumed(
    files: Files, version: ssl.TLSVersion, certificates: tuple[str, ...]
) -> None:
    async with running(listener(*(getattr(files, name) for name in certificates))) as front:
        context = client_context(files)
        context.maximum_version = version

        def visit(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None]:
            with (
                socket.create_connection(("127.0.0.1", port_of(front)), 10) as raw,
                context.wrap_socket(raw, server_hostname="localhost", session=session) as encrypted,
            ):
                encrypted.sendall(connect_packet("d"))
                assert encrypted.recv(100)
                return encrypted.session, encrypted.session_reused

        session, is_resumed = await asyncio.to_thread(visit, None)
        assert not is_resumed
        assert (await asyncio.to_thread(visit, session))[1]
        await soon(lambda: value(front, "handshakes_total", resumed="true") == 1, "it is counted")


async def test_a_resumed_session_has_the_identity_of_its_certificate_while_that_counts(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = listener(
        files.server,
        client_ca_file=files.root.certificate,
        client_crl_files=[files.revocations],
        client_identity="cn",
    )
    async with running(asking) as front:
        context = client_context(files, files.device)
        sessions: list[ssl.SSLSession | None] = [None]
        identities: list[str | None] = []

        async def look() -> None:
            identities.extend(device.peer.certificate_identity for device in devices_of(front))

        def visit() -> bytes:
            with (
                socket.create_connection(("127.0.0.1", port_of(front)), 10) as raw,
                context.wrap_socket(raw, server_hostname="localhost", session=sessions[-1]) as encrypted,
            ):
                encrypted.sendall(connect_packet("d"))
                try:
                    found = encrypted.recv(100)
                except ConnectionError:
                    found = b""
                sessions.append(encrypted.session)
                asyncio.run_coroutine_threadsafe(look(), loop).result(10)
                return found

        loop = asyncio.get_running_loop()
        assert await asyncio.to_thread(visit)
        assert await asyncio.to_thread(visit)
        assert value(front, "handshakes_total", resumed="true") == 1
        assert set(identities) == {"device-7"}
        tomorrow_s = time.time() + 60 * 86_400
        monkeypatch.setattr(handshakes, "time", SimpleNamespace(time=lambda: tomorrow_s))
        assert await asyncio.to_thread(visit) == b""
        assert not_arrived(front, "certificate") == 1
        # A new revocation list ends all sessions, so the revoked cannot come back by theirs.
        tls = arrivals_of(front)._tls
        assert tls is not None
        make_revocation_list(files.directory, files.root, files.revoked)
        await tls.reload()
        monkeypatch.setattr(handshakes, "time", time)
        assert await asyncio.to_thread(visit)
        assert value(front, "handshakes_total", resumed="true") == 2


async def test_required_client_certificates(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    demanding = listener(
        files.server, client_ca_file=files.root.certificate, client_crl_files=[files.revocations]
    )
    async with running(demanding) as front:
        known = await connected(front, files, files.device)
        refused = {
            None: "peer did not return a certificate",
            files.strange: "unable to get local issuer certificate",
            files.expired: "certificate has expired",
            files.revoked: "certificate revoked",
        }
        for count, (certificate, said) in enumerate(refused.items(), 1):
            assert await is_refused(front, files, certificate)
            await soon(lambda count=count: not_arrived(front, "certificate") == count, "it is counted")
            assert said in caplog.records[-1].__dict__["detail"].replace("_", " ").lower()
        await known.ping()
        assert value(front, "connections") == 1


async def test_optional_client_certificates(files: Files) -> None:
    asking = listener(files.server, client_ca_file=files.root.certificate, client_certificates="optional")
    async with running(asking) as front:
        assert await connected(front, files, None, "a")
        assert await connected(front, files, files.device, "b")
        assert await is_refused(front, files, files.strange)


async def test_a_revocation_list_that_is_out_of_date_lets_nobody_in(files: Files, tmp_path: Path) -> None:
    outdated = make_revocation_list(tmp_path, files.root, is_outdated=True)
    asking = listener(files.server, client_ca_file=files.root.certificate, client_crl_files=[outdated])
    async with running(asking) as front:
        assert await is_refused(front, files, files.device)
        name = "iotmq_mqtt_listener_tls_revocation_list_expires_seconds"
        (expires_s,) = [metric.value for metric in front.metrics() if metric.name == name]
        assert expires_s == datetime(2020, 1, 2, tzinfo=UTC).timestamp()


def devices_of(front: MqttFront) -> list[Device]:
    return list(front.parts.sessions.devices())


@pytest.mark.parametrize(
    ("kind", "identity"),
    [
        ("cn", "device-7"),
        ("san-dns", "seven.example.org"),
        ("san-uri", "urn:device:7"),
        ("san-email", "seven@example.org"),
        ("", None),
    ],
)
async def test_the_identity_of_a_certificate(files: Files, kind: str, identity: str | None) -> None:
    asking = listener(
        files.server,
        client_ca_file=files.root.certificate,
        client_identity=kind,
        client_identity_is_user=bool(kind),
    )
    async with running(asking) as front:
        client = await connected(front, files, files.device)
        (device,) = devices_of(front)
        assert device.peer.certificate_identity == identity
        assert device.peer.is_certificate_user is bool(kind)
        client.close()


async def test_a_certificate_without_an_identity_is_refused(files: Files) -> None:
    asking = listener(files.server, client_ca_file=files.root.certificate, client_identity="san-uri")
    async with running(asking) as front:
        assert await is_refused(front, files, files.strange)
        assert await is_refused(front, files, files.server)
        await soon(lambda: not_arrived(front, "identity") == 1, "it is counted")


async def test_bytes_that_are_no_handshake(files: Files) -> None:
    async with running(listener(files.server)) as front:
        loop = asyncio.get_running_loop()
        for count, garbage in enumerate(
            (connect_packet("d"), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff"), 1
        ):
            with await raw_connection(front) as raw:
                await loop.sock_sendall(raw, garbage)
                assert await end_of(raw) == b""
            assert not_arrived(front, "not_tls") == count
        with await raw_connection(front) as raw:
            await loop.sock_sendall(raw, b"\x16\x03\x01\x00\x05hello")
            await end_of(raw)
        assert not_arrived(front, "handshake") == 1
        assert await connected(front, files)


async def test_a_hello_that_comes_byte_by_byte(files: Files) -> None:
    async with running(listener(files.server)) as front:
        loop = asyncio.get_running_loop()
        hello = client_hello()
        with await raw_connection(front) as raw:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(len(hello)):
                await loop.sock_sendall(raw, hello[at : at + 1])
                if not at % 50:
                    await soon(lambda: value(front, "arriving") == 1, "it is waited for")
                    assert value(front, "handshakes") == 0, "nothing is begun before it is whole"
            async with asyncio.timeout(10):
                assert (await loop.sock_recv(raw, 1))[0] == 0x16


async def test_a_first_record_at_its_limit_and_past_it(files: Files) -> None:
    async with running(listener(files.server)) as front:
        loop = asyncio.get_running_loop()
        for size, reason in (
            (limits.TLS_HELLO_BYTES_MAX, "handshake"),
            (limits.TLS_HELLO_BYTES_MAX + 1, "not_tls"),
        ):
            with await raw_connection(front) as raw:
                record = b"\x16\x03\x01" + (size - 5).to_bytes(2) + bytes(size - 5)
                await loop.sock_sendall(raw, record)
                await end_of(raw)
            await soon(lambda reason=reason: not_arrived(front, reason) == 1, "it is counted")


@pytest.mark.parametrize("begun", [b"", b"\x16", b"\x16\x03\x01\x02\x00half"])
async def test_what_comes_before_mqtt_has_its_time(files: Files, begun: bytes) -> None:
    async with running(listener(files.server, handshake_timeout_s=0.1)) as front:
        with await raw_connection(front) as raw:
            await asyncio.get_running_loop().sock_sendall(raw, begun)
            assert await end_of(raw) == b""
        assert not_arrived(front, "timeout") == 1
        assert value(front, "arriving") == 0


async def test_a_handshake_has_its_time(files: Files) -> None:
    async with running(listener(files.server, handshake_timeout_s=0.1)) as front:
        with await raw_connection(front) as raw:
            await asyncio.get_running_loop().sock_sendall(raw, client_hello())
            assert await end_of(raw), "the server has done its part"
        await soon(lambda: not_arrived(front, "timeout") == 1, "it is counted")
        assert value(front, "arriving") == 0


async def test_those_who_leave_are_forgotten(files: Files) -> None:
    async with running(listener(files.server)) as front:
        loop = asyncio.get_running_loop()
        for begun in (b"", b"\x16", client_hello()[:100], client_hello()):
            with await raw_connection(front) as raw:
                await loop.sock_sendall(raw, begun)
        await soon(lambda: value(front, "arriving") == 0, "nothing is left of them")


async def test_a_flood_of_handshakes_is_bounded_and_harms_nobody(files: Files) -> None:
    async with running(listener(files.server, handshakes_max=3)) as front:
        loop = asyncio.get_running_loop()
        old, plain = await connected(front, files), await RawClient.connect(front.port, "plain")
        hello = client_hello()
        flood = [await raw_connection(front) for _ in range(8)]
        for raw in flood:
            await loop.sock_sendall(raw, hello)
        await soon(lambda: not_arrived(front, "handshakes") == 5, "three may go on")
        assert value(front, "handshakes") == 3
        await old.ping()
        await plain.ping()
        for raw in flood:
            raw.close()
        await soon(lambda: value(front, "handshakes") == 0, "they are over")
        assert await connected(front, files, client_id="new")


async def test_a_few_handshakes_begin_in_a_turn_of_the_loop(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(listener(files.server)) as front:
        loop = asyncio.get_running_loop()
        turns, is_over = 0, False
        begun: Counter[int] = Counter()

        def turn() -> None:
            nonlocal turns
            turns += 1
            if not is_over:
                loop.call_soon(turn)

        starting = arrivals_of(front)._starting
        start = starting.start

        def counted(*arguments: Any) -> None:
            begun[turns] += 1
            start(*arguments)

        monkeypatch.setattr(starting, "start", counted)
        hello = client_hello()
        connections = [await raw_connection(front) for _ in range(9)]
        await soon(lambda: value(front, "arriving") == 9, "they are accepted")
        for raw in connections:
            raw.send(hello)
        turn()
        await soon(lambda: begun.total() == 9, "all of them have begun")
        is_over = True
        assert max(begun.values()) == limits.TLS_HANDSHAKES_PER_TURN
        for raw in connections:
            raw.close()


async def test_silent_connections_count_among_the_connections(files: Files) -> None:
    async with running(listener(files.server), connections_max=3) as front:
        first = await connected(front, files)
        silent = [await raw_connection(front) for _ in range(2)]
        await soon(lambda: value(front, "arriving") == 2, "they are accepted")
        with await raw_connection(front) as more:
            assert await end_of(more) == b""
        assert not_arrived(front, "room") == 1
        plain = await RawClient.dial(front.port)
        plain.send(connect_packet("plain"))
        assert await plain.packet() == (packets.CONNACK << 4, b"\0\3"), "the room is everybody's"
        silent.pop().close()
        await soon(lambda: value(front, "arriving") == 1, "its end is seen")
        assert await connected(front, files, client_id="second")
        silent.pop().close()
        await first.ping()


async def test_the_stop_ends_what_has_not_arrived(files: Files) -> None:
    async with running(listener(files.server)) as front:
        loop = asyncio.get_running_loop()
        silent, shaking = await raw_connection(front), await raw_connection(front)
        await loop.sock_sendall(shaking, client_hello())
        await soon(lambda: value(front, "arriving") == 2, "both are accepted")
        client = await connected(front, files)
    for raw in (silent, shaking):
        with raw:
            await end_of(raw)
    assert await client.rest() == b""


def arrivals_of(front: MqttFront) -> Handshakes:
    return front.parts.listeners._handshakes["safe"]


def replace(source: str, target: str) -> None:
    """As certificate tools do it: a new file takes the name."""
    fresh = Path(target + ".new")
    shutil.copy(source, fresh)
    fresh.replace(target)


async def test_changed_files_count_for_the_next_and_open_connections_stay(
    files: Files, tmp_path: Path
) -> None:
    used = Certificate(str(tmp_path / "used.pem"), str(tmp_path / "used.key"))
    revocations = str(tmp_path / "used.crl")
    none_revoked = make_revocation_list(tmp_path, files.root, name="none")
    for source, target in zip((*files.server, none_revoked), (*used, revocations), strict=True):
        replace(source, target)
    asking = listener(used, client_ca_file=files.root.certificate, client_crl_files=[revocations])
    async with running(asking) as front:
        tls = arrivals_of(front)._tls
        assert tls is not None
        old = await connected(front, files, files.revoked, "old")
        assert await old.subscribe(("a/#", 0)) == [0]
        replace(files.revocations, revocations)
        await tls.reload()
        assert value(front, "tls_reloads_total") == 1
        assert await is_refused(front, files, files.revoked)
        new = await connected(front, files, files.device, "new")
        replace(files.strange.certificate, used.certificate)
        await tls.reload()
        assert value(front, "tls_failed_reloads_total") == 1, "half a change"
        new = await connected(front, files, files.device, "newer")
        replace(files.strange.key, used.key)
        await tls.reload()
        with pytest.raises(ssl.SSLCertVerificationError):
            await dial(front, files, files.device)
        await new.ping()
        gateway_of(front).push("a/b", b"still here", "a/#", qos=0)
        assert (await old.publish_received())[1] == b"still here"


async def test_a_slow_reader_by_tls_costs_bounded_memory(files: Files) -> None:
    async with running(listener(files.server), queued_bytes_max=200_000) as front:
        slow, fast = (
            await connected(front, files, client_id="slow"),
            await RawClient.connect(front.port, "fast"),
        )
        await slow.subscribe(("a", 0))
        slow._writer.transport.pause_reading()  # type: ignore[attr-defined]
        (device,) = [device for device in devices_of(front) if device.client_id == "slow"]
        payload = bytes(50_000)

        def is_full() -> bool:
            for _ in range(20):
                gateway_of(front).push("a", payload, "a", qos=0)
            return bool(device.is_write_paused) and _dropped(front) > 20

        await soon(is_full, "messages are dropped for it")
        transport = device.transport
        assert transport is not None
        assert transport.get_write_buffer_size() < limits.TLS_BUFFER_BYTES + 300_000
        assert device.queued_bytes <= 200_000 + len(payload)
        await fast.ping()
        slow._writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await slow.publish_received())[1] == payload


async def test_a_device_that_is_not_read_costs_bounded_memory_and_loses_nothing(files: Files) -> None:
    async with running(listener(files.server), pending_bytes_max=1_048_576, batch_bytes_max=65_536) as front:
        client = await connected(front, files)
        (device,) = devices_of(front)
        packet = packets.encode_publish("a", bytes(10_000), qos=0)
        client.send(packet * 600)
        await soon(lambda: device.group.paused_count == 1, "it has to wait")
        # What was not decrypted waits in the kernel, behind at most a part of a record.
        assert len(payloads(front)) * 10_000 < 1_048_576 + 65_536
        gateway_of(front).automatic = 0
        for handed in list(gateway_of(front).handed):
            handed.answer(0, "")
        await soon(lambda: len(payloads(front)) == 600, "all of it arrives")
        await client.ping()


def _dropped(front: MqttFront) -> float:
    return sum(metric.value for metric in front.metrics() if metric.name == "iotmq_mqtt_dropped_total")


def test_the_transports_that_encrypt_have_a_context(files: Files) -> None:
    made = listener_tls(config(listener(files.server)).mqtt.listeners[0])
    assert made is not None
    assert isinstance(made.context, ssl.SSLContext)
    assert listener_tls(ListenerSettings(name="a", transport="tcp")) is None
