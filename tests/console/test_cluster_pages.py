"""The pages of clients and of the cluster: no row, one of hostile names, many; and what each changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from console_browser import Asked, OpenPage, RefusedError, Stub, Watched
from playwright.sync_api import Page

MARKUP = "<img src=x onerror=alert(1)>"
HOSTILE = f"{MARKUP}pump\u202egnp.exe\u0000\u200b"
MANY = 10_000
ROWS_IN_PAGE_MAX = 150
LONG_AGO_MS = 1_700_000_000_000


class Case(NamedTuple):
    """A page and the list that it is about."""

    place: str
    path: str
    row: Callable[[int], dict[str, Any]]
    answers: Mapping[str, Any] = MappingProxyType({})
    most: int = MANY
    """Rows that the page shows of ten thousand."""


def named(index: int, name: str) -> str:
    return name if index else HOSTILE


NUMBERS = (
    "subscriptions", "in_flight", "queued", "queued_bytes", "unsent_bytes", "dropped", "latency_ms",
    "messages_received", "messages_sent", "bytes_received", "bytes_sent",
    "messages_received_per_s", "messages_sent_per_s", "bytes_received_per_s", "bytes_sent_per_s",
)  # fmt: skip


def client_row(index: int) -> dict[str, Any]:
    name = named(index, f"pump-{index:05}")
    numbers = dict.fromkeys(NUMBERS, index % 50)
    return {
        "client_id": name,
        "front_end": named(index, "front-1"),
        "user": name,
        "address": "10.0.0.7",
        "listener": "tcp",
        "certificate": name,
        "version": "5",
        "keep_alive_s": 60,
        "connected_ms": LONG_AGO_MS,
        "is_kept": True,
    } | numbers


def session_row(index: int) -> dict[str, Any]:
    return {
        "client_id": named(index, f"pump-{index:05}"),
        "front_end": "front-1" if index % 2 else "",
        "subscriptions": 2,
        "in_flight": index,
        "closed_ms": LONG_AGO_MS,
        "expires_ms": None if index % 2 else LONG_AGO_MS,
    }


def refusal(index: int) -> dict[str, Any]:
    name = named(index, f"pump-{index:05}")
    return {
        "time_ms": LONG_AGO_MS + index,
        "source": "front-1",
        "client_id": name,
        "user": name,
        "account": "",
        "address": "10.0.0.7",
        "listener": "tcp",
        "certificate": "",
        "request": "",
        "reason": "not_authorized",
        "detail": name,
    }


def subscription_row(index: int) -> dict[str, Any]:
    return {
        "client_id": named(index, f"pump-{index:05}"),
        "front_end": "front-1" if index % 2 else "",
        "topic_filter": named(index, f"plant/{index}/#"),
        "qos": index % 3,
    }


def share_row(index: int) -> dict[str, Any]:
    return {
        "broker": "broker-a",
        "share": named(index, f"$share/g{index}/t"),
        "strategy": "round_robin",
        "members": index % 4,
        "kept_sessions": 1,
        "in_flight": index,
        "behind": index + 1,
    }


def trace_row(index: int) -> dict[str, Any]:
    return {
        "name": f"client-{index}",
        "kind": "client",
        "value": named(index, f"pump-{index:05}"),
        "by": named(index, "anna"),
        "started_ms": LONG_AGO_MS,
        "until_ms": LONG_AGO_MS,
        "is_running": index % 2 == 0,
        "payload_bytes": 0,
        "events": index,
        "lost": 0,
        "skipped": 0,
        "front_ends": {},
    }


def event_row(index: int) -> dict[str, Any]:
    return {
        "number": index + 1,
        "front_end": "front-1",
        "time_ms": LONG_AGO_MS + index,
        "what": ("received", "decided", "sent")[index % 3],
        "kind": "PUBLISH" if index % 3 != 1 else "permission",
        "client": named(index, "pump-1"),
        "address": "10.0.0.7",
        "topic": named(index, f"plant/{index}"),
        "facts": {"qos": 1, "filters": [HOSTILE], "payload_bytes": 5},
        "payload": "hello",
        "properties": [[HOSTILE, HOSTILE]],
    }


def ban_row(index: int) -> dict[str, Any]:
    return {
        "kind": ("client", "network", "user-pattern")[index % 3],
        "value": named(index, f"pump-{index:05}"),
        "until_ms": 0 if index % 2 else LONG_AGO_MS,
        "reason": named(index, "noise"),
        "by": named(index, "anna"),
        "made_ms": LONG_AGO_MS,
    }


def delayed_row(index: int) -> dict[str, Any]:
    return {
        "topic": named(index, "orders"),
        "queue": 0,
        "due_ms": LONG_AGO_MS + index,
        "level": 0,
        "message_id": named(index, f"K{index}"),
        "stored_ms": LONG_AGO_MS,
        "payload_bytes": 100,
        "position": index,
        "broker": "broker-a",
    }


def broker_row(index: int) -> dict[str, Any]:
    return {
        "cluster": "c",
        "name": named(index, f"broker-{index // 2}"),
        "broker_id": index % 2,
        "address": f"10.0.0.{index % 250}:10911",
    }


def front_end_row(index: int) -> dict[str, Any]:
    return {"name": named(index, f"front-{index}"), "clients": index, "is_draining": index % 2 == 1}


def audit_record(index: int) -> dict[str, Any]:
    return {
        "time_ms": LONG_AGO_MS + index,
        "event": "administered" if index % 2 else "refused",
        "source": "broker-a",
        "account": named(index, "anna"),
        "request": "DELETE_TOPIC",
        "result": "done" if index % 2 else "refused",
        "details": {"fields": HOSTILE, "code": 7},
    }


def settings_of(index: int) -> dict[str, Any]:
    return {"broker": named(index, f"broker-{index}"), "settings": {named(index, "flushDiskType"): HOSTILE}}


EVENTS_OF_A_TRACE = {"GET /traces/t": trace_row(0) | {"name": "t"}}

CASES = {
    "connections": Case("connections", "/clients", client_row, most=1000),
    "away": Case("connections?part=away", "/sessions", session_row),
    "refused": Case("connections?part=refused", "/refused-clients", refusal, most=1000),
    "subscriptions": Case("subscriptions", "/subscriptions", subscription_row),
    "exclusive": Case("subscriptions?part=exclusive", "/subscriptions", subscription_row),
    "shared": Case("subscriptions?part=shared", "/shared-subscriptions", share_row),
    "traces": Case("traces", "/traces", trace_row),
    "trace": Case("trace?name=t", "/traces/t/events", event_row, EVENTS_OF_A_TRACE),
    "bans": Case("bans", "/bans", ban_row),
    "delayed": Case("delayed", "/delayed-messages", delayed_row, most=1000),
    "brokers": Case("brokers", "/brokers", broker_row),
    "front ends": Case("front-ends", "/front-ends", front_end_row),
    "audit": Case("audit", "/audit", audit_record, most=200),
    "settings": Case("settings", "/settings", settings_of),
}


def answers_of(case: Case, count: int) -> dict[str, Any]:
    rows = [case.row(index) for index in range(count)]

    def answer(asked: Asked) -> Any:
        limit = int(asked.query.get("limit", MANY))
        begin = int(asked.query.get("cursor") or 0)
        items = rows[begin : begin + limit]
        end = begin + len(items)
        has_more = end < count
        return {
            "items": items,
            "next": str(end) if has_more else None,
            "last": str(end),
            "problems": {},
            "has_more": has_more,
            "matched": count,
            "connected": count,
        }

    return dict(case.answers) | {f"GET {case.path}": answer}


def stub_of(answers: dict[str, Any], role: str = "operator") -> Stub:
    me = {"name": role, "role": role, "way": "password", "expires_ms": None}
    return Stub({"GET /me": me} | answers)


class Pages:
    """All cases in one page of the browser, one after the other, which is quicker than one each."""

    def __init__(self, opened: Watched, stub: Stub) -> None:
        self.opened = opened
        self._stub = stub
        self._own = dict(stub.answers)

    def each(self, count: int, *names: str) -> Iterator[tuple[str, Page]]:
        """Show every case, or those named, with so many rows."""
        for name in names or CASES:
            case = CASES[name]
            self._stub.answers = self._own | answers_of(case, count)
            page = self.opened.show(case.place)
            # The step from one place to the next loads nothing anew.
            page.reload()
            page.wait_for_selector("h1")
            self.opened.settle()
            yield name, page


def test_hostile_names_are_text_in_all_colours_and_sizes(open_page: OpenPage) -> None:
    stub = stub_of({}, "administrator")
    with open_page(stub) as opened:
        for name, page in Pages(opened, stub).each(1):
            text = page.text_content("main") or ""
            assert MARKUP in text, f"{name} shows the name as it is"
            assert page.locator("main img").count() == 0, name
            assert "\u202e" not in text, f"nothing turns the text of {name}"
            assert opened.axe() == [], name
            page.set_viewport_size({"width": 390, "height": 844})
            assert opened.overflow() == 0, name
            page.set_viewport_size({"width": 1360, "height": 860})


def test_all_can_be_read_in_the_dark_and_on_a_phone(open_page: OpenPage) -> None:
    stub = stub_of({}, "administrator")
    with open_page(stub, theme="dark", size="phone") as opened:
        for name, _ in Pages(opened, stub).each(3):
            assert opened.axe("color-contrast") == [], name


def test_no_rows_are_said_in_words(open_page: OpenPage) -> None:
    stub = stub_of({})
    with open_page(stub) as opened:
        for name, page in Pages(opened, stub).each(0):
            assert page.locator("main .empty").count() > 0, name


def test_ten_thousand_rows_cost_as_much_as_those_that_are_seen(open_page: OpenPage) -> None:
    stub = stub_of({})
    with open_page(stub) as opened:
        for name, page in Pages(opened, stub).each(MANY, "connections", "away", "trace", "bans", "audit"):
            table = page.locator("table[aria-rowcount]").first
            assert table.get_attribute("aria-rowcount") == str(CASES[name].most + 1), name
            assert table.locator("tbody tr").count() < ROWS_IN_PAGE_MAX, name


def test_a_viewer_has_no_buttons_of_others(open_page: OpenPage) -> None:
    words = ("Disconnect", "Ban", "Lift", "Cancel", "Drain", "Stop", "Delete", "Trace", "End the session")
    stub = stub_of({}, "viewer")
    with open_page(stub) as opened:
        for name, page in Pages(opened, stub).each(3, "connections", "bans", "delayed", "front ends"):
            shown = [each.inner_text() for each in page.locator("main button, main a.button").all()]
            assert [text for text in shown if text.startswith(words)] == [], name
        page = opened.show("traces")
        assert "takes the role operator" in page.inner_text("main")


CLIENT = {
    "row": client_row(1) | {"client_id": HOSTILE, "front_end": "front-1"},
    "idle_s": 3.5,
    "session_expiry_s": 3600,
    "is_resumed": True,
    "is_bridge": True,
    "is_write_paused": True,
    "server_name": HOSTILE,
    "will_topic": HOSTILE,
    "subscriptions": [
        {"topic_filter": HOSTILE, "qos": 1, "no_local": True, "retain_as_published": True, "identifier": 7},
        {"topic_filter": "$share/g/t", "qos": 2, "is_exclusive": False, "identifier": 0},
    ],
}
SESSION = {
    "client_id": HOSTILE,
    "is_kept": True,
    "front_end": "front-1",
    "expiry_s": 3600,
    "closed_ms": 0,
    "expires_ms": None,
    "will_topic": None,
    "in_flight": 2,
    "dropped": 1,
    "filters": [
        {
            "broker": name,
            "topic_filter": HOSTILE,
            "qos": 1,
            "behind": 5,
            "is_wide": True,
            "is_exclusive": False,
        }
        for name in ("broker-a", "broker-b")
    ],
}
# What a name is in the address of a page.
IN_ADDRESS = "client?id=" + "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3Epump%E2%80%AEgnp.exe%00%E2%80%8B"


def refuse(_asked: Asked) -> Any:
    raise RefusedError(404, "not-found", "no broker knows it")


def test_a_client_is_shown_whole(open_page: OpenPage) -> None:
    answers = {f"GET /clients/{HOSTILE}": CLIENT, f"GET /sessions/{HOSTILE}": SESSION}
    with open_page(answers) as opened:
        page = opened.show(IN_ADDRESS)
        opened.settle()
        text = page.inner_text("main")
        assert MARKUP in text
        assert "about 10" in text, "what waits at all brokers for one filter"
        assert "takes nothing" in text
        assert opened.axe() == []
        page.emulate_media(color_scheme="dark")
        assert opened.axe() == []
        page.set_viewport_size({"width": 390, "height": 844})
        assert opened.overflow() == 0


@pytest.mark.parametrize(
    ("live", "kept", "expected"),
    [
        (CLIENT, refuse, "takes nothing"),
        (refuse, SESSION | {"front_end": "", "closed_ms": LONG_AGO_MS}, "away"),
        (refuse, refuse, "No client of this id"),
    ],
)
def test_a_client_may_be_away_or_have_no_kept_session(
    open_page: OpenPage, live: Any, kept: Any, expected: str
) -> None:
    with open_page({f"GET /clients/{HOSTILE}": live, f"GET /sessions/{HOSTILE}": kept}) as opened:
        page = opened.show(IN_ADDRESS)
        opened.settle()
        assert expected in page.inner_text("main")
        assert page.locator(".trouble").count() == 0
        assert opened.axe() == []


def test_a_client_is_disconnected_traced_and_its_session_ended_after_a_question(open_page: OpenPage) -> None:
    name = "pump-7"
    answers = {
        f"GET /clients/{name}": CLIENT | {"row": client_row(1) | {"client_id": name}},
        f"GET /sessions/{name}": SESSION | {"client_id": name},
        f"DELETE /clients/{name}": {"matched": 1, "kicked": 1, "client_ids": [name], "problems": {}},
        f"DELETE /sessions/{name}": {"brokers": ["broker-a"]},
        "POST /traces": {"name": "client-1", "front_ends": ["front-1"], "problems": {}},
        "GET /traces/client-1": trace_row(0),
        "GET /traces/client-1/events": {"items": [], "next": None, "last": "", "problems": {}},
    }
    stub = stub_of(answers, "administrator")
    with open_page(stub) as opened:
        page = opened.show(f"client?id={name}")
        opened.settle()
        page.get_by_role("button", name="Disconnect").click()
        dialog = page.locator("dialog")
        assert f"{name} is disconnected now" in dialog.inner_text()
        assert opened.axe() == []
        dialog.get_by_role("button", name="Disconnect").click()
        page.get_by_text("It is disconnected.").wait_for()
        page.get_by_role("button", name="End the session").click()
        assert "10 messages that wait" in dialog.inner_text()
        end = dialog.get_by_role("button", name="End the session")
        assert end.is_disabled()
        dialog.get_by_role("textbox").fill(name)
        end.click()
        page.get_by_text("The session has ended.").wait_for()
        page.get_by_role("button", name="Trace").click()
        dialog.get_by_role("button", name="Trace").click()
        page.wait_for_url("**/#/trace?name=client-1")
        assert [f"{each.method} {each.path}" for each in stub.changes()] == [
            f"DELETE /clients/{name}",
            f"DELETE /sessions/{name}",
            "POST /traces",
        ]


def test_connections_are_filtered_and_sorted_by_the_server_and_disconnected_after_a_dry_run(
    open_page: OpenPage,
) -> None:
    rows = [client_row(index) for index in range(1, 4)]

    def kick(asked: Asked) -> dict[str, Any]:
        ids = asked.body.get("client_ids") or ["a", "b", "c"]
        return {"matched": len(ids), "kicked": len(ids), "client_ids": ids, "problems": {}}

    problems = {"front-2": "slow"}
    clients = {"items": rows, "next": None, "matched": 3, "connected": 15_000, "problems": problems}
    stub = stub_of({"GET /clients": clients, "POST /clients:kick": kick})
    with open_page(stub) as opened:
        page = opened.show("connections")
        opened.settle()
        assert "15,000" in page.inner_text("main")
        assert "No answer of front-2" in page.inner_text(".trouble")
        words = ("client_id=*pump*", "dropped_min=1", "sort=-queued")
        with page.expect_request(lambda request: all(word in request.url for word in words)):
            page.get_by_role("button", name="Waiting").click()
            page.get_by_role("searchbox", name="Client id").fill("pump")
            page.get_by_label("Show").select_option("dropped")
        opened.settle()
        page.get_by_role("checkbox", name="Choose pump-00002").check()
        page.get_by_role("button", name="Disconnect 1").click()
        dialog = page.locator("dialog")
        dialog.get_by_role("button", name="Disconnect 1").click()
        page.get_by_text("1 client is disconnected.").wait_for()
        page.get_by_role("button", name="Disconnect all of this choice").click()
        assert "3 clients are disconnected now" in dialog.inner_text()
        dialog.get_by_role("button", name="Disconnect 3").click()
        page.get_by_text("3 clients are disconnected.").wait_for()
        assert [each.body for each in stub.changes()] == [
            {"client_ids": ["pump-00002"], "is_dry_run": True},
            {"client_ids": ["pump-00002"]},
            {"filter": {"client_id": "*pump*", "dropped_min": 1}, "is_dry_run": True},
            {"filter": {"client_id": "*pump*", "dropped_min": 1}, "limit": 3},
        ]


def test_somebody_is_banned_and_a_ban_is_lifted(open_page: OpenPage) -> None:
    def put(asked: Asked) -> dict[str, Any]:
        if asked.path == "/bans/network/10.0.0.0/8":
            return {"brokers": ["broker-a"]}
        raise RefusedError(
            422, "invalid", "value: no network", errors=[{"detail": "no network", "parameter": "value"}]
        )

    answers = {
        "GET /bans": {"items": [ban_row(1)]},
        "PUT /bans/network/10.0.0.0/8": put,
        "PUT /bans/network/x": put,
        "DELETE /bans/network/pump-00001": {"brokers": ["broker-a"]},
    }
    stub = stub_of(answers)
    with open_page(stub) as opened:
        page = opened.show("bans?kind=network&value=x")
        dialog = page.locator("dialog")
        dialog.get_by_role("button", name="Ban", exact=True).click()
        dialog.get_by_text("no network").wait_for()
        assert opened.axe() == []
        dialog.get_by_label("Value").fill("10.0.0.0/8")
        assert "The network 10.0.0.0/8 may not connect any more" in dialog.inner_text()
        dialog.get_by_label("For how long").select_option("0")
        dialog.get_by_label("Reason").fill("noise")
        dialog.get_by_role("button", name="Ban", exact=True).click()
        page.get_by_text("It is banned.").wait_for()
        page.get_by_role("button", name="Lift").click()
        dialog.get_by_role("button", name="Lift").click()
        page.get_by_text("The ban is lifted.").wait_for()
        assert [each.body for each in stub.changes() if each.method == "PUT"][-1] == {
            "reason": "noise",
            "until_ms": 0,
        }


def test_a_delayed_message_is_cancelled(open_page: OpenPage) -> None:
    answers = {
        "GET /delayed-messages": {"items": [delayed_row(1)], "has_more": False},
        "DELETE /delayed-messages/orders/K1": {"message_id": "K1"},
    }
    with open_page(answers, role="operator") as opened:
        page = opened.show("delayed")
        page.get_by_role("button", name="Cancel").click()
        dialog = page.locator("dialog")
        assert "is never delivered" in dialog.inner_text()
        dialog.locator("button.is-danger").click()
        page.get_by_text("It will not be delivered.").wait_for()


def test_a_front_end_is_drained_and_takes_clients_again(open_page: OpenPage) -> None:
    rows = [front_end_row(2), front_end_row(1)]
    answers = {
        "GET /front-ends": {"items": rows},
        "POST /front-ends/front-2/drain": {"brokers": ["broker-a"]},
        "POST /front-ends/front-1/drain": {"brokers": ["broker-a"]},
    }
    stub = stub_of(answers)
    with open_page(stub) as opened:
        page = opened.show("front-ends")
        page.get_by_role("button", name="Drain").click()
        dialog = page.locator("dialog")
        assert "only front end that takes clients" in dialog.inner_text()
        assert opened.axe() == []
        dialog.get_by_label("Clients a second").fill("50")
        dialog.get_by_role("button", name="Drain").click()
        page.get_by_text("It is being drained.").wait_for()
        page.get_by_role("button", name="Take clients again").click()
        dialog.get_by_role("button", name="Take clients again").click()
        page.get_by_text("It takes clients again.").wait_for()
        assert [each.body["is_draining"] for each in stub.changes()] == [True, False]


def test_a_trace_is_begun_with_what_is_wrong_said_at_its_field(open_page: OpenPage) -> None:
    def start(asked: Asked) -> dict[str, Any]:
        if asked.body["value"] == "a/#/b":
            raise RefusedError(
                422, "invalid", "no filter", errors=[{"detail": "no filter", "pointer": "/value"}]
            )
        return {"name": "t", "front_ends": ["front-1"], "problems": {}}

    answers = {
        "GET /traces": {"items": [], "problems": {"front-2": "slow"}},
        "POST /traces": start,
        "GET /traces/t": trace_row(0) | {"name": "t"},
        "GET /traces/t/events": {"items": [], "next": None, "last": "", "problems": {}},
    }
    stub = stub_of(answers)
    with open_page(stub) as opened:
        page = opened.show("traces")
        page.get_by_role("button", name="Trace…").click()
        dialog = page.locator("dialog")
        dialog.get_by_label("What is traced").select_option("topic")
        dialog.get_by_label("Topic filter").fill("a/#/b")
        dialog.get_by_role("button", name="Start").click()
        dialog.get_by_text("no filter").wait_for()
        assert opened.axe() == []
        dialog.get_by_label("Topic filter").fill("a/#")
        dialog.get_by_label("Of each payload").select_option("200")
        dialog.get_by_role("button", name="Start").click()
        page.wait_for_url("**/#/trace?name=t")
        assert stub.changes()[-1].body == {
            "kind": "topic",
            "value": "a/#",
            "duration_s": 600,
            "payload_bytes": 200,
        }


def test_events_come_by_themselves_and_each_is_shown_whole(open_page: OpenPage) -> None:
    known = [event_row(index) for index in range(1, 4)]

    def events(asked: Asked) -> dict[str, Any]:
        after = int(asked.query.get("cursor") or 0)
        return {"items": known[after:], "next": None, "last": str(len(known)), "problems": {}}

    answers = {
        "GET /traces/t": trace_row(0) | {"name": "t"},
        "GET /traces/t/events": events,
        "POST /traces/t/stop": {"name": "t", "front_ends": [], "problems": {}},
        "DELETE /traces/t": {"name": "t", "front_ends": [], "problems": {}},
        "GET /traces": {"items": [], "problems": {}},
    }
    with open_page(answers, role="operator") as opened:
        page = opened.show("trace?name=t")
        opened.settle()
        known.append(event_row(4))
        page.locator("tbody tr[aria-rowindex='5']").wait_for()
        page.get_by_label("Show").select_option("decided")
        page.locator("tbody tr[aria-rowindex='4']").wait_for(state="detached")
        page.get_by_label("Show").select_option("all")
        page.get_by_role("button", name="PUBLISH").first.click()
        dialog = page.locator("dialog")
        assert "hello" in dialog.inner_text()
        assert opened.axe() == []
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Stop").click()
        dialog.get_by_role("button", name="Stop").click()
        page.get_by_text("The trace has ended.").wait_for()
        page.get_by_role("button", name="Delete").click()
        dialog.get_by_role("button", name="Delete").click()
        page.wait_for_url("**/#/traces")


def test_a_broker_shows_its_members_and_numbers(open_page: OpenPage) -> None:
    facts = {"brokerVersionDesc": HOSTILE, "bootTimestamp": str(LONG_AGO_MS), "putMessageTimesTotal": "12345"}
    answers = {
        "GET /brokers": {"items": [broker_row(2), broker_row(3), broker_row(5)]},
        "GET /brokers/broker-1": {"name": "broker-1", "facts": facts},
    }
    with open_page(answers) as opened:
        page = opened.show("brokers")
        opened.settle()
        assert "broker-2: Takes no messages" in page.inner_text("main")
        page.get_by_role("link", name="broker-1").first.click()
        page.get_by_text("12,345").wait_for()
        assert "replica 1" in page.inner_text("main")
        assert page.locator("main img").count() == 0
        assert opened.axe() == []
        page.set_viewport_size({"width": 390, "height": 844})
        assert opened.overflow() == 0


def test_audit_records_are_chosen_opened_and_read_on(open_page: OpenPage) -> None:
    records = [audit_record(index) for index in range(250)]

    def audit(asked: Asked) -> dict[str, Any]:
        begin = int(asked.query.get("cursor") or 0)
        found = records[begin : begin + 200]
        return {"items": found, "next": str(begin + 200) if begin + 200 < len(records) else None}

    stub = stub_of({"GET /audit": audit}, "viewer")
    with open_page(stub) as opened:
        page = opened.show("audit")
        opened.settle()
        page.get_by_role("button", name="More").click()
        page.get_by_text("250 rows").wait_for()
        page.locator("tbody .link").first.click()
        dialog = page.get_by_role("dialog")
        assert MARKUP in dialog.inner_text()
        assert "DELETE_TOPIC" in dialog.inner_text()
        assert opened.axe() == []
        page.keyboard.press("Escape")
        with page.expect_request(lambda request: "event=denied" in request.url):
            page.get_by_label("Event", exact=True).select_option("denied")


def test_a_setting_is_changed_by_an_administrator_alone(open_page: OpenPage) -> None:
    def change(asked: Asked) -> dict[str, Any]:
        if asked.body == {"settings": {"flushDiskType": "never"}}:
            raise RefusedError(409, "conflict", "flushDiskType does not change while it runs")
        return {"brokers": ["broker-1"]}

    answers = {"GET /settings": {"items": [settings_of(1)]}, "PATCH /brokers/broker-1/settings": change}
    with open_page(stub_of(answers, "operator")) as opened:
        page = opened.show("settings")
        opened.settle()
        assert page.get_by_role("button", name="Change").count() == 0
    stub = stub_of(answers, "administrator")
    with open_page(stub) as opened:
        page = opened.show("settings")
        page.get_by_role("button", name="Change").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("flushDiskType").fill("never")
        dialog.get_by_role("button", name="Save").click()
        dialog.get_by_text("does not change while it runs").wait_for()
        assert opened.axe() == []
        dialog.get_by_label("flushDiskType").fill("ASYNC_FLUSH")
        dialog.get_by_role("button", name="Save").click()
        page.get_by_text("The setting is changed.").wait_for()
        assert stub.changes()[-1].body == {"settings": {"flushDiskType": "ASYNC_FLUSH"}}
