"""Put together what calls users' programs, as far as these have methods for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from iotmq.metrics import Metric
from iotmq.mqtt.server.publish_sink import PublishSink
from iotmq.mqtt_front.connection.device import Device, DeviceGroup
from iotmq.mqtt_front.hooks.hook_calls import HookCalls
from iotmq.mqtt_front.hooks.hooked_sink import HookedSink
from iotmq.mqtt_front.hooks.session_hooks import SessionHooks
from iotmq.mqtt_front.settings.mqtt import MqttSettings

_OF_MESSAGES = ("before_publish", "after_publish", "after_deliver")


@dataclass(frozen=True, slots=True)
class HookParts:
    """Use `open_hooks`."""

    calls: HookCalls
    sessions: SessionHooks
    sink: HookedSink | None
    """None when no program is interested in messages."""

    def connect(self, group: DeviceGroup) -> None:
        """Have the devices of a group tell programs."""
        group.listeners = (*group.listeners, self.sessions)
        if self.sink is not None:
            self.sink.group = group
        if self.calls.has("before_deliver"):
            group.may_deliver = self.calls.may_deliver
        if self.calls.has("after_deliver"):
            group.delivered = []

    def when_passed(self, device: Device, callback: Callable[[], None]) -> bool:
        """Return whether nothing that a device has published waits for a program; else call back then."""
        return self.sink is None or self.sink.when_passed(device, callback)

    async def start(self) -> None:
        await self.calls.start()

    async def stop(self) -> None:
        await self.calls.stop()

    def metrics(self) -> Iterable[Metric]:
        return self.calls.metrics()


def open_hooks(settings: MqttSettings, loop: asyncio.AbstractEventLoop, ingress: PublishSink) -> HookParts:
    """Load users' programs. ConfigError when one cannot be loaded."""
    calls = HookCalls(settings.hooks, loop, timeout_s=settings.hook_timeout_s)
    sees_messages = any(map(calls.has, _OF_MESSAGES))
    return HookParts(calls, SessionHooks(calls), HookedSink(ingress, calls) if sees_messages else None)
