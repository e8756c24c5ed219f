"""What waits for one client, and what is on its way: a list under its subscriptions."""

from __future__ import annotations

from typing import Any

from console_browser import Asked, OpenPage, RefusedError, message

MARKUP = "<img src=x onerror=alert(1)>"
FILTER = f"plant/{MARKUP}/#"
MANY = 10_000


def session(*filters: str) -> dict[str, Any]:
    shown = {"broker": "a", "qos": 1, "behind": 7, "is_wide": False, "is_exclusive": False}
    return {
        "client_id": "pump",
        "is_kept": True,
        "front_end": "",
        "expiry_s": 3600,
        "closed_ms": 1_700_000_000_000,
        "expires_ms": None,
        "will_topic": None,
        "in_flight": 1,
        "dropped": 0,
        "filters": [{"topic_filter": each} | shown for each in filters],
    }


def answers(count: int, **more: Any) -> dict[str, Any]:
    def queue(asked: Asked) -> dict[str, Any]:
        assert asked.query["topic_filter"] == FILTER
        begin, limit = int(asked.query.get("cursor") or 0), int(asked.query["limit"])
        end = min(begin + limit, count)
        shown = range(begin, end)
        return {
            "items": [message(each, payload=MARKUP, mqtt_topic=f"t/{each}\u202e") for each in shown],
            "is_in_flight": [each == 0 for each in shown],
            "left_out": int(begin == 0) * 3,
            "behind": count - begin,
            "next": str(end) if end < count else None,
            "problems": {},
        } | more

    return {"GET /sessions/pump": session(FILTER, "$share/g/t"), "GET /clients/pump/queue": queue}


def test_what_waits_for_a_filter_is_opened_by_its_number(open_page: OpenPage) -> None:
    with open_page(answers(2, problems={"broker-b": "it is gone"}), role="viewer") as opened:
        page = opened.show("client?id=pump")
        opened.settle()
        # What waits for a group of clients is no one's.
        page.get_by_role("button", name="show what waits for").click()
        table = page.get_by_role("table", name="What waits, and what is on its way")
        table.locator("tbody tr").nth(1).wait_for()
        assert [each.inner_text() for each in table.locator("tbody .state").all()] == ["on its way", "waits"]
        text = page.inner_text("main")
        for words in ("Too large to be shown: 3", "broker-b", MARKUP):
            assert words in text
        assert "\u202e" not in text
        assert page.locator("main img").count() == 0
        assert opened.axe() == []
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 390, "height": 844})
        assert opened.overflow() == 0
        assert opened.axe() == []
        page.set_viewport_size({"width": 1360, "height": 860})
        table.get_by_role("button").nth(0).focus()
        table.locator("tbody .link").first.click()
        assert "on its way" in page.get_by_role("dialog").inner_text()
        assert opened.axe() == []
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Close the list").click()
        table.wait_for(state="detached")


def test_many_messages_come_when_they_are_asked_for(open_page: OpenPage) -> None:
    place = "client?id=pump&queue=plant/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E/%23"
    with open_page(answers(MANY)) as opened:
        page = opened.show(place)
        for shown in ("100", "1,000"):
            page.get_by_text(f"first {shown} rows").wait_for()
            page.get_by_role("button", name="More").click()
        page.get_by_text("10,000 rows").wait_for()
        assert page.locator("main tbody tr").count() < 200


def test_a_queue_that_is_not_there_and_one_without_messages(open_page: OpenPage) -> None:
    def refuse(_asked: Asked) -> Any:
        raise RefusedError(404, "not-found", "no kept session has it")

    known = answers(0)
    for answer in (known["GET /clients/pump/queue"], refuse):
        with open_page(known | {"GET /clients/pump/queue": answer}) as opened:
            page = opened.show("client?id=pump&queue=plant/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E/%23")
            page.get_by_text("Nothing waits for this filter.").wait_for()
            opened.settle()
            assert page.locator("main .trouble").count() == 0
