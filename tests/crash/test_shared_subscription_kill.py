"""A group with paho and mosquitto_sub members at two front ends and two brokers that are killed."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from crash_load import SMALL_FILES
from eventually import eventually
from gateway_process import GatewayProcess

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto_sub is not installed"),
]

SHARE = "$share/workers/jobs/#"
MESSAGES = 1_200


@pytest.fixture
def roles(tmp_path: Path) -> Iterator[dict[str, GatewayProcess]]:
    registry = GatewayProcess(tmp_path / "registry", role="registry")
    brokers = [
        GatewayProcess(
            tmp_path / name,
            f"broker.registries={registry.registry}",
            f"broker.name={name}",
            "broker.registration_interval_s=0.3",
            "broker.shared_timeout_s=3",
            *SMALL_FILES,
            role="broker",
        )
        for name in ("a", "b")
    ]
    fronts = [
        GatewayProcess(
            tmp_path / name,
            f"mqtt.registries={registry.registry}",
            "mqtt.retry_interval_s=0.1",
            f"mqtt.name={name}",
            role="mqtt",
        )
        for name in ("one", "two")
    ]
    with registry, brokers[0], brokers[1], fronts[0], fronts[1]:
        yield {"a": brokers[0], "b": brokers[1], "one": fronts[0], "two": fronts[1]}


class PahoMember:
    """A worker that comes back by itself; what it has acknowledged is in `got`."""

    def __init__(self, client_id: str, port: int, *, clean: bool) -> None:
        self.got: list[bytes] = []
        self.subscribed = threading.Event()
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv311, clean_session=clean
        )
        self.client.reconnect_delay_set(1, 1)
        self.client.on_message = lambda client, data, message: self.got.append(message.payload)
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        self.client.on_connect = lambda client, *_: client.subscribe(SHARE, qos=1)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        assert self.subscribed.wait(10)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.timeout(120)
def test_every_message_of_a_group_is_acknowledged_by_somebody(
    roles: dict[str, GatewayProcess], tmp_path: Path
) -> None:
    one, two = roles["one"], roles["two"]
    workers = [
        PahoMember("kept-one", one.mqtt_port, clean=False),
        PahoMember("clean-one", one.mqtt_port, clean=True),
        PahoMember("kept-two", two.mqtt_port, clean=False),
    ]
    output = tmp_path / "mosquitto_sub"
    with output.open("wb") as file:
        mosquitto = subprocess.Popen(
            [
                "mosquitto_sub", "-h", "127.0.0.1", "-p", str(two.mqtt_port), "-V", "311", "-i", "mosquitto",
                "-q", "1", "-t", SHARE, "-F", "%p",
            ],
            stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        sender = paho.Client(paho.CallbackAPIVersion.VERSION2, "sender", protocol=paho.MQTTv311)
        sender.max_queued_messages_set(0)
        stored: list[int] = []
        sender.on_publish = lambda client, data, packet_id, *_: stored.append(packet_id)
        sender.connect("127.0.0.1", two.mqtt_port)
        sender.loop_start()
        for count in range(MESSAGES):
            sender.publish(f"jobs/{count % 7}", b"%d" % count, qos=1)
            if count == MESSAGES // 4:
                eventually(lambda: len(workers[0].got) > 10, "messages before the kill")
                one.kill()
            elif count == MESSAGES // 2:
                roles["a"].kill()
                roles["a"].start()
            elif count == MESSAGES * 3 // 4:
                one.start()
        eventually(lambda: len(stored) == MESSAGES, "everything is stored", within_s=40)
        wanted = {b"%d" % count for count in range(MESSAGES)}

        def got() -> set[bytes]:
            taken = set(output.read_bytes().split())
            return taken.union(*(worker.got for worker in workers))

        eventually(lambda: got() >= wanted, "every message at some member", within_s=40)
        assert set(output.read_bytes().split()), "mosquitto_sub had no share"
        total = sum(len(worker.got) for worker in workers) + len(output.read_bytes().split())
        # Twice comes what members held when they were killed, and what a broker had heard of last.
        assert total < 2 * MESSAGES
        sender.disconnect()
        sender.loop_stop()
    finally:
        mosquitto.kill()
        mosquitto.wait()
    for worker in workers:
        worker.close()


@pytest.mark.timeout(120)
def test_a_killed_gateway_in_one_process_goes_on_with_its_groups(tmp_path: Path) -> None:
    """The broker dies with the front end; members and publisher come back by themselves."""
    with GatewayProcess(tmp_path / "data", *SMALL_FILES) as gateway:
        workers = [PahoMember(f"kept-{number}", gateway.mqtt_port, clean=False) for number in range(2)]
        sender = paho.Client(paho.CallbackAPIVersion.VERSION2, "sender", protocol=paho.MQTTv311)
        sender.max_queued_messages_set(0)
        sender.reconnect_delay_set(1, 1)
        stored: set[int] = set()
        sender.on_publish = lambda client, data, packet_id, *_: stored.add(packet_id)
        sender.connect("127.0.0.1", gateway.mqtt_port)
        sender.loop_start()
        for count in range(600):
            sender.publish(f"jobs/{count % 7}", b"%d" % count, qos=1)
            if count in (200, 400):
                eventually(lambda: any(worker.got for worker in workers), "messages before the kill")
                gateway.kill()
                gateway.start()
        eventually(lambda: len(stored) == 600, "everything is stored", within_s=40)
        wanted = {b"%d" % count for count in range(600)}
        eventually(
            lambda: {body for worker in workers for body in worker.got} >= wanted,
            "every message at some member",
            within_s=40,
        )
        assert all(worker.got for worker in workers)
        eventually(lambda: gateway.metric("iotmq_broker_share_in_flight") == 0, "all to be acknowledged")
        for client in (sender, *(worker.client for worker in workers)):
            client.disconnect()
            client.loop_stop()
