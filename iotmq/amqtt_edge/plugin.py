"""The plug-in: `iotmq.amqtt_edge.plugin.ForwardPlugin` in the `plugins` of amqtt's configuration.

Every message that amqtt's broker takes and allows goes to the end of a queue on the disk, and from its
beginning to the centre, by MQTT 5. It leaves the queue when the centre has acknowledged it, so it is sent
again after an end of this process, or of the connection.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

from amqtt.broker import BrokerContext  # type: ignore[import-untyped]
from amqtt.plugins.base import BasePlugin  # type: ignore[import-untyped]
from amqtt.session import ApplicationMessage  # type: ignore[import-untyped]

from iotmq.amqtt_edge.disk_queue import DiskQueue, Waiting
from iotmq.errors import IotmqError, MessageRefusedError
from iotmq.mqtt.codec.bridge_names import CLIENT_ID_PROPERTY, MESSAGE_PROPERTY
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt.topics.topics import matches
from iotmq.mqtt_client.address import parse_url
from iotmq.mqtt_client.client import MqttClient
from iotmq.mqtt_client.errors import PublishRefusedError, ServerRefusedError
from iotmq.mqtt_client.settings import MqttClientSettings, new_client_id
from iotmq.mqtt_client.tls import TlsOptions

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")

_log: Final = logging.getLogger("iotmq.amqtt_edge")

_MESSAGES_AT_ONCE: Final = 256
_PAUSE_S: Final = 1.0
# Messages that are in no file yet: while the file cannot be written, more are dropped.
_ARRIVED_BYTES_MAX: Final = 16 * 1024 * 1024
# A message is refused for good with these: not allowed, no such topic, too large, not the promised format,
# and a retain flag or QoS that the centre does not have.
_FINAL_CODES: Final = frozenset((0x87, 0x90, 0x95, 0x99, 0x9A, 0x9B))
# With these a centre ends the connection for a packet of ours: malformed, too large, or as above.
_ENDING_CODES: Final = frozenset((0x80, 0x81, 0x82, 0x83, *_FINAL_CODES))
# Connections in a row that end so with the same message alone on its way, before it is left out.
_TRIES_MAX: Final = 8


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
        self._arrived_bytes = 0
        self._has_arrived = asyncio.Event()
        self._has_waiting = asyncio.Event()
        # The file was opened, or could not be.
        self._is_tried = asyncio.Event()
        # Of the file: one thread at a time.
        self._lock = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._identity = self._settings.client_id or new_client_id()
        # So many messages are sent one at a time: one of them may be what the centre ends connections for.
        self._alone = 0
        # The number of the last that it has ended one for, and how often in a row.
        self._suspect = (0, 0)
        self.forwarded = 0
        """Messages that the centre has acknowledged."""
        self.refused = 0
        """Messages that the centre has refused for good."""
        self.dropped = 0
        """Messages that came while the file could not be written, and for which there was no room."""

    @property
    def queue(self) -> DiskQueue:
        """Return the queue, which is there while the broker runs."""
        assert self._queue is not None
        return self._queue

    # What amqtt calls

    async def on_broker_post_start(self) -> None:
        """Open the queue, and begin to forward what is in it."""
        # Before anything is awaited: what comes meanwhile waits.
        self._tasks = [asyncio.ensure_future(self._run())]
        await self._is_tried.wait()

    async def on_broker_message_broadcast(
        self, *, client_id: str, message: ApplicationMessage, **_: Any
    ) -> None:
        """Take a message that the broker has taken. Up to the first await in the order of the messages."""
        if not any(matches(each, message.topic) for each in self._settings.filters):
            return
        packet = message.publish_packet
        retain = bool(packet.retain_flag) if packet is not None else message.retain
        waiting = Waiting(0, message.topic, bytes(message.data), message.qos or 0, retain, client_id)
        if self._arrived and self._arrived_bytes + waiting.size > _ARRIVED_BYTES_MAX:
            self.dropped += 1
            return
        self._arrived.append(waiting)
        self._arrived_bytes += waiting.size
        self._has_arrived.set()

    async def on_broker_pre_shutdown(self) -> None:
        """Write what came last, and let go of the file."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._queue is not None:
            try:
                await self._write()
            finally:
                queue, self._queue = self._queue, None
                await asyncio.to_thread(queue.close)

    # Inside

    async def _run(self) -> None:
        while True:
            if await self._open():
                break
            await asyncio.sleep(_PAUSE_S)
        self._has_waiting.set()
        self._tasks += [asyncio.ensure_future(self._keep()), asyncio.ensure_future(self._forward_forever())]

    async def _open(self) -> bool:
        """Return whether the file is open; amqtt itself does not say why it is not."""
        settings = self._settings
        try:
            self._queue = await asyncio.to_thread(
                DiskQueue,
                Path(settings.queue_file),
                bytes_max=settings.queue_bytes_max,
                drops=settings.drops,
                sync=settings.sync,
            )
        except (OSError, sqlite3.Error):
            _log.exception("%s cannot be opened: messages wait in memory", settings.queue_file)
            return False
        finally:
            self._is_tried.set()
        return True

    async def _keep(self) -> None:
        """Write what has arrived, all of it in one transaction."""
        while True:
            await self._has_arrived.wait()
            self._has_arrived.clear()
            try:
                await asyncio.shield(self._write())
            except (OSError, sqlite3.Error):
                _log.exception("messages of amqtt cannot be written")
                self._has_arrived.set()
                await asyncio.sleep(_PAUSE_S)

    async def _write(self) -> None:
        async with self._lock:
            if arrived := tuple(self._arrived):
                await asyncio.to_thread(self.queue.put, arrived)
                del self._arrived[: len(arrived)]
                self._arrived_bytes -= sum(message.size for message in arrived)
                self._has_waiting.set()

    async def _in_file(self, call: Callable[[_Given], _Found], given: _Given) -> _Found:
        """To be shielded: nobody else is at the file until the thread is done with it."""
        async with self._lock:
            return await asyncio.to_thread(call, given)

    async def _forward_forever(self) -> None:
        while True:
            try:
                async with MqttClient(self._client_settings(), on_change=_told) as client:
                    await self._forward(client)
            except IotmqError as error:
                _log.warning("the centre cannot be reached: %s", error)
            except (OSError, sqlite3.Error):
                _log.exception("messages of amqtt cannot be read")
            await asyncio.sleep(_PAUSE_S)

    async def _forward(self, client: MqttClient) -> None:
        while True:
            count_max = 1 if self._alone else _MESSAGES_AT_ONCE
            messages = await asyncio.shield(self._in_file(self.queue.first, count_max))
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
                if _is_refused_for_good(answer):
                    self.refused += 1
                    _log.warning("a message cannot be forwarded: %s", answer)
                elif isinstance(answer, BaseException):
                    failure = failure or answer
                    continue
                done.append(message)
            self.forwarded += len(done)
            self._alone = max(0, self._alone - len(done))
            if isinstance(failure, ServerRefusedError) and not isinstance(failure, PublishRefusedError):
                done += self._blamed(messages, failure)
            await asyncio.shield(self._in_file(self.queue.done, done))
            if failure is not None:
                raise failure

    def _blamed(self, messages: list[Waiting], failure: ServerRefusedError) -> list[Waiting]:
        """Return the message that the centre ends every connection for, once that is known."""
        if failure.code not in _ENDING_CODES:
            return []
        self._alone = _MESSAGES_AT_ONCE
        if len(messages) > 1:
            return []
        number, tries = self._suspect
        self._suspect = messages[0].number, tries + 1 if number == messages[0].number else 1
        if self._suspect[1] < _TRIES_MAX:
            return []
        self.refused += 1
        _log.error("a message of topic %r is left out: %s", messages[0].topic, failure)
        return messages

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
                    (MESSAGE_PROPERTY, f"{self.queue.name}@{message.number}"),
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


def _is_refused_for_good(answer: BaseException | None) -> bool:
    """Return whether a message would be refused again; the end of a connection says nothing of it."""
    if isinstance(answer, PublishRefusedError):
        return answer.code in _FINAL_CODES
    return isinstance(answer, MessageRefusedError)


def _told(text: str) -> None:
    _log.info("the connection to the centre: %s", text)
