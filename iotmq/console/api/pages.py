"""Pages of lists: in the order of a name, from behind the last one of the page before."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from iotmq.console.api.problems import INVALID, FieldProblem, ProblemError

LIMIT_MAX: Final = 1000
CURSOR_CHARACTERS_MAX: Final = 1024

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


def encode_cursor(last: str) -> str:
    """Make the cursor of what follows a name."""
    return base64.urlsafe_b64encode(last.encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> str:
    """Return the name; ProblemError for a cursor that was not made here."""
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        detail = "no cursor of this API: take the next of the page before"
        raise ProblemError(INVALID, detail, errors=(FieldProblem(detail, parameter="cursor"),)) from None


def page_of(
    items: Iterable[ItemT], arguments: PageArguments, name_of: Callable[[ItemT], str]
) -> tuple[list[ItemT], str | None]:
    """Return the items of a page and the cursor of the next one; None behind the last."""
    after = decode_cursor(arguments.cursor)
    match = arguments.match.casefold()
    chosen = sorted(
        (each for each in items if name_of(each) > after and match in name_of(each).casefold()), key=name_of
    )
    page = chosen[: arguments.limit]
    return page, encode_cursor(name_of(page[-1])) if len(chosen) > len(page) else None
