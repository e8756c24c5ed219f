"""The way in as people go it: the link of the log, users, sessions that end, below the path of a proxy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from console_browser import Chromium
from eventually import eventually
from gateway_process import GatewayProcess
from playwright.sync_api import Route, expect

PASSWORD = "a-long-password"


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that nobody has used yet, shown below a path."""
    with GatewayProcess(tmp_path_factory.mktemp("proxied") / "data", 'http.base_path="/gate"') as gateway:
        yield gateway


def test_from_the_link_of_the_log_to_a_user_whose_session_ends(
    chromium: Chromium, proxied: GatewayProcess
) -> None:
    port = proxied.ports["http"]
    origin = f"http://127.0.0.1:{port}"
    pattern = rf"{re.escape(origin)}/gate/console/#/sign-in\?link=[\w-]+"
    (link,) = eventually(lambda: re.findall(pattern, proxied.log_text()), "the log has the link")
    with chromium.page(origin) as opened:
        page = opened.page
        page.goto(link)
        # The link is for once: it leads where users are made, and the first one can make others.
        page.get_by_text("add yourself as administrator").wait_for()
        page.get_by_role("button", name="Add a user").click()
        page.get_by_label("Name").fill("anna")
        expect(page.get_by_label("Role")).to_have_value("administrator")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("dialog").get_by_role("button", name="Save").click()
        page.locator("tbody", has_text="anna").wait_for()
        page.get_by_role("button", name="Add a user").click()
        expect(page.get_by_label("Role")).to_have_value("viewer")
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("heading", name="Sign in").wait_for()

        page.get_by_label("User").fill("anna")
        page.get_by_label("Password").fill("wrong-password")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("alert").filter(has_text="That is not right").wait_for()
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Overview").wait_for()

        # Another request ends the session, as its time would: the page goes to the way in, and back.
        page.goto(f"{origin}/gate/console/#/topics?match=mq")
        page.get_by_text("mqtt", exact=True).wait_for()
        page.evaluate("fetch('../api/v1/sign-in', {method: 'DELETE'})")
        page.get_by_role("button", name="Ask again").click()
        page.get_by_role("heading", name="Sign in").wait_for()
        page.get_by_label("User").fill("anna")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Topics").wait_for()
        assert page.url.endswith("#/topics?match=mq")

        # As for somebody who has come by a provider with a page for that.
        def answer(route: Route) -> None:
            route.fulfill(json={"done": True, "provider": f"{origin}/healthz"})

        page.route("**/api/v1/sign-in", answer)
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/healthz")


def test_a_link_that_was_used_is_refused_in_words(chromium: Chromium, proxied: GatewayProcess) -> None:
    with chromium.page(f"http://127.0.0.1:{proxied.ports['http']}") as opened:
        opened.show("sign-in?link=0123456789abcdef0123456789abcdef")
        opened.page.get_by_role("alert").filter(has_text="no longer good").wait_for()
        expect(opened.page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_key_is_shown_once(chromium: Chromium, proxied: GatewayProcess) -> None:
    origin = f"http://127.0.0.1:{proxied.ports['http']}"
    with chromium.page(origin) as opened:
        page = opened.show("access?view=keys")
        page.get_by_label("User").fill("anna")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="Make a key").click()
        page.get_by_label("Name").fill("export")
        page.get_by_role("dialog").get_by_role("button", name="Save").click()
        key = page.get_by_label("Key", exact=True).input_value()
        assert len(key) > 20
        page.get_by_role("dialog").get_by_role("button", name="Close").last.click()
        page.locator("tbody", has_text="export").wait_for()
        assert key not in page.content()


def test_the_way_by_a_provider_has_its_label_and_says_why_it_failed(
    chromium: Chromium, tmp_path: Path
) -> None:
    provider = 'http.sign_in.oidc={issuer="http://127.0.0.1:1",client_id="c",label="Plant <b>",viewers=["*"]}'
    with GatewayProcess(tmp_path / "data", provider) as gateway:
        origin = f"http://127.0.0.1:{gateway.ports['http']}"
        with chromium.page(origin) as opened:
            page = opened.show("topics?match=a")
            way = page.get_by_role("link", name="Plant <b>")
            way.wait_for()
            asked = way.get_attribute("href") or ""
            assert asked.endswith("/api/v1/sign-in/oidc?return_to=%23%2Ftopics%3Fmatch%3Da")
            # Nobody is at home there.
            way.click()
            page.get_by_role("alert").filter(has_text="does not answer").wait_for()
