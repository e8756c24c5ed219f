"""Ask the HTTP API of a running gateway by the names of its routes."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from gateway_process import GatewayProcess

from iotmq.console.api.api import BASE
from iotmq.console.api.route import Role, Route
from iotmq.console.api.routes.table import ROUTES

ROUTE_OF = {route.name: route for route in ROUTES}
TOKENS = {role: f"token-of-the-{role.name.lower()}" for role in Role}
TOKEN_SETTINGS = "[http]\nopen_paths = ['/healthz', '/readyz', '/metrics']\n" + "".join(
    f"[[http.tokens]]\nname = '{name}'\ntoken = '{token}'\nrole = '{name}'\n"
    for name, token in (
        *((role.name.lower(), token) for role, token in TOKENS.items()),
        ("metrics", "token-of-the-scraper"),
    )
)
"""A token for each role, and one that may only scrape."""


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any

    @property
    def problem(self) -> str:
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.body["status"] == self.status
        return str(self.body["type"]).removeprefix("urn:iotmq:problem:")


class Caller:
    """Asks with the token of a role."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway

    def ask(
        self,
        name: str,
        *path: str,
        query: str = "",
        body: object = None,
        raw: bytes = b"",
        role: Role | None = None,
        token: str = "",
        headers: Mapping[str, str] = {},
    ) -> Reply:
        """Ask a route, by default with the lowest role it allows."""
        route = ROUTE_OF[name]
        sent = {"Authorization": f"Bearer {token or TOKENS[role or route.role]}", **headers}
        if body is not None:
            sent["Content-Type"] = "application/json"
            raw = json.dumps(body).encode()
        return self.request(route.method, target_of(route, *path, query=query), raw, sent)

    def get(self, name: str, *path: str, **more: Any) -> Any:
        """Ask as `ask` and return the body of an answer that has to be one."""
        reply = self.ask(name, *path, **more)
        assert reply.status == 200, reply
        return reply.body

    def pages(self, name: str, *path: str, query: str) -> list[list[Any]]:
        """The items of each page of a list, to its end."""
        page = self.get(name, *path, query=query)
        found = [page["items"]]
        while page["next"] is not None:
            page = self.get(name, *path, query=f"{query}&cursor={page['next']}")
            found.append(page["items"])
        return found

    def request(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        return exchange(self.gateway, method, target, body, headers)


class Event(NamedTuple):
    kind: str
    id: str
    data: Any


class Stream:
    """Reads events; `with` opens it."""

    def __init__(self, api: Caller, query: str, headers: dict[str, str] | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", api.gateway.ports["http"], timeout=60)
        self._target = f"{BASE}/stream/messages?{query}"
        self._headers = {"Authorization": f"Bearer {TOKENS[Role.VIEWER]}"} | (headers or {})
        self._answer: http.client.HTTPResponse

    def __enter__(self) -> Stream:
        self._connection.request("GET", self._target, headers=self._headers)
        self._answer = self._connection.getresponse()
        assert self._answer.headers["content-type"] == "text/event-stream"
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._answer.close()

    def events(self, count: int) -> list[Event]:
        """The next events, without what has no data."""
        found: list[Event] = []
        fields: dict[str, str] = {}
        while len(found) < count:
            line = self._answer.readline().decode().removesuffix("\n")
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
                continue
            if "data" in fields:
                data = json.loads(fields["data"])
                found.append(Event(fields.get("event", ""), fields.get("id", ""), data))
            fields = {}
        return found


def target_of(route: Route, *path: str, query: str = "") -> str:
    """The target of a route with these parameters of its path."""
    values = dict(zip(route.path_parameters, (quote(each, safe="") for each in path), strict=True))
    target = BASE + route.path.replace("...}", "}").format(**values)
    return f"{target}?{query}" if query else target


def exchange(
    gateway: GatewayProcess, method: str, target: str, body: bytes, headers: Mapping[str, str]
) -> Reply:
    """Send one request on a connection of its own; JSON answers are decoded."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.ports["http"], timeout=60)
    try:
        connection.request(method, target, body or None, dict(headers))
        answer = connection.getresponse()
        read = answer.read()
    finally:
        connection.close()
    found = {name.lower(): value for name, value in answer.getheaders()}
    return Reply(answer.status, found, json.loads(read) if found["content-type"].endswith("json") else read)
