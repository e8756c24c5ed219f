"""The plug-in: `iotmq.amqtt_edge.plugin.ForwardPlugin` in the `plugins` of amqtt's configuration.

Every message that amqtt's broker takes and allows goes to the end of a queue on the disk, and from its
beginning to the centre, by MQTT 5. It leaves the queue when the centre has acknowledged it, so it is sent
again after an end of this process, or of the connection.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast

from amqtt.contexts import BrokerContext  # type: ignore[import-untyped]
from amqtt.plugins.base import BasePlugin  # type: ignore[import-untyped]
from amqtt.session import ApplicationMessage  # type: ignore[import-untyped]

from iotmq.amqtt_edge.disk_queue import DiskQueue, Waiting
from iotmq.errors import IotmqError
from iotmq.mqtt.codec.bridge_names import CLIENT_ID_PROPERTY, MESSAGE_PROPERTY
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt.topics.topics import matches
from iotmq.mqtt_client.address import parse_url
from iotmq.mqtt_client.client import MqttClient
from iotmq.mqtt_client.errors import ServerRefusedError
from iotmq.mqtt_client.settings import MqttClientSettings, new_client_id
from iotmq.mqtt_client.tls import TlsOptions

_log: Final = logging.getLogger("iotmq.amqtt_edge")

_MESSAGES_AT_ONCE: Final = 256
_PAUSE_S: Final = 1.0


class ForwardPlugin(BasePlugin[BrokerContext]):  # type: ignore[misc]
    """Forwards what amqtt's broker takes to a centre."""

    @dataclass
    class Config:
        """Settings, as keys below the plug-in's name in amqtt's configuration."""

        address: str
        """The centre: mqtt://HOST:PORT, mqtts:// for TLS."""
        queue_file: str
        """File of the queue; its directory has to be there."""
        queue_bytes_max: int = 256 * 1024 * 1024
        """Bytes of messages that may wait."""
        drops: Literal["oldest", "newest"] = "oldest"
        """Which message goes when more would wait."""
        sync: bool = False
        """Sync the file with every batch: a message that was taken survives a loss of power, too."""
        filters: list[str] = field(default_factory=lambda: ["#"])
        """Topics that are forwarded."""
        prefix: str = ""
        """Text before topics at the centre, such as sites/berlin/."""
        client_id: str = ""
        """Client id at the centre; empty: a new one at each start."""
        user_name: str | None = None
        password: str | None = None
        tls_ca_file: str | None = None
        tls_certificate_file: str | None = None
        tls_key_file: str | None = None

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        self._settings = cast("ForwardPlugin.Config", self.config)
        self._queue: DiskQueue | None = None
        # What came since the last transaction.
        self._arrived: list[Waiting] = []
        self._has_arrived = asyncio.Event()
        self._has_waiting = asyncio.Event()
        # Of the file: one thread at a time.
        self._lock = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._identity = self._settings.client_id or new_client_id()
        self.forwarded = 0
        """Messages that the centre has acknowledged."""
        self.refused = 0
        """Messages that the centre has refused for good."""

    @property
    def queue(self) -> DiskQueue:
        """Return the queue, which is there while the broker runs."""
        assert self._queue is not None
        return self._queue

    # What amqtt calls

    async def on_broker_post_start(self) -> None:
        """Open the queue, and begin to forward what is in it."""
        settings = self._settings
        self._queue = await asyncio.to_thread(
            DiskQueue,
            Path(settings.queue_file),
            bytes_max=settings.queue_bytes_max,
            drops=settings.drops,
            sync=settings.sync,
        )
        self._has_waiting.set()
        self._tasks = [asyncio.ensure_future(self._keep()), asyncio.ensure_future(self._forward_forever())]

    async def on_broker_message_broadcast(
        self, *, client_id: str, message: ApplicationMessage, **_: Any
    ) -> None:
        """Take a message that the broker has taken. Up to the first await in the order of the messages."""
        if not any(matches(each, message.topic) for each in self._settings.filters):
            return
        packet = message.publish_packet
        retain = bool(packet.retain_flag) if packet is not None else message.retain
        self._arrived.append(
            Waiting(0, message.topic, bytes(message.data), message.qos or 0, retain, client_id)
        )
        self._has_arrived.set()

    async def on_broker_pre_shutdown(self) -> None:
        """Write what came last, and let go of the file."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._queue is not None:
            await self._write()
            queue, self._queue = self._queue, None
            await asyncio.to_thread(queue.close)

    # Inside

    async def _keep(self) -> None:
        """Write what has arrived, all of it in one transaction."""
        while True:
            await self._has_arrived.wait()
            self._has_arrived.clear()
            try:
                await asyncio.shield(self._write())
            except OSError:
                _log.exception("messages of amqtt cannot be written")
                await asyncio.sleep(_PAUSE_S)

    async def _write(self) -> None:
        async with self._lock:
            arrived, self._arrived = self._arrived, []
            if arrived:
                await asyncio.to_thread(self.queue.put, arrived)
                self._has_waiting.set()

    async def _forward_forever(self) -> None:
        while True:
            try:
                async with MqttClient(self._client_settings(), on_change=_told) as client:
                    await self._forward(client)
            except IotmqError as error:
                _log.warning("the centre cannot be reached: %s", error)
            await asyncio.sleep(_PAUSE_S)

    async def _forward(self, client: MqttClient) -> None:
        while True:
            async with self._lock:
                messages = await asyncio.to_thread(self.queue.first, _MESSAGES_AT_ONCE)
            if not messages:
                self._has_waiting.clear()
                if not self.queue.count:
                    await self._has_waiting.wait()
                continue
            # All of them begin in this order, and the client keeps it.
            answers = await asyncio.gather(
                *(self._publish(client, message) for message in messages), return_exceptions=True
            )
            done = []
            failure: BaseException | None = None
            for message, answer in zip(messages, answers, strict=True):
                if isinstance(answer, ServerRefusedError):
                    self.refused += 1
                    _log.warning("the centre refuses a message: %s", answer)
                elif isinstance(answer, BaseException):
                    failure = failure or answer
                    continue
                done.append(message)
            async with self._lock:
                await asyncio.to_thread(self.queue.done, done)
            self.forwarded += len(done)
            if failure is not None:
                raise failure

    async def _publish(self, client: MqttClient, message: Waiting) -> None:
        # QoS 1 in any case, because a message leaves the queue only with an acknowledgement.
        await client.publish(
            self._settings.prefix + message.topic,
            message.payload,
            qos=1,
            retain=message.retain,
            properties=Properties(
                user_properties=(
                    (CLIENT_ID_PROPERTY, message.client_id),
                    (MESSAGE_PROPERTY, f"{self._identity}@{message.number}"),
                )
            ),
        )

    def _client_settings(self) -> MqttClientSettings:
        settings = self._settings
        return MqttClientSettings(
            address=parse_url(settings.address).address,
            client_id=self._identity,
            user_name=settings.user_name,
            password=None if settings.password is None else settings.password.encode(),
            tls=TlsOptions(
                ca_file=settings.tls_ca_file,
                certificate_file=settings.tls_certificate_file,
                key_file=settings.tls_key_file,
            ),
        )


def _told(text: str) -> None:
    _log.info("the connection to the centre: %s", text)
