"""Recall handles: what the answer to a send of a waiting message gives its sender for taking it back.

URL-safe base64 of `v1 TOPIC BROKER DUE_MS UNIQUE_KEY`, as brokers of RocketMQ 5.3 make them.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from iotmq import limits
from iotmq.errors import RequestError
from iotmq.remoting.codes import ResponseCode


class RecallHandle(NamedTuple):
    """Hold the parts of a recall handle."""

    topic: str
    broker_name: str
    due_ms: str
    unique_key: str

    def encode(self) -> str:
        return base64.urlsafe_b64encode(" ".join(("v1", *self)).encode()).decode("ascii")


def decode_handle(text: str) -> RecallHandle:
    """Raises RequestError (13) for what is no handle."""
    if len(text) <= limits.RECALL_HANDLE_BYTES_MAX:
        try:
            parts = base64.urlsafe_b64decode(text.encode("ascii")).decode().split(" ")
        except (UnicodeError, binascii.Error):
            parts = []
        if len(parts) == 5 and parts[0] == "v1" and all(parts):
            return RecallHandle(*parts[1:])
    raise RequestError(
        ResponseCode.MESSAGE_ILLEGAL,
        "the field recallHandle is not a handle: give the recallHandle of the answer to the send",
    )
