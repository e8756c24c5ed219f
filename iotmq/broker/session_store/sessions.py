"""A session as the key-value database has it, and the keys of what is kept of one (see `projection`)."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from iotmq.broker.session_store.records import DoneOfFilter, Flight
from iotmq.errors import StoreCorruptError
from iotmq.ports.sessions import NEVER_EXPIRES_S, Will

TAG_SESSION: Final = b"\x03"
TAG_CURSOR: Final = b"\x04"
QUEUE_KEY: Final = struct.Struct(">cI")


class Subscription(msgspec.Struct, array_like=True):
    """One filter of a session. `options` as in SUBSCRIBE."""

    queue_id: int
    options: int


class StoredSession(msgspec.Struct, array_like=True):
    """A session as it is stored. Its cursors are keys of their own."""

    epoch: int
    # The front end the client is connected to, or was before it crashed; empty when it has gone.
    owner: str
    expiry_s: int
    # When the client went, 0 while it is there.
    closed_ms: int
    subscriptions: dict[str, Subscription]
    # Packet ids of QoS 2 that were received and not released.
    received: list[int]
    # What was sent with a packet id and is not done.
    in_flight: list[Flight]
    will: Will | None = None
    # Messages past the cursors that are done.
    done: list[DoneOfFilter] = []
    # Messages it did not get because its queue was past a limit.
    dropped: int = 0

    @property
    def due_ms(self) -> int | None:
        """Return when it expires; None while it does not."""
        if not self.closed_ms or self.expiry_s == NEVER_EXPIRES_S:
            return None
        return self.closed_ms + self.expiry_s * 1000


def session_key(client_id: str) -> bytes:
    """Return where the session of a client is."""
    return TAG_SESSION + client_id.encode()


def cursor_key(queue_id: int, client_id: str) -> bytes:
    """Return where it is kept how far a client has come with a queue."""
    return QUEUE_KEY.pack(TAG_CURSOR, queue_id) + client_id.encode()


_decoder: Final = msgspec.msgpack.Decoder(StoredSession)
_encoder: Final = msgspec.msgpack.Encoder()


def encode_session(session: StoredSession) -> bytes:
    """Return the value of its key."""
    return _encoder.encode(session)


def decode_session(value: bytes) -> StoredSession:
    """StoreCorruptError for what is no session."""
    try:
        return _decoder.decode(value)
    except msgspec.DecodeError as error:
        raise StoreCorruptError(f"projection sessions: a session cannot be read: {error}") from error
