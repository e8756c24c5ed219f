"""Refusals of requests about sessions, as more than one part of this room gives them."""

from __future__ import annotations

from typing import Final

from iotmq.errors import StoreError
from iotmq.ports.sessions import Refused
from iotmq.remoting.codes import ResponseCode

NOT_READY: Final = Refused(
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "sessions are behind the log, see the broker's log; kv/ may have met a full disk",
)
LOST: Final = Refused(ResponseCode.SESSION_LOST, "the session belongs to somebody else now")


def unreadable(error: StoreError) -> Refused:
    """Refuse a request while the database cannot be read."""
    return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"sessions cannot be read: {error}")
