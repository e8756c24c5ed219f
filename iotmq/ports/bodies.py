"""Bodies of the requests about sessions (30050 to 30061, docs/reference/wire-protocol.md), in MessagePack.

Most are the requests and answers of `sessions` as they are; the others are here. Every body that a peer
sends is checked for types and counts while it is decoded; msgspec.DecodeError says what is wrong.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.ports.sessions import ClientId, Epoch, SessionProgress, Will

_U32_MAX = (1 << 32) - 1
_PACKET_IDS_MAX = 65_535

ProgressBody: TypeAlias = Annotated[list[SessionProgress], Meta(max_length=limits.SESSIONS_PER_REQUEST_MAX)]
"""30054."""


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
    """Return whether the numbers of a change are what they say."""
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
