"""One broker name whose master moves: one broker after the other over the same data directory.

What a replicated broker does is not part of it: the next master finds all that the former one had. Between
each master and everybody else is a gate, which can be shut as a host goes: with a word or without.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eventually import soon
from gateway_process import free_port

from iotmq.broker.broker import Broker
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.settings import BrokerSettings
from iotmq.client import ClientSettings
from iotmq.client.transport.masters import Master
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

WAIT_S = 30.0
_READ_BYTES = 1 << 16


class Gate:
    """A port that carries connections to another one until it is shut."""

    def __init__(self) -> None:
        self.port = 0
        self._target = 0
        self._server: asyncio.Server | None = None
        self._carriers: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_silent = False

    async def open(self) -> None:
        """Listen; nothing is carried before `lead_to`."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def lead_to(self, port: int) -> None:
        """Carry new connections to another port; those that were silenced stay so."""
        self._target = port
        self._is_silent = False

    def silence(self) -> None:
        """Carry nothing any more: connections stay, new ones are accepted, and nobody answers."""
        self._is_silent = True
        for carrier in self._carriers:
            carrier.cancel()

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        assert self._server is not None
        self._server.close()
        self.silence()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if self._is_silent:
            return
        try:
            target_reader, target = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(target)
        for source, to in ((reader, target), (target_reader, writer)):
            carrier = asyncio.ensure_future(self._carry(source, to))
            self._carriers.add(carrier)
            carrier.add_done_callback(self._carriers.discard)

    async def _carry(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_READ_BYTES):
                to.write(data)
                await to.drain()
        to.close()


class OneMaster:
    """One broker, with its gates."""

    def __init__(self, broker: Broker, store: Store, door: Gate, ways: Sequence[Gate]) -> None:
        self.broker = broker
        self._store = store
        self.door = door
        self._ways = ways
        self._is_over = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.door.port}"

    async def end(self, *, is_silent: bool) -> None:
        """Be gone for the others, without a word or with the ends of its connections; frees the data."""
        if self._is_over:
            return
        self._is_over = True
        for gate in (self.door, *self._ways):
            gate.silence() if is_silent else gate.cut()
        await self.broker.stop()
        self._store.close()

    def cut(self) -> None:
        for gate in (self.door, *self._ways):
            gate.cut()


class MovingMaster:
    """`async with` starts registries and the first master, of epoch 1."""

    def __init__(
        self,
        directory: Path,
        *,
        registries: int = 1,
        topics: Sequence[str] = ("T",),
        name: str = "broker-a",
        first_epoch: int = 1,
        **settings: Any,
    ) -> None:
        self._directory = directory
        self._topics = topics
        self._settings = settings
        self._name = name
        self._epoch = first_epoch
        self.registries = [Registry(RegistrySettings(listen_port=0)) for _ in range(registries)]
        self.masters: list[OneMaster] = []

    @property
    def master(self) -> OneMaster:
        return self.masters[-1]

    @property
    def broker(self) -> Broker:
        return self.master.broker

    @property
    def addresses(self) -> tuple[str, ...]:
        """HOST:PORT of all registries."""
        return tuple(f"127.0.0.1:{registry.port}" for registry in self.registries)

    def client_settings(self, **more: Any) -> ClientSettings:
        """Those of a client that does nothing by a poll or a timeout within a test."""
        patient = {"connect_timeout_ms": 60_000, "request_timeout_ms": 60_000}
        return ClientSettings(**{"registries": self.addresses, **patient, **more})

    async def __aenter__(self) -> MovingMaster:
        for registry in self.registries:
            await registry.start()
        await self._start_master(self._epoch, self.registries)
        for registry in self.registries:
            await soon(lambda registry=registry: self.known_by(registry), "the first master")  # type: ignore[misc]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.master.end(is_silent=True)
        for master in self.masters:
            master.cut()
        for registry in self.registries:
            await registry.stop()
            assert registry.routes.check() == []

    def known_by(self, registry: Registry) -> Master | None:
        """The master as a registry knows it."""
        found = registry.routes.masters().get(self._name)
        return None if found is None else Master(found.address, found.epoch)

    async def take_over(
        self,
        *,
        is_silent: bool,
        epoch: int | None = None,
        registries: Sequence[Registry] | None = None,
        keeps_address: bool = False,
    ) -> float:
        """End the master, and start the next at another address; returns when a registry knows it.

        It registers with some registries only, if told so. An address that follows the master, as a virtual
        one does, is kept.
        """
        self._epoch += 1
        await self.master.end(is_silent=is_silent)
        return await self.start_next(epoch=epoch, registries=registries, keeps_address=keeps_address)

    async def start_next(
        self,
        *,
        epoch: int | None = None,
        registries: Sequence[Registry] | None = None,
        keeps_address: bool = False,
    ) -> float:
        """Start the next master, where the former one has ended."""
        await self._start_master(
            self._epoch if epoch is None else epoch,
            self.registries if registries is None else registries,
            door=self.master.door if keeps_address else None,
        )
        return time.monotonic()

    async def _start_master(
        self, epoch: int, registries: Sequence[Registry], *, door: Gate | None = None
    ) -> None:
        ways = [Gate() for _ in registries]
        for gate in ways:
            await gate.open()
        if door is None:
            door = Gate()
            await door.open()
        port = free_port()
        door.lead_to(port)
        for way, registry in zip(ways, registries, strict=True):
            way.lead_to(registry.port)
        settings = BrokerSettings(
            **{
                "name": self._name,
                "listen_port": port,
                "advertised_port": door.port,
                "registries": tuple(f"127.0.0.1:{way.port}" for way in ways),
                **self._settings,
            }
        )
        store = Store.open(
            self._directory,
            StoreSettings(segment_bytes=8 << 20, allocation_step_bytes=64 << 10),
            store_host=resolve_store_host(settings),
        )
        broker = Broker(settings, store, directory=self._directory)
        for topic in self._topics:
            broker.topics.ensure(topic, queues=2)
        self.masters.append(OneMaster(broker, store, door, ways))
        await broker.start(epoch=epoch)
        await broker.wait_registered(WAIT_S)
