"""Chromium for tests: one of it, and pages in it that take note of all that a good page never does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, Playwright, Route, sync_playwright

from iotmq.console.api.route import Role

ROOT: Final = Path(__file__).resolve().parents[2]
NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PROGRAM: Final = next((found for name in NAMES if (found := shutil.which(name))), None)
AXE: Final = ROOT / "build" / "vendor" / "node_modules" / "axe-core" / "axe.min.js"

SIZES: Final = {"desk": (1360, 860), "tablet": (900, 1000), "phone": (390, 844)}
# The levels of WCAG 2.2 AA, and what is good practice beside them.
AXE_TAGS: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# Answers that a test has asked for: a browser writes each of them on its console as an error.
_EXPECTED_WORDS: Final = "Failed to load resource"

TOKENS = {role.name.lower(): f"token-of-the-{role.name.lower()}" for role in Role}
LISTENERS: Final = """
[[mqtt.listeners]]
name = "browsers"
transport = "ws"
allowed_origins = ["*"]
[[mqtt.listeners]]
name = "others"
transport = "ws"
allowed_origins = ["https://others.example"]
"""
SETTINGS = "[http]\nopen_paths = ['/healthz', '/readyz', '/metrics']\n" + "".join(
    f"[[http.tokens]]\nname = '{role}'\ntoken = '{token}'\nrole = '{role}'\n"
    for role, token in TOKENS.items()
)
SETTINGS += LISTENERS

Theme = Literal["light", "dark"]
Answer = Callable[["Asked"], Any]


class Asked:
    """A request of a page to the stubbed API."""

    def __init__(self, route: Route) -> None:
        url = urlsplit(route.request.url)
        self.method = route.request.method
        self.path = unquote(url.path.partition("/api/v1")[2])
        self._words = parse_qsl(url.query)
        self.query = dict(self._words)
        self.body = json.loads(route.request.post_data) if route.request.post_data else None

    def query_all(self, name: str) -> list[str]:
        """Return all values of a parameter."""
        return [value for each, value in self._words if each == name]

    def __repr__(self) -> str:
        return f"{self.method} {self.path} {self.query} {self.body}"


class RefusedError(Exception):
    """An answer of a stub that is a problem document."""

    def __init__(self, status: int, word: str = "refused", detail: str = "", **more: Any) -> None:
        self.status = status
        self.document = {"type": f"urn:iotmq:problem:{word}", "title": word, "status": status} | more
        if detail:
            self.document["detail"] = detail


class Rows:
    """An answer of a stub that is a list with pages; `match` is looked for in the names."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __call__(self, asked: Asked) -> dict[str, Any]:
        match = asked.query.get("match", "")
        found = [row for row in self.rows if not match or match in row["name"]]
        begin, limit = int(asked.query.get("cursor") or 0), int(asked.query.get("limit", 100))
        is_last = begin + limit >= len(found)
        return {"items": found[begin : begin + limit], "next": None if is_last else str(begin + limit)}


def message(index: int, **more: Any) -> dict[str, Any]:
    """A stored message as the API shows it."""
    payload = more.get("payload", "")
    return {
        "message_id": f"7F0000010A2B18B4AAC2{index:012X}",
        "offset_message_id": f"7F00000100002A9F{index:016X}",
        "topic": "orders",
        "broker": "broker-a",
        "queue": 0,
        "offset": index,
        "stored_ms": 1_700_000_000_000 + index,
        "born_ms": 1_700_000_000_000,
        "properties": {"UNIQ_KEY": "7F", "<b>": "\u202e"},
        "payload": payload,
        "payload_bytes": len(payload.encode()),
    } | more


class Stub:
    """The API as a page sees it: answers by method and path. What has none is answered with 404."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[Asked] = []

    def handle(self, route: Route) -> None:
        asked = Asked(route)
        self.asked.append(asked)
        answer = self.answers.get(f"{asked.method} {asked.path}")
        try:
            if answer is None:
                raise RefusedError(404, "not-found", f"the stub has no {asked}")
            body = answer(asked) if callable(answer) else answer
        except RefusedError as refused:
            route.fulfill(
                status=refused.status,
                content_type="application/problem+json",
                body=json.dumps(refused.document),
            )
            return
        route.fulfill(status=200, content_type="application/json", body=json.dumps(body))

    def changes(self) -> list[Asked]:
        """Return the requests that change something."""
        return [each for each in self.asked if each.method != "GET"]


class Watched:
    """A page; `faults` has what a good one never does."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.origin = origin
        self.faults: list[str] = []
        self._pending: set[Any] = set()
        page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        page.on("console", self._said)
        page.on("request", self._requested)
        for ended in ("requestfinished", "requestfailed"):
            page.on(ended, lambda request: self._pending.discard(request))
        page.expose_function("noteViolation", lambda text: self.faults.append(f"policy: {text}"))
        page.add_init_script(
            "addEventListener('securitypolicyviolation', (event) => noteViolation("
            "`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`))"
        )

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning") and _EXPECTED_WORDS not in message.text:
            self.faults.append(f"console: {message.text}")

    def _requested(self, request: Any) -> None:
        # A stream ends with the page.
        if "/stream/" not in request.url:
            self._pending.add(request)
        if not request.url.startswith((self.origin + "/", "data:", "blob:" + self.origin)):
            self.faults.append(f"another host: {request.url}")

    def show(self, place: str) -> Page:
        """Show a page by its place, as in `topics?match=a`, and wait until it has its heading."""
        self.page.goto(f"{self.origin}/console/#/{place}")
        self.page.wait_for_selector("h1")
        return self.page

    def settle(self) -> None:
        """Wait until nothing is being asked any more, and all of it is drawn."""
        drawn = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        for _ in range(2):
            self.page.evaluate(drawn)
            self.page.wait_for_selector(".waiting, [aria-busy=true]", state="detached")
            while self._pending:
                self.page.wait_for_timeout(5)
        self.page.evaluate(drawn)

    def axe(self, rule: str = "") -> list[str]:
        """Return what axe-core finds, by one rule or by all: rule, element, and what is wrong with it."""
        if not self.page.evaluate("typeof axe === 'object'"):
            self.page.evaluate(AXE.read_text())
        found = self.page.evaluate(
            "(only) => axe.run(document, {runOnly: only, resultTypes: ['violations']})",
            {"type": "rule", "values": [rule]} if rule else {"type": "tag", "values": AXE_TAGS},
        )
        return [
            f"{violation['id']}: {node['target']} {node['failureSummary']}"
            for violation in found["violations"]
            for node in violation["nodes"]
        ]

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        wider = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return int(wider)


class Chromium:
    """The browser. `stop()` ends it, and the event loop that its driver keeps running in this thread."""

    def __init__(self) -> None:
        self._playwright: Playwright = sync_playwright().start()
        self._browser: Browser = self._playwright.chromium.launch(
            executable_path=PROGRAM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )

    def stop(self) -> None:
        self._browser.close()
        self._playwright.stop()

    @contextmanager
    def page(
        self,
        origin: str,
        *,
        size: str = "desk",
        theme: Theme = "light",
        stub: Stub | None = None,
        **more: Any,
    ) -> Iterator[Watched]:
        """A page of a browser that knows nothing of others; AssertionError at its end for its faults."""
        width, height = SIZES[size]
        context: BrowserContext = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            reduced_motion="reduce",
            locale="en-GB",
            timezone_id="UTC",
            **more,
        )
        context.set_default_timeout(20_000)
        try:
            if stub is not None:
                context.route("**/api/v1/**", stub.handle)
            watched = Watched(context.new_page(), origin)
            yield watched
            assert not watched.faults, watched.faults
        finally:
            context.close()


@contextmanager
def signed_in(chromium: Chromium, origin: str, role: str = "administrator") -> Iterator[Watched]:
    """A page of a gateway's console, by the token of a role."""
    with chromium.page(origin) as opened:
        opened.show("sign-in")
        sign_in(opened.page, role)
        yield opened


def sign_in(page: Page, role: str) -> None:
    """Sign in at the page for that."""
    # Nobody has a password here, so it is the only way.
    page.get_by_label("Token").fill(TOKENS[role])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Overview").wait_for()


class OpenPage(Protocol):
    """Opens a page with an API that is stubbed: `answers` by method and path."""

    def __call__(
        self, answers: dict[str, Any], *, role: str = "administrator", **more: Any
    ) -> AbstractContextManager[Watched]: ...
