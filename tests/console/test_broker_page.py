"""The page of one broker: who copies its log, how far they are, and what they complain about."""

from __future__ import annotations

from typing import Any

import pytest
from console_browser import OpenPage

MARKUP = "<img src=x onerror=alert(1)>"
MANY = 10_000
FACTS = {"brokerVersionDesc": "iotmq 1", "putMessageTimesTotal": "12345"}


def follower(index: int) -> dict[str, Any]:
    """Of three, the last one is not connected, and the one before catches up."""
    is_connected = index % 3 != 2
    return {
        "name": str(index + 2),
        "address": f"10.0.0.{index}:10911" if index else MARKUP,
        "is_connected": is_connected,
        "is_in_sync": index % 3 == 0,
        "position": 9_000_000 - index if is_connected else None,
        "behind_bytes": index if is_connected else None,
    }


def answers(count: int, **more: Any) -> dict[str, Any]:
    replication = {
        "mode": "elected",
        "master": 1,
        "epoch": 1234,
        "in_sync": 1,
        "in_sync_min": 2,
        "end": 9_000_000,
        "confirmed": 8_000_000,
        "alarms": [f"member 3 complains: {MARKUP}\u202e"],
        "followers": [follower(index) for index in range(count)],
    } | more
    return {
        "GET /brokers": {"items": []},
        "GET /brokers/b": {"name": "b", "facts": FACTS, "replication": replication},
    }


def test_followers_are_shown_with_how_far_they_are_and_what_is_wrong(open_page: OpenPage) -> None:
    with open_page(answers(3), role="viewer") as opened:
        page = opened.show("broker?name=b")
        page.get_by_text("12,345").wait_for()
        opened.settle()
        text = page.inner_text("main")
        for words in (
            "Members elect",
            "1,234",
            "1 / 4",
            "2 at least",
            "in sync",
            "catches up",
            "not connected",
        ):
            assert words in text
        assert f"complains: {MARKUP}" in page.inner_text("main .trouble")
        assert "\u202e" not in text
        assert page.locator("main img").count() == 0
        assert opened.axe() == []
        page.emulate_media(color_scheme="dark")
        assert opened.axe("color-contrast") == []
        page.set_viewport_size({"width": 390, "height": 844})
        assert opened.overflow() == 0


@pytest.mark.parametrize(
    ("mode", "count", "expected"),
    [("master_slave", 0, "No other process copies the log now."), ("elected", MANY, "10,000 rows")],
)
def test_no_followers_are_said_in_words_and_many_cost_no_more(
    open_page: OpenPage, mode: str, count: int, expected: str
) -> None:
    with open_page(answers(count, mode=mode, alarms=[], in_sync=count + 1)) as opened:
        page = opened.show("broker?name=b")
        page.get_by_text(expected).wait_for()
        assert page.locator("main .trouble").count() == 0
        assert page.locator("main tbody tr").count() < 200
        assert opened.axe() == []


def test_a_broker_that_is_alone_says_so(open_page: OpenPage) -> None:
    alone = {"GET /brokers/b": {"name": "b", "facts": FACTS, "replication": None}}
    with open_page(answers(0) | alone) as opened:
        opened.show("broker?name=b").get_by_text("No other process copies its log.").wait_for()
