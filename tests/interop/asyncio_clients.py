"""aiomqtt or amqtt behind a pipe (tests/oracles/foreign_mqtt.py); the first argument says which."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Coroutine
from typing import Any

from piped_script import say, serve

WAIT_S = 20.0


class AiomqttClient:
    """aiomqtt (on paho): MQTT 3.1.1 and 5."""

    def __init__(self) -> None:
        self.clients: dict[str, Any] = {}
        self.readers: dict[str, asyncio.Task[None]] = {}

    async def connect(
        self, name: str, port: int, version: int, client_id: str, clean: bool, will: dict[str, Any] | None
    ) -> bool:
        import aiomqtt
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        words: dict[str, Any] = {"clean_session": clean}
        if version == 5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 0 if clean else 600
            words = {"clean_start": clean, "properties": properties}
        protocol = aiomqtt.ProtocolVersion.V5 if version == 5 else aiomqtt.ProtocolVersion.V311
        client = aiomqtt.Client(
            "127.0.0.1",
            port,
            identifier=client_id,
            protocol=protocol,
            will=None if will is None else aiomqtt.Will(**will),
            **words,
        )
        await client.__aenter__()
        self.clients[name] = client
        self.readers[name] = asyncio.ensure_future(self._read(name, client))
        # It does not say whether a session was present.
        return not clean

    async def _read(self, name: str, client: Any) -> None:
        with contextlib.suppress(Exception):
            async for message in client.messages:
                say(
                    kind="message",
                    client=name,
                    topic=str(message.topic),
                    payload=message.payload.decode(),
                    qos=message.qos,
                    retain=message.retain,
                )

    async def subscribe(self, name: str, topic_filter: str, qos: int) -> int:
        (code,) = await self.clients[name].subscribe(topic_filter, qos)
        return int(getattr(code, "value", code))

    async def unsubscribe(self, name: str, topic_filter: str) -> None:
        await self.clients[name].unsubscribe(topic_filter)

    async def publish(self, name: str, topic: str, payload: str, qos: int, retain: bool) -> None:
        await self.clients[name].publish(topic, payload, qos, retain)

    async def drop(self, name: str) -> None:
        client = self.clients.pop(name)
        self.readers.pop(name).cancel()
        client._client.socket().shutdown(2)
        with contextlib.suppress(Exception):
            await client.__aexit__(None, None, None)

    async def disconnect(self, name: str) -> None:
        await self.clients.pop(name).__aexit__(None, None, None)
        self.readers.pop(name).cancel()


class AmqttClient:
    """amqtt: MQTT 3.1.1."""

    def __init__(self) -> None:
        logging.getLogger("amqtt").setLevel(logging.CRITICAL)
        self.clients: dict[str, Any] = {}
        self.readers: dict[str, asyncio.Task[None]] = {}

    async def connect(
        self, name: str, port: int, version: int, client_id: str, clean: bool, will: dict[str, Any] | None
    ) -> bool:
        from amqtt.client import MQTTClient

        assert version == 4
        config: dict[str, Any] = {"auto_reconnect": False, "keep_alive": 60}
        if will is not None:
            config["will"] = {
                "topic": will["topic"],
                "message": will["payload"],
                "qos": will["qos"],
                "retain": will["retain"],
            }
        client = self.clients[name] = MQTTClient(client_id=client_id, config=config)
        await client.connect(f"mqtt://127.0.0.1:{port}/", cleansession=clean)
        self.readers[name] = asyncio.ensure_future(self._read(name, client))
        return not clean

    async def _read(self, name: str, client: Any) -> None:
        with contextlib.suppress(Exception):
            while True:
                message = await client.deliver_message()
                say(
                    kind="message",
                    client=name,
                    topic=message.topic,
                    payload=bytes(message.data).decode(),
                    qos=message.qos,
                    retain=bool(message.retain),
                )

    async def subscribe(self, name: str, topic_filter: str, qos: int) -> int:
        (code,) = await self.clients[name].subscribe([(topic_filter, qos)])
        return int(code)

    async def unsubscribe(self, name: str, topic_filter: str) -> None:
        await self.clients[name].unsubscribe([topic_filter])

    async def publish(self, name: str, topic: str, payload: str, qos: int, retain: bool) -> None:
        await self.clients[name].publish(topic, payload.encode(), qos=qos, retain=retain)

    async def drop(self, name: str) -> None:
        self.readers.pop(name).cancel()
        await self.clients.pop(name)._handler.writer.close()

    async def disconnect(self, name: str) -> None:
        self.readers.pop(name).cancel()
        await self.clients.pop(name).disconnect()


class Client:
    """Runs the methods of one of them on an event loop in a thread of its own."""

    def __init__(self, one: Any) -> None:
        self._one = one
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def __getattr__(self, name: str) -> Any:
        def call(**words: Any) -> Any:
            work: Coroutine[Any, Any, Any] = getattr(self._one, name)(**words)
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

        return call


serve(Client({"aiomqtt": AiomqttClient, "amqtt": AmqttClient}[sys.argv[1]]()))
