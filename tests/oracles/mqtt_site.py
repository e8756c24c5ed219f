"""A broker and front ends in this process, and devices on real sockets that remember what they got."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from eventually import WITHIN_S, soon
from fake_gateway import RawClient, connect_packet
from session_bench import SessionBench

from iotmq.clock import Clock
from iotmq.front_port.gateway import RemoteGateway
from iotmq.front_port.session_gateway import RemoteSessions
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.sessions.durable import DurableSession
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.ports.gateway import GatewayPort
from iotmq.ports.sessions import SessionPort
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings


class Front:
    """One front end, which can be killed."""

    def __init__(self, site: MqttSite, name: str) -> None:
        self.site = site
        self.name = name
        self.gateway: GatewayPort
        self.sessions: SessionPort
        if site.registry is None:
            self.gateway = site.bench.broker.local_gateway()
            self.sessions = site.bench.broker.local_sessions(name)
        else:
            self.gateway = remote = RemoteGateway((f"127.0.0.1:{site.registry.port}",))
            self.sessions = RemoteSessions(remote, name=name)
        settings = MqttSettings(
            listen_port=0, default_topic="T", in_flight_max=site.in_flight_max, **site.mqtt_settings
        )
        self.mqtt = MqttFront(settings, self.gateway, sessions=self.sessions, clock=site.clock)

    async def start(self) -> None:
        await self.mqtt.start()

    async def kill(self) -> None:
        """Gone without a word, as after kill -9: its channels close, its devices lose their connections."""
        self.mqtt._session_port = None
        parts = self.mqtt.parts
        parts.sessions._port = None
        assert parts.durable is not None
        parts.durable.stop()
        parts.ingress.close()
        for device in parts.sessions.devices():
            device.will = None
            device.abort()
        await self.sessions.stop()
        await self.mqtt.stop()


class MqttSite:
    """Use `open_site`."""

    def __init__(self, directory: Path, *, in_flight_max: int, is_remote: bool, brokers: int = 1) -> None:
        """Several brokers are for front ends that are not in the process of one."""
        assert is_remote or brokers == 1
        # Front ends that are not in the broker's process find it here.
        self.registry = Registry(RegistrySettings(listen_port=0)) if is_remote else None
        self.benches = [SessionBench(directory)]
        for number in range(1, brokers):
            self.benches.append(SessionBench(directory / f"broker-{number}", name=f"broker-{number}"))
        self.bench = self.benches[0]
        self.in_flight_max = in_flight_max
        # Of front ends that are started from now on.
        self.mqtt_settings: dict[str, Any] = {}
        self.clock: Clock | None = None
        self.fronts: dict[str, Front] = {}

    async def begin(self) -> None:
        """Start the broker, and what it needs."""
        if self.registry is not None:
            await self.registry.start()
            registry = f"127.0.0.1:{self.registry.port}"
            for bench in self.benches:
                bench.settings.update(registries=(registry,), registration_interval_s=0.2)
        for bench in self.benches:
            await bench.start()
            if len(self.benches) > 1:
                # Front ends are to know all of them when they start.
                await bench.broker.wait_registered(5)

    async def start(self, *names: str) -> None:
        for name in names:
            front = self.fronts[name] = Front(self, name)
            await front.start()

    async def kill_front(self, name: str) -> None:
        """Kill a front end; another of the same name takes its place."""
        await self.fronts[name].kill()
        await self.start(name)

    async def restart_broker(self) -> None:
        """Stop everything in good order and start it again."""
        names = list(self.fronts)
        for front in self.fronts.values():
            await front.mqtt.stop()
        for bench in self.benches:
            await bench.restart()
        await self.start(*names)

    async def restart_one_broker(self, bench: SessionBench) -> None:
        """Stop a broker and start it again, at the same address; the front ends, and their devices, stay."""
        bench.settings["listen_port"] = bench.broker.port
        await bench.close()
        ports: list[Any] = [
            port for front in self.fronts.values() for port in (front.gateway, front.sessions)
        ]
        await soon(lambda: all(port.not_ready_reason for port in ports), "front ends notice")
        await bench.start()
        await soon(lambda: not any(port.not_ready_reason for port in ports), "front ends are back")

    async def cut_broker_links(self) -> None:
        """End all connections between front ends and the brokers; returns when there are others."""
        ports: list[Any] = [
            port for front in self.fronts.values() for port in (front.gateway, front.sessions)
        ]
        before = self._links_opened()
        for bench in self.benches:
            for connection in list(bench.broker._server.connections):
                connection.abort("cut")

        def are_back() -> bool:
            opened = self._links_opened() - before
            return opened == len(self.fronts) * len(self.benches) and not any(
                port.not_ready_reason for port in ports
            )

        await soon(are_back, "front ends are back")

    def _links_opened(self) -> float:
        return sum(
            metric.value
            for front in self.fronts.values()
            for metric in front.sessions.metrics()  # type: ignore[attr-defined]
            if metric.name == "iotmq_mqtt_session_link_opened_total"
        )

    def check_sessions(self) -> None:
        """What front ends know of the kept sessions of their devices agrees."""
        for front in self.fronts.values():
            for device in front.mqtt.parts.sessions.devices():
                if isinstance(device.session, DurableSession):
                    device.session.check_invariants()

    async def close(self) -> None:
        for front in self.fronts.values():
            await front.mqtt.stop()
        for bench in self.benches:
            await bench.close()
        if self.registry is not None:
            await self.registry.stop()

    def number(self, name: str) -> float:
        """A metric over all front ends."""
        return sum(
            metric.value
            for front in self.fronts.values()
            for metric in front.mqtt.metrics()
            if metric.name == name
        )


async def open_site(
    directory: Path,
    *names: str,
    in_flight_max: int = 16,
    is_remote: bool = False,
    brokers: int = 1,
    broker_settings: Mapping[str, Any] | None = None,
    mqtt_settings: Mapping[str, Any] | None = None,
    **store_settings: Any,
) -> MqttSite:
    site = MqttSite(directory, in_flight_max=in_flight_max, is_remote=is_remote, brokers=brokers)
    site.mqtt_settings.update(mqtt_settings or {})
    for bench in site.benches:
        bench.settings.update(broker_settings or {})
        bench.store_settings.update(store_settings)
    await site.begin()
    await site.start(*(names or ("one",)))
    return site


class SessionDevice:
    """A device that keeps its side of a session over connections (MQTT 3.1.1 section 4.1).

    `got` has every message once it counts as received: with QoS 1 each PUBLISH, with QoS 2 the first of its
    packet id. With `is_acknowledging` off PUBLISH packets stay unanswered in `unanswered`.
    """

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.is_acknowledging = True
        self.got: list[tuple[str, bytes]] = []
        self.duplicates = 0
        self.retained = 0
        self.unanswered: list[tuple[int, int]] = []
        self.is_present = False
        self.is_connected = False
        self.taken: set[int] = set()
        self._client: RawClient | None = None
        self._reading: asyncio.Task[None] | None = None
        self._answers: list[tuple[int, bytes]] = []
        self._has_answer = asyncio.Event()
        self._packet_id = 0

    @property
    def client(self) -> RawClient:
        """Its connection now."""
        assert self._client is not None, "it is not connected"
        return self._client

    async def connect(self, front: Front, *, clean_session: bool = False, will: Will | None = None) -> None:
        """Open the session, on whichever front end."""
        await self.drop()
        await self._open(front, clean_session=clean_session, will=will)

    async def take_over(self, front: Front, *, clean_session: bool = False) -> None:
        """Open the session while it has a connection, from which nothing more is read; the server ends it."""
        old = self._client
        await self._stop_reading()
        await self._open(front, clean_session=clean_session, will=None)
        old.wait_s = WITHIN_S
        await old.rest()
        old.abort()

    async def _open(self, front: Front, *, clean_session: bool, will: Will | None) -> None:
        client = self._client = await RawClient.dial(front.mqtt.port)
        client.send(connect_packet(self.client_id, clean_session=clean_session, will=will))
        first, body = await client.packet()
        assert first == packets.CONNACK << 4, first
        assert body[1] == 0, body
        self.is_present = bool(body[0])
        if not self.is_present:
            self.taken.clear()
        self.unanswered.clear()
        self._answers.clear()
        self.is_connected = True
        self._reading = asyncio.ensure_future(self._read(client))

    async def drop(self) -> None:
        """Lose the connection without a word."""
        await self._end(lambda client: client.abort())

    async def disconnect(self) -> None:
        """Say good-bye; what is on its way is not read."""

        def say_good_bye(client: RawClient) -> None:
            client.send(packets.DISCONNECT_PACKET)
            client.close()

        await self._end(say_good_bye)

    async def leave(self) -> None:
        """Say good-bye and read what is on its way."""
        self.client.send(packets.DISCONNECT_PACKET)
        await soon(lambda: not self.is_connected, f"the server closes the connection of {self.client_id}")

    async def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        self._packet_id = self._packet_id % 1000 + 1
        self.client.send(packets.encode_subscribe(self._packet_id, filters))
        return list((await self.answer(packets.SUBACK, self._packet_id))[2:])

    async def unsubscribe(self, *filters: str) -> None:
        self._packet_id = self._packet_id % 1000 + 1
        self.client.send(packets.encode_unsubscribe(self._packet_id, filters))
        await self.answer(packets.UNSUBACK, self._packet_id)

    async def publish(self, topic: str, payload: bytes, qos: int = 1, *, is_retained: bool = False) -> None:
        """Returns when the broker has promised to keep it."""
        self._packet_id = self._packet_id % 1000 + 1
        self.client.send(
            packets.encode_publish(
                topic, payload, qos=qos, retain=is_retained, packet_id=self._packet_id if qos else 0
            )
        )
        if qos == 1:
            await self.answer(packets.PUBACK, self._packet_id)
        elif qos == 2:
            await self.answer(packets.PUBREC, self._packet_id)
            self.client.send(packets.encode_acknowledgement(packets.PUBREL, self._packet_id))
            await self.answer(packets.PUBCOMP, self._packet_id)

    def acknowledge(self, count: int | None = None) -> None:
        """Answer what waits, oldest first."""
        waiting, self.unanswered = self.unanswered[:count], self.unanswered[len(self.unanswered[:count]) :]
        for kind, packet_id in waiting:
            self.client.send(packets.encode_acknowledgement(kind, packet_id))

    async def receives(self, count: int) -> list[tuple[str, bytes]]:
        """All messages, once there are `count`."""
        await soon(lambda: len(self.got) >= count, f"{count} messages for {self.client_id}", step_s=0.002)
        return self.got

    async def _end(self, leave: Callable[[RawClient], None]) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        if self.is_connected:
            leave(client)
        else:
            # The server ended it.
            client.abort()
        await self._stop_reading()

    async def _stop_reading(self) -> None:
        assert self._reading is not None
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        self.is_connected = False

    async def answer(self, kind: int, packet_id: int) -> bytes:
        def found() -> tuple[int, bytes] | None:
            for answer in self._answers:
                if answer[0] >> 4 == kind and int.from_bytes(answer[1][:2], "big") == packet_id:
                    return answer
            return None

        try:
            async with asyncio.timeout(WITHIN_S):
                while (answer := found()) is None:
                    self._has_answer.clear()
                    await self._has_answer.wait()
        except TimeoutError:
            raise AssertionError(f"no answer of type {kind} to {packet_id} in {WITHIN_S} s") from None
        self._answers.remove(answer)
        return answer[1]

    async def _read(self, client: RawClient) -> None:
        client.wait_s = 3600.0
        try:
            while True:
                first, body = await client.packet()
                kind = first >> 4
                if kind == packets.PUBLISH:
                    self._take(client, first, body)
                elif kind == packets.PUBREL:
                    self.taken.discard(int.from_bytes(body, "big"))
                    client.send(packets.encode_acknowledgement(packets.PUBCOMP, int.from_bytes(body, "big")))
                else:
                    self._answers.append((first, body))
                    self._has_answer.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.is_connected = False

    def _take(self, client: RawClient, first: int, body: bytes) -> None:
        size = int.from_bytes(body[:2], "big")
        topic, qos = body[2 : 2 + size].decode(), first >> 1 & 3
        self.duplicates += first >> 3 & 1
        self.retained += first & 1
        if not qos:
            self.got.append((topic, body[2 + size :]))
            return
        packet_id = int.from_bytes(body[2 + size : 4 + size], "big")
        if qos == 1:
            self.got.append((topic, body[4 + size :]))
        elif packet_id not in self.taken:
            self.taken.add(packet_id)
            self.got.append((topic, body[4 + size :]))
        kind = packets.PUBACK if qos == 1 else packets.PUBREC
        if self.is_acknowledging:
            client.send(packets.encode_acknowledgement(kind, packet_id))
        else:
            self.unanswered.append((kind, packet_id))
