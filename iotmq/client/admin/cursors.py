"""Cursors: texts that say where the next page of a list begins, and mean nothing to who carries them."""

from __future__ import annotations

import base64
import binascii
from typing import Any, TypeVar, overload

import msgspec

from iotmq.errors import ClientError

T = TypeVar("T")


class CursorError(ClientError):
    """A cursor is none of the list that it is given to."""


def encode_cursor(list_name: str, place: object) -> str:
    """Make the cursor of what is behind a place in a list."""
    encoded = msgspec.msgpack.encode((list_name, place))
    return base64.urlsafe_b64encode(encoded).decode().rstrip("=")


@overload
def decode_cursor(cursor: str, list_name: str, form: type[T]) -> T | None: ...


# Aliases of types are none to a checker.
@overload
def decode_cursor(cursor: str, list_name: str, form: object) -> Any: ...


def decode_cursor(cursor: str, list_name: str, form: Any) -> Any:
    """Return the place that a cursor names; None for the empty one, the beginning. CursorError."""
    if not cursor:
        return None
    try:
        encoded = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        name, place = msgspec.msgpack.decode(encoded, type=tuple[str, msgspec.Raw])
        if name == list_name:
            return msgspec.msgpack.decode(place, type=form)
    except (binascii.Error, msgspec.MsgspecError, RecursionError, ValueError):
        pass
    raise CursorError("the cursor is none of this list: take that of the page before, in the same order")
