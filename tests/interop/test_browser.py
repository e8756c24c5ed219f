"""A page in a browser: the browser's own WebSocket, publishing and subscribing."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from gateway_process import ROOT, GatewayProcess, free_port
from log_reader import read_bodies

PAGES = Path(__file__).parent / "browser"
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
LIBRARY = ROOT / "build" / "interop" / "node" / "node_modules" / "mqtt" / "dist" / "mqtt.min.js"
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        BROWSER is None,
        reason="Chromium is not installed (Debian: apt install chromium-headless-shell)",
    ),
]

# A picture of one point.
PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c02"
    "0000000b4944415478da6364f80f00010501012718e3660000000049454e44ae426082"
)


class PageServer:
    """Serves the page, and its last picture when the page has made its report."""

    def __init__(self) -> None:
        self.report: dict[str, Any] | None = None
        self.is_reported = threading.Event()
        self.origin = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        page_server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/finished.png":
                    page_server.is_reported.wait(30)
                    self._answer(PICTURE, "image/png")
                elif path == "/mqtt.min.js":
                    self._answer(LIBRARY.read_bytes(), "text/javascript")
                elif path == "/page.js":
                    self._answer((PAGES / "page.js").read_bytes(), "text/javascript")
                elif path in ("/", "/library.html"):
                    name = path.removeprefix("/") or "page.html"
                    self._answer((PAGES / name).read_bytes(), "text/html")
                else:
                    self.send_error(404)

            def do_POST(self) -> None:
                page_server.report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                page_server.is_reported.set()
                self._answer(b"", "text/plain")

            def _answer(self, body: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.origin = f"http://127.0.0.1:{server.server_address[1]}"
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield
            finally:
                self.is_reported.set()
                server.shutdown()
                thread.join()


def browse(url: str, profile: Path) -> str:
    """The page as it stands when it has finished."""
    assert BROWSER is not None
    words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    # Nothing but the page is asked for.
    words += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
    words += [f"--user-data-dir={profile}", "--timeout=30000", "--dump-dom", url]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


def test_a_page_publishes_and_subscribes(tmp_path: Path) -> None:
    pages, web_port = PageServer(), free_port()
    with pages.running():
        listener = (
            f'[{{name = "web", transport = "ws", listen_port = {web_port},'
            f' allowed_origins = ["{pages.origin}"]}}]'
        )
        with GatewayProcess(tmp_path / "data", f"mqtt.listeners={listener}") as gateway:
            answered = threading.Event()

            def answer(client: paho.Client, userdata: object, message: paho.MQTTMessage) -> None:
                """Sends back what the page has published, in the same size."""
                client.publish("page/in", message.payload.replace(b"3", b"4"), qos=1)
                answered.set()

            service = paho.Client(paho.CallbackAPIVersion.VERSION2)
            subscribed = threading.Event()
            service.on_subscribe = lambda *_: subscribed.set()
            service.on_message = answer
            service.connect("127.0.0.1", gateway.mqtt_port)
            service.subscribe("page/out", 1)
            service.loop_start()
            try:
                assert subscribed.wait(20)
                page = browse(f"{pages.origin}/?mqtt=ws://127.0.0.1:{web_port}/mqtt", tmp_path / "profile")
            finally:
                service.disconnect()
                service.loop_stop()
            assert pages.report == {
                "subprotocol": "mqtt",
                "extensions": "",
                "CONNACK": [0, 0],
                "SUBACK": [0, 1, 1],
                "PUBACK 1": [0, 1],
                "PUBACK 2": [0, 2],
                "PUBACK 3": [0, 3],
                "messages": [
                    [0x32, "page/in", 2, ord("1")],
                    [0x32, "page/in", 200, ord("2")],
                    [0x32, "page/in", 70_000, ord("4")],
                ],
                "closed after DISCONNECT": [1000, True],
                "closed after a text frame": [1003, True],
                "another subprotocol": "refused",
            }
            assert "closed after DISCONNECT" in page, "it stands on the page, too"
            bodies = read_bodies(gateway.registry, "mqtt")
            assert sorted(len(body) for body in bodies) == [2, 2, 200, 200, 70_000, 70_000]
            _, metrics = gateway.http("/metrics")
            assert re.search(r'^iotmq_mqtt_websocket_errors_total\{.*code="1003".*\} 1', metrics, re.M)
            assert re.search(r'^iotmq_mqtt_websocket_refused_total\{.*status="400".*\} 1', metrics, re.M)


@pytest.mark.skipif(not LIBRARY.is_file(), reason="MQTT.js is not installed (tools/setup.sh dev, with npm)")
def test_a_page_with_mqtt_js(tmp_path: Path) -> None:
    pages, web_port = PageServer(), free_port()
    listener = f'[{{name = "web", transport = "ws", listen_port = {web_port}, allowed_origins = ["*"]}}]'
    with pages.running(), GatewayProcess(tmp_path / "data", f"mqtt.listeners={listener}"):
        browse(f"{pages.origin}/library.html?mqtt=ws://127.0.0.1:{web_port}/mqtt", tmp_path / "profile")
    assert pages.report == {
        "connected": 0,
        "granted": [2],
        "messages": [["library/0", 2, 0], ["library/1", 200, 1], ["library/2", 70_000, 2]],
    }


def test_a_page_of_another_origin_is_kept_out(tmp_path: Path) -> None:
    pages, web_port = PageServer(), free_port()
    listener = f'[{{name = "web", transport = "ws", listen_port = {web_port}, allowed_origins = ["https://a.example"]}}]'
    with pages.running(), GatewayProcess(tmp_path / "data", f"mqtt.listeners={listener}"):
        browse(f"{pages.origin}/?mqtt=ws://127.0.0.1:{web_port}/mqtt", tmp_path / "profile")
        assert pages.report == {"error": "Error: refused"}
