"""paho-mqtt behind a pipe (tests/oracles/foreign_mqtt.py): MQTT 3.1.1 and 5; in WebSockets with that word."""

from __future__ import annotations

import socket
import sys
import threading
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from piped_script import say, serve

WAIT_S = 20.0


class One:
    """A connected client."""

    def __init__(self, name: str, version: int, client_id: str, *, clean: bool) -> None:
        words: dict[str, Any] = {} if version == 5 else {"clean_session": clean}
        protocol = paho.MQTTv5 if version == 5 else paho.MQTTv311
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=protocol,
            transport="websockets" if "websocket" in sys.argv else "tcp",
            **words,
        )
        self.answers: dict[Any, Any] = {}
        self.changed = threading.Condition()
        self.client.on_connect = lambda _c, _d, flags, code, _p: self.put("connect", (flags, int(code.value)))
        self.client.on_subscribe = lambda _c, _d, packet_id, codes, _p: self.put(packet_id, codes)
        self.client.on_unsubscribe = lambda _c, _d, packet_id, codes, _p: self.put(packet_id, codes)
        self.client.on_message = lambda _c, _d, message: say(
            kind="message",
            client=name,
            topic=message.topic,
            payload=message.payload.decode(),
            qos=message.qos,
            retain=message.retain,
        )

    def put(self, key: Any, value: Any) -> None:
        with self.changed:
            self.answers[key] = value
            self.changed.notify_all()

    def take(self, key: Any) -> Any:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.answers, WAIT_S), f"no answer to {key}"
            return self.answers.pop(key)


class Client:
    def __init__(self) -> None:
        self.clients: dict[str, One] = {}

    def connect(
        self, name: str, port: int, version: int, client_id: str, clean: bool, will: dict[str, Any] | None
    ) -> bool:
        one = self.clients[name] = One(name, version, client_id, clean=clean)
        if will is not None:
            one.client.will_set(will["topic"], will["payload"], will["qos"], will["retain"])
        words: dict[str, Any] = {}
        if version == 5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 0 if clean else 600
            words = {"clean_start": clean, "properties": properties}
        one.client.connect("127.0.0.1", port, **words)
        one.client.loop_start()
        flags, code = one.take("connect")
        assert code == 0, code
        return bool(flags.session_present)

    def subscribe(self, name: str, topic_filter: str, qos: int) -> int:
        one = self.clients[name]
        (code,) = one.take(one.client.subscribe(topic_filter, qos)[1])
        return int(code.value)

    def unsubscribe(self, name: str, topic_filter: str) -> None:
        one = self.clients[name]
        one.take(one.client.unsubscribe(topic_filter)[1])

    def publish(self, name: str, topic: str, payload: str, qos: int, retain: bool) -> None:
        sent = self.clients[name].client.publish(topic, payload, qos, retain)
        sent.wait_for_publish(WAIT_S)
        assert sent.is_published()

    def drop(self, name: str) -> None:
        client = self.clients.pop(name).client
        connection = client.socket()
        client.loop_stop()
        assert connection is not None
        # That of a WebSocket is wrapped.
        getattr(connection, "_socket", connection).shutdown(socket.SHUT_RDWR)

    def disconnect(self, name: str) -> None:
        client = self.clients.pop(name).client
        client.disconnect()
        client.loop_stop()


serve(Client())
