"""Registries and brokers in this process, as many as a test wants, each able to go and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway_process import free_port

from iotmq.broker.broker import Broker
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.settings import BrokerSettings
from iotmq.client.client import IotmqClient
from iotmq.client.transport.settings import ClientSettings
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

WAIT_S = 30.0


class SmallCluster:
    """`async with` starts it; brokers are broker-0, broker-1 ... of cluster C."""

    def __init__(self, directory: Path, *, brokers: int = 2, registries: int = 2, **settings: Any) -> None:
        self.directory = directory
        self.registries = [
            Registry(RegistrySettings(listen_port=0), directory=directory / f"registry-{number}")
            for number in range(registries)
        ]
        self.brokers: list[Broker] = []
        self.stores: list[Store] = []
        self._broker_count = brokers
        self._settings = settings

    @property
    def addresses(self) -> tuple[str, ...]:
        """HOST:PORT of all registries."""
        return tuple(f"127.0.0.1:{registry.port}" for registry in self.registries)

    async def __aenter__(self) -> SmallCluster:
        for registry in self.registries:
            await registry.start()
        for number in range(self._broker_count):
            settings = BrokerSettings(
                **{
                    "name": f"broker-{number}",
                    "cluster": "C",
                    # The port is part of message ids, so it is known before the broker listens.
                    "listen_port": free_port(),
                    "registries": self.addresses,
                    "registration_interval_s": 0.2,
                    **self._settings,
                }
            )
            directory = self.directory / f"broker-{number}"
            store = Store.open(
                directory,
                StoreSettings(segment_bytes=8 << 20, allocation_step_bytes=64 << 10),
                store_host=resolve_store_host(settings),
            )
            broker = Broker(settings, store, directory=directory)
            await broker.start()
            self.stores.append(store)
            self.brokers.append(broker)
        await asyncio.gather(*(broker.wait_registered(WAIT_S) for broker in self.brokers))
        await self.until(lambda: all(r.routes.broker_count == len(self.brokers) for r in self.registries))
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker, store in zip(self.brokers, self.stores, strict=True):
            await broker.stop()
            store.close()
        for registry in self.registries:
            await registry.stop()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[IotmqClient]:
        settings = ClientSettings(registries=self.addresses, reconnect_ms_min=5, reconnect_ms_max=50)
        async with IotmqClient(settings) as client:
            yield client

    @staticmethod
    async def until(condition: Any, within_s: float = WAIT_S) -> None:
        """Wait for a condition of this process."""
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
