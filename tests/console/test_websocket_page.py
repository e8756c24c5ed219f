"""The client of MQTT in the browser: over a real gateway, and against servers that do wrong."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
import pytest
from console_browser import TOKENS, Chromium, OpenPage, signed_in
from gateway_process import GatewayProcess
from playwright.sync_api import Page, WebSocketRoute, expect

MARKUP = "<img src=x onerror=alert(1)>"
HOSTILE = f"{MARKUP}\u202e"

CONNACK = b"\x20\x03\x00\x00\x00"
PINGRESP = b"\xd0\x00"
# Five bytes each of the most that a length can have.
ENDLESS = b"\x30\xff\xff\xff\xff\x01"


def text(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(2) + data


def packet(first: int, *parts: bytes) -> bytes:
    body, head = b"".join(parts), bytearray([first])
    size = len(body)
    while True:
        head.append(size & 127 | (128 if size > 127 else 0))
        size >>= 7
        if not size:
            return bytes(head) + body


def publish(topic: str, payload: bytes, *, qos: int = 0, packet_id: int = 0, more: bytes = b"") -> bytes:
    ids = packet_id.to_bytes(2) if qos else b""
    return packet(0x30 | qos << 1, text(topic), ids, bytes([len(more)]), more, payload)


@pytest.fixture(scope="session")
def listeners(origin: str) -> dict[str, Any]:
    """The listeners of the gateway: its pages may connect to no others."""
    asked = urllib.request.Request(
        f"{origin}/api/v1/websocket-listeners", headers={"Authorization": f"Bearer {TOKENS['viewer']}"}
    )
    with urllib.request.urlopen(asked) as answer:
        return {"GET /websocket-listeners": json.load(answer)}


class Server:
    """A server in place of the browser's WebSockets: answers CONNECT with `hello`, and notes what comes.

    Nobody may subscribe anything.
    """

    def __init__(self, page: Page, *hello: bytes | str) -> None:
        self.came: list[bytes] = []
        self._hello = hello
        page.route_web_socket(re.compile("^ws://"), self._opened)

    def _opened(self, socket: WebSocketRoute) -> None:
        self.socket = socket
        socket.on_message(self._take)

    def _take(self, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        self.came.append(data)
        if data[0] == 0x10:
            for each in self._hello:
                self.socket.send(each)
        if data[0] == 0x82:
            self.socket.send(b"\x90\x04" + data[2:4] + b"\x00\x87")


def connect(page: Page, version: str = "5") -> None:
    page.get_by_label("MQTT", exact=True).select_option(version)
    page.get_by_role("button", name="Connect", exact=True).click()


@pytest.mark.parametrize(
    ("version", "refusal"), [("5", "malformed packet (0x81)"), ("3.1.1", "The connection is lost.")]
)
def test_it_connects_subscribes_publishes_and_shows_what_comes(
    chromium: Chromium, gateway: GatewayProcess, origin: str, version: str, refusal: str
) -> None:
    topic = f"browser/{version}/{MARKUP}"
    with signed_in(chromium, origin, "operator") as opened:
        page = opened.show("websocket")
        connect(page, version)
        page.get_by_text("connected as console-").wait_for()
        page.get_by_label("Topic filter").fill(f"browser/{version}/#")
        page.get_by_role("button", name="Subscribe", exact=True).click()
        page.get_by_role("button", name=f"Unsubscribe browser/{version}/#").wait_for()
        messages = page.get_by_role("table", name="Messages")
        page.get_by_label("Topic", exact=True).fill(topic)
        for qos in ("0", "1", "2"):
            page.get_by_label("QoS", exact=True).last.select_option(qos)
            page.get_by_role("textbox", name="Payload").fill(f'{{"qos": {qos}, "name": "{MARKUP}"}}')
            page.get_by_role("button", name="Publish").click()
            messages.locator("tbody tr", has_text=f'"qos": {qos}').wait_for()
        assert "3 shown of 3 that came" in page.inner_text("main")
        messages.locator("tbody .link").first.click()
        dialog = page.get_by_role("dialog")
        assert f'"name": "{MARKUP}"' in dialog.inner_text()
        dialog.get_by_role("button", name="Hex").click()
        assert "7b 22 71 6f 73" in dialog.inner_text()
        page.keyboard.press("Escape")
        device = paho.Client(paho.CallbackAPIVersion.VERSION2, "browser-device")
        device.connect("127.0.0.1", gateway.ports["mqtt"])
        device.loop_start()
        device.publish(f"browser/{version}/raw", b"\xff\x00", qos=1).wait_for_publish(20)
        device.disconnect()
        device.loop_stop()
        messages.locator("tbody tr", has_text="ff 00").wait_for()
        page.get_by_role("button", name=f"Unsubscribe browser/{version}/#").click()
        page.get_by_text("Nothing is subscribed.").wait_for()
        page.get_by_label("Topic filter").fill("a/#/b")
        page.get_by_role("button", name="Subscribe", exact=True).click()
        page.get_by_text(refusal).wait_for()


def test_a_listener_says_whether_it_lets_in_the_console(chromium: Chromium, origin: str) -> None:
    with signed_in(chromium, origin, "operator") as opened:
        page = opened.show("websocket")
        page.get_by_label("Listener").select_option("others")
        page.get_by_text(f"does not let in pages of {origin}").wait_for()
        connect(page)
        page.get_by_text("No connection: the port does not answer").wait_for()
        assert opened.axe() == []
        # The browser says so, too; the policy of the page is kept.
        assert all("WebSocket connection" in each for each in opened.faults)
        opened.faults.clear()
        blocked = page.evaluate(
            "new Promise((done) => { addEventListener('securitypolicyviolation', "
            "(event) => done(event.violatedDirective)); new WebSocket('ws://127.0.0.1:9/mqtt', 'mqtt'); })"
        )
        assert blocked == "connect-src", "pages connect to no other port"
        opened.faults.clear()


def test_who_may_not_and_what_is_not_there(open_page: OpenPage) -> None:
    none = {"GET /websocket-listeners": {"items": []}}
    with open_page(none, role="viewer") as opened:
        assert "takes the role operator" in opened.show("websocket").inner_text("main")
    with open_page(none, role="operator") as opened:
        opened.show("websocket").get_by_text("no listener for MQTT in WebSockets").wait_for()
        assert opened.axe() == []


def test_hostile_messages_are_text_in_all_colours_and_sizes(
    open_page: OpenPage, listeners: dict[str, Any]
) -> None:
    more = b"\x03" + text(HOSTILE) + b"\x26" + text(HOSTILE) + text(HOSTILE)
    # It comes in pieces, byte by byte.
    wire = CONNACK + publish(HOSTILE, HOSTILE.encode(), more=more) + publish("raw", b"\xff\xfe")
    with open_page(listeners, role="operator") as opened:
        server = Server(opened.page, *(wire[at : at + 1] for at in range(len(wire))))
        page = opened.show("websocket")
        connect(page)
        page.get_by_text("2 shown of 2 that came").wait_for()
        assert server.came[0][:8] == b"\x10" + server.came[0][1:2] + b"\x00\x04MQTT", "it has said hello"
        for theme, width in (("light", 1360), ("dark", 390)):
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            page.set_viewport_size({"width": width, "height": 860})
            assert opened.overflow() == 0
            assert opened.axe() == []
        page.locator("main tbody tr", has_text=MARKUP).locator(".link").click()
        dialog = page.get_by_role("dialog")
        assert dialog.inner_text().count(MARKUP) == 5
        assert "\u202e" not in page.inner_text("body")
        assert page.locator("img").count() == 0
        assert opened.axe() == []


def test_ten_thousand_messages_leave_the_newest(open_page: OpenPage, listeners: dict[str, Any]) -> None:
    wire = b"".join(publish("t", b"%d" % each) for each in range(10_000))
    with open_page(listeners, role="operator") as opened:
        server = Server(opened.page, CONNACK, *(wire[at : at + 65_536] for at in range(0, len(wire), 65_536)))
        page = opened.show("websocket")
        connect(page)
        page.get_by_text("of 10,000 that came").wait_for()
        rows = page.get_by_role("table", name="Messages")
        # Each costs 32 KiB beside its payload, and all of them 16 MiB.
        expect(rows).to_have_attribute("aria-rowcount", "512")
        assert rows.locator("tbody tr").count() < 150
        rows.locator("tbody tr", has_text="9999").wait_for()
        # One that is large takes the place of many.
        server.socket.send(publish("large", bytes(4_000_000)))
        page.get_by_text("of 10,001 that came").wait_for()
        assert int(rows.get_attribute("aria-rowcount") or 0) < 400
        page.get_by_role("button", name="Pause").click()
        server.socket.send(publish("t", b"held"))
        page.get_by_role("button", name="Go on").click()
        rows.locator("tbody tr", has_text="held").wait_for()
        page.get_by_role("button", name="Clear").click()
        page.get_by_text("Nothing came yet.").wait_for()


def test_messages_of_qos_2_come_once_and_all_are_acknowledged(
    open_page: OpenPage, listeners: dict[str, Any]
) -> None:
    twice = publish("t", b"x", qos=2, packet_id=7)
    with open_page(listeners, role="operator") as opened:
        server = Server(
            opened.page, CONNACK, twice, twice, b"\x62\x02\x00\x07", publish("t", b"y", qos=1, packet_id=8)
        )
        page = opened.show("websocket")
        connect(page)
        page.get_by_text("2 shown of 2 that came").wait_for()
        assert server.came[1:] == [b"\x50\x02\x00\x07"] * 2 + [b"\x70\x02\x00\x07", b"\x40\x02\x00\x08"]
        page.get_by_label("Topic filter").fill("secret/#")
        page.get_by_role("button", name="Subscribe", exact=True).click()
        page.get_by_text("Refused: it is not authorized (0x87).").wait_for()
        page.get_by_role("button", name="Disconnect").click()
        page.get_by_text("You have disconnected.").wait_for()
        assert server.came[-1] == b"\xe0\x00"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            packet(0x20, b"\x00\x86", b"\x05\x1f", text("no")),
            "user or password are wrong (0x86), it says: no",
        ),
        (b"\x20\x02\x00\x05", "it is not authorized (0x05)"),
        (publish("t", b""), "the first packet is no CONNACK"),
        (ENDLESS, "the length of a packet has more than four bytes"),
        (packet(0x20, b"\x00"), "a packet ends too early"),
        (CONNACK + b"\x30\xff\xff\xff\x7f", "bytes: 4194304 at most"),
        (CONNACK + b"\x36\x00", "QoS 3"),
        (CONNACK + packet(0x30, b"\x00\x01\xff\x00"), "a text is not UTF-8"),
        (CONNACK + packet(0x30, text("t"), b"\x02\x7e\x00"), "a property is unknown"),
        (CONNACK + b"\x10\x00", "a server sends no packet of type 1"),
        (CONNACK + b"\xe0\x01\x8e", "another client has taken over its session (0x8e)"),
        ("text", "carries bytes, no text"),
    ],
)
def test_a_server_that_refuses_or_does_wrong_is_left_with_a_word(
    open_page: OpenPage, listeners: dict[str, Any], answer: bytes | str, expected: str
) -> None:
    with open_page(listeners, role="operator") as opened:
        Server(opened.page, answer)
        page = opened.show("websocket")
        connect(page)
        page.locator("main").get_by_text(expected).wait_for()
        page.get_by_text("not connected").wait_for()


@pytest.mark.parametrize(
    ("fill", "expected"),
    [
        (lambda page: page.get_by_label("Client id").fill("x" * 65_536), "65536 bytes are too many"),
        (lambda page: page.get_by_label("Password").fill("x"), "no password without a user"),
    ],
)
def test_what_cannot_be_sent_is_said(
    open_page: OpenPage, listeners: dict[str, Any], fill: Callable[[Page], Any], expected: str
) -> None:
    with open_page(listeners, role="operator") as opened:
        page = opened.show("websocket")
        page.get_by_label("Listener").wait_for()
        fill(page)
        connect(page, "3.1.1")
        page.locator("main").get_by_text(expected).wait_for()


def test_a_client_id_of_the_most_bytes_is_sent(open_page: OpenPage, listeners: dict[str, Any]) -> None:
    with open_page(listeners, role="operator") as opened:
        server = Server(opened.page, CONNACK)
        page = opened.show("websocket")
        page.get_by_label("Client id").fill("x" * 65_535)
        connect(page)
        page.get_by_text("connected as xxx").wait_for()
        assert server.came[0].endswith(b"\xff\xff" + b"x" * 65_535)
