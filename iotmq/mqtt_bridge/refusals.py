"""Say what the other broker does not get."""

from __future__ import annotations

from typing import NamedTuple


class LeftOut(NamedTuple):
    """A message that the other broker does not get."""

    place: str
    """Queue and offset in the log here."""
    why: str


class Refusal(NamedTuple):
    """The other broker has not taken a message."""

    place: str
    code: int
    reason: str
    """In its own words; may be empty."""
    is_final: bool
    """The message is left out; else the connection ends, and it is sent again."""
    is_later: bool
    """That says nothing of the message."""
