"""Show plug-ins the devices of a front end, and let them publish. On its loop, but for `publish`."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from iotmq import limits
from iotmq.clock import Clock
from iotmq.errors import ConfigError
from iotmq.metrics import Metric, samples
from iotmq.mqtt.codec.packets import Connect, Subscribe, Unsubscribe, Will
from iotmq.mqtt.codec.subscription_options import QOS
from iotmq.mqtt.reason_codes import SUBACK_FAILURE
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.plugins.amqtt_link import AmqttLink
from iotmq.mqtt_front.plugins.context import PluginRefusedError
from iotmq.mqtt_front.plugins.light_session import LightSession
from iotmq.mqtt_front.plugins.plugins import Plugins
from iotmq.mqtt_front.plugins.topic_questions import PluginTopics
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.mqtt_front.settings.plugins import AmqttLinkSettings
from iotmq.supervised import surviving

# Messages of plug-ins that are published in one turn of the loop.
_PUBLISHED_PER_TURN: Final = 64
# Of a message that waits, beside its topic and payload.
_EACH_BYTES: Final = 256


class FrontPlugins:
    """The plug-ins of one front end, for its other parts."""

    def __init__(
        self,
        settings: MqttSettings,
        loop: asyncio.AbstractEventLoop,
        publish: Callable[[Will], None],
        clock: Clock,
    ) -> None:
        """ConfigError when a plug-in cannot be used, or one that authenticates is asked by no link."""
        self._messages = PluginMessages(loop, publish)
        self._plugins = Plugins(settings.plugins, self._messages.put, clock)
        self._links = {
            link.name: self._plugins.authenticating(link.plugins, f"the link {link.name}")
            for link in settings.authentication.chain
            if isinstance(link, AmqttLinkSettings)
        }
        asked = {host.name for hosts in self._links.values() for host in hosts}
        if unasked := sorted(self._plugins.authenticating_names - asked):
            raise ConfigError(
                f"no link of mqtt.authentication.chain with kind = amqtt asks the plug-in {unasked[0]}"
            )
        self._sessions: dict[Device, LightSession] = {}

    @property
    def topics(self) -> PluginTopics | None:
        """Return what decides about topics; None without a plug-in that does."""
        return self._plugins.topics

    def link(self, settings: AmqttLinkSettings) -> AmqttLink:
        """Return the link of the authentication chain with these settings."""
        return AmqttLink(settings.name, self._links[settings.name])

    async def start(self) -> None:
        """Start the plug-ins. PluginStartError when one does not."""
        await self._plugins.start()

    async def started(self) -> None:
        """Devices may connect."""
        await self._plugins.started()

    async def stop(self) -> None:
        """End the plug-ins. May be called twice."""
        await self._plugins.stop()

    def opening(self, device: Device, client_id: str, connect: Connect) -> None:
        """A device may connect, unless a broker or its will stand against it."""
        if self._plugins.needs_sessions:
            self._sessions[device] = self._plugins.opening(device.identity, client_id, connect)

    # What the front end tells (device.SessionListener)

    def opened(self, device: Device, _is_resumed: bool) -> None:
        """A session is open."""
        if device in self._sessions:
            self._plugins.opened(self._sessions[device])

    def lost(self, device: Device) -> None:
        """The connection is over."""
        session = self._sessions.pop(device, None)
        if session is not None:
            self._plugins.closed(session)

    def subscribed(self, device: Device, event: Subscribe, codes: Sequence[int]) -> None:
        """A SUBSCRIBE was answered."""
        if device in self._sessions:
            for (topic_filter, options), code in zip(event.subscriptions, codes, strict=True):
                if code < SUBACK_FAILURE:
                    self._plugins.subscribed(device.client_id or "", topic_filter, options & QOS)

    def unsubscribed(self, device: Device, event: Unsubscribe) -> None:
        """An UNSUBSCRIBE came."""
        if device in self._sessions:
            for topic_filter in event.filters:
                self._plugins.unsubscribed(device.client_id or "", topic_filter)

    def metrics(self) -> Iterable[Metric]:
        """Report plug-ins and what they publish."""
        yield from self._plugins.metrics()
        yield from self._messages.metrics()


class PluginMessages:
    """Takes messages of plug-ins from their threads, and publishes them on the loop of the front end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, publish: Callable[[Will], None]) -> None:
        """`publish` stores a message as one of the front end's own."""
        self._loop = loop
        self._publish = publish
        self._lock = threading.Lock()
        self._waiting: deque[Will] = deque()
        self._waiting_bytes = 0
        self._is_scheduled = False
        self._published_total = 0

    def put(self, topic: str, payload: bytes, qos: int, is_retained: bool) -> None:
        """Publish a message, some time; from any thread. PluginRefusedError when too much waits."""
        with self._lock:
            size = _EACH_BYTES + len(topic) + len(payload)
            if self._waiting_bytes + size > limits.MQTT_PLUGIN_MESSAGES_BYTES_MAX:
                raise PluginRefusedError("too many messages of plug-ins wait to be published")
            self._waiting.append(Will(topic, payload, qos, is_retained))
            self._waiting_bytes += size
            if self._is_scheduled:
                return
            self._is_scheduled = True
        self._loop.call_soon_threadsafe(self._publish_some)

    def _publish_some(self) -> None:
        with self._lock:
            some = [self._waiting.popleft() for _ in range(min(_PUBLISHED_PER_TURN, len(self._waiting)))]
            self._waiting_bytes -= sum(_EACH_BYTES + len(each.topic) + len(each.payload) for each in some)
            self._is_scheduled = bool(self._waiting)
            if self._is_scheduled:
                self._loop.call_soon(self._publish_some)
        for message in some:
            with surviving("message of a plug-in"):
                self._publish(message)
        self._published_total += len(some)

    def metrics(self) -> Iterable[Metric]:
        """Report messages."""
        text = "Messages that plug-ins have published."
        yield from samples(("iotmq_mqtt_plugin_messages_total", text, self._published_total))
