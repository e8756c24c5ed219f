"""Mosquitto as the other end of bridges: with default and tuned settings, killed and started again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from bridged_gateways import bodies, bridge, gateway, messages, receive, send
from eventually import eventually
from gateway_process import GatewayProcess
from mosquitto_broker import PROGRAM, MosquittoBroker

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(PROGRAM is None, reason="Mosquitto is not installed (tools/setup.sh dev)"),
]

PERSISTENT = ("allow_anonymous true", "persistence true", "autosave_interval 1")


def publish(port: int, topic: str, payload: str, *words: str) -> None:
    subprocess.run(
        ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(port), "-q", "1", "-t", topic, "-m", payload, *words],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip


def retained(port: int, topic: str) -> str:
    found = subprocess.run(
        ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(port), "-t", topic, "-W", "1", "-F", "%r %p"],
        check=False, capture_output=True, timeout=60, text=True,
    )  # fmt: skip
    return found.stdout.strip()


class Kept:
    """A session of mosquitto_sub at a Mosquitto, and what it has got."""

    def __init__(self, port: int, output: Path, topic_filter: str) -> None:
        self._output = output
        with output.open("ab") as file:
            self.process = subprocess.Popen(
                ["stdbuf", "-oL", "mosquitto_sub", "-h", "127.0.0.1", "-p", str(port), "-q", "1", "-d",
                 "-F", "= %t %p", "-t", topic_filter],
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        eventually(lambda: "SUBACK" in output.read_text(), "subscribed")

    def lines(self) -> list[str]:
        text = self._output.read_text()
        return [line.removeprefix("= ") for line in text.splitlines() if line.startswith("= ")]

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize(
    "tuned",
    [(), ("max_inflight_messages 1", "max_packet_size 4096"), ("max_inflight_messages 0",)],
    ids=["default", "tight", "wide"],
)
def test_messages_go_to_mosquitto_and_come_from_it(
    tmp_path: Path, version: str, tuned: tuple[str, ...]
) -> None:
    with MosquittoBroker(tmp_path, "allow_anonymous true", *tuned) as mosquitto:
        config = bridge(
            "far", mosquitto.port, send("up/#", topic="edge/{1:}"), receive("down/#", topic="from/{1:}"),
            version=version,
        )  # fmt: skip
        with (
            gateway(tmp_path, "edge", config=config) as edge,
            Kept(mosquitto.port, tmp_path / "sub", "edge/#") as there,
        ):
            eventually(lambda: edge.metric("iotmq_bridge_connections") == 1, "connected")
            for number in range(50):
                publish(edge.mqtt_port, "up/a", str(number))
            publish(edge.mqtt_port, "other", "stays")
            eventually(lambda: len(there.lines()) >= 50, "all are there")
            assert there.lines() == [f"edge/a {number}" for number in range(50)]
            publish(edge.mqtt_port, "up/kept", "r", "-r")
            eventually(lambda: retained(mosquitto.port, "edge/kept") == "1 r", "it is retained")
            publish(edge.mqtt_port, "up/kept", "", "-r")
            eventually(lambda: retained(mosquitto.port, "edge/kept") == "", "and deleted")
            publish(mosquitto.port, "down/b", "1", "-r")
            (found,) = eventually(
                lambda: [
                    each for each in messages(edge) if each.body == b"1" and "from" in str(each.properties)
                ],
                "it comes",
            )
            assert found.properties["MQTT_TOPIC"] == "from/b"
            assert edge.metric("iotmq_bridge_lag_messages") == 0
            assert edge.metric("iotmq_bridge_reconnects_total") == 0


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_mosquitto_that_is_killed_gets_everything_when_it_is_back(tmp_path: Path, version: str) -> None:
    mosquitto = MosquittoBroker(tmp_path, *PERSISTENT, f"persistence_location {tmp_path}/")
    config = bridge("far", mosquitto.port, send(qos_min=1), version=version)
    with gateway(tmp_path, "edge", config=config) as edge:
        with mosquitto:
            publish(edge.mqtt_port, "a", "before")
            eventually(lambda: edge.metric("iotmq_bridge_acknowledged_total") == 1, "the first")
        for number in range(20):
            publish(edge.mqtt_port, "a", str(number))
        edge.restart()
        with mosquitto, Kept(mosquitto.port, tmp_path / "sub", "a") as there:
            # A subscriber that came too late for some of it has the last one retained.
            publish(edge.mqtt_port, "a", "last")
            eventually(lambda: "a last" in there.lines(), "all has gone")
            eventually(lambda: edge.metric("iotmq_bridge_lag_messages") == 0, "and is acknowledged")
            log = mosquitto.log_text()
            assert log.count("Received PUBLISH from edge-far") >= 21


def test_no_loop_through_a_mosquitto_between_two_gateways(tmp_path: Path) -> None:
    with MosquittoBroker(tmp_path, "allow_anonymous true") as mosquitto:
        config = bridge("hub", mosquitto.port, send(), receive("#"))
        with gateway(tmp_path, "one", config=config) as one, gateway(tmp_path, "two", config=config) as two:
            for each in (one, two):
                eventually(lambda each=each: each.metric("iotmq_bridge_connections") == 1, "connected")  # type: ignore[misc]
            publish(one.mqtt_port, "a", "from one")
            publish(two.mqtt_port, "a", "from two")
            everything = ["from one", "from two"]
            eventually(lambda: bodies(one) == bodies(two) == everything, "both have both")
            publish(one.mqtt_port, "a", "last")
            eventually(lambda: "last" in bodies(two), "the last")
            assert bodies(one) == bodies(two) == [*everything, "last"]


@pytest.mark.parametrize("tuned", [(), ("cleansession true", "notifications false", "try_private false")])
def test_a_mosquitto_bridge_to_a_gateway_that_is_killed_loses_nothing(
    tmp_path: Path, tuned: tuple[str, ...]
) -> None:
    centre = GatewayProcess(tmp_path / "centre")
    lines = [
        *PERSISTENT,
        f"persistence_location {tmp_path}/",
        "connection up",
        f"address 127.0.0.1:{centre.mqtt_port}",
        "restart_timeout 1",
        "topic # out 1",
        *tuned,
    ]
    with MosquittoBroker(tmp_path, *lines) as mosquitto, centre:
        eventually(lambda: "Received CONNACK" in mosquitto.log_text(), "connected")
        publish(mosquitto.port, "a", "before")
        eventually(lambda: bodies(centre) == ["before"], "the first")
        centre.kill()
        for number in range(20):
            publish(mosquitto.port, "a", str(number))
        centre.start()
        eventually(lambda: set(bodies(centre)) >= {str(number) for number in range(20)}, "all")


def test_a_centre_keeps_the_state_of_a_mosquitto_bridge(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "centre") as centre:
        lines = [
            "allow_anonymous true",
            "connection up",
            f"address 127.0.0.1:{centre.mqtt_port}",
            "remote_clientid site-7",
            "topic # out 1",
        ]
        topic = "$SYS/broker/connection/site-7/state"
        with MosquittoBroker(tmp_path, *lines):
            eventually(lambda: retained(centre.mqtt_port, topic) == "1 1", "it is connected")
            assert centre.metrics()['iotmq_mqtt_bridge_connected{bridge="site-7"}'] == 1
            assert centre.metric("iotmq_mqtt_bridges") == 1
        eventually(lambda: retained(centre.mqtt_port, topic) == "1 0", "it is gone")
        assert centre.metrics()['iotmq_mqtt_bridge_connected{bridge="site-7"}'] == 0
        assert centre.metric("iotmq_mqtt_bridges") == 0
        # Nobody else says so.
        for words in (("-i", "somebody"), ("-i", "site-7", "-V", "5")):
            code = subprocess.run(
                ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(centre.mqtt_port), "-q", "1", "-t", topic,
                 "-m", "2", *words],
                check=False, capture_output=True, timeout=60,
            ).returncode  # fmt: skip
            assert code == 0
        assert retained(centre.mqtt_port, topic) == "1 0"
