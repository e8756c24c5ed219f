"""A front end on real sockets over scripted brokers, whose clock the test moves; for uvloop.

Its ticks are to come soon after: `tick_quickly` in a fixture.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from eventually import soon
from fake_gateway import Handed, RawClient, ScriptedGateway
from front_metrics import number_of
from manual_clock import ManualClock

from iotmq.mqtt_front import server
from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.settings.mqtt import MqttSettings


class Site:
    """A running front end."""

    def __init__(self, *, queues: int = 1, **settings: Any) -> None:
        self.gateway = ScriptedGateway(queues=queues)
        self.clock = ManualClock()
        defaults: dict[str, Any] = {"listen_port": 0, "retry_interval_s": 0.01}
        self.front = MqttFront(MqttSettings(**(defaults | settings)), self.gateway, clock=self.clock)
        self.is_stopped = False

    async def connect(self, client_id: str = "", **fields: Any) -> RawClient:
        return await RawClient.connect(self.front.port, client_id, **fields)

    async def dial(self, **options: Any) -> RawClient:
        return await RawClient.dial(self.front.port, **options)

    async def handed(self, count: int = 1) -> list[Handed]:
        """All batches, when there are `count`."""
        await soon(lambda: len(self.gateway.handed) >= count, f"{count} batches", step_s=0.001)
        return self.gateway.handed

    def number(self, name: str, **labels: str) -> float:
        return number_of(self.front, name, **labels)

    async def gone(self, reason: str, count: int = 1) -> None:
        """Until this many connections have ended for this reason."""
        await soon(
            lambda: self.number("iotmq_mqtt_closed_total", reason=reason) == count,
            f"{count} closed for {reason}",
            step_s=0.001,
        )

    async def advance(self, seconds: float) -> None:
        """Move the clock and wait until the front end has looked at it."""
        self.clock.advance(seconds)
        parts = self.front.parts
        await soon(lambda: parts.group.now_s > self.clock.monotonic_s(), "a tick", step_s=0.001)

    async def stop(self) -> None:
        if not self.is_stopped:
            self.is_stopped = True
            await self.front.stop()


def tick_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests move the clock; the tick only has to come soon after."""
    monkeypatch.setattr(server, "_TICK_S", 0.01)


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Site]:
    site = Site(**settings)
    await site.front.start()
    try:
        yield site
    finally:
        site.gateway.automatic = 0
        for handed in site.gateway.handed:
            try:
                handed.answer(0, "")
            except RuntimeError:
                pass  # the test has answered it
        await site.stop()
