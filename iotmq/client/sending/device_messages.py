"""Make messages for devices: records of a broker topic with an MQTT topic, which subscribers of that get."""

from __future__ import annotations

from typing import Final

from iotmq.client.transport.message import Message
from iotmq.errors import MessageRefusedError
from iotmq.limits import MQTT_TOPIC_BYTES_MAX
from iotmq.message.properties import MQTT_QOS, MQTT_RETAIN, MQTT_TOPIC
from iotmq.mqtt.topics.filters import is_topic_name

DEVICE_TOPIC: Final = "commands"
# The message expiry interval of MQTT 5 has 32 bits.
_EXPIRY_S_MAX: Final = 2**32 - 1


def device_message(
    mqtt_topic: str, payload: bytes, *, topic: str, qos: int, retain: bool = False, expiry_s: float = 0
) -> Message:
    """Make a message for every device that subscribes an MQTT topic; those of one topic keep their order.

    MessageRefusedError for what devices cannot get.
    """
    try:
        name = mqtt_topic.encode()
    except UnicodeEncodeError:
        name = b""
    if not 0 < len(name) <= MQTT_TOPIC_BYTES_MAX or not is_topic_name(name):
        raise MessageRefusedError(
            f"invalid MQTT topic {mqtt_topic[:100]!r}: 1 to {MQTT_TOPIC_BYTES_MAX} bytes, without + # and "
            "control characters"
        )
    if qos not in (0, 1, 2):
        raise MessageRefusedError(f"a QoS of {qos!r}: it is 0, 1 or 2")
    if not 0 <= expiry_s <= _EXPIRY_S_MAX:
        raise MessageRefusedError(f"an expiry of {expiry_s} s: allowed are 0 (never) to {_EXPIRY_S_MAX}")
    properties = {MQTT_TOPIC: mqtt_topic, MQTT_QOS: str(qos)}
    if retain:
        properties[MQTT_RETAIN] = "1"
    # Without a moment left it would be one that never expires.
    ttl_ms = max(1, round(expiry_s * 1000)) if expiry_s else 0
    return Message(topic, payload, key=mqtt_topic, properties=properties, ttl_ms=ttl_ms)
