"""Front ends and the broker are killed under load, and clients of others go on by themselves.

What was sent, what was acknowledged and what each subscriber got are compared as sets: with QoS 1 something
may come twice, and nothing may be missing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from amqtt.client import MQTTClient
from amqtt.errors import AMQTTError
from eventually import eventually
from gateway_process import GatewayProcess
from mqtt_roles import mqtt_roles

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(
        shutil.which("mosquitto_sub") is None,
        reason="the Mosquitto clients are not installed (tools/setup.sh dev)",
    ),
]

PER_WAVE = 200
SETTLED_S = 60.0


@pytest.fixture
def roles(tmp_path: Path) -> Iterator[dict[str, GatewayProcess]]:
    with mqtt_roles(tmp_path) as started:
        yield started


class PahoSubscriber:
    """Connects again by itself; its session is kept."""

    def __init__(self, front: GatewayProcess) -> None:
        self.got: list[int] = []
        self._subscribed = threading.Event()
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, "paho", clean_session=False)
        self.client.reconnect_delay_set(1, 1)
        self.client.on_message = lambda client, data, message: self.got.append(int(message.payload))
        self.client.on_subscribe = lambda *_: self._subscribed.set()
        self.client.connect("127.0.0.1", front.mqtt_port)
        self.client.loop_start()
        eventually(self.client.is_connected, "paho is connected")
        self.client.subscribe("kill/#", qos=1)
        assert self._subscribed.wait(10)

    def numbers(self) -> list[int]:
        return list(self.got)

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class MosquittoSubscriber:
    """mosquitto_sub, which connects again by itself; its session is kept.

    It ends when it is refused, as it is while its broker is away, and is started again then.
    """

    def __init__(self, front: GatewayProcess, output: Path) -> None:
        self._output = output
        self._port = front.mqtt_port
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._output.open("ab") as file:
            return subprocess.Popen(
                [
                    "mosquitto_sub", "-h", "127.0.0.1", "-p", str(self._port), "-V", "311", "-c",
                    "-i", "mosquitto", "-q", "1", "-t", "kill/#", "-k", "5",
                ],
                stdout=file,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )  # fmt: skip

    def numbers(self) -> list[int]:
        if self._process.poll() is not None:
            self._process = self._start()
        lines = self._output.read_bytes().split(b"\n")
        # The last line may still be written.
        return [int(line) for line in lines[:-1]]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class AmqttSubscriber:
    """amqtt's client with its own reconnecting, on a loop in a thread; its session is kept."""

    def __init__(self, front: GatewayProcess) -> None:
        logging.getLogger("amqtt").setLevel(logging.CRITICAL)
        self.got: list[int] = []
        self._port = front.mqtt_port
        self._subscribed = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()))
        self._thread.start()
        assert self._subscribed.wait(20)

    async def _listen(self) -> None:
        config = {
            "auto_reconnect": True,
            "reconnect_retries": 1_000,
            "reconnect_max_interval": 1,
            "keep_alive": 10,
        }
        client = MQTTClient(client_id="amqtt", config=config)
        await client.connect(f"mqtt://127.0.0.1:{self._port}/", cleansession=False)
        await client.subscribe([("kill/#", 1)])
        self._subscribed.set()
        while not self._is_over.is_set():
            try:
                message = await client.deliver_message(timeout_duration=0.2)
            except TimeoutError:
                continue
            except AMQTTError:  # between two connections
                await asyncio.sleep(0.05)
                continue
            if message is not None:
                self.got.append(int(bytes(message.data)))
        await client.disconnect()

    def numbers(self) -> list[int]:
        return list(self.got)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(20)


class Sender:
    """paho, which sends again what was not acknowledged when it has to connect again."""

    def __init__(self, front: GatewayProcess) -> None:
        self.sent: list[int] = []
        self._packet_ids: list[int] = []
        self._acknowledged_ids: list[int] = []
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, "sender", clean_session=False)
        self.client.max_queued_messages_set(0)
        self.client.reconnect_delay_set(1, 1)
        self.client.on_publish = self._on_publish
        self.client.connect("127.0.0.1", front.mqtt_port)
        self.client.loop_start()
        eventually(self.client.is_connected, "the sender is connected")

    def send(self, count: int) -> None:
        for _ in range(count):
            number = len(self.sent)
            self.sent.append(number)
            self._packet_ids.append(self.client.publish(f"kill/{number % 5}", b"%d" % number, qos=1).mid)

    @property
    def acknowledged(self) -> set[int]:
        number_of = {packet_id: number for number, packet_id in enumerate(self._packet_ids)}
        return {number_of[packet_id] for packet_id in list(self._acknowledged_ids)}

    def _on_publish(self, client: paho.Client, data: object, packet_id: int, *_: object) -> None:
        # Called with locks of the client held: nothing here may wait.
        self._acknowledged_ids.append(packet_id)

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.timeout(240)
def test_clients_of_others_get_all_that_was_acknowledged_whoever_is_killed(
    roles: dict[str, GatewayProcess], tmp_path: Path
) -> None:
    one, two = roles["one"], roles["two"]
    subscribers = {
        "paho": PahoSubscriber(one),
        "mosquitto_sub": MosquittoSubscriber(one, tmp_path / "mosquitto.out"),
        "amqtt": AmqttSubscriber(two),
    }
    sender = Sender(two)
    try:
        sender.send(1)
        for name, subscriber in subscribers.items():
            eventually(lambda got=subscriber.numbers: got(), f"{name} is served", within_s=20)
        for killed in (["one"], ["broker"], ["two"], ["one", "broker", "two"]):
            sender.send(PER_WAVE)
            for name in killed:
                roles[name].kill()
            sender.send(PER_WAVE)
            # As operators' supervisors do: all at once, in any order.
            for name in killed:
                roles[name].launch()
            for name in killed:
                roles[name].wait_ready()
        eventually(
            lambda: len(sender.acknowledged) == len(sender.sent), "all is acknowledged", within_s=SETTLED_S
        )
        for name, subscriber in subscribers.items():
            eventually(
                lambda got=subscriber.numbers: set(got()) >= sender.acknowledged,
                f"{name} has all that was acknowledged",
                within_s=SETTLED_S,
            )
            assert set(subscriber.numbers()) == set(sender.sent), name
    finally:
        for each in (*subscribers.values(), sender):
            each.stop()
