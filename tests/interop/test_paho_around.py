"""paho-mqtt with what is around the language: other names, unasked and exclusive subscriptions, a drain."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest
from eventually import eventually
from gateway_process import GatewayProcess

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(
        tmp_path_factory.mktemp("gateway") / "data",
        "mqtt.rewrites=[{filter = 'old/#', pattern = '^old/(.+)$', template = 'of/%c/$1'}]",
        "mqtt.auto_subscriptions=[{filter = 'commands/%c/#', qos = 1}]",
        "mqtt.server_reference=other.example:1883",
    ) as running:
        yield running


class Device:
    """A paho client and what it was told."""

    def __init__(self, gateway: GatewayProcess, client_id: str, *, version: int = paho.MQTTv5) -> None:
        client = self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=version,
            reconnect_on_failure=False,
        )
        self.messages: list[tuple[str, bytes]] = []
        self.granted: dict[int, list[int]] = {}
        self.connacks: list[tuple[int, Any]] = []
        self.ends: list[tuple[int, Any]] = []
        client.on_message = lambda _client, _data, message: self.messages.append(
            (message.topic, message.payload)
        )
        client.on_subscribe = lambda _client, _data, packet_id, codes, _told: self.granted.__setitem__(
            packet_id, [code.value for code in codes]
        )
        client.on_connect = lambda _client, _data, _flags, code, told: self.connacks.append(
            (code.value, told)
        )
        client.on_disconnect = lambda _client, _data, _flags, code, told: self.ends.append((code.value, told))
        client.connect("127.0.0.1", gateway.mqtt_port)
        client.loop_start()
        eventually(lambda: self.connacks, "CONNACK")

    def subscribe(self, topic_filter: str) -> list[int]:
        _, packet_id = self.client.subscribe(topic_filter, qos=1)
        assert packet_id is not None
        return eventually(lambda: self.granted.get(packet_id), "SUBACK")  # type: ignore[return-value]

    def publish(self, topic: str, payload: bytes) -> None:
        self.client.publish(topic, payload, qos=1).wait_for_publish(20)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
def test_topics_are_rewritten_and_subscriptions_are_there_unasked(
    gateway: GatewayProcess, version: int
) -> None:
    one, two = Device(gateway, f"one-{version}", version=version), Device(gateway, f"two-{version}")
    assert two.subscribe("of/#") == [1]
    one.publish("old/x", b"1")
    assert eventually(lambda: two.messages, "a message") == [(f"of/one-{version}/x", b"1")]
    two.publish(f"commands/one-{version}/reboot", b"now")
    assert eventually(lambda: one.messages, "a command") == [(f"commands/one-{version}/reboot", b"now")]
    one.close()
    two.close()


@pytest.mark.parametrize(("version", "refused"), [(paho.MQTTv311, 0x80), (paho.MQTTv5, 0x97)])
def test_an_exclusive_subscription_is_refused_a_second_session(
    gateway: GatewayProcess, version: int, refused: int
) -> None:
    one, two = Device(gateway, "first"), Device(gateway, "second", version=version)
    assert one.subscribe("$exclusive/e") == [1]
    assert two.subscribe("$exclusive/e") == [refused]
    two.publish("e", b"x")
    assert eventually(lambda: one.messages, "a message") == [("e", b"x")]
    one.close()
    eventually(lambda: two.subscribe("$exclusive/e") == [1], "it is free")
    two.close()


def test_a_drained_gateway_sends_devices_elsewhere(gateway: GatewayProcess) -> None:
    device, old = Device(gateway, "five"), Device(gateway, "three", version=paho.MQTTv311)

    def drain(*words: str) -> str:
        done = subprocess.run(
            [
                sys.executable, "-m", "iotmq", "sessions", "drain", "local",
                "--registry", gateway.registry, *words,
            ],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout + done.stderr

    said = drain("--per-second", "1000")
    assert "0 clients left" in said
    ((code, told),) = eventually(lambda: device.ends, "DISCONNECT")  # type: ignore[misc]
    assert (code, told.ServerReference) == (0x9C, "other.example:1883")
    eventually(lambda: old.ends, "the end of the connection")
    late = Device(gateway, "late")
    ((code, told),) = late.connacks
    assert (code, told.ServerReference) == (0x9C, "other.example:1883")
    assert "welcome" in drain("--undo")
    again = Device(gateway, "late")
    assert again.connacks[0][0] == 0
    for client in (device, old, late, again):
        client.close()
