"""Answers have to fit a frame; one that would not is an error that says what to ask instead."""

from __future__ import annotations

from iotmq import limits
from iotmq.errors import RefusedError


class ReplySize:
    """Adds up the parts of an answer. `instead` says how to ask for less."""

    def __init__(self, instead: str, *, bytes_max: int = limits.ANSWER_BODY_BYTES_MAX) -> None:
        self._instead = instead
        self._bytes_max = bytes_max
        self._size = 0

    def add(self, size: int) -> None:
        """Count so many more bytes. Raises RequestError (1) when they do not fit any more."""
        self._size += size
        if self._size > self._bytes_max:
            raise RefusedError(
                f"the answer has more than the {self._bytes_max} bytes a frame takes: {self._instead}"
            )


def checked(body: bytes, instead: str) -> bytes:
    """Return the body itself; RequestError (1) when it does not fit a frame."""
    ReplySize(instead).add(len(body))
    return body
