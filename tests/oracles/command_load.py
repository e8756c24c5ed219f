"""Commands for devices whose sessions are kept, by paho clients: who sends, who gets them, who watches."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import paho.mqtt.client as paho
from eventually import eventually
from log_reader import read_topic


class KeptDevice:
    """Device `number`: its filter is cmd/NUMBER/+ with QoS 1 or 2, half of the devices each. Has a will.

    A lost connection is made anew by the client itself, after about a second.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.client_id = f"device-{number}"
        self.got: Counter[bytes] = Counter()
        self.is_present = False
        """Whether the last CONNACK said that there was a session."""
        self.lost_connections = 0
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, self.client_id, clean_session=False, protocol=paho.MQTTv311
        )
        self.client.will_set("wills", self.client_id, qos=1)
        self.client.on_message = self._on_message
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect

    def connect(self, port: int) -> None:
        """Also again: the same client goes on, with what it knows of QoS 2."""
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        eventually(self.client.is_connected, f"device {self.number} is connected")

    def leave(self) -> None:
        """Stop reading and forget the connection without a word."""
        self.client.loop_stop()

    def disconnect(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def subscribe(self) -> None:
        done = threading.Event()
        self.client.on_subscribe = lambda *_: done.set()
        self.client.subscribe([(f"cmd/{self.number}/+", 1 + self.number % 2)])
        assert done.wait(10)

    def _on_connect(self, client: paho.Client, data: object, flags: paho.ConnectFlags, *_: object) -> None:
        self.is_present = flags.session_present

    def _on_disconnect(self, *_: object) -> None:
        self.lost_connections += 1

    def _on_message(self, client: paho.Client, data: object, message: paho.MQTTMessage) -> None:
        self.got[message.payload] += 1


class CommandSender:
    """Publishes numbers to the devices in turn, with QoS 1 and 2, over a connection with a clean session."""

    def __init__(self, port: int, *, devices: int) -> None:
        self._devices = devices
        self.acknowledged: set[int] = set()
        """Packet ids."""
        self.lost_connections = 0
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, "sender", protocol=paho.MQTTv311)
        self.client.max_queued_messages_set(0)
        self.client.on_publish = self._on_publish
        self.client.on_disconnect = self._on_disconnect
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()

    def publish(self, number: int) -> None:
        qos = 2 if number % 3 else 1
        self.client.publish(f"cmd/{number % self._devices}/x", b"%d" % number, qos=qos)

    def disconnect(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def _on_publish(self, client: paho.Client, data: object, packet_id: int, *_: object) -> None:
        self.acknowledged.add(packet_id)

    def _on_disconnect(self, *_: object) -> None:
        self.lost_connections += 1


class Watcher:
    """Subscribes one filter, and keeps what it gets. Ready when it was made."""

    def __init__(self, port: int, topic_filter: str, *, qos: int, clean_session: bool = True) -> None:
        self.got: list[bytes] = []
        subscribed = threading.Event()
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            "watcher",
            clean_session=clean_session,
            protocol=paho.MQTTv311,
        )
        self.client.on_message = lambda client, data, message: self.got.append(message.payload)
        self.client.on_subscribe = lambda *_: subscribed.set()
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self.client.subscribe(topic_filter, qos=qos)
        assert subscribed.wait(10)

    def disconnect(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def check_received(devices: Sequence[KeptDevice], *, messages: int, within_s: float) -> None:
    """Each device gets the numbers meant for it, of 0 to `messages` - 1, and no others."""
    for device in devices:
        wanted = {b"%d" % number for number in range(device.number, messages, len(devices))}
        eventually(
            lambda device=device, wanted=wanted: set(device.got) >= wanted,
            f"all messages of device {device.number}",
            within_s=within_s,
        )
        assert set(device.got) == wanted


def check_exactly_once(devices: Sequence[KeptDevice], registry: str) -> None:
    """What was published and subscribed with QoS 2 came as often as it is in the log.

    That may be more than once: what was not acknowledged is sent again over the next connection, and with a
    clean session that is another message.
    """
    copies = Counter(record.body for records in read_topic(registry, "mqtt").values() for record in records)
    for device in devices:
        if device.number % 2:
            got = {body: count for body, count in device.got.items() if int(body) % 3}
            assert got == {body: copies[body] for body in got}, f"device {device.number}"
