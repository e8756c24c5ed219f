"""The way of a request through the API: route, caller, role, arguments, body, handler, answer, audit."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Collection, Iterable
from functools import cache, partial
from typing import Any, Final, Protocol

import msgspec

from iotmq.audit_log import Record
from iotmq.console.access.browser import security_headers
from iotmq.console.api.allowed_stream import while_allowed
from iotmq.console.api.arguments import decode_arguments
from iotmq.console.api.lists import chosen_fields, in_pieces, link_to_next
from iotmq.console.api.problems import (
    FORBIDDEN,
    INTERNAL,
    MALFORMED,
    MEDIA_TYPE,
    METHOD,
    TIMEOUT,
    UNAUTHENTICATED,
    ProblemError,
    answer_of,
    from_error,
    invalid_body,
)
from iotmq.console.api.route import Call, Caller, Coming, Route
from iotmq.console.api.routing import RouteTree
from iotmq.console.server.messages import Answer, Later, Request
from iotmq.errors import IotmqError
from iotmq.metrics import Metric, samples_by
from iotmq.secret_text import SECRET_SHOWN, Secret
from iotmq.supervised import FAILURES

logger = logging.getLogger("iotmq.http.api")

BASE: Final = "/api/v1"
# A handler that asks brokers has their times; past this the one who asks is told so.
_HANDLER_S_MAX: Final = 30.0
_AUDITED_CHARACTERS_MAX: Final = 500
_JSON: Final = "application/json"


class Gate(Protocol):
    """Knows who asks."""

    def caller(self, request: Request) -> Caller:
        """Return who asks. ProblemError when nobody may, or when a page of another site asks."""

    def anybody(self, request: Request) -> Caller:
        """Return who asks for what is open. ProblemError when a page of another site asks."""


class Api:
    """Answers the requests below `BASE`."""

    def __init__(
        self,
        routes: Iterable[Route],
        services: object,
        gate: Gate,
        *,
        record: Record,
        open_paths: Collection[str] = (),
    ) -> None:
        """`open_paths` are paths of the port below which nobody has to show who they are."""
        self._tree = RouteTree(routes)
        self._services = services
        self._gate = gate
        self._record = record
        self._open_paths = frozenset(open_paths)
        self._count_of: Counter[str] = Counter()

    def body_bytes_max(self, head: Request) -> int:
        """Return how large a body the route takes; 0 without a route, and for who may not ask."""
        try:
            route, _ = self._tree.find(head.method, _path_below(head))
            self._allow(route, head)
        except ProblemError:
            return 0
        return route.body_bytes_max

    def answer(self, request: Request) -> Awaitable[Answer]:
        """Answer a request; problems are documents, and faults are logged."""
        try:
            route, path = self._tree.find(request.method, _path_below(request))
            caller = self._allow(route, request)
            arguments = decode_arguments(route.arguments, path, request.query, request.headers)
            fields = chosen_fields(arguments, route.answer)
            call = Call(arguments, _body(route, request), caller, request)
            doing = route.handler(self._services, call)
        except Exception as error:
            return _ready(self._failed(request, error))
        if isinstance(doing, Coming):
            return Later(doing.future, partial(self._answer_of, request, doing))
        return self._answer(route, call, fields, doing)

    def metrics(self) -> Iterable[Metric]:
        """Report how many requests were answered with which status."""
        return samples_by("status", "iotmq_http_api_requests_total", "Requests of the API.", self._count_of)

    def _answer_of(self, request: Request, coming: Coming, future: asyncio.Future[Any]) -> Answer:
        """Answer with what a future of a handler has led to."""
        try:
            return self._done(request, coming.make(future.result()))
        except Exception as error:
            return self._failed(request, error)

    async def _answer(
        self, route: Route, call: Call[Any, Any], fields: frozenset[str] | None, doing: Awaitable[Any]
    ) -> Answer:
        try:
            answer = await self._handled(route, call, doing)
            if isinstance(answer, Answer) and answer.stream is not None:
                stream = while_allowed(answer.stream, lambda: self._allow(route, call.request))
                answer = answer._replace(stream=stream)
            return self._done(call.request, await in_pieces(answer, fields))
        except Exception as error:
            return self._failed(call.request, error)

    async def _handled(self, route: Route, call: Call[Any, Any], doing: Awaitable[Any]) -> Any:
        """Wait for the end of a handler, and write the audit record."""
        result = "done"
        try:
            async with asyncio.timeout(_HANDLER_S_MAX):
                return await doing
        except TimeoutError:
            result = "unknown"
            raise ProblemError(TIMEOUT, f"not done within {_HANDLER_S_MAX:.0f} s") from None
        except (IotmqError, ConnectionError, ProblemError):
            result = "refused"
            raise
        except BaseException:
            result = "failed"
            raise
        finally:
            if route.is_audited:
                self._audit(route, call, result)

    def _done(self, request: Request, answer: Any) -> Answer:
        """Make the answer of what a handler has returned."""
        if isinstance(answer, Answer):
            return self._counted(request, answer)
        headers = link_to_next(answer, request.query)
        return self._counted(request, Answer(msgspec.json.encode(answer), 200, _JSON, headers))

    def _failed(self, request: Request, error: Exception) -> Answer:
        """Make the answer of what was raised on the way."""
        if isinstance(error, (IotmqError, ConnectionError)):
            error = from_error(error)
        if not isinstance(error, ProblemError):
            FAILURES.note("http api")
            return self._counted(request, answer_of(ProblemError(INTERNAL, "")))
        headers: tuple[tuple[str, str], ...] = ()
        if error.kind is METHOD:
            # The detail of this problem is the list of methods there are.
            headers = (("Allow", str(error)),)
        elif error.kind is UNAUTHENTICATED:
            logger.warning("nobody is signed in", extra={"peer": request.peer})
            headers = (("WWW-Authenticate", 'Bearer realm="iotmq"'),)
        return self._counted(request, answer_of(error, headers))

    def _counted(self, request: Request, answer: Answer) -> Answer:
        """Count an answer, and give it the headers that all of them have."""
        self._count_of[str(answer.status)] += 1
        body, status, content_type, headers, stream = answer
        return Answer(body, status, content_type, headers + security_headers(request), stream)

    def _allow(self, route: Route, request: Request) -> Caller:
        if route.is_open or route.open_path in self._open_paths:
            return self._gate.anybody(request)
        caller = self._gate.caller(request)
        if (caller.scopes and route.tag not in caller.scopes) or (
            route.is_for_people and caller.way == "key"
        ):
            raise ProblemError(FORBIDDEN, f"the key {caller.name} is not for {route.tag}")
        if caller.role < route.role:
            needed, own = route.role.name.lower(), caller.role.name.lower()
            raise ProblemError(FORBIDDEN, f"this takes the role {needed}; {caller.name} is {own}")
        return caller

    def _audit(self, route: Route, call: Call[Any, Any], result: str) -> None:
        fields = msgspec.json.encode(call.arguments).decode()
        if isinstance(call.body, msgspec.Struct):
            fields += " " + msgspec.json.encode(_shown(call.body)).decode()
        self._record(
            "administered",
            account=call.caller.name,
            address=call.caller.address,
            request=route.name,
            fields=fields[:_AUDITED_CHARACTERS_MAX],
            result=result,
        )


def _path_below(request: Request) -> str:
    """Return the path below `BASE`; that of another version as it is, where no route is."""
    is_below = request.path.startswith(f"{BASE}/")
    return request.path.removeprefix(BASE) if is_below else request.path


def _shown(body: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a body without the secrets among them."""
    fields = msgspec.structs.asdict(body)
    return {name: SECRET_SHOWN if isinstance(each, Secret) else each for name, each in fields.items()}


def _body(route: Route, request: Request) -> Any:
    if route.body is None or route.body is bytes:
        return request.body
    media_type = request.headers.get("content-type", "")
    if media_type != _JSON and media_type.partition(";")[0].strip().lower() != _JSON:
        raise ProblemError(MEDIA_TYPE, "the body has to be JSON: Content-Type: application/json")
    try:
        return _decoder(route.body).decode(request.body)
    except msgspec.ValidationError as error:
        raise invalid_body(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProblemError(MALFORMED, f"the body is no JSON: {error}") from None


async def _ready(answer: Answer) -> Answer:
    return answer


@cache
def _decoder(form: type) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(form)
