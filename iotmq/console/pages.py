"""The site of the operator's HTTP port: /metrics, /healthz, /readyz, the console, and all below /api/."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol
from urllib.parse import parse_qs

import msgspec

from iotmq import limits
from iotmq.console.access.proxies import Proxies, networks_of
from iotmq.console.access.tokens import Tokens
from iotmq.console.assets import Assets, is_of_console
from iotmq.console.exposition import Exposition
from iotmq.console.server.messages import Answer, Reply, Request
from iotmq.console.settings import HttpSettings
from iotmq.metrics import Metric, MetricSource, samples
from iotmq.ports.websockets import WebSocketPlace

API_PREFIX: Final = "/api/"

logger = logging.getLogger("iotmq.http")

# A check answers None when its part is ready, else the reason why it is not.
ReadinessCheck = Callable[[], str | None]


class Elsewhere(Protocol):
    """Parts in other processes, which this port answers for."""

    async def refresh(self) -> None:
        """Ask them, in bounded time; what the others here tell is from then."""

    @property
    def not_alive_reason(self) -> str | None:
        """Return why /healthz should say no, None when it should not."""

    def worker_states(self) -> Mapping[str, str | None]:
        """Return why each is not ready, None for those that are. A check says what that means for all."""


class ApiSite(Protocol):
    """The part of the site that answers requests of the API."""

    def body_bytes_max(self, head: Request) -> int: ...

    def answer(self, request: Request) -> Awaitable[Answer]: ...

    def websockets(self) -> Sequence[WebSocketPlace]: ...


class Pages:
    """A site. `sources` and `checks` are looked at with each request, so parts may join while it runs."""

    def __init__(
        self,
        settings: HttpSettings,
        *,
        sources: Collection[MetricSource] = (),
        checks: Mapping[str, ReadinessCheck] | None = None,
        elsewhere: Elsewhere | None = None,
        api: ApiSite | None = None,
    ) -> None:
        self._api = api
        self._assets = Assets(settings.base_path, websockets=api.websockets if api else tuple)
        self._exposition = Exposition(sources)
        self._checks: Mapping[str, ReadinessCheck] = {} if checks is None else checks
        self._elsewhere = elsewhere
        self._pages = {
            "/metrics": self._metrics,
            "/metrics/topics": self._topic_metrics,
            "/healthz": self._health,
            "/readyz": self._readiness,
        }
        self._tokens = Tokens(settings.tokens)
        self._proxies = Proxies(networks_of(settings.proxies), settings.base_path)
        self._open_paths = frozenset(settings.open_paths)
        self._unauthorized_count = 0

    def body_bytes_max(self, head: Request) -> int:
        """Return how large a body may be; pages want none."""
        head = self._proxies.seen(head)
        return self._api.body_bytes_max(head) if self._api and _is_of_api(head) else 0

    def answer(self, request: Request) -> Reply:
        """Answer a request."""
        request = self._proxies.seen(request)
        if self._api and _is_of_api(request):
            return self._api.answer(request)
        if self._api and is_of_console(request):
            # There is nothing secret in them: the pages ask the API for all they show.
            return self._assets.answer(request)
        if not self._is_authorized(request):
            return self._refused(request)
        page = self._pages.get(request.path)
        if page is None:
            return Answer(b"not found\n", 404)
        if request.method not in ("GET", "HEAD"):
            return Answer(b"method not allowed\n", 405, headers=(("Allow", "GET, HEAD"),))
        if self._elsewhere is not None:
            return self._refreshed(self._elsewhere, page, request)
        return page(request)

    def metrics(self) -> Iterable[Metric]:
        """Report whom these pages have refused."""
        text = "Requests without a token of http.tokens."
        return samples(("iotmq_http_unauthorized_total", text, self._unauthorized_count))

    def _is_authorized(self, request: Request) -> bool:
        """Return whether the request needs no token, or has one."""
        if not self._tokens or request.path in self._open_paths:
            return True
        return self._tokens.find(request) is not None

    def _refused(self, request: Request) -> Answer:
        self._unauthorized_count += 1
        logger.warning("request without a token", extra={"peer": request.peer})
        return Answer(
            b"a token of http.tokens is needed\n",
            401,
            headers=(("WWW-Authenticate", 'Bearer realm="iotmq"'),),
        )

    async def _refreshed(
        self, elsewhere: Elsewhere, page: Callable[[Request], Answer], request: Request
    ) -> Answer:
        await elsewhere.refresh()
        return page(request)

    def _metrics(self, request: Request) -> Answer:
        body, content_type = self._exposition.render(request.headers.get("accept", ""))
        return Answer(body, content_type=content_type)

    def _topic_metrics(self, request: Request) -> Answer:
        """Answer with the numbers of topics that match a pattern: all would be thousands."""
        try:
            asked = parse_qs(request.query, strict_parsing=True, max_num_fields=1)
        except ValueError:
            asked = {}
        (pattern,) = asked.pop("match", [""])[-1:]
        if asked or not 0 < len(pattern) <= limits.TOPIC_PATTERN_CHARACTERS_MAX:
            return Answer(b"name topics: /metrics/topics?match=PATTERN, with * for any characters\n", 400)
        try:
            body, content_type = self._exposition.render_topics(pattern, request.headers.get("accept", ""))
        except ValueError as error:
            return Answer(f"{error}\n".encode(), 400)
        return Answer(body, content_type=content_type)

    def _health(self, _request: Request) -> Answer:
        """Answered by the loop that serves everything else: an answer is the proof that it turns."""
        reason = None if self._elsewhere is None else self._elsewhere.not_alive_reason
        return Answer(f"{reason or 'ok'}\n".encode(), 503 if reason else 200)

    def _readiness(self, _request: Request) -> Answer:
        """200 when every part is ready; 503 with the reasons of those that are not."""
        reasons = {name: check() for name, check in self._checks.items()}
        is_ready = not any(reasons.values())
        if self._elsewhere is not None:
            reasons |= self._elsewhere.worker_states()
        parts = {name: reason or "ready" for name, reason in reasons.items()}
        body = msgspec.json.encode({"ready": is_ready, "parts": parts})
        return Answer(body, 200 if is_ready else 503, "application/json")


def _is_of_api(request: Request) -> bool:
    return request.path.startswith(API_PREFIX)
