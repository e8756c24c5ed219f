"""Make JSON answers that fit a frame; one that would not is an error that says what to ask instead."""

from __future__ import annotations

import msgspec

from iotmq import limits
from iotmq.errors import RefusedError
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Command


class ReplySize:
    """Adds up the parts of an answer. `instead` says how to ask for less."""

    def __init__(self, instead: str) -> None:
        self._instead = instead
        self._bytes_max = limits.ANSWER_BODY_BYTES_MAX
        self._size = 0

    def add(self, size: int) -> None:
        """Add `size` bytes to the answer. Raises RequestError (1) when they do not fit any more."""
        self._size += size
        if self._size > self._bytes_max:
            raise RefusedError(
                f"the answer has more than the {self._bytes_max} bytes a frame takes: {self._instead}"
            )


def reply_json(request: Command, value: object, *, instead: str = "") -> Command:
    """Answer with a value as JSON. With `instead`, RequestError (1) when it does not fit a frame."""
    body = msgspec.json.encode(value)
    if instead:
        ReplySize(instead).add(len(body))
    return request.reply(ResponseCode.SUCCESS, body=body)
