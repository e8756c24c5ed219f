"""A device that subscribes, and gives what it got one by one; for tests without an event loop."""

from __future__ import annotations

import queue
import threading
from typing import Any, Self

import paho.mqtt.client as paho

_WITHIN_S = 30.0


class MqttListener:
    """Use it in a `with` block, in which it is subscribed."""

    def __init__(self, port: int, topic_filter: str) -> None:
        self._port = port
        self._filter = topic_filter
        self._got: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._subscribed = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="a-listener")
        self._client.on_connect = self._connected
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = lambda _client, _data, message: self._got.put(
            (message.topic, message.payload)
        )

    def _connected(self, client: paho.Client, *_: Any) -> None:
        client.subscribe(self._filter, qos=1)

    def __enter__(self) -> Self:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        assert self._subscribed.wait(_WITHIN_S), "not subscribed"
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def next(self) -> tuple[str, bytes]:
        """Topic and payload of the next message."""
        return self._got.get(timeout=_WITHIN_S)

    def is_empty(self) -> bool:
        """Whether nothing more has come."""
        return self._got.empty()
