"""`$delayed/SECONDS/TOPIC`: the topic a device publishes to for a message that is to be delivered later."""

from __future__ import annotations

from typing import Final

from iotmq import limits
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import TOPIC_NAME_INVALID

DELAYED_PREFIX: Final = "$delayed/"


def split_delayed(topic: str) -> tuple[int, str]:
    """(seconds to wait, topic of the message); (0, topic) for one that is to be delivered at once.

    Raises MqttProtocolError when the seconds are no number, or more than MQTT_DELAY_S_MAX, or no topic
    follows them. A delay within a delay is none: the inner one is refused.
    """
    if not topic.startswith(DELAYED_PREFIX):
        return 0, topic
    seconds, _, plain = topic.removeprefix(DELAYED_PREFIX).partition("/")
    if not (seconds.isascii() and seconds.isdecimal() and len(seconds) <= 10):
        raise MqttProtocolError(
            TOPIC_NAME_INVALID,
            f"$delayed/SECONDS/TOPIC has {seconds[:40]!r} where a number of seconds belongs",
        )
    if int(seconds) > limits.MQTT_DELAY_S_MAX:
        raise MqttProtocolError(
            TOPIC_NAME_INVALID,
            f"$delayed/{seconds} is longer than the {limits.MQTT_DELAY_S_MAX} seconds a message may wait",
        )
    if not plain:
        raise MqttProtocolError(TOPIC_NAME_INVALID, f"$delayed/{seconds} has no topic behind the seconds")
    if plain.startswith(DELAYED_PREFIX):
        raise MqttProtocolError(
            TOPIC_NAME_INVALID, "a message is delayed once, not $delayed/.../$delayed/..."
        )
    return int(seconds), plain
