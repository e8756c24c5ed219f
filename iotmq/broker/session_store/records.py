"""Define the records that say what happens to kept MQTT sessions.

Every change of a session is a record of SESSION_TOPIC, so that sessions replicate and recover like messages.
Its body is a list of changes in MessagePack. Queues are named by their filter and progress by position in the
log: both mean the same when everything is made again from the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from iotmq.ports.sessions import Will

# A filter and positions; or one position, as it was written once.
DoneOfFilter: TypeAlias = tuple[str, list[int] | int]


class Flight(msgspec.Struct, frozen=True, array_like=True):
    """A message that was sent with a packet id and is not done."""

    packet_id: int
    # Empty for one that was unsubscribed: then only the packet id is kept, to be released.
    topic_filter: str
    position: int
    # PUBREC came: PUBREL is what is repeated (QoS 2).
    is_released: bool


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """A client connected; the position of this record is the epoch of the session from now on."""

    client_id: str
    # The front end.
    owner: str
    # What there was is dropped first.
    is_clean: bool
    expiry_s: int
    will: Will | None = None
    # The epoch of the session that goes on; None when there was none, or it is dropped. Without that
    # session the record opens nothing: what it went on with is not known any more.
    former_epoch: int | None = None


class Subscribe(msgspec.Struct, frozen=True, array_like=True, tag="subscribe"):
    """Filters with their options (a byte as in SUBSCRIBE); known ones get other options and go on."""

    client_id: str
    epoch: int
    subscriptions: list[tuple[str, int]]


class Unsubscribe(msgspec.Struct, frozen=True, array_like=True, tag="unsubscribe"):
    """Filters that are not wanted any more; unknown ones are ignored."""

    client_id: str
    epoch: int
    filters: list[str]


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """How far a session has come: of each filter the position before which all is done, and was sent.

    `received` are the packet ids of QoS 2 the client has not released, `in_flight` what was sent to it with a
    packet id and is not done; None when they have not changed.
    """

    client_id: str
    epoch: int
    cursors: list[tuple[str, int, int]]
    received: list[int] | None = None
    in_flight: list[Flight] | None = None
    # Messages past the cursors that are done, by filter: an older one is still in flight.
    done: list[DoneOfFilter] = []
    # A report that is too large for one record: `in_flight` and `done` come to those of the change before.
    is_more: bool = False


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """The client is gone; the session ends `expiry_s` later."""

    client_id: str
    epoch: int
    expiry_s: int
    # The client said good-bye: its will is not published any more.
    drops_will: bool


class End(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """The session is over: expired, replaced by a clean one, or purged. Only in the epoch named."""

    client_id: str
    epoch: int


class WillSent(msgspec.Struct, frozen=True, array_like=True, tag="will"):
    """The will of the session was published, or may not be any more."""

    client_id: str
    epoch: int


class Skip(msgspec.Struct, frozen=True, array_like=True, tag="skip"):
    """Messages that had waited and that the session does not get: its queue was past a limit.

    `ranges` are (filter, from position, to before position); `count` is how many messages they have.
    """

    client_id: str
    epoch: int
    ranges: list[tuple[str, int, int]]
    count: int


class OpenShare(msgspec.Struct, frozen=True, array_like=True, tag="open_share"):
    """A shared subscription (`$share/GROUP/FILTER`) has a member; a new one begins with what comes next.

    A kept session that subscribes it does the same, and keeps it.
    """

    share: str


class ProgressShare(msgspec.Struct, frozen=True, array_like=True, tag="progress_share"):
    """How far a group has come: records before `next_position` are done, but for those of `undone`."""

    share: str
    # The position of the record that began it.
    since: int
    next_position: int
    undone: list[int]


class EndShare(msgspec.Struct, frozen=True, array_like=True, tag="end_share"):
    """A shared subscription has no members; it is over unless a kept session has it."""

    share: str
    since: int


class HoldExclusive(msgspec.Struct, frozen=True, array_like=True, tag="hold_exclusive"):
    """A client wants filters to itself; it gets those that nobody has."""

    client_id: str
    filters: list[str]


class FreeExclusive(msgspec.Struct, frozen=True, array_like=True, tag="free_exclusive"):
    """A client gives filters back; as does the end of its session."""

    client_id: str
    filters: list[str]


ExclusiveChange: TypeAlias = HoldExclusive | FreeExclusive
ShareChange: TypeAlias = OpenShare | ProgressShare | EndShare
SessionChange: TypeAlias = Open | Subscribe | Unsubscribe | Progress | Close | End | WillSent | Skip
Change: TypeAlias = SessionChange | ShareChange | ExclusiveChange

_decoder = msgspec.msgpack.Decoder(list[Change])
_encoder = msgspec.msgpack.Encoder()


def encode_changes(changes: Sequence[Change]) -> bytes:
    """Return the body of a record."""
    return _encoder.encode(changes)


def decode_changes(body: bytes) -> list[Change]:
    """Decode the bytes of `encode_changes`; msgspec.DecodeError for any others."""
    return _decoder.decode(body)
