"""The HTTP API of a process without the process: its role on a manual clock, and browsers that ask it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
from manual_clock import ManualClock

from iotmq.client.client import IotmqClient
from iotmq.console.access.access import Access
from iotmq.console.api.api import BASE
from iotmq.console.api.role import ApiRole
from iotmq.console.server.messages import Request
from iotmq.console.settings import HttpSettings
from iotmq.metrics import Metric


class Reply(NamedTuple):
    """An answer, its body as JSON."""

    status: int
    headers: dict[str, str]
    body: Any

    @property
    def problem(self) -> str:
        """The word of the problem that it is."""
        assert self.headers["content-type"] == "application/problem+json", self
        return str(self.body["type"]).removeprefix("urn:iotmq:problem:")


class ConsoleSite:
    """Start and stop it; `link` is what the log has said."""

    def __init__(
        self, settings: HttpSettings, directory: Path | None, clock: ManualClock | None = None
    ) -> None:
        self.clock = clock or ManualClock()
        self.access = Access(settings, directory, self.clock)
        self.role = ApiRole(self.access, _no_client, self.clock, own=_Alone(), source="test")

    async def __aenter__(self) -> ConsoleSite:
        await self.role.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.role.stop()

    def browser(self, **headers: str) -> Browser:
        """Open a browser on this machine."""
        return Browser(self, headers)


class Browser:
    """Asks as a page of this port does, and keeps the cookie it is given."""

    def __init__(self, site: ConsoleSite, headers: dict[str, str]) -> None:
        self.site = site
        self.headers = {
            "host": "127.0.0.1:8080",
            "sec-fetch-site": "same-origin",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        self.peer = "127.0.0.1"
        self.proxy = ""
        self.is_encrypted = False
        self.cookie = ""

    def request(self, method: str, path: str, body: object = None, **headers: str) -> Request:
        """Make the request that would be sent; an empty header is left out."""
        sent = b"" if body is None else msgspec.json.encode(body)
        fields = {"content-type": "application/json"} if sent else {}
        fields |= self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            fields["cookie"] = self.cookie
        path, _, query = path.partition("?")
        return Request(
            method,
            BASE + path,
            query,
            {name: value for name, value in fields.items() if value},
            self.peer,
            self.is_encrypted,
            sent,
            self.proxy,
        )

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """Ask, and keep the cookie of the answer."""
        answer = await self.site.role.answer(self.request(method, path, body, **headers))
        found = {name.lower(): value for name, value in answer.headers} | {
            "content-type": answer.content_type
        }
        for name, value in answer.headers:
            if name == "Set-Cookie":
                self._take(value)
        is_json = "json" in answer.content_type
        return Reply(answer.status, found, msgspec.json.decode(answer.body) if is_json else answer.body)

    def _take(self, header: str) -> None:
        pair, _, marks = header.partition(";")
        kept = dict(each.partition("=")[::2] for each in self.cookie.split("; ") if each)
        name, _, value = pair.partition("=")
        kept[name] = value
        if "Max-Age=0" in marks:
            del kept[name]
        self.cookie = "; ".join(f"{name}={value}" for name, value in kept.items())

    async def sign_in(self, user: str, password: str) -> Reply:
        """Sign in with a password."""
        return await self.ask("POST", "/sign-in", {"user": user, "password": password})


class _Alone:
    """A process with no other parts."""

    addresses: ClassVar[Mapping[str, str]] = {}

    async def states(self) -> Mapping[str, str | None]:
        return {}

    def metrics(self) -> Iterable[Metric]:
        return ()


def _no_client() -> IotmqClient:
    raise ConnectionRefusedError("there is no broker, so audit records wait")


