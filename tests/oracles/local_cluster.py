"""One registry and one broker in this process, which clients reach by their sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iotmq.broker.broker import Broker
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.settings import BrokerSettings
from iotmq.client import ClientSettings
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

SEGMENT_BYTES = 4 * 1024 * 1024


class LocalCluster:
    """One registry and one broker in this process; the broker can be restarted where it was."""

    def __init__(
        self,
        directory: Path,
        *,
        client: Mapping[str, Any] | None = None,
        registry: Mapping[str, Any] | None = None,
        store: Mapping[str, Any] | None = None,
        topics: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """`settings` are the broker's, `client` those of `client_settings`; `topics` get two queues each."""
        self.directory = directory
        self.settings = settings
        self._store_settings = StoreSettings(**{"segment_bytes": SEGMENT_BYTES, **(store or {})})
        self._topics = topics
        self._client = {
            "reconnect_ms_min": 5,
            "reconnect_ms_max": 50,
            "missing_route_refresh_ms": 50,
            **(client or {}),
        }
        self.registry = Registry(
            RegistrySettings(listen_port=0, **(registry or {})), directory=directory / "registry"
        )
        self.port = 0

    @property
    def address(self) -> str:
        """HOST:PORT of the registry."""
        return f"127.0.0.1:{self.registry.port}"

    @property
    def client_settings(self) -> ClientSettings:
        """For a client that finds things again quickly."""
        return ClientSettings(registries=(self.address,), **self._client)

    async def start(self) -> None:
        """Both roles; the registry knows the broker."""
        await self.registry.start()
        await self.start_broker()

    async def start_broker(self) -> None:
        """Start the broker where it was."""
        settings = BrokerSettings(
            listen_port=self.port,
            registries=(self.address,),
            registration_interval_s=0.2,
            **self.settings,
        )
        self.store = Store.open(
            self.directory / "data", self._store_settings, store_host=resolve_store_host(settings)
        )
        self.broker = Broker(settings, self.store, directory=self.directory / "data")
        for topic in self._topics:
            self.broker.topics.ensure(topic, queues=2)
        await self.broker.start()
        self.port = self.broker.port
        await self.broker.wait_registered(10)

    async def stop_broker(self) -> None:
        """Stop the broker; its store must be whole."""
        await self.broker.stop()
        problems = self.store.check()
        self.store.close()
        assert problems == []

    async def stop(self) -> None:
        """Stop both."""
        await self.stop_broker()
        await self.registry.stop()
