"""Give a plug-in the names of amqtt's context: what it may use of the gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from iotmq import limits
from iotmq.errors import IotmqError
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.topics.topics import decode_topic_name
from iotmq.mqtt_front.plugins.light_session import LightSession

Publish = Callable[[str, bytes, int, bool], None]
"""Publish topic, payload, QoS and whether it is retained; from any thread, and without waiting."""


class PluginRefusedError(IotmqError):
    """The plug-in asked for something that cannot be done; the text says what."""


class PluginContext:
    """One for each instance of a plug-in."""

    def __init__(
        self,
        name: str,
        options: object,
        loop: asyncio.AbstractEventLoop,
        sessions: Mapping[str, LightSession],
        publish: Publish,
    ) -> None:
        self.loop = loop
        self.logger: Final = logging.getLogger(f"iotmq.mqtt.plugins.{name}")
        self.config = options
        self._sessions = sessions
        self._publish = publish

    async def broadcast_message(self, topic: str, data: bytes, qos: int | None = None) -> None:
        """Publish a message. Returns when it is handed over, not when it is stored."""
        self._hand_over(topic, data, qos, is_retained=False)

    async def retain_message(self, topic_name: str, data: bytes | bytearray, qos: int | None = None) -> None:
        """Publish a retained message; as amqtt does, an empty one ends that of the topic."""
        self._hand_over(topic_name, data, qos, is_retained=True)

    def get_session(self, client_id: str) -> LightSession | None:
        """Return a device that is connected to this front end, if it is."""
        return self._sessions.get(client_id)

    @property
    def sessions(self) -> NoReturn:
        """Refused: devices are connected to several front ends."""
        _refuse("sessions")

    @property
    def retained_messages(self) -> NoReturn:
        """Refused: retained messages are at the brokers."""
        _refuse("retained_messages")

    @property
    def subscriptions(self) -> NoReturn:
        """Refused: subscriptions are those of several front ends."""
        _refuse("subscriptions")

    async def add_subscription(self, client_id: str, topic: str | None, qos: int | None) -> NoReturn:
        """Refused: mqtt.auto_subscriptions does this."""
        del client_id, topic, qos
        _refuse("add_subscription")

    def _hand_over(self, topic: Any, data: Any, qos: Any, *, is_retained: bool) -> None:
        try:
            decode_topic_name(topic.encode())
        except (AttributeError, MqttProtocolError) as error:
            raise PluginRefusedError(f"no topic that can be published to: {error}") from error
        if not isinstance(data, (bytes, bytearray)) or len(data) > limits.MQTT_PLUGIN_MESSAGE_BYTES_MAX:
            raise PluginRefusedError(
                f"no message of up to {limits.MQTT_PLUGIN_MESSAGE_BYTES_MAX} bytes was given to {topic}"
            )
        if qos not in (None, 0, 1, 2):
            raise PluginRefusedError(f"qos is {qos}, not 0, 1 or 2")
        self._publish(topic, bytes(data), qos or 0, is_retained)


def _refuse(name: str) -> NoReturn:
    raise PluginRefusedError(f"a plug-in in iotmq has no context.{name}")
