"""The frame of the console: the way in, the navigation, colours, the keyboard, what fails."""

from __future__ import annotations

from typing import Any

from console_browser import Asked, OpenPage, RefusedError

EMPTY: dict[str, Any] = {"items": [], "next": None}


def test_the_way_into_the_console_is_the_port_itself(open_page: OpenPage) -> None:
    with open_page({"GET /topics": EMPTY}) as opened:
        opened.page.goto(opened.origin + "/")
        opened.page.wait_for_url("**/console/")
        opened.page.wait_for_selector("h1")


def test_the_keyboard_reaches_the_content_and_the_heading_has_the_focus_after_a_step(
    open_page: OpenPage,
) -> None:
    with open_page({"GET /topics": EMPTY, "GET /groups": EMPTY}) as opened:
        page = opened.show("topics")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        page.get_by_role("link", name="Groups").click()
        page.wait_for_selector("h1:focus")
        assert page.title() == "Groups · iotmq"


def test_a_page_that_is_not_there_says_so(open_page: OpenPage) -> None:
    with open_page({}) as opened:
        opened.show("nowhere?x=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
        assert opened.page.inner_text("h1") == "There is no such page."


def test_the_way_in_offers_a_provider_and_says_why_it_has_failed(open_page: OpenPage) -> None:
    ways = {"password": True, "link": False, "is_safe": True, "oidc": "Sign in at <b>the plant</b>"}

    def nobody(_asked: Asked) -> None:
        raise RefusedError(401, "unauthenticated")

    with open_page({"GET /sign-in": ways, "GET /me": nobody}) as opened:
        page = opened.show("sign-in?problem=no-role")
        page.get_by_role("alert").filter(has_text="give you no role").wait_for()
        button = page.get_by_role("link", name="Sign in at <b>the plant</b>")
        assert (button.get_attribute("href") or "").startswith(opened.origin + "/api/v1/sign-in/oidc")
        assert opened.axe() == []


def test_the_navigation_of_a_phone_opens_and_closes(open_page: OpenPage) -> None:
    with open_page({"GET /topics": EMPTY, "GET /groups": EMPTY}, size="phone") as opened:
        page = opened.show("topics")
        link = page.get_by_role("link", name="Groups")
        assert link.count() == 0
        page.get_by_role("button", name="Open the navigation").click()
        link.click()
        page.wait_for_selector("h1:text('Groups')")
        page.wait_for_selector(".shell:not(.is-open)")


def test_colours_follow_the_system_until_somebody_chooses(open_page: OpenPage) -> None:
    with open_page({"GET /topics": EMPTY}, theme="dark") as opened:
        page = opened.show("topics")
        canvas = "getComputedStyle(document.documentElement).backgroundColor"
        dark = page.evaluate(canvas)
        page.get_by_role("button", name="Colours of the system").click()
        assert page.evaluate(canvas) != dark
        page.reload()
        page.get_by_role("button", name="Light colours").click()
        assert page.evaluate(canvas) == dark
