"""Foreign clients that may not do everything: the test of not subscribing, and messages that are refused."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from eventually import eventually
from gateway_process import GatewayProcess
from log_reader import read_topic

pytestmark = pytest.mark.interop

RULES = """
[[rules]]
name = "not this one"
permission = "deny"
who = "all"
action = "all"
topics = ["test/nosubscribe"]

[[rules]]
permission = "allow"
who = "all"
action = "all"
topics = ["#"]
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    directory: Path = tmp_path_factory.mktemp("gateway")
    (directory / "permissions.toml").write_text(RULES)
    with GatewayProcess(
        directory / "data",
        f"mqtt.permissions.permissions_file={directory / 'permissions.toml'}",
    ) as running:
        yield running


@pytest.mark.parametrize(
    ("version", "code"), [(paho.MQTTv31, 0x80), (paho.MQTTv311, 0x80), (paho.MQTTv5, 0x87)]
)
def test_paho_is_not_subscribed(gateway: GatewayProcess, version: int, code: int) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="c", protocol=version)
    granted: list[list[int]] = []
    connected: list[int] = []
    client.on_connect = lambda _client, _data, _flags, code, _told: connected.append(code.value)
    client.on_subscribe = lambda _client, _data, _id, codes, _told: granted.append(
        [each.value for each in codes]
    )
    client.connect("127.0.0.1", gateway.mqtt_port)
    client.loop_start()
    eventually(lambda: connected, "CONNACK")
    client.subscribe("test/nosubscribe", qos=2)
    assert eventually(lambda: granted, "SUBACK") == [[code]]
    client.subscribe([("test/+", 1), ("test/yes", 1), ("test/nosubscribe/below", 0)])
    eventually(lambda: len(granted) == 2, "the second SUBACK")
    assert granted[1] == [code, 1, 0]
    told: list[int] = []
    client.on_publish = lambda _client, _data, _id, reason, _told: told.append(reason.value)
    for topic in ("test/nosubscribe", "test/allowed"):
        client.publish(topic, b"x", qos=1).wait_for_publish(20)
    eventually(lambda: len(told) == 2, "PUBACKs")
    assert told == [0x87 if version == paho.MQTTv5 else 0, 0]
    client.disconnect()
    client.loop_stop()


@pytest.mark.skipif(shutil.which("paho_cs_sub") is None, reason="the samples of Paho C are not installed")
def test_paho_c_is_not_subscribed(gateway: GatewayProcess) -> None:
    done = subprocess.run(
        ["paho_cs_sub", "-c", f"mqtt://127.0.0.1:{gateway.mqtt_port}", "-i", "cs", "-q", "1",
         "-t", "test/nosubscribe"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Error 128 subscribing" in done.stderr, (done.returncode, done.stderr)


@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="the Mosquitto clients are not installed")
@pytest.mark.parametrize("version", ["31", "311", "5"])
def test_mosquitto_sub_is_not_subscribed(gateway: GatewayProcess, version: str) -> None:
    done = subprocess.run(
        ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(gateway.mqtt_port), "-V", version,
         "-t", "test/nosubscribe"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "denied" in done.stderr or "ot authori" in done.stderr, (done.returncode, done.stderr)


def test_what_was_refused_is_not_in_the_log(gateway: GatewayProcess) -> None:
    stored = read_topic(gateway.registry, "mqtt")
    topics = {message.properties["MQTT_TOPIC"] for queue in stored.values() for message in queue}
    assert topics == {"test/allowed"}
