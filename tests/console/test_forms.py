"""Forms: sent once, and what is refused is said at its field, or on top of them all."""

from __future__ import annotations

from typing import Any

from console_browser import Asked, OpenPage, RefusedError, Stub


def refuse(*errors: dict[str, str]) -> Any:
    raise RefusedError(422, "invalid", "it is refused", errors=list(errors))


def test_a_refusal_of_what_is_no_field_stands_on_top(open_page: OpenPage) -> None:
    def make(asked: Asked) -> Any:
        queues = {"detail": "too many", "pointer": "/queues"}
        if asked.path == "/topics/both":
            return refuse(queues, {"detail": "unknown field", "pointer": "/colour"})
        return refuse(queues)

    answers = {"PUT /topics/both": make, "PUT /topics/one": make}
    with open_page(answers) as opened:
        page = opened.show("topics")
        page.get_by_role("button", name="Make a topic").click()
        dialog = page.get_by_role("dialog")
        send = dialog.get_by_role("button", name="Make a topic")
        dialog.get_by_label("Topic", exact=True).fill("both")
        send.click()
        dialog.locator(".wrong", has_text="too many").wait_for()
        assert "it is refused" in dialog.get_by_role("alert").inner_text()
        assert opened.axe() == []
        dialog.get_by_label("Topic", exact=True).fill("one")
        send.click()
        dialog.get_by_role("alert").wait_for(state="detached")
        dialog.locator(".wrong", has_text="too many").wait_for()


def test_a_form_is_not_sent_twice(open_page: OpenPage) -> None:
    me = {"name": "a", "role": "administrator", "way": "password", "expires_ms": None}
    stub = Stub({"GET /me": me, "PUT /topics/orders": {}})
    with open_page(stub) as opened:  # type: ignore[arg-type]
        page = opened.show("topics")
        page.get_by_role("button", name="Make a topic").click()
        page.get_by_role("dialog").get_by_label("Topic", exact=True).fill("orders")
        page.locator("dialog form").evaluate("(form) => { form.requestSubmit(); form.requestSubmit(); }")
        page.get_by_role("heading", name="orders").wait_for()
        assert [each.path for each in stub.changes()] == ["/topics/orders"]
