"""A producer with brokers in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fake_broker import FakeBroker, FakeRegistry

from iotmq.client.client import IotmqClient
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.settings import ClientSettings, ProducerSettings


@asynccontextmanager
async def running(*brokers: FakeBroker, **settings: Any) -> AsyncIterator[Producer]:
    """A registry, brokers and a started producer."""
    registry = FakeRegistry(*brokers)
    for role in (*brokers, registry):
        await role.start()
    client_settings = ClientSettings(
        registries=(registry.address,), reconnect_ms_min=5, reconnect_ms_max=50, request_timeout_ms=2_000
    )
    try:
        async with (
            IotmqClient(client_settings) as client,
            Producer(client, "pg", ProducerSettings(**settings)) as producer,
        ):
            producer.registry = registry  # type: ignore[attr-defined]
            yield producer
    finally:
        for role in (*brokers, registry):
            await role.stop()
