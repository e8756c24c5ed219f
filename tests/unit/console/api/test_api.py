"""The way of a request through the API, with routes of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from iotmq.console.api import allowed_stream
from iotmq.console.api import api as api_module
from iotmq.console.api.api import BASE, Api
from iotmq.console.api.problems import (
    CONFLICT,
    FORBIDDEN,
    INVALID,
    NOT_FOUND,
    NOT_SUPPORTED,
    TIMEOUT,
    TOO_MANY,
    UNAUTHENTICATED,
    UNAVAILABLE,
    Kind,
    Problem,
    ProblemError,
    from_error,
    invalid_body,
)
from iotmq.console.api.route import Call, Caller, Coming, NoArguments, Role, route
from iotmq.console.server.messages import Answer, Request, Sink
from iotmq.errors import (
    BrokerError,
    ClientError,
    ConnectionClosedError,
    IotmqError,
    MessageRefusedError,
    NotMasterError,
    NotSupportedError,
    ProducerBusyError,
    RequestTimeoutError,
    RouteNotFoundError,
    SendFailedError,
)
from iotmq.remoting.codes import ResponseCode
from iotmq.secret_text import hide
from iotmq.supervised import FAILURES


class Services:
    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.callers: list[Caller] = []
        self.coming: asyncio.Future[int]


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    limit: int = 1


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    values: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=3)]


class Result(msgspec.Struct, frozen=True):
    name: str
    total: int


class Secrets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    password: str

    def __post_init__(self) -> None:
        hide(self, "password")


async def add(services: Services, call: Call[Arguments, Body]) -> Result:
    """Add values."""
    services.callers.append(call.caller)
    if services.error is not None:
        raise services.error
    return Result(call.arguments.name, call.arguments.limit + sum(call.body.values))


async def show(services: Services, _call: Call[NoArguments, None]) -> Result:
    """Show a number."""
    if services.error is not None:
        raise services.error
    return Result("", 1)


async def hang(_services: Services, _call: Call[NoArguments, None]) -> Result:
    """Answer never."""
    await asyncio.Event().wait()
    raise AssertionError


async def flow(services: Services, _call: Call[NoArguments, None]) -> Answer:
    """Stream two pieces."""

    async def stream(sink: Sink) -> None:
        await sink.write(b"one")
        if services.error is not None:
            raise services.error
        await sink.write(b"two")

    return Answer(stream=stream)


async def keep_secret(services: Services, call: Call[NoArguments, Secrets]) -> Result:
    """Take a secret."""
    services.callers.append(call.caller)
    return Result(call.body.name, len(call.body.password))


async def keep(_services: Services, call: Call[NoArguments, bytes]) -> Answer:
    """Answer with the body."""
    return Answer(call.body, content_type="application/octet-stream")


def come(services: Services, _call: Call[NoArguments, None]) -> Coming:
    """Answer with what comes."""
    if services.error is not None:
        raise services.error
    return Coming(services.coming, lambda total: Result("came", total))


ROUTES = (
    route("GET", "/coming", come, tag="t", answer=Result),
    route("POST", "/sums/{name}", add, tag="t", role=Role.OPERATOR, body_bytes_max=100),
    route("GET", "/number", show, tag="t"),
    route("GET", "/never", hang, tag="t"),
    route("GET", "/stream", flow, tag="t"),
    route("POST", "/secrets", keep_secret, tag="t", is_open=True),
    route("DELETE", "/number", show, tag="u", is_for_people=True),
    route("GET", "/open", show, tag="t", open_path="/open"),
    route("PUT", "/bytes", keep, tag="t", body_bytes_max=10, is_audited=False),
)


class Gate:
    """Calls by the name of a role, in the header `x-role`."""

    def caller(self, request: Request) -> Caller:
        name = request.headers.get("x-role")
        if name is None:
            raise ProblemError(UNAUTHENTICATED, "nobody")
        return Caller(name, Role[name.upper()], request.peer)

    def anybody(self, request: Request) -> Caller:
        return Caller("nobody", Role.VIEWER, request.peer, None)


class Site:
    def __init__(self, open_paths: tuple[str, ...] = ()) -> None:
        self.services = Services()
        self.records: list[dict[str, Any]] = []
        self.api = Api(ROUTES, self.services, Gate(), record=self._record, open_paths=open_paths)

    def _record(self, event: str, **fields: Any) -> None:
        self.records.append({"event": event, **fields})

    async def ask(
        self, method: str, target: str, body: bytes = b"", *, role: str | None = "operator", json: bool = True
    ) -> Answer:
        path, _, query = target.partition("?")
        headers = {} if role is None else {"x-role": role}
        if json and body:
            headers["content-type"] = "application/json; charset=utf-8"
        request = Request(method, BASE + path, query, headers, "192.0.2.1", body=body)
        return await self.api.answer(request)


@pytest.fixture
def site() -> Site:
    return Site()


def problem(answer: Answer) -> Problem:
    assert answer.content_type == "application/problem+json"
    document = msgspec.json.decode(answer.body, type=Problem)
    assert document.status == answer.status
    return document


async def test_a_request_goes_all_the_way(site: Site) -> None:
    answer = await site.ask("POST", "/sums/a%20b?limit=4", b'{"values": [1, 2]}')
    assert (answer.status, answer.body) == (200, b'{"name":"a b","total":7}')
    assert site.services.callers == [Caller("operator", Role.OPERATOR, "192.0.2.1")]
    assert site.records == [
        {
            "event": "administered",
            "account": "operator",
            "address": "192.0.2.1",
            "request": "add",
            "fields": '{"name":"a b","limit":4} {"values":[1,2]}',
            "result": "done",
        }
    ]


async def test_what_is_open_asks_nobody_who_that_is_and_secrets_are_not_audited(site: Site) -> None:
    answer = await site.ask("POST", "/secrets", b'{"name": "ada", "password": "12345"}', role=None)
    assert (answer.status, answer.body) == (200, b'{"name":"ada","total":5}')
    assert site.services.callers[0].way is None
    assert (site.records[0]["account"], site.records[0]["fields"]) == (
        "nobody",
        '{} {"name":"ada","password":"********"}',
    )


async def test_a_key_is_for_its_areas_and_never_for_what_is_for_people(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def caller(_self: Gate, request: Request) -> Caller:
        scopes = frozenset(request.headers["x-role"].split())
        return Caller("k", Role.ADMINISTRATOR, request.peer, "key", scopes=scopes)

    monkeypatch.setattr(Gate, "caller", caller)
    assert (await site.ask("GET", "/number", role="t")).status == 200
    assert (await site.ask("GET", "/number", role="")).status == 200
    denied = await site.ask("GET", "/number", role="u v")
    assert problem(denied).detail == "the key k is not for t"
    for scopes in ("", "u"):
        assert (await site.ask("DELETE", "/number", role=scopes)).status == 403


async def test_reading_and_what_is_not_to_be_audited_leave_no_record(site: Site) -> None:
    assert (await site.ask("GET", "/number")).status == 200
    assert (await site.ask("PUT", "/bytes", b"\x00\xff", json=False)).body == b"\x00\xff"
    assert site.records == []


async def test_a_role_allows_what_the_roles_below_it_may(site: Site) -> None:
    for role, status in (("viewer", 403), ("operator", 200), ("administrator", 200)):
        answer = await site.ask("POST", "/sums/a", b'{"values": []}', role=role)
        assert answer.status == status
    denied = await site.ask("POST", "/sums/a", b'{"values": []}', role="viewer")
    assert problem(denied).type == FORBIDDEN.uri
    assert problem(denied).detail == "this takes the role operator; viewer is viewer"
    assert problem(await site.ask("GET", "/number", role=None)).type == UNAUTHENTICATED.uri


@pytest.mark.parametrize(
    ("body", "kind", "pointer"),
    [
        (b'{"values": [1, -1]}', "invalid", "/values/1"),
        (b'{"values": [1, 1, 1, 1]}', "invalid", "/values"),
        (b'{"values": [], "more": 1}', "invalid", ""),
        (b"[]", "invalid", ""),
        (b'{"values": [', "malformed", None),
        (b"nothing", "malformed", None),
        (b"[" * 90, "invalid", ""),
    ],
)
async def test_a_wrong_body_says_where(site: Site, body: bytes, kind: str, pointer: str | None) -> None:
    document = problem(await site.ask("POST", "/sums/a", body))
    assert document.type == f"urn:iotmq:problem:{kind}"
    assert [each.pointer for each in document.errors] == ([] if pointer is None else [pointer])
    assert site.records == []


async def test_a_body_of_another_type_is_not_read(site: Site) -> None:
    assert (await site.ask("POST", "/sums/a", b'{"values": []}', json=False)).status == 415


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RouteNotFoundError("no topic"), NOT_FOUND),
        (BrokerError(ResponseCode.TOPIC_NOT_EXIST, "no topic"), NOT_FOUND),
        (BrokerError(ResponseCode.NO_PERMISSION, "not yours"), FORBIDDEN),
        (BrokerError(ResponseCode.SYSTEM_BUSY, "full"), UNAVAILABLE),
        (BrokerError(ResponseCode.TOO_MANY_WAITING, "full"), TOO_MANY),
        (BrokerError(ResponseCode.SYSTEM_ERROR, "no"), CONFLICT),
        (NotSupportedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "unknown"), NOT_SUPPORTED),
        (NotMasterError(ResponseCode.SERVICE_NOT_AVAILABLE, "another"), UNAVAILABLE),
        (ConnectionClosedError("gone"), UNAVAILABLE),
        (ConnectionResetError("gone"), UNAVAILABLE),
        (SendFailedError("tried"), UNAVAILABLE),
        (RequestTimeoutError("silent"), TIMEOUT),
        (ProducerBusyError("full"), TOO_MANY),
        (MessageRefusedError("name"), INVALID),
        (ClientError("name"), INVALID),
    ],
)
async def test_errors_of_brokers_are_problems_with_their_words(
    site: Site, error: IotmqError | ConnectionError, kind: Kind
) -> None:
    site.services.error = error
    answer = await site.ask("POST", "/sums/a", b'{"values": []}')
    document = problem(answer)
    assert (document.type, document.status, document.detail) == (kind.uri, kind.status, str(error))
    assert document.code == (error.code if isinstance(error, BrokerError) else None)
    assert (("Retry-After", "1") in answer.headers) == (kind.status in (429, 503))
    assert site.records[0]["result"] == "refused"
    assert from_error(error).document == document


async def test_a_fault_is_a_500_that_says_nothing_of_itself(site: Site) -> None:
    before = FAILURES.count("http api")
    site.services.error = RuntimeError("a secret")
    document = problem(await site.ask("GET", "/number"))
    assert (document.status, document.detail) == (500, "")
    assert FAILURES.count("http api") == before + 1


async def test_a_handler_has_so_much_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "_HANDLER_S_MAX", 0.01)
    assert problem(await site.ask("GET", "/never")).type == TIMEOUT.uri


async def test_a_handler_may_answer_with_a_future(site: Site) -> None:
    loop = asyncio.get_running_loop()
    site.services.coming = loop.create_future()
    loop.call_soon(site.services.coming.set_result, 7)
    answer = await site.ask("GET", "/coming")
    assert (answer.status, answer.body) == (200, b'{"name":"came","total":7}')
    site.services.coming = loop.create_future()
    site.services.coming.set_exception(RequestTimeoutError("no answer"))
    assert problem(await site.ask("GET", "/coming")).status == 504
    site.services.error = MessageRefusedError("no topic")
    assert problem(await site.ask("GET", "/coming")).status == 422
    found = {dict(metric.labels)["status"]: metric.value for metric in site.api.metrics()}
    assert found == {"200": 1, "422": 1, "504": 1}


async def test_other_methods_are_named(site: Site) -> None:
    answer = await site.ask("DELETE", "/bytes")
    assert answer.status == 405
    assert answer.headers[0] == ("Allow", "PUT")


def test_a_body_is_read_only_for_who_may_send_it(site: Site) -> None:
    def wanted(method: str, path: str, role: str | None) -> int:
        headers = {} if role is None else {"x-role": role}
        return site.api.body_bytes_max(Request(method, BASE + path, "", headers, ""))

    assert wanted("POST", "/sums/a", "operator") == 100
    assert wanted("POST", "/sums/a", "viewer") == 0
    assert wanted("POST", "/sums/a", None) == 0
    assert wanted("POST", "/nothing", "operator") == 0
    assert wanted("GET", "/number", "operator") == 0


class Pieces:
    """A sink that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    async def write(self, data: bytes) -> None:
        self.written.append(data)

    def when_peer_ends(self, call: Callable[[], None]) -> None:
        """Nobody goes away here."""


async def test_a_stream_is_cut_when_who_reads_it_may_not_any_more(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowed_stream, "_LOOK_S", 0.0)
    answer = await site.ask("GET", "/stream")
    assert answer.stream is not None
    sink = Pieces()
    await answer.stream(sink)
    assert sink.written == [b"one", b"two"]

    def nobody(_self: Gate, _request: Request) -> Caller:
        raise ProblemError(UNAUTHENTICATED, "signed out")

    monkeypatch.setattr(Gate, "caller", nobody)
    with pytest.raises(ConnectionAbortedError, match="signed out"):
        await answer.stream(sink)
    assert sink.written == [b"one", b"two"]


async def test_a_stream_is_cut_short_when_brokers_fail(site: Site) -> None:
    site.services.error = RequestTimeoutError("no answer")
    answer = await site.ask("GET", "/stream")
    assert answer.stream is not None
    sink = Pieces()
    with pytest.raises(ConnectionAbortedError, match="no answer"):
        await answer.stream(sink)
    assert sink.written == [b"one"]


@pytest.mark.parametrize("path", ["/api/v1x/number", "/api/v11/number", "/api/v1number", "/api/v1"])
async def test_a_path_that_only_begins_like_the_base_is_none(site: Site, path: str) -> None:
    request = Request("GET", path, "", {"x-role": "viewer"}, "192.0.2.1")
    assert problem(await site.api.answer(request)).status == 404
    assert site.api.body_bytes_max(request._replace(method="PUT", path=path.replace("number", "bytes"))) == 0


async def test_what_a_handler_refuses_is_audited_as_refused(site: Site) -> None:
    site.services.error = ProblemError(CONFLICT, "no")
    assert (await site.ask("POST", "/sums/a", b'{"values": []}')).status == 409
    assert site.records[0]["result"] == "refused"


async def test_requests_are_counted_by_status(site: Site) -> None:
    await site.ask("GET", "/number")
    await site.ask("GET", "/number")
    await site.ask("GET", "/nothing")
    counts = {metric.labels: metric.value for metric in site.api.metrics()}
    assert counts == {(("status", "200"),): 2, (("status", "404"),): 1}


def test_a_key_of_a_table_has_a_pointer_too() -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.json.decode(b'{"a": {"b": [1, "x"]}}', type=dict[str, dict[str, list[int]]])
    assert invalid_body(raised.value).errors[0].pointer.endswith("/1")


async def test_a_path_that_the_settings_open_is_for_everybody() -> None:
    for open_paths, status in (((), 401), (("/number",), 401), (("/open",), 200)):
        site = Site(open_paths)
        assert (await site.ask("GET", "/open", role=None)).status == status
        assert (await site.ask("GET", "/open", role="viewer")).status == 200
        assert (await site.ask("GET", "/number", role=None)).status == 401
