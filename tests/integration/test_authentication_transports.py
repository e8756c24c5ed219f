"""Passwords, exchanges and certificates through every kind of listener."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from certificates import make_certificate, make_root
from fake_gateway import RawClient, ScriptedGateway, connect_packet
from mqtt_transports import Transport
from scram_client import AGAIN, ScramClient, auth, prove, scram_connect

from iotmq.config.config import config_from_table
from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.access.scram import make_verifier
from iotmq.mqtt_front.access.users_file import write_users
from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.settings.authentication import AuthenticationSettings

pytestmark = pytest.mark.uvloop

ACCEPTED = (packets.CONNACK << 4, b"\0\0")


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    write_users(path, f"pump:{make_verifier(b'pmup', iterations=4_096)}\n".encode())
    return path


@pytest.fixture
async def front(transport: Transport, users: Path) -> AsyncIterator[MqttFront]:
    authentication = AuthenticationSettings(users_file=str(users))
    async with transport.front(ScriptedGateway(), authentication=authentication) as front:
        yield front


def users_of(front: MqttFront) -> list[str | None]:
    return [device.user for device in front.parts.sessions.devices()]


async def test_passwords_and_exchanges(transport: Transport, front: MqttFront) -> None:
    client = await transport.dial(front)
    # What comes behind the CONNECT waits for its password.
    client.send(connect_packet("a", user_name="pump", password=b"pmup") + packets.PINGREQ_PACKET)
    assert await client.packet() == ACCEPTED
    assert await client.packet() == (packets.PINGRESP << 4, b"")
    other, scram = await transport.dial(front), ScramClient("pump", "pmup")
    other.send(scram_connect(scram, "b"))
    kind, code, told = await prove(other, scram)
    assert (kind, code) == (packets.CONNACK, 0)
    assert scram.is_server(told["authentication_data"])
    scram = ScramClient("pump", "pmup")
    other.send(auth(scram.first(), AGAIN))
    assert (await prove(other, scram))[:2] == (packets.AUTH, 0)
    assert users_of(front) == ["pump", "pump"]
    for refused in (
        connect_packet("c", user_name="pump", password=b"wrong"),
        connect_packet("c"),
        connect_packet("c", user_name="pump", password=b"wrong", protocol_level=5),
    ):
        third = await transport.dial(front)
        third.send(refused)
        first, body = await third.packet()
        assert first == packets.CONNACK << 4
        assert body[1] in (4, 5, 0x86)
        assert await third.rest() == b""
    await client.ping()
    client.close()
    other.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there")
async def test_a_certificate_or_a_password_at_one_listener(tmp_path: Path, users: Path) -> None:
    root = make_root(tmp_path)
    shown, own = make_certificate(tmp_path, root), make_certificate(tmp_path, root, "device-7")
    listener = {
        "name": "safe",
        "transport": "tls",
        "certificates": [{"certificate_file": shown.certificate, "key_file": shown.key}],
        "client_ca_file": root.certificate,
        "client_certificates": "optional",
        "client_identity": "cn",
        "client_identity_is_user": True,
    }
    table = {"listen_port": 0, "listeners": [listener], "authentication": {"users_file": str(users)}}
    front = MqttFront(config_from_table({"mqtt": table}).mqtt, ScriptedGateway())
    await front.start()
    clients: list[RawClient] = []
    try:
        port = int(front.addresses["safe"].rpartition(":")[2])

        async def answer(has_certificate: bool, packet: bytes) -> bytes:
            context = ssl.create_default_context(cafile=root.certificate)
            if has_certificate:
                context.load_cert_chain(own.certificate, own.key)
            client = await RawClient.dial(port, ssl=context, server_hostname="localhost")
            clients.append(client)
            client.send(packet)
            return (await client.packet())[1]

        assert await answer(True, connect_packet("a")) == b"\0\0"
        assert await answer(False, connect_packet("b")) == b"\0\5"
        assert await answer(False, connect_packet("c", user_name="pump", password=b"pmup")) == b"\0\0"
        assert sorted(map(str, users_of(front))) == ["device-7", "pump"]
        # Who begins an exchange is who proves to be there.
        assert (await answer(True, scram_connect(ScramClient("pump", "x"), "d")))[0] == 0x18
    finally:
        await front.stop()
