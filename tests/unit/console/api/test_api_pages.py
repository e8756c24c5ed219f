"""Lists page by page."""

from __future__ import annotations

import pytest

from iotmq.client.admin.cursors import CursorError, encode_cursor
from iotmq.console.api.pages import CURSOR_CHARACTERS_MAX, PageArguments, page_of
from iotmq.limits import MQTT_TOPIC_BYTES_MAX

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


@pytest.mark.parametrize("cursor", ["%", "a", encode_cursor("audit", "a")])
def test_a_cursor_of_no_list_by_name_is_refused(cursor: str) -> None:
    with pytest.raises(CursorError):
        page_of(NAMES, PageArguments(cursor=cursor), str)


def test_a_cursor_may_name_the_longest_topic() -> None:
    assert len(encode_cursor("retained", b"x" * MQTT_TOPIC_BYTES_MAX)) <= CURSOR_CHARACTERS_MAX
