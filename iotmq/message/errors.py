"""Errors of this package: bytes that are not what the record formats say, and rows that are no messages."""

from __future__ import annotations

from iotmq.errors import IotmqError, PeerError

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


class BodyTooLargeError(MessageFormatError):
    """A compressed body that would be larger than a body may be."""


class CompressionMissingError(MessageFormatError):
    """The library of a compression is not installed here; the text names it. Another process may have it."""


class RowError(IotmqError):
    """A row of columns that no broker would take as a message, its column ("" for the whole), and why."""

    def __init__(self, row: int, column: str, problem: str) -> None:
        super().__init__(f"row {row}: {f'column {column} ' if column else ''}{problem}")
        self.row = row
        self.column = column
        self.problem = problem
