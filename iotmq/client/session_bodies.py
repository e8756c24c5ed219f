"""Bodies of the requests about sessions (30050 to 30061, docs/wire-protocol.md), in MessagePack.

Both sides take them from here: the broker decodes what a front end encodes, and the other way round. Every
body that a peer sends is checked here for types and counts; msgspec.DecodeError says what is wrong.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.client.session_ports import InFlight, SessionProgress, Will

_U32_MAX = (1 << 32) - 1
_PACKET_IDS_MAX = 65_535

ClientId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=limits.MQTT_CLIENT_ID_BYTES_MAX)]
Filter: TypeAlias = Annotated[str, Meta(min_length=1, max_length=limits.MQTT_TOPIC_BYTES_MAX)]
Options: TypeAlias = Annotated[int, Meta(ge=0, le=255)]
Epoch: TypeAlias = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Seconds: TypeAlias = Annotated[int, Meta(ge=0, le=_U32_MAX)]


class OpenBody(msgspec.Struct, frozen=True, array_like=True):
    """30051: a client that connects."""

    client_id: ClientId
    is_clean: bool
    expiry_s: Seconds
    will: Will | None


class SubscriptionBody(msgspec.Struct, frozen=True, array_like=True):
    """As session_ports.SessionSubscription."""

    topic_filter: str
    options: int
    queue_id: int
    cursor: int
    sent: int


class OpenedBody(msgspec.Struct, frozen=True, array_like=True):
    """The answer to 30051."""

    epoch: int
    is_present: bool
    subscriptions: list[SubscriptionBody]
    received: list[int]
    in_flight: list[InFlight]
    done: list[tuple[int, int]]


class SubscribeBody(msgspec.Struct, frozen=True, array_like=True):
    """30052."""

    client_id: ClientId
    epoch: Epoch
    subscriptions: Annotated[
        list[tuple[Filter, Options]], Meta(max_length=limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX)
    ]


class UnsubscribeBody(msgspec.Struct, frozen=True, array_like=True):
    """30053."""

    client_id: ClientId
    epoch: Epoch
    filters: Annotated[list[Filter], Meta(max_length=limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX)]


ProgressBody: TypeAlias = Annotated[list[SessionProgress], Meta(max_length=limits.SESSIONS_PER_REQUEST_MAX)]
"""30054."""


class CloseBody(msgspec.Struct, frozen=True, array_like=True):
    """30055."""

    client_id: ClientId
    epoch: Epoch
    expiry_s: Seconds
    drops_will: bool


class ClaimBody(msgspec.Struct, frozen=True, array_like=True):
    """One session of 30058; `queues` is `queues_checksum` of what the front end knows of it."""

    client_id: ClientId
    epoch: Epoch
    queues: Annotated[int, Meta(ge=0, le=_U32_MAX)]
    will: Will | None


ClaimsBody: TypeAlias = Annotated[list[ClaimBody], Meta(max_length=limits.SESSIONS_PER_REQUEST_MAX)]


class FencedBody(msgspec.Struct, frozen=True, array_like=True):
    """30061."""

    client_id: str
    epoch: int
    reason: str


def queues_checksum(queues: Iterable[tuple[str, int]]) -> int:
    """A number for (filter, queue id) of a session: equal where both sides know the same of it."""
    checksum = 0
    for topic_filter, queue_id in sorted(queues):
        checksum = zlib.crc32(
            b"%d:%s\n" % (queue_id, topic_filter.encode("utf-8", "surrogatepass")), checksum
        )
    return checksum


def is_sound_progress(change: SessionProgress) -> bool:
    """True when the numbers of a change are what they say."""
    in_flight = change.in_flight or ()
    received = change.received or ()
    return (
        0 < len(change.client_id) <= limits.MQTT_CLIENT_ID_BYTES_MAX
        and len(change.cursors) <= limits.SESSION_QUEUES_MAX
        and all(
            0 <= queue_id <= _U32_MAX and 0 <= cursor < 2**62 and 0 <= sent < 2**62
            for queue_id, cursor, sent in change.cursors
        )
        and len(received) <= _PACKET_IDS_MAX
        and all(0 < packet_id <= _PACKET_IDS_MAX for packet_id in received)
        and len(in_flight) <= _PACKET_IDS_MAX
        and all(
            0 < flight.packet_id <= _PACKET_IDS_MAX
            and 0 <= flight.queue_id <= _U32_MAX
            and 0 <= flight.position < 2**62
            for flight in in_flight
        )
        and len(change.done) <= _PACKET_IDS_MAX
        and all(0 <= queue_id <= _U32_MAX and 0 <= position < 2**62 for queue_id, position in change.done)
    )


encode = msgspec.msgpack.Encoder().encode
