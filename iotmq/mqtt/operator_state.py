"""State that operators make for all processes, as brokers keep it: retained messages of one broker topic.

Each piece, such as a ban or a silence, has an MQTT topic below `$iotmq/`, and an expiry interval when it
ends by itself; an empty message takes it away. Devices cannot publish or subscribe there, and what comes
there from another broker topic than OPERATOR_TOPIC is no such state, nor retained.
"""

from __future__ import annotations

import base64
from typing import Final

from iotmq.message.properties import MQTT_QOS, MQTT_RETAIN, MQTT_TOPIC, TIME_TO_LIVE_MS

OPERATOR_TOPIC: Final = "iotmq_sys_bans"
"""The broker topic. It has its name from what was first kept there."""


def state_topic(prefix: str, name: str) -> str:
    """Return the MQTT topic of a piece of state; its name may be any text."""
    return f"{prefix}{base64.urlsafe_b64encode(name.encode()).decode()}"


def name_of_topic(prefix: str, topic: str) -> str:
    """Return the name of a piece of state; ValueError when `state_topic` has not made the topic."""
    name = base64.urlsafe_b64decode(topic.removeprefix(prefix)).decode()
    if state_topic(prefix, name) != topic:
        raise ValueError(f"{topic} is not {prefix} and a name")
    return name


def state_properties(topic: str, *, expires_ms: int = 0) -> dict[str, str]:
    """Return the properties of the record that makes or ends a piece, for `expires_ms` unless that is 0."""
    properties = {MQTT_TOPIC: topic, MQTT_QOS: "1", MQTT_RETAIN: "1"}
    if expires_ms:
        properties[TIME_TO_LIVE_MS] = str(expires_ms)
    return properties
