"""Bridges between a gateway and Mosquitto that are killed, and messages that Mosquitto does not take."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from bridged_gateways import bodies, bridge, gateway, send
from eventually import eventually
from gateway_process import GatewayProcess
from mosquitto_broker import PROGRAM, MosquittoBroker

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(PROGRAM is None, reason="Mosquitto is not installed (tools/setup.sh dev)"),
]

COUNT = 2_000
# Of Mosquitto, without max_inflight_messages.
WINDOW = 20


class Subscriber:
    """A mosquitto_sub with a kept session, which connects again by itself; lines are payloads."""

    def __init__(self, port: int, output: Path, topic: str) -> None:
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                ["stdbuf", "-oL", "mosquitto_sub", "-h", "127.0.0.1", "-p", str(port), "-c", "-i", "kept",
                 "-q", "1", "-d", "-F", "= %p", "-t", topic],
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        eventually(lambda: "Subscribed" in output.read_text(), "subscribed")

    def payloads(self) -> list[str]:
        text = self._output.read_text()
        return [line.removeprefix("= ") for line in text.splitlines() if line.startswith("= ")]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def publisher(port: int, topic: str, payloads: range) -> subprocess.Popen[bytes]:
    """Publishes lines of numbers with QoS 1, in a process of its own."""
    process = subprocess.Popen(
        ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(port), "-q", "1", "-t", topic, "-l"],
        stdin=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write("".join(f"{number}\n" for number in payloads).encode())
    process.stdin.close()
    return process


def publish(port: int, topic: str, payloads: range) -> None:
    assert publisher(port, topic, payloads).wait(60) == 0


def repeats(found: list[str], count: int) -> int:
    """How many came more than once; all of so many numbers have to be there."""
    assert set(found) == {str(number) for number in range(count)}
    return Counter(found).total() - count


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[GatewayProcess]:
    with gateway(tmp_path, "centre") as running:
        yield running


def test_counts_agree_when_both_sides_of_a_default_bridge_are_killed(
    centre: GatewayProcess, tmp_path: Path
) -> None:
    mosquitto = MosquittoBroker(
        tmp_path,
        "allow_anonymous true",
        "persistence true",
        f"persistence_location {tmp_path}/",
        "autosave_on_changes true",
        "autosave_interval 1",
        "connection edge",
        f"address 127.0.0.1:{centre.mqtt_port}",
        "cleansession false",
        "restart_timeout 1",
        "topic up/# out 1",
        "topic down/# in 1",
    )

    def ups() -> list[str]:
        return [body for body in bodies(centre) if not body.startswith("d")]

    with mosquitto:
        subscriber = Subscriber(mosquitto.port, tmp_path / "down", "down/#")
        eventually(lambda: centre.metric("iotmq_mqtt_bridges") == 1, "connected")
        sending = publisher(mosquitto.port, "up/a", range(COUNT))
        eventually(lambda: len(ups()) > COUNT // 10, "some are there")
        centre.kill()
        assert sending.wait(60) == 0
        centre.start()
        eventually(lambda: len(set(ups())) == COUNT, "what waited at Mosquitto")
        assert repeats(ups(), COUNT) <= WINDOW

        eventually(lambda: centre.metric("iotmq_mqtt_bridges") == 1, "connected again")
        publish(centre.mqtt_port, "down/a", range(100))
        eventually(lambda: len(set(subscriber.payloads())) == 100, "what goes to the edge")
    try:
        publish(centre.mqtt_port, "down/a", range(100, COUNT))
        centre.kill()
        centre.start()
        with mosquitto:
            eventually(lambda: len(set(subscriber.payloads())) == COUNT, "what waited at the centre")
            # That the first hundred were acknowledged may be forgotten with the centre that was killed.
            found = subscriber.payloads()
            assert repeats(found, COUNT) <= WINDOW + 100
            assert sum(int(number) >= 100 for number in found) <= COUNT - 100 + WINDOW
    finally:
        subscriber.end()


def test_a_message_that_mosquitto_closes_the_connection_for_is_left_out(tmp_path: Path) -> None:
    mosquitto = MosquittoBroker(tmp_path, "allow_anonymous true", "max_packet_size 2000")
    config = bridge("far", mosquitto.port, send(), version="3.1.1")
    with mosquitto, gateway(tmp_path, "near", config=config) as near:
        subscriber = Subscriber(mosquitto.port, tmp_path / "there", "#")
        try:
            publish(near.mqtt_port, "a", range(5))
            large = ["-p", str(near.mqtt_port), "-q", "1", "-t", "a", "-m", "x" * 3_000]
            subprocess.run(["mosquitto_pub", "-h", "127.0.0.1", *large], check=True, timeout=60)
            publish(near.mqtt_port, "a", range(5, 10))
            eventually(lambda: near.metric("iotmq_bridge_put_aside_total") == 1, "it is left out")
            eventually(lambda: len(set(subscriber.payloads())) == 10, "the others are there")
            eventually(lambda: near.metric("iotmq_bridge_lag_messages") == 0, "nothing waits")
            assert subscriber.payloads() == [str(number) for number in range(10)], "once, in order"
        finally:
            subscriber.end()
