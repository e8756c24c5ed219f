"""Senders, devices, kept sessions and readers at work on a replicated broker, and the history of it.

Native producers send each message until it is acknowledged. Devices publish with QoS 1, one of them retained
values. Each kept session is given commands with QoS 1 and 2, and is without a connection now and then. A
group and a reader of queues read everything from the beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from eventually import soon
from fault_history import History, Place, Seen, Sent, body_of

from iotmq.client import (
    Admin,
    ClientSettings,
    IotmqClient,
    Message,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
    SendStatus,
)
from iotmq.errors import IotmqError
from iotmq.mqtt.client.events import Acknowledged
from iotmq.mqtt.client.session import OutgoingMessage
from iotmq.mqtt_client.address import Address
from iotmq.mqtt_client.client import MqttClient
from iotmq.mqtt_client.settings import MqttClientSettings

TOPIC: Final = "faults"
MQTT_TOPIC: Final = "mqtt"
GROUP: Final = "fault-group"
PULL: Final = "reader"
# Until everything is acknowledged and read after the last fault.
DONE_S: Final = 120.0
_WINDOW: Final = 10
_PAUSE_S: Final = 0.01
_OPEN_S: Final = 30.0


class FaultLoad:
    """The load; `running` begins it, and ends it when everything is acknowledged and read."""

    def __init__(
        self,
        registries: tuple[str, ...],
        mqtt: list[tuple[str, int]],
        *,
        producers: int = 3,
        devices: int = 4,
        sessions: int = 2,
    ) -> None:
        self._settings = ClientSettings(
            registries=registries, connect_timeout_ms=1_000, request_timeout_ms=2_000, reconnect_ms_max=500
        )
        self._mqtt = mqtt
        self._producers = [f"native-{number}" for number in range(producers)]
        self._devices = [f"device-{number}" for number in range(devices)]
        self._commands = {f"session-{number}": f"command-{number}" for number in range(sessions)}
        self._states = ["state-0"]
        self.history = History(
            owed={GROUP: ("native-", "device-", "command-", "state-"), PULL: ("native-",)},
            groups={GROUP},
            commands=dict(self._commands),
        )
        self.disconnects: list[tuple[float, str, str]] = []
        """When a device lost its connection, which one, and why."""
        self.acknowledged_count = 0
        # The bodies that each reader got, and that came of each source of commands.
        self._got: dict[str, set[bytes]] = {name: set() for name in self.history.owed}
        self._heard: dict[str, set[bytes]] = {source: set() for source in self._commands.values()}
        # So many of the first sends are acknowledged and read.
        self._whole_count = 0
        self.is_over = False
        self._leave = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with (
            IotmqClient(self._settings) as sending,
            IotmqClient(self._settings) as receiving,
            asyncio.TaskGroup() as others,
        ):
            await Admin(sending).create_topic(TOPIC, queues=4, timeout_s=_OPEN_S)
            for session in self._commands:
                await self._open_session(session)
            consumer = PushConsumer(
                receiving, GROUP, self._receive,
                settings=PushConsumerSettings(consume_from="first", commit_ms=500, rebalance_ms=1_000),
            )  # fmt: skip
            await consumer.subscribe(TOPIC)
            await consumer.subscribe(MQTT_TOPIC)
            async with consumer, asyncio.TaskGroup() as senders:
                others.create_task(self._pull(receiving))
                for session in self._commands:
                    others.create_task(self._keep_session(session))
                for name in self._producers:
                    senders.create_task(self._produce(sending, name))
                for name in (*self._devices, *self._states, *self._commands.values()):
                    senders.create_task(self._publish(name))
                await soon(
                    lambda: len({each.source for each in self.history.acknowledged}) == self._sources_count,
                    "every sender has an acknowledgement",
                    within_s=DONE_S,
                )
                yield
                self.is_over = True
                await soon(self._is_whole, "everything is acknowledged and read", within_s=DONE_S)
            self._leave = True
        for source in self._states:
            self.history.retained[source] = await self._retained(source)

    @property
    def _sources_count(self) -> int:
        return len(self._producers) + len(self._devices) + len(self._states) + len(self._commands)

    def missing(self) -> list[str]:
        """Return when readers got something last, and some of what is not acknowledged or read yet."""
        found, now_s = list(self._missing()), time.monotonic()
        ages = [
            f"{name} got something {now_s - seen[-1].at_s:.1f} s ago, the last acknowledgement was "
            f"{now_s - max((e.done_s or 0 for e in self.history.sent), default=0):.1f} s ago"
            for name, seen in self.history.readers.items()
        ]
        return [*ages, f"{len(found)} in all", *found[:10]]

    def _is_whole(self) -> bool:
        """Return whether everything is acknowledged and read. What was so before is not looked at again."""
        return next(self._missing(), None) is None

    def _missing(self) -> Iterator[str]:
        """Yield what is not acknowledged or read yet, in the order of the sends."""
        sent = self.history.sent
        at = self._whole_count
        for each in itertools.islice(sent, at, None):
            lacking = list(self._lacking_of(each))
            if not lacking and at == self._whole_count:
                self._whole_count += 1
            at += 1
            yield from lacking

    def _lacking_of(self, sent: Sent) -> Iterator[str]:
        if sent.is_refused:
            return
        body = sent.body
        if sent.done_s is None:
            yield f"{body!r} is not acknowledged"
        for name, sources in self.history.owed.items():
            if sent.source.startswith(sources) and body not in self._got[name]:
                yield f"{name} has not {body!r}"
        if sent.source in self._heard and body not in self._heard[sent.source]:
            yield f"the session of {sent.source} has not {body!r}"

    # Senders ----------------------------------------------------------------------------------------------

    async def _produce(self, client: IotmqClient, name: str) -> None:
        # One try per send, so that what was sent again is known.
        settings = ProducerSettings(tries_max=1, send_timeout_ms=3_000)
        async with Producer(client, f"group-{name}", settings) as producer:
            number = 0
            while not self.is_over:
                sent = Sent(name, number, time.monotonic())
                self.history.sent.append(sent)
                while sent.done_s is None:
                    try:
                        result = await producer.send(Message(TOPIC, sent.body, key=name))
                    except IotmqError:
                        sent.tries += 1
                        await asyncio.sleep(0.05)
                        continue
                    if result.status is not SendStatus.SEND_OK:
                        sent.tries += 1
                        continue
                    sent.place = Place(TOPIC, result.queue.queue_id, result.queue_offset)
                    self._done(sent)
                number += 1
                await asyncio.sleep(_PAUSE_S)

    async def _publish(self, name: str) -> None:
        kind, _, text = name.partition("-")
        topic = f"{kind}s/{text}/t".encode()
        at = (int(text) + len(kind)) % len(self._mqtt)
        async with self._client(name, at=at, in_flight_max=_WINDOW) as client:
            number = 0
            while not self.is_over:
                await client.room()
                sent = Sent(name, number, time.monotonic(), is_repeated_unseen=True)
                self.history.sent.append(sent)
                client.send(
                    OutgoingMessage(
                        topic, body_of(name, number), qos=1 if kind != "command" else 1 + number % 2,
                        retain=kind == "state", token=self._finish(sent),
                    )
                )  # fmt: skip
                number += 1
                await asyncio.sleep(_PAUSE_S * (5 if kind in ("command", "state") else 1))
            await client.drain()

    def _done(self, sent: Sent) -> None:
        sent.done_s = time.monotonic()
        self.acknowledged_count += 1

    def _finish(self, sent: Sent) -> Callable[[Acknowledged], None]:
        def acknowledged(result: Acknowledged) -> None:
            if result.code >= 0x80:
                sent.is_refused = True
            else:
                self._done(sent)

        return acknowledged

    # Readers ----------------------------------------------------------------------------------------------

    def _receive(self, messages: list[ReceivedMessage]) -> None:
        self._note(GROUP, messages)

    def _note(self, name: str, messages: list[ReceivedMessage]) -> None:
        now_s = time.monotonic()
        self._got[name].update(each.body for each in messages)
        self.history.readers[name] += [
            Seen(now_s, Place(each.record.topic, each.record.queue_id, each.record.queue_offset), each.body)
            for each in messages
        ]

    async def _pull(self, client: IotmqClient) -> None:
        async with PullConsumer(client, "fault-pull") as consumer:
            await consumer.assign(await consumer.queues(TOPIC, timeout_ms=30_000))
            while not self._leave:
                self._note(PULL, await consumer.getmany(timeout_ms=200))

    def _client(self, name: str, *, at: int, **settings: object) -> MqttClient:
        host, port = self._mqtt[at % len(self._mqtt)]

        def changed(text: str) -> None:
            self.disconnects.append((time.monotonic(), name, text))

        return MqttClient(
            MqttClientSettings(
                address=Address("mqtt", host, port), client_id=name, reconnect_max_s=1.0,
                connect_timeout_s=5.0,
                **settings,  # type: ignore[arg-type]
            ),
            on_change=changed,
        )  # fmt: skip

    def _session(self, session: str) -> MqttClient:
        at = int(session.partition("-")[2])
        return self._client(session, at=at, clean_session=False, session_expiry_s=3_600)

    async def _open_session(self, session: str) -> None:
        async with self._session(session) as client:
            number = self._commands[session].partition("-")[2]
            await client.subscribe((f"commands/{number}/#", 2))

    async def _keep_session(self, session: str) -> None:
        """Connect for a while, and leave for a while, again and again."""
        while not self._leave:
            with contextlib.suppress(IotmqError, TimeoutError):
                async with self._session(session) as client:
                    end_s = time.monotonic() + 3.0
                    while not self._leave and time.monotonic() < end_s:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(0.5):
                                batch = await client.next_batch()
                                payloads = [each.payload for each in batch]
                                self.history.heard[session] += payloads
                                self._heard[self._commands[session]].update(payloads)
                    client.acknowledge()
            await asyncio.sleep(0.5)

    async def _retained(self, source: str) -> bytes:
        kind, _, number = source.partition("-")
        async with self._client(f"asks-{source}", at=0) as client:
            await client.subscribe((f"{kind}s/{number}/t", 1))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_OPEN_S):
                    return (await client.next_batch())[0].payload
        return b""
