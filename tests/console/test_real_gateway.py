"""Pages over a real gateway: what is done in them is done, and what is not allowed is refused."""

from __future__ import annotations

import re
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from console_browser import SETTINGS, TOKENS, Chromium, signed_in
from eventually import eventually
from gateway_process import GatewayProcess
from playwright.sync_api import expect


def test_a_topic_is_made_sent_to_read_frozen_and_deleted(chromium: Chromium, origin: str) -> None:
    with signed_in(chromium, origin) as opened:
        page = opened.show("topics")
        page.get_by_role("button", name="Make a topic").click()
        page.get_by_label("Topic", exact=True).fill("console-orders")
        page.get_by_label("Queues", exact=True).fill("2")
        page.get_by_role("dialog").get_by_role("button", name="Make a topic").click()
        page.get_by_role("heading", name="console-orders").wait_for()

        page.get_by_role("button", name="Send a message").click()
        page.get_by_label("Key", exact=True).fill("order-7")
        page.get_by_role("textbox", name="Payload").fill('{"total": "<b>12</b>"}')
        page.get_by_role("dialog").get_by_role("button", name="Send a message").click()
        page.get_by_role("status").filter(has_text="Stored in console-orders").wait_for()

        opened.show("messages?topic=console-orders&by=key&text=order-7")
        page.locator("tbody .link").click()
        assert page.get_by_label("Payload", exact=True).inner_text() == '{\n  "total": "<b>12</b>"\n}'
        page.get_by_role("button", name="Hex").click()
        assert "7b 22 74 6f" in page.get_by_label("Payload", exact=True).inner_text()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)

        opened.show("topic?name=console-orders")
        page.get_by_label("Choose broker-a 1", exact=True).check()
        page.get_by_role("button", name="Freeze").click()
        assert "1 of broker-a" in page.get_by_role("dialog").inner_text()
        page.get_by_role("dialog").get_by_role("button", name="Freeze").click()
        page.locator(".state", has_text="frozen").wait_for()

        page.get_by_role("button", name="Delete the topic").click()
        delete = page.get_by_role("dialog").get_by_role("button", name="Delete the topic")
        expect(delete).to_be_disabled()
        page.get_by_label("Type console-orders to go on").fill("console-orders")
        delete.click()
        page.get_by_role("heading", name="Topics").wait_for()
        opened.settle()
        assert page.get_by_text("console-orders", exact=True).count() == 0


def test_messages_are_seen_as_they_come_and_retained_ones_deleted(chromium: Chromium, origin: str) -> None:
    topic = "console/<img src=x>/#1".replace("#", "n")
    with signed_in(chromium, origin) as opened:
        page = opened.show("messages?view=tail&filter=console/%23")
        page.get_by_text("Following console/#").wait_for()
        page.get_by_role("button", name="Send a message").click()
        page.get_by_label("MQTT topic").fill(topic)
        page.get_by_role("textbox", name="Payload").fill("hot")
        page.get_by_label("Retain").check()
        page.get_by_role("dialog").get_by_role("button", name="Send a message").click()
        page.locator("tbody tr", has_text=topic).wait_for()

        opened.show("retained?filter=console/%23")
        page.get_by_role("button", name=topic).click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        assert topic in page.get_by_role("dialog").inner_text()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        page.get_by_text("1 retained message deleted.").wait_for()
        page.get_by_text("Nothing matches.").wait_for()


def test_a_viewer_has_no_buttons_and_is_refused_all_the_same(chromium: Chromium, origin: str) -> None:
    with signed_in(chromium, origin, "viewer") as opened:
        page = opened.page
        for place in ("topics", "topic?name=mqtt", "groups", "messages", "retained"):
            opened.show(place)
            opened.settle()
            names = " ".join(page.get_by_role("button").all_inner_texts())
            assert not re.search("Make|Send|Delete|Freeze|Pause|Move", names), place
        status = page.evaluate(
            """async (token) => (await fetch('../api/v1/topics/x', {method: 'PUT', body: '{}',
                headers: {Authorization: 'Bearer ' + token, 'Content-Type': 'application/json'}})).status""",
            TOKENS["viewer"],
        )
        assert status == 403


def test_a_wrong_token_is_refused_in_words(chromium: Chromium, origin: str) -> None:
    with chromium.page(origin) as opened:
        page = opened.show("topics")
        page.wait_for_url("**/#/sign-in")
        page.get_by_label("Token").fill("not-a-token-of-anybody")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("alert").filter(has_text="That is not right").wait_for()
        assert opened.axe() == []


def test_the_first_view_is_small_and_asks_for_all_at_once(chromium: Chromium, origin: str) -> None:
    """From nothing to the way in. benchmarks/console_view.py says how long it takes."""
    with chromium.page(origin) as opened:
        opened.show("sign-in")
        opened.settle()
        entries = "performance.getEntriesByType('resource').map((each) => [each.name, each.transferSize])"
        loaded = dict(opened.page.evaluate(entries))
    assert sum(loaded.values()) < 150_000
    assert all(name.startswith(origin) for name in loaded)


def test_a_gateway_that_stops_and_comes_back(chromium: Chromium, tmp_path: Path) -> None:
    settings = tmp_path / "iotmq.toml"
    settings.write_text(SETTINGS)
    with GatewayProcess(tmp_path / "data", config=settings) as gateway:
        origin = f"http://127.0.0.1:{gateway.ports['http']}"
        with signed_in(chromium, origin) as opened:
            page = opened.show("topics")
            page.get_by_text("mqtt", exact=True).wait_for()
            gateway.terminate()
            page.get_by_role("button", name="Ask again").click()
            page.get_by_role("alert").filter(has_text="does not answer").wait_for()
            assert page.get_by_text("mqtt", exact=True).count() == 1, "what was shown stays"
            gateway.start()
            page.get_by_role("button", name="Try again").click()
            expect(page.get_by_text("does not answer")).to_have_count(0)
            # A request that no server takes is an error on every browser's console.
            opened.faults[:] = [each for each in opened.faults if "ERR_CONNECTION" not in each]


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_what_takes_a_higher_role_is_not_shown(chromium: Chromium, origin: str, role: str) -> None:
    with signed_in(chromium, origin, role) as opened:
        opened.show("topic?name=mqtt")
        opened.settle()
        assert opened.page.get_by_role("button", name="Delete the topic").count() == 0


def test_a_client_is_found_traced_and_disconnected(
    chromium: Chromium, gateway: GatewayProcess, origin: str
) -> None:
    device = paho.Client(paho.CallbackAPIVersion.VERSION2, "<b>pump", clean_session=False)
    device.connect("127.0.0.1", gateway.ports["mqtt"])
    device.loop_start()
    try:
        eventually(device.is_connected, "the device is connected")
        device.subscribe("plant/#", qos=1)
        with signed_in(chromium, origin, "operator") as opened:
            page = opened.show("connections?match=pump")
            page.get_by_role("link", name="<b>pump").click()
            page.locator("td", has_text="plant/#").wait_for()
            page.get_by_role("button", name="Trace").click()
            page.get_by_role("dialog").get_by_role("button", name="Trace").click()
            page.get_by_text("The trace runs.").wait_for()
            opened.show("client?id=%3Cb%3Epump")
            page.get_by_role("button", name="Disconnect").click()
            page.get_by_role("dialog").get_by_role("button", name="Disconnect").click()
            page.get_by_text("It is disconnected.").wait_for()
            opened.show("traces")
            page.locator("tbody a").first.click()
            page.locator("tbody td", has_text="administrative_action").wait_for()
            for place, words in (
                ("front-ends", "takes clients"),
                ("brokers", "broker-a"),
                ("audit", "disconnect_client"),
                ("settings?match=brokername", "brokerName"),
                ("subscriptions", "plant/#"),
            ):
                opened.show(place)
                page.locator("main td", has_text=words).first.wait_for()
    finally:
        device.disconnect()
        device.loop_stop()
