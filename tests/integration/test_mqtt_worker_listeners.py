"""Workers with listeners beside the port they share: a Unix socket of each, a port by TLS, one for pages."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import make_certificate, make_root
from crash_load import SMALL_FILES
from eventually import eventually
from fake_gateway import connect_packet
from gateway_process import GatewayProcess, free_port
from websocket_peer import frame, request

from iotmq.client.admin.devices.clients import ClientAdmin
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.settings import ClientSettings
from iotmq.config.setting_text import toml_value

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there")

CONNACK = b"\x20\x02\0\0"
WORKERS = 2


@pytest.fixture
def short() -> Iterator[Path]:
    """A short path: that of a socket has a limit."""
    with tempfile.TemporaryDirectory(prefix="iotmq-") as made:
        yield Path(made)


def talk(connection: socket.socket, client_id: str) -> None:
    connection.settimeout(20)
    connection.sendall(connect_packet(client_id))
    assert connection.recv(100) == CONNACK


def talk_in_frames(connection: ssl.SSLSocket, client_id: str) -> None:
    connection.settimeout(20)
    connection.sendall(request())
    assert connection.recv(1_000).startswith(b"HTTP/1.1 101 ")
    connection.sendall(frame(connect_packet(client_id)))
    assert connection.recv(100) == b"\x82\x04" + CONNACK


async def connected(registry: str) -> dict[str, str]:
    """Client ids, with the front ends they are connected to: each worker is one, and answers for itself."""
    async with ClientTransport(ClientSettings(registries=(registry,))) as client:
        page = await ClientAdmin(client).page()
    assert page.problems == {}
    return {row.client_id: row.front_end for row in page.rows}


def test_each_worker_has_its_sockets(tmp_path: Path, short: Path) -> None:
    root = make_root(tmp_path)
    shown = make_certificate(tmp_path, root)
    tls_port, web_port = free_port(), free_port()
    certificates = [{"certificate_file": shown.certificate, "key_file": shown.key}]
    listeners = toml_value(
        [
            {"name": "local", "transport": "unix", "socket_path": str(short / "{worker}")},
            {"name": "safe", "transport": "tls", "listen_port": tls_port, "certificates": certificates},
            {
                "name": "web",
                "transport": "wss",
                "listen_port": web_port,
                "certificates": certificates,
                "allowed_origins": ["*"],
            },
        ]
    )
    registry = GatewayProcess(tmp_path / "registry", role="registry")
    broker = GatewayProcess(
        tmp_path / "broker", f"broker.registries={registry.registry}", "broker.registration_interval_s=0.3",
        *SMALL_FILES, role="broker",
    )  # fmt: skip
    front = GatewayProcess(
        tmp_path / "front", f"mqtt.registries={registry.registry}", f"mqtt.workers={WORKERS}",
        f"mqtt.listeners={listeners}", role="mqtt",
    )  # fmt: skip
    with registry, broker, front:
        assert sorted(path.name for path in short.iterdir()) == ["1", "2"]
        held = []
        for number in range(1, WORKERS + 1):
            local = socket.socket(socket.AF_UNIX)
            held.append(local)
            local.connect(str(short / str(number)))
            talk(local, f"local-{number}")
        context = ssl.create_default_context(cafile=root.certificate)
        for number in range(8):
            raw = socket.create_connection(("127.0.0.1", tls_port), 20)
            encrypted = context.wrap_socket(raw, server_hostname="localhost")
            held.append(encrypted)
            talk(encrypted, f"safe-{number}")
            raw = socket.create_connection(("127.0.0.1", web_port), 20)
            encrypted = context.wrap_socket(raw, server_hostname="localhost")
            held.append(encrypted)
            talk_in_frames(encrypted, f"web-{number}")

        def connections(listener: str) -> list[float]:
            return [
                value
                for name, value in front.metrics().items()
                if name.startswith("iotmq_mqtt_listener_connections") and f'listener="{listener}"' in name
            ]

        eventually(lambda: sum(connections("safe")) == 8, "the page of the supervisor has them")
        eventually(lambda: sum(connections("web")) == 8, "web pages are on it, too")
        assert connections("local") == [1, 1]
        found = asyncio.run(connected(registry.registry))
        assert len(found) == 18
        assert found["local-1"].removesuffix("-1") == found["local-2"].removesuffix("-2")
        assert front.terminate() < 5
        assert not list(short.iterdir()), "the sockets go with their workers"
        for each in held:
            each.close()
