"""Lists page by page."""

from __future__ import annotations

import pytest

from iotmq.console.api.pages import PageArguments, decode_cursor, encode_cursor, page_of
from iotmq.console.api.problems import ProblemError

NAMES = ["b", "a", "C", "ä/%", "d"]


@pytest.mark.parametrize("limit", [1, 2, 4, 5, 6])
def test_all_items_come_once_in_the_order_of_their_names(limit: int) -> None:
    got: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page, cursor = page_of(NAMES, PageArguments(limit=limit, cursor=cursor), str)
        assert 0 < len(page) <= limit
        got += page
    assert got == sorted(NAMES)


def test_what_is_gone_or_new_meanwhile_skips_nothing_else() -> None:
    _, cursor = page_of(["a", "b", "c"], PageArguments(limit=2), str)
    assert page_of(["a", "aa", "c", "d"], PageArguments(cursor=cursor or ""), str) == (["c", "d"], None)


def test_names_are_matched_whatever_their_case() -> None:
    assert page_of(NAMES, PageArguments(match="c"), str) == (["C"], None)


@pytest.mark.parametrize("name", ["", "a", "pump/7", "é" * 100])
def test_a_cursor_says_the_name_it_was_made_of(name: str) -> None:
    assert decode_cursor(encode_cursor(name)) == name


@pytest.mark.parametrize("cursor", ["%", "a", "_w", "é"])
def test_a_cursor_that_was_not_made_here_is_refused(cursor: str) -> None:
    with pytest.raises(ProblemError) as raised:
        decode_cursor(cursor)
    assert raised.value.errors[0].parameter == "cursor"
