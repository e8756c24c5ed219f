"""Types that parameters of several areas have."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.client.transport.message import is_own_topic
from iotmq.console.api.problems import FORBIDDEN, ProblemError, invalid
from iotmq.mqtt.topics.topics import is_shared, is_valid_filter

TopicText = Annotated[str, Meta(min_length=1, max_length=limits.TOPIC_BYTES_MAX)]
GroupText = Annotated[str, Meta(min_length=1, max_length=limits.TOPIC_BYTES_MAX)]
BrokerText = Annotated[str, Meta(min_length=1, max_length=255)]
ClientText = Annotated[str, Meta(min_length=1, max_length=65_535)]
TimeMs = Annotated[int, Meta(ge=0, le=1 << 53)]
MqttTopicText = Annotated[str, Meta(min_length=1, max_length=limits.MQTT_TOPIC_BYTES_MAX)]
QueueId = Annotated[int, Meta(ge=0, lt=1 << 31)]
Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers that have done it."""

    brokers: list[str]


class TopicArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One broker topic."""

    topic: TopicText
    """The name of the broker topic."""


class GroupArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One consumer group."""

    group: GroupText
    """The name of the consumer group."""


class ClientArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One MQTT client."""

    client_id: ClientText
    """The client id."""


def check_is_open(topic: str | None) -> None:
    """Raise the problem of a broker topic that nobody sends to but the gateway itself."""
    if topic is not None and is_own_topic(topic):
        raise ProblemError(FORBIDDEN, f"the topic {topic} is the gateway's own: nobody else sends to it")


def check_filter(topic_filter: str) -> None:
    """Raise the problem of a parameter `filter` that is no topic filter."""
    if not is_valid_filter(topic_filter) or is_shared(topic_filter):
        detail = "no topic filter: + stands for one level, # at the end for all that follow"
        raise invalid(detail, parameter="filter")
