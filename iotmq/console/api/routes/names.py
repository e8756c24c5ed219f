"""Types that parameters of several areas have."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from iotmq import limits

TopicText = Annotated[str, Meta(min_length=1, max_length=limits.TOPIC_BYTES_MAX)]
GroupText = Annotated[str, Meta(min_length=1, max_length=limits.TOPIC_BYTES_MAX)]
BrokerText = Annotated[str, Meta(min_length=1, max_length=255)]
ClientText = Annotated[str, Meta(min_length=1, max_length=65_535)]
TimeMs = Annotated[int, Meta(ge=0, le=1 << 53)]
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
