"""The one error of this package: bytes that are not what the record formats say."""

from __future__ import annotations

from iotmq.errors import PeerError

# The native protocol's response code for "message illegal".
MESSAGE_ILLEGAL = 13


class MessageFormatError(PeerError):
    """Bytes that break the format of a record, a batch or a message id.

    The text names what is wrong and where; `at` is that place, counted in bytes from the start of
    what was decoded. `code` is 13, the response code a sender of such bytes gets.
    """

    def __init__(self, message: str, at: int = 0) -> None:
        super().__init__(MESSAGE_ILLEGAL, message)
        self.at = at
