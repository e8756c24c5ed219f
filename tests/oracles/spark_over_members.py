"""Around a Spark stream over a replicated broker: readings, a sink that commands, and a device."""

from __future__ import annotations

import itertools
import threading

import paho.mqtt.client as paho
from pyspark.sql import DataFrame

from iotmq.client import Message, SyncProducer

TOPIC = "telemetry"


class Readings:
    """A thread that stores numbered readings all the time; what was acknowledged, by number."""

    def __init__(self, producer: SyncProducer) -> None:
        self._producer = producer
        self._is_ending = threading.Event()
        self.acknowledged: list[int] = []
        self.failures: list[Exception] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._is_ending.set()
        self._thread.join(60.0)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            for number in itertools.count():
                self._producer.send(Message(TOPIC, b"%d" % number, key=f"device-{number % 8}"))
                self.acknowledged.append(number)
                if self._is_ending.wait(0.01):
                    return
        except Exception as error:
            self.failures.append(error)


class CommandSink:
    """Keep the rows of each batch, so that one done again replaces itself; send a command for each row."""

    def __init__(self, producer: SyncProducer) -> None:
        self._producer = producer
        self.batches: dict[int, list[tuple[int, int, int]]] = {}
        self.read: set[int] = set()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = [(row[0], row[1], int(bytes(row[2]))) for row in frame.collect()]
        if rows:
            self._producer.send_batch(
                [
                    Message(
                        "commands",
                        b"%d" % number,
                        key=f"{queue_id}",
                        properties={"MQTT_TOPIC": "devices/pump/commands", "MQTT_QOS": "1"},
                    )
                    for queue_id, _, number in rows
                ]
            )
        self.batches[batch_id] = rows
        self.read.update(number for _, _, number in rows)


class Device:
    """A device that gets the commands."""

    def __init__(self, port: int) -> None:
        self.commands: list[int] = []
        self.disconnects = 0
        self._is_subscribed = threading.Event()
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="pump", protocol=paho.MQTTv5)
        self.client.on_message = lambda _c, _d, message: self.commands.append(int(message.payload))
        self.client.on_subscribe = lambda *_: self._is_subscribed.set()
        self.client.on_disconnect = self._on_disconnect
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self.client.subscribe("devices/pump/commands", qos=1)
        assert self._is_subscribed.wait(30.0)

    def close(self) -> None:
        self.client.on_disconnect = None
        self.client.disconnect()
        self.client.loop_stop()

    def _on_disconnect(self, *_: object) -> None:
        self.disconnects += 1
