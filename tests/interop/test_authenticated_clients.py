"""Foreign clients that give a user name and a password or use SCRAM, and a session kept for one that does."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from amqtt.client import MQTTClient
from amqtt.errors import ConnectError
from eventually import eventually
from fake_gateway import RawClient
from gateway_process import ROOT, GatewayProcess
from mqtt5_oracle import read_properties
from mqtt5_reading import read_publish5
from scram_client import CONTINUE, METHOD, ScramClient, answer, auth, scram_connect

from iotmq.commands.cli import main
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import NO_PROPERTIES

pytestmark = pytest.mark.interop


def add_user(file: Path, secrets: Path, name: str, password: str) -> None:
    secret = secrets / "password"
    secret.write_text(password)
    assert main(["users", "add", name, "--file", str(file), "--password-file", str(secret)]) == 0


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("users")
    add_user(directory / "users", directory, "pump", "s3cr€t")
    return directory / "users"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, users: Path) -> Iterator[GatewayProcess]:
    data = tmp_path_factory.mktemp("gateway") / "data"
    with GatewayProcess(
        data,
        f"mqtt.authentication.users_file={users}",
        "mqtt.authentication.reload_interval_s=0.05",
        # These are about who they are; tests/interop/test_refused_clients.py is about what they may.
        "mqtt.permissions.without_rules=everything",
        # Nobody has to say so any more.
        "mqtt.listen_host=0.0.0.0",
    ) as running:
        yield running


def mosquitto_pub(gateway: GatewayProcess, version: str, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(gateway.mqtt_port), "-V", version, "-i", "m",
         "-t", "t", "-m", "x", "-q", "1", *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="the Mosquitto clients are not installed")
@pytest.mark.parametrize("version", ["31", "311", "5"])
def test_mosquitto_pub(gateway: GatewayProcess, version: str) -> None:
    assert mosquitto_pub(gateway, version, "-u", "pump", "-P", "s3cr€t") == (0, "")
    code, text = mosquitto_pub(gateway, version, "-u", "pump", "-P", "secret")
    assert code
    assert "user name or password" in text.lower()
    code, text = mosquitto_pub(gateway, version)
    assert code
    assert "ot authori" in text


def paho_code(gateway: GatewayProcess, protocol: int, user: str | None, password: str | None) -> int:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=protocol, reconnect_on_failure=False)
    codes: list[int] = []
    client.on_connect = lambda _client, _data, _flags, code, _properties: codes.append(code.value)
    client.username_pw_set(user, password)
    client.connect("127.0.0.1", gateway.mqtt_port)
    client.loop_start()
    code = eventually(lambda: [*codes], "CONNACK")[0]
    client.disconnect()
    client.loop_stop()
    return code


@pytest.mark.parametrize("protocol", [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5])
def test_paho(gateway: GatewayProcess, protocol: int) -> None:
    assert paho_code(gateway, protocol, "pump", "s3cr€t") == 0
    # paho shows the codes of before MQTT 5 by those of MQTT 5.
    assert paho_code(gateway, protocol, "pump", "wrong") == 0x86
    assert paho_code(gateway, protocol, "nobody", "s3cr€t") == 0x86
    assert paho_code(gateway, protocol, None, None) == 0x87


async def test_amqtt(gateway: GatewayProcess) -> None:
    logging.getLogger("amqtt").setLevel(logging.CRITICAL)
    client = MQTTClient(client_id="a", config={"auto_reconnect": False})
    await client.connect(f"mqtt://pump:s3cr%E2%82%ACt@127.0.0.1:{gateway.mqtt_port}/", cleansession=True)
    await client.publish("t", b"x", qos=1)
    await client.disconnect()
    other = MQTTClient(client_id="b", config={"auto_reconnect": False})
    with pytest.raises(ConnectError):
        await other.connect(f"mqtt://pump:wrong@127.0.0.1:{gateway.mqtt_port}/", cleansession=True)


MODULES = ROOT / "build" / "interop" / "node" / "node_modules"
SCRIPT = Path(__file__).parent / "node" / "mqtt_js_scram_client.js"


def mqtt_js(gateway: GatewayProcess, password: str) -> list[dict[str, Any]]:
    """What MQTT.js says while it proves who it is, publishes, and proves it again."""
    done = subprocess.run(
        ["node", str(SCRIPT), str(gateway.mqtt_port), "pump", password],
        env={**os.environ, "NODE_PATH": str(MODULES)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.skipif(
    shutil.which("node") is None or not (MODULES / "mqtt").is_dir(),
    reason="MQTT.js is not installed (tools/setup.sh dev, with npm)",
)
def test_mqtt_js_by_scram(gateway: GatewayProcess) -> None:
    assert mqtt_js(gateway, "s3cr€t") == [
        {"event": "connect", "method": METHOD, "isServer": True},
        {"event": "message", "topic": "scram/x", "payload": "hello"},
        {"event": "again", "isServer": True},
    ]
    assert mqtt_js(gateway, "secret") == [{"event": "error", "code": 0x87}]


async def connected_by_scram(gateway: GatewayProcess, *, clean_session: bool) -> tuple[RawClient, bool]:
    """A device of MQTT 5 whose session is kept, and whether it was there."""
    client, scram = await RawClient.dial(gateway.mqtt_port), ScramClient("pump", "s3cr€t")
    client.send(scram_connect(scram, "kept-by-scram", clean_session=clean_session, session_expiry_s=600))
    kind, code, asked = await answer(client)
    assert (kind, code) == (packets.AUTH, CONTINUE)
    client.send(auth(scram.final(asked["authentication_data"])))
    first, body = await client.packet()
    assert (first >> 4, body[1]) == (packets.CONNACK, 0)
    told: dict[str, Any] = read_properties(body[2:], packets.CONNACK)[1]
    assert told["authentication_method"] == METHOD
    assert scram.is_server(told["authentication_data"])
    return client, bool(body[0])


async def test_a_session_kept_for_a_device_that_uses_scram(gateway: GatewayProcess) -> None:
    client, _ = await connected_by_scram(gateway, clean_session=True)
    client.send(packets.encode_subscribe(1, [("kept/#", 1)], NO_PROPERTIES))
    assert (await client.packet())[0] == packets.SUBACK << 4
    client.abort()
    publisher = await RawClient.connect(gateway.mqtt_port, "p", user_name="pump", password="s3cr€t".encode())
    publisher.send(packets.encode_publish("kept/1", b"while away", qos=1, packet_id=1))
    assert await publisher.puback() == 1
    publisher.close()
    client, is_present = await connected_by_scram(gateway, clean_session=False)
    assert is_present
    assert read_publish5(await client.packet()).payload == b"while away"
    client.close()


def test_users_come_and_go_under_traffic(gateway: GatewayProcess, users: Path, tmp_path: Path) -> None:
    """Somebody publishes all the time; nobody of those who may is refused or disconnected."""
    publisher = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv311)
    ends: list[Any] = []
    publisher.on_disconnect = lambda *words: ends.append(words)
    publisher.username_pw_set("pump", "s3cr€t")
    publisher.connect("127.0.0.1", gateway.mqtt_port)
    publisher.loop_start()
    is_over = threading.Event()
    sent: list[paho.MQTTMessageInfo] = []

    def publish() -> None:
        while not is_over.wait(0.005):
            sent.append(publisher.publish("traffic", b"x", qos=1))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        for number in range(3):
            name = f"new-{number}"
            add_user(users, tmp_path, name, "x")
            eventually(lambda name=name: paho_code(gateway, 4, name, "x") == 0, "the new user may connect")
            assert paho_code(gateway, 4, "pump", "s3cr€t") == 0
            assert main(["users", "remove", name, "--file", str(users)]) == 0
            eventually(lambda name=name: paho_code(gateway, 4, name, "x") == 0x86, "the user is gone")
        before = users.read_bytes()
        users.write_bytes(before + b"broken\n")
        eventually(lambda: gateway.metric("iotmq_mqtt_users_failed_reloads_total"), "it is not used")
        assert paho_code(gateway, 4, "pump", "s3cr€t") == 0
        users.write_bytes(before)
    finally:
        is_over.set()
        thread.join()
    for message in sent:
        message.wait_for_publish(20)
    assert sent
    assert not ends
    publisher.disconnect()
    publisher.loop_stop()
    # The file may have been read between its truncation and its content.
    eventually(lambda: gateway.metric("iotmq_mqtt_users") == 1, "the users of before")
