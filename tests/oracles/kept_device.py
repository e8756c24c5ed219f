"""A paho client whose session is kept, and what it has got."""

from __future__ import annotations

import threading
from collections import Counter

import paho.mqtt.client as paho
from eventually import eventually


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
