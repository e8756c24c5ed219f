"""Pages of lists: in the order of a name, from behind the last one of the page before."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from iotmq.client.admin.cursors import decode_cursor, encode_cursor

LIMIT_MAX: Final = 1000
# Enough for the longest MQTT topic, and for the places at hundreds of front ends or brokers.
CURSOR_CHARACTERS_MAX: Final = 6144
_BY_NAME: Final = "names"

ItemT = TypeVar("ItemT")

Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX)]
Cursor = Annotated[str, Meta(max_length=CURSOR_CHARACTERS_MAX)]
Match = Annotated[str, Meta(max_length=256)]


class PageArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of lists."""

    match: Match = ""
    """Only names with this text in them; upper and lower case are the same."""
    limit: Limit = 100
    """The most items of a page."""
    cursor: Cursor = ""
    """`next` of the page before; empty for the first page."""


def page_of(
    items: Iterable[ItemT], arguments: PageArguments, name_of: Callable[[ItemT], str]
) -> tuple[list[ItemT], str | None]:
    """Return the items of a page and the cursor of the next one; None behind the last. CursorError."""
    after = decode_cursor(arguments.cursor, _BY_NAME, str) or ""
    match = arguments.match.casefold()
    chosen = (each for each in items if name_of(each) > after and match in name_of(each).casefold())
    # One more tells that there are more; to sort half a million names takes half a second.
    first = heapq.nsmallest(arguments.limit + 1, chosen, key=name_of)
    page = first[: arguments.limit]
    return page, encode_cursor(_BY_NAME, name_of(page[-1])) if len(first) > len(page) else None
