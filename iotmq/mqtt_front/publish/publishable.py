"""The topics that no device publishes to."""

from __future__ import annotations

from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import TOPIC_NAME_INVALID
from iotmq.mqtt.topics.reply import REPLY_PREFIX
from iotmq.mqtt.topics.topics import PRIVATE_PREFIX, SYS_PREFIX


def check_publishable(name: str) -> None:
    """Raise MqttProtocolError for a topic that is no device's."""
    if name.startswith(SYS_PREFIX):
        raise MqttProtocolError(TOPIC_NAME_INVALID, "what is below $SYS/ is published by the server alone")
    if name.startswith(PRIVATE_PREFIX):
        raise MqttProtocolError(TOPIC_NAME_INVALID, f"what is below {PRIVATE_PREFIX} is the server's own")
    if name.startswith(REPLY_PREFIX):
        # Of a will, or behind a delay or another name: who asked would not wait for it.
        raise MqttProtocolError(TOPIC_NAME_INVALID, "an answer to a request is published at once")
