"""Plug-ins in hosts, which are stopped in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import amqtt_plugins
import pytest
from manual_clock import ManualClock

from iotmq.mqtt_front.plugins.host import PluginHost
from iotmq.mqtt_front.plugins.light_session import LightSession
from iotmq.mqtt_front.plugins.loader import load
from iotmq.mqtt_front.settings.plugins import AmqttPluginSettings

HostOf = Callable[..., Awaitable[PluginHost]]


@pytest.fixture
def sessions() -> dict[str, LightSession]:
    return {}


@pytest.fixture
def published() -> list[tuple[str, bytes, int, bool]]:
    return []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def host_of(
    sessions: dict[str, LightSession], published: list[tuple[str, bytes, int, bool]], clock: ManualClock
) -> AsyncIterator[HostOf]:
    hosts = []

    async def start(class_name: str, options: dict[str, Any] | None = None, /, **settings: Any) -> PluginHost:
        given = AmqttPluginSettings(
            class_path=f"amqtt_plugins.{class_name}", options=options or {}, **settings
        )
        host = PluginHost(load(given), sessions, lambda *message: published.append(message), clock)
        hosts.append(host)
        await host.start(5.0)
        return host

    yield start
    amqtt_plugins.released.set()
    for host in hosts:
        await host.stop()
    amqtt_plugins.released.clear()
