"""Every page of the console with no row, with one of hostile names, and with ten thousand.

Light and dark, on a desk and a phone, read by axe-core; and it shows nothing as markup, asks no other host
and breaks no policy, which each page that is opened is watched for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from console_browser import Asked, OpenPage, RefusedError, Rows, Stub, message
from playwright.sync_api import expect

MARKUP = "<img src=x onerror=alert(1)>"
"""A name that would do something if it were read as markup."""
TURNED = "pump\u202egnp.exe\u0000\u200b"
"""One that turns the direction of writing, and has what cannot be seen."""
LONG = "a/" * 2000 + "z"
MANY = 10_000
ROWS_IN_PAGE_MAX = 150

Make = Callable[[int], dict[str, Any]]


class Case(NamedTuple):
    """A page and the list that it is about."""

    place: str
    list_path: str
    """The path of the API that has the rows."""
    row: Make
    answers: Mapping[str, Any] = MappingProxyType({})
    """What else the page asks for."""
    detail: Callable[[list[dict[str, Any]]], Any] | None = None
    """Makes the answer of `list_path` where that is no list with pages."""
    more_clicks: int = 0
    """How often more rows are asked for, where the page does not ask for all."""


def named(index: int, name: str) -> str:
    """The name of a row: the first one is hostile."""
    return name if index else MARKUP + TURNED


def topic_row(index: int) -> dict[str, Any]:
    return {
        "name": named(index, f"topic-{index:05}"),
        "brokers": ["broker-a"],
        "queues": 4,
        "is_readable": True,
        "is_writable": index % 7 != 0,
        "is_system": False,
    }


def group_row(index: int) -> dict[str, Any]:
    return {
        "name": named(index, f"group-{index:05}"),
        "members": index % 3,
        "model": "clustering" if index % 3 else None,
        "behind": index * 7,
        "consumed_per_s": index / 8,
    }


def queue_row(index: int) -> dict[str, Any]:
    return {
        "broker": named(index, "broker-a"),
        "queue": index,
        "begin": 0,
        "end": index,
        "last_stored_ms": 1_700_000_000_000,
        "state": "open" if index % 5 else "frozen",
        "behind": {MARKUP: index},
    }


def group_queue_row(index: int) -> dict[str, Any]:
    return {
        "topic": named(index, "orders"),
        "broker": "broker-a",
        "queue": index,
        "end": index + 10,
        "consumed": index,
        "behind": 10,
        "last_consumed_ms": 1_700_000_000_000,
    }


def stored(index: int) -> dict[str, Any]:
    payload = f'{{"celsius": {index}}}' if index else f'{{"{MARKUP}": "{TURNED}"}}'
    topic, keys = named(index, f"plant/{index}"), [named(index, "k")]
    return message(index, payload=payload, mqtt_topic=topic, keys=keys)


def letter(index: int) -> dict[str, Any]:
    return {"message": stored(index), "original_topic": named(index, "orders"), "original_message_id": "A0"}


def replay_state(**more: Any) -> dict[str, Any]:
    named = {"group": "billing", "state": "waiting", "problem": "", "by": "me"}
    counts = {"per_second": 10.0, "total": 600, "seen": 200, "sent": 199, "left": 1}
    return named | counts | {"started_ms": 1_700_000_000_000, "ended_ms": None} | more


def alarm_row(index: int) -> dict[str, Any]:
    return {
        "id": f"{index:016x}",
        "name": named(index, "group-behind"),
        "labels": {"group": named(index, "billing")},
        "level": ("critical", "warning", "info")[index % 3],
        "state": "firing",
        "says": named(index, "It is behind."),
        "what_to_do": "Look.",
        "owner": "operators",
        "value": 3.5,
        "since_ms": 1_700_000_000_000,
        "fired_ms": 1_700_000_000_000,
        "ended_ms": 0,
        "ended_by": "",
        "acknowledged": None,
        "is_flapping": False,
        "is_silenced": False,
    }


def rule_row(index: int) -> dict[str, Any]:
    return {
        "name": named(index, "own topics"),
        "is_allow": index % 2 == 0,
        "action": "publish",
        "topics": [named(index, "devices/{client_id}/#")],
        "who": {"users": [named(index, "anna")]},
        "conditions": {},
    }


def session_row(index: int) -> dict[str, Any]:
    return {
        "id": f"s{index}",
        "name": named(index, "anna"),
        "role": "viewer",
        "way": "password",
        "address": "10.0.0.1",
        "agent": named(index, "Browser/1.0"),
        "signed_in_ms": 1_700_000_000_000,
        "used_ms": 1_700_000_000_000,
        "is_own": index == 1,
    }


CONSUMER = {"client_id": MARKUP, "address": TURNED, "language": "PYTHON", "version": 409}
STATISTICS = {
    "from_ms": 1_700_000_000_000,
    "step_ms": 60_000,
    "count": 3,
    "steps": [{"name": "x", "counts": {"messages": [60, None, 120], "consumed": [1, 2, 3]}}],
    "sums": [],
    "oldest_ms": None,
    "problems": {},
}


def history(asked: Asked) -> Any:
    values = [float(index) for index in range(360)]
    items = [
        {"name": f'{name}{{qos="1"}}', "is_rate": True, "values": values}
        for name in asked.query_all("series")
    ]
    return {"from_ms": int(asked.query["from_ms"]), "step_s": 10, "count": len(values), "items": items}


CASES = {
    "overview": Case(
        "overview",
        "/groups",
        group_row,
        {
            "GET /topics": Rows([topic_row(0)]),
            "GET /alarms": Rows([alarm_row(0)]),
            "GET /brokers": {
                "items": [{"cluster": "c", "name": MARKUP, "broker_id": 0, "address": "10.0.0.1:10911"}]
            },
            "GET /front-ends": {"items": [{"name": "front-1", "clients": 3, "is_draining": True}]},
            "GET /history": history,
        },
        more_clicks=-1,
    ),
    "topics": Case("topics", "/topics", topic_row),
    "topic": Case(
        "topic?name=orders",
        "/topics/orders",
        queue_row,
        {
            "GET /statistics/topics": STATISTICS,
            "GET /topics/orders/messages": {"items": [stored(0)], "next_offset": 1},
        },
        detail=lambda rows: {"topic": topic_row(1) | {"name": "orders"}, "queues": rows},
    ),
    "groups": Case("groups", "/groups", group_row, more_clicks=3),
    "group": Case(
        "group?name=billing",
        "/groups/billing",
        group_queue_row,
        {
            "GET /statistics/groups": STATISTICS,
            f"GET /groups/billing/consumers/{MARKUP}": {"client_id": MARKUP, "queues": [group_queue_row(0)]},
        },
        detail=lambda rows: {"group": group_row(4), "queues": rows, "consumers": [CONSUMER] * bool(rows)},
    ),
    "messages": Case(
        "messages?topic=orders&by=offset",
        "/topics/orders/messages",
        stored,
        {
            "GET /topics": Rows([topic_row(0), topic_row(1) | {"name": "orders"}]),
            "GET /topics/orders": {"topic": topic_row(1), "queues": [queue_row(0)]},
        },
        detail=lambda rows: {"items": rows, "next_offset": None},
    ),
    "dead letters": Case(
        "dead-letters?group=billing",
        "/groups/billing/dead-letters",
        letter,
        {
            "GET /topics": Rows([{"name": f"%DLQ%{name}"} for name in ("billing", "a")]),
            "GET /groups/billing/dead-letters/replay": replay_state(problem=MARKUP + TURNED, by=MARKUP),
        },
        detail=lambda rows: {"items": rows, "has_more": False},
    ),
    "retained": Case(
        "retained",
        "/retained",
        lambda index: stored(index) | {"mqtt_topic": f"t/{index}" if index else MARKUP + TURNED + LONG},
        more_clicks=1,
    ),
    "alarms": Case("alarms", "/alarms", alarm_row),
    "permissions": Case(
        "permissions?view=rules", "/permissions", rule_row, detail=lambda rows: {"items": rows}
    ),
    "device users": Case(
        "permissions?view=users", "/device-users", lambda index: {"name": named(index, "d"), "roles": ["r"]}
    ),
    "console access": Case("access", "/console-sessions", session_row, detail=lambda rows: {"items": rows}),
}


def answers_of(case: Case, count: int) -> dict[str, Any]:
    rows = [case.row(index) for index in range(count)]
    return {**case.answers} | {f"GET {case.list_path}": case.detail(rows) if case.detail else Rows(rows)}


@pytest.mark.parametrize("name", CASES)
def test_one_row_of_hostile_names_looks_right_in_all_colours_and_sizes(
    open_page: OpenPage, name: str
) -> None:
    case = CASES[name]
    with open_page(answers_of(case, 1)) as opened:
        page = opened.show(case.place)
        opened.settle()
        assert page.locator("main img").count() == 0
        assert MARKUP in (page.text_content("main") or ""), "the name is shown as it is"
        assert "\u202e" not in (page.text_content("main") or ""), "nothing turns the text"
        assert opened.axe() == []
        page.emulate_media(color_scheme="dark")
        assert opened.axe("color-contrast") == []
        page.set_viewport_size({"width": 390, "height": 844})
        assert opened.overflow() == 0
        assert opened.axe() == []


@pytest.mark.parametrize("name", CASES)
def test_no_rows_are_said_in_words(open_page: OpenPage, name: str) -> None:
    case = CASES[name]
    with open_page(answers_of(case, 0)) as opened:
        page = opened.show(case.place)
        opened.settle()
        assert page.locator("main .empty").count() > 0
        assert opened.axe() == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.more_clicks >= 0])
def test_ten_thousand_rows_cost_as_much_as_those_that_are_seen(open_page: OpenPage, name: str) -> None:
    case = CASES[name]
    with open_page(answers_of(case, MANY)) as opened:
        page = opened.show(case.place)
        opened.settle()
        for _ in range(case.more_clicks):
            before = page.locator(".table-foot").first.inner_text()
            page.get_by_role("button", name="More").click()
            expect(page.locator(".table-foot").first).not_to_have_text(before, timeout=20_000)
        table = page.locator("table[aria-rowcount]").first
        expect(table).to_have_attribute("aria-rowcount", str(MANY + 1), timeout=20_000)
        assert table.locator("tbody tr").count() < ROWS_IN_PAGE_MAX
        scroller = page.locator(".table-scroll").first
        scroller.evaluate("(element) => { element.scrollTop = element.scrollHeight; }")
        table.locator(f"tr[aria-rowindex='{MANY + 1}']").wait_for()
        header = table.locator("th button.sort").first
        header.click()
        expect(table.locator("th[aria-sort]")).to_have_count(1)
        assert re.match(r"10,000 rows", page.locator(".table-foot").first.inner_text())


def test_dead_letters_are_replayed_at_a_rate_and_the_replay_is_stopped(open_page: OpenPage) -> None:
    state: dict[str, Any] = {}

    def shown(_asked: Asked) -> Any:
        if not state:
            raise RefusedError(404, "not-found")
        return state

    def begin(asked: Asked) -> Any:
        if asked.body["per_second"] == 5:
            pointed = {"detail": "too slow", "pointer": "/per_second"}
            raise RefusedError(422, "invalid", "/per_second: too slow", errors=[pointed])
        state.update(replay_state(state="running"))
        return state

    def stop(_asked: Asked) -> Any:
        state.update(replay_state(state="stopped", ended_ms=1_700_000_600_000))
        return state

    path = "/groups/billing/dead-letters"
    stub = Stub(
        {
            "GET /me": {"name": "o", "role": "operator", "way": "password", "expires_ms": None},
            "GET /topics": Rows([{"name": "%DLQ%billing"}]),
            f"GET {path}": {"items": [letter(1), letter(2)], "has_more": True},
            f"GET {path}/replay": shown,
            f"POST {path}/replay": begin,
            f"DELETE {path}/replay": stop,
        }
    )
    with open_page(stub) as opened:
        page = opened.show("dead-letters?group=billing&from=2023-11-01T00:00:00&topic=orders&keyed=k")
        page.get_by_role("button", name="Replay…").click()
        dialog = page.get_by_role("dialog")
        assert "from orders, with the key k" in dialog.inner_text()
        dialog.get_by_label("Messages a second").fill("5")
        dialog.get_by_role("button", name="Begin").click()
        dialog.get_by_text("too slow").wait_for()
        assert opened.axe() == []
        dialog.get_by_label("Messages a second").fill("20.5")
        dialog.get_by_label("From the first one on").check()
        dialog.get_by_role("button", name="Begin").click()
        page.get_by_text("200 of 600").wait_for()
        expect(page.get_by_role("button", name="Replay…")).to_be_disabled()
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        page.locator(".state", has_text="stopped").wait_for()
        expect(page.get_by_role("button", name="Replay…")).to_be_enabled()
        assert opened.axe() == []
    _, begun, stopped = stub.changes()
    chosen = {"from_ms": 1_698_796_800_000, "original_topic": "orders", "key": "k"}
    assert begun.body == chosen | {"per_second": 20.5, "is_again": True}
    assert stopped.method == "DELETE"


def test_a_dead_letter_is_changed_with_all_of_its_payload(open_page: OpenPage) -> None:
    whole = message(1, payload="0123456789", keys=["k"], tags="t")
    cut = letter(1) | {"message": whole | {"payload": "0123"}}
    place = whole["offset_message_id"]
    path = f"/groups/billing/dead-letters/{place}/resend"
    stub = Stub(
        {
            "GET /me": {"name": "o", "role": "operator", "way": "password", "expires_ms": None},
            "GET /topics": Rows([{"name": "%DLQ%billing"}]),
            "GET /groups/billing/dead-letters": {"items": [cut], "has_more": False},
            f"GET /messages/{place}": whole,
            f"POST {path}": {"topic": "orders", "queue": 1, "offset": 7},
        }
    )
    with open_page(stub) as opened:
        page = opened.show("dead-letters?group=billing&from=2023-11-01T00:00:00")
        page.locator("tbody .link").click()
        page.get_by_role("button", name="Change and send…").click()
        payload = page.get_by_role("textbox", name="Payload")
        assert payload.input_value() == "0123456789"
        payload.fill("mended")
        page.get_by_role("dialog").get_by_role("button", name="Send a message").click()
        page.get_by_text("Stored in orders, queue 1, at offset 7.").wait_for()
    (sent,) = stub.changes()
    assert sent.body == {"topic": "orders", "key": "k", "tags": "t", "payload": "mended"}


def test_the_overview_counts_the_alarms_that_fire(open_page: OpenPage) -> None:
    pending = alarm_row(1) | {"state": "pending", "fired_ms": 0}
    case = CASES["overview"]
    with open_page(answers_of(case, 0) | {"GET /alarms": Rows([alarm_row(0), pending])}) as opened:
        opened.show("overview")
        expect(opened.page.locator(".figure", has_text="Alarms").locator(".figure-value")).to_have_text("1")


def test_a_decision_is_tried(open_page: OpenPage) -> None:
    tried: list[Asked] = []

    def decide(asked: Asked) -> Any:
        tried.append(asked)
        return {"is_allowed": False, "rule": MARKUP, "detail": TURNED, "topic": "a/b", "qos": 1}

    with open_page({"POST /access:test": decide}) as opened:
        page = opened.show("permissions")
        page.get_by_label("Client id").fill("pump-7")
        page.get_by_label("Topic or filter").fill("a/b")
        page.get_by_role("button", name="Decide").click()
        page.get_by_text("It may not.").wait_for()
        assert tried[0].body == {"client_id": "pump-7", "action": "publish", "topic": "a/b", "qos": 0}
        assert opened.axe() == []
