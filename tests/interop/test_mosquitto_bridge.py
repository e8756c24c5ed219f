"""A Mosquitto broker that bridges to a gateway with the settings its manual begins with, both ways."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually
from gateway_process import GatewayProcess
from mosquitto_broker import PROGRAM, MosquittoBroker

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(PROGRAM is None, reason="Mosquitto is not installed (tools/setup.sh dev)"),
]

CONNECTED = "iotmq_mqtt_bridge_connected"


class Listener:
    """A mosquitto_sub; lines are the retain flag, the topic and the payload."""

    def __init__(self, port: int, output: Path, *words: str) -> None:
        self._output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                ["stdbuf", "-oL", "mosquitto_sub", "-h", "127.0.0.1", "-p", str(port),
                 "-V", "5", "-q", "1", "-d", "-F", "= %r %t %p", *words],
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        eventually(lambda: "SUBACK" in output.read_text(), "subscribed")

    def lines(self) -> list[str]:
        text = self._output.read_text()
        return [line.removeprefix("= ") for line in text.splitlines() if line.startswith("= ")]


@pytest.fixture
def listeners() -> Iterator[list[Listener]]:
    running: list[Listener] = []
    yield running
    for each in running:
        each.process.kill()
        each.process.wait()


def publish(port: int, topic: str, payload: str, *words: str) -> None:
    subprocess.run(
        ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(port), "-q", "1", "-t", topic, "-m", payload, *words],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("version", ["", "mqttv31", "mqttv311", "mqttv50"])
@pytest.mark.parametrize("notifications", ["", "notifications_local_only true"])
def test_a_bridge_connects_and_takes_messages_both_ways(
    gateway: GatewayProcess, tmp_path: Path, listeners: list[Listener], version: str, notifications: str
) -> None:
    name = f"{version or 'default'}{'local' * bool(notifications)}"
    bridge = [
        "allow_anonymous true",
        f"connection {name}",
        f"address 127.0.0.1:{gateway.mqtt_port}",
        "restart_timeout 1",
        *(
            f"topic # {direction} 1 {name}-{direction}/ {name}-{direction}/"
            for direction in ("out", "in", "both")
        ),
        *([f"bridge_protocol_version {version}"] if version else []),
        *([notifications] if notifications else []),
    ]
    eventually(lambda: not gateway.metric(CONNECTED), "those before are gone")
    with MosquittoBroker(tmp_path, *bridge) as mosquitto:
        here = Listener(gateway.mqtt_port, tmp_path / "here", "-t", f"{name}-out/#", "-t", f"{name}-both/#")
        there = Listener(mosquitto.port, tmp_path / "there", "-t", f"{name}-in/#", "-t", f"{name}-both/#")
        listeners += [here, there]
        state = Listener(mosquitto.port, tmp_path / "state", "-t", "$SYS/broker/connection/#")
        listeners.append(state)
        eventually(lambda: any(line.endswith(" 1") for line in state.lines()), "the bridge is there")

        publish(mosquitto.port, f"{name}-out/a", "1")
        publish(gateway.mqtt_port, f"{name}-in/a", "2")
        publish(gateway.mqtt_port, f"{name}-in/kept", "3", "-r")
        publish(mosquitto.port, f"{name}-both/a", "4")
        publish(gateway.mqtt_port, f"{name}-both/b", "5")
        publish(mosquitto.port, f"{name}-out/end", "6")
        publish(gateway.mqtt_port, f"{name}-in/end", "7")
        eventually(lambda: any(line.endswith(" 6") for line in here.lines()), "all is here")
        eventually(lambda: any(line.endswith(" 7") for line in there.lines()), "all is there")
        assert sorted(here.lines()) == sorted(
            [f"0 {name}-out/a 1", f"0 {name}-both/a 4", f"0 {name}-both/b 5", f"0 {name}-out/end 6"]
        )
        assert sorted(there.lines()) == sorted(
            [f"0 {name}-in/a 2", f"0 {name}-in/kept 3", f"0 {name}-both/a 4", f"0 {name}-both/b 5",
             f"0 {name}-in/end 7"]
        )  # fmt: skip
        late = Listener(mosquitto.port, tmp_path / "late", "-t", f"{name}-in/#")
        listeners.append(late)
        eventually(lambda: late.lines() == [f"1 {name}-in/kept 3"], "what is retained here is so there")
        assert "Socket error" not in mosquitto.log_text()
        # One that does not tell its state is known by the bit of older versions, which MQTT 5 does not have.
        assert gateway.metric(CONNECTED) == (not notifications or version != "mqttv50")
