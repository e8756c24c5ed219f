"""Requests made from the OpenAPI document, right ones and wrong ones, against a real gateway.

Every answer has to be one that the document names, with the body it describes, and the gateway goes on.
`HTTP_API_EXAMPLES=100` makes more of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
import schemathesis
from gateway_process import GatewayProcess
from http_api_caller import ROUTE_OF, TOKEN_SETTINGS, TOKENS, Caller
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation import GenerationMode

from iotmq.console.api.api import BASE
from iotmq.console.api.openapi import problems_of
from iotmq.console.api.route import Role, Route
from iotmq.console.api.routes.messaging.messages import BATCH_MAX
from iotmq.console.api.routes.table import ROUTES, openapi_json

ADMINISTRATOR = {"Authorization": f"Bearer {TOKENS[Role.ADMINISTRATOR]}"}
JSON = {"Content-Type": "application/json"}
EXAMPLES = int(os.environ.get("HTTP_API_EXAMPLES", "1"))
# An answer without an end, and what takes the gateway away from the others that ask it.
LEFT_OUT = {"stream_messages", "drain_front_end", "change_settings"}
HOSTILE = (
    "\0",
    "a\0b",
    "\u202egnp.exe",
    "<img src=x onerror=alert(1)>",
    "x" * 4000,
    "../../etc",
    "%00",
    "\ufeff",
)
NO_BODIES = (
    b"",
    b"null",
    b"[]",
    b'{"\\u0000": 1}',
    b"[" * 10_000,
    b'"\xff"',
    b'{"a": "' + b"x" * 70_000 + b'"}',
)
# A body or a head that is too large for the route or for any; no problem document.
OF_THE_PORT = (413, 431)
# They know no rules that stand in words alone, and take a check of health that fails for a server's fault.
UNWANTED_CHECKS = ("positive_data_acceptance", "not_a_server_error")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    directory = tmp_path_factory.mktemp("schema")
    config = directory / "iotmq.toml"
    config.write_text(TOKEN_SETTINGS)
    with GatewayProcess(directory / "data", config=config) as gateway:
        api = Caller(gateway)
        yield api
        metrics = api.request("GET", "/metrics", b"", {})
        assert metrics.status == 200
        assert b"iotmq_background_failures_total" not in metrics.body


def cases_of(strategy: Any, mode: GenerationMode) -> list[Any]:
    """The same ones in each run."""
    cases: list[Any] = []

    @seed(7)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def collect(case: Any) -> None:
        cases.append(case)

    try:
        collect()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, "there is no right request"
    return cases


def test_answers_to_requests_made_from_the_document_are_those_that_it_names(api: Caller) -> None:
    schema = schemathesis.openapi.from_dict(msgspec.json.decode(openapi_json()))
    operations = [each.ok() for each in schema.get_all_operations()]
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    cases = [
        case
        for operation in operations
        if operation.definition.raw["operationId"] not in LEFT_OUT
        for mode in modes
        for case in cases_of(operation.as_strategy(generation_mode=mode), mode)
    ]
    assert {case.operation.label for case in cases} >= {
        f"{each.method} {each.path.replace('...}', '}')}" for each in ROUTES if each.name not in LEFT_OUT
    }
    load_all_checks()
    unwanted = CHECKS.get_by_names(list(UNWANTED_CHECKS))
    base = f"http://127.0.0.1:{api.gateway.ports['http']}{BASE}"

    def check(case: Any) -> None:
        answer = case.call(base_url=base, headers=ADMINISTRATOR, timeout=60)
        if answer.status_code in OF_THE_PORT:
            return
        case.validate_response(answer, excluded_checks=unwanted)
        assert answer.status_code < 500 or "problem:unhealthy" in answer.text, answer.text

    all_of(check, cases)


def test_hostile_texts_and_bodies_get_a_problem_that_the_document_names(api: Caller) -> None:
    def check(asked: tuple[Route, str, bytes]) -> None:
        route, target, body = asked
        reply = api.request(route.method, target, body, ADMINISTRATOR | JSON)
        if reply.status in OF_THE_PORT:
            return
        documented = {200} | {kind.status for kind in problems_of(route)}
        assert reply.status in documented, (route.name, target[:200], reply)
        if reply.status != 200:
            problem = reply.problem
            assert reply.status < 500 or problem == "unhealthy", (route.name, target[:200], reply)

    asked: list[tuple[Route, str, bytes]] = []
    for route in ROUTES:
        if route.name in LEFT_OUT:
            continue
        names = [field.encode_name for field in msgspec.structs.fields(route.arguments)]
        for text in HOSTILE:
            path = route.path.replace("...}", "}").format(
                **{name: quote(text, safe="") for name in route.path_parameters}
            )
            query = urlencode({name: text for name in names if name not in route.path_parameters})
            asked += [(route, BASE + path, b"{}"), (route, f"{BASE}{path}?{query[:4000]}", b"{}")]
        if route.body is not None:
            path = route.path.replace("...}", "}").format(**dict.fromkeys(route.path_parameters, "x"))
            asked += [(route, BASE + path, body) for body in NO_BODIES]
    all_of(check, asked)


def all_of(check: Callable[[Any], None], asked: list[Any]) -> None:
    with ThreadPoolExecutor(16) as pool:
        errors = [each.exception() for each in [pool.submit(check, one) for one in asked]]
    found = [str(error) for error in errors if error is not None]
    assert not found, "\n\n".join(found[:10])


def test_the_description_names_every_route(api: Caller) -> None:
    description = api.get("show_description")
    assert description["openapi"] == "3.1.0"
    named = {each["operationId"] for path in description["paths"].values() for each in path.values()}
    assert named == set(ROUTE_OF)


def test_what_is_open_is_named_here() -> None:
    assert {route.name for route in ROUTES if route.is_open} == {
        "show_sign_in_ways",
        "sign_in",
        "begin_oidc_sign_in",
        "finish_oidc_sign_in",
    }


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if not route.is_open], ids=lambda route: route.name
)
def test_a_route_is_closed_to_who_has_no_token_and_to_lower_roles(api: Caller, route: Route) -> None:
    path = ["x"] * len(route.path_parameters)
    target = BASE + route.path.replace("...}", "}").format(*path, **dict.fromkeys(route.path_parameters, "x"))
    assert api.request(route.method, target, b"", {}).problem == "unauthenticated"
    for wrong in ("token-of-the-nobody", "token-of-the-scraper"):
        reply = api.request(route.method, target, b"", {"Authorization": f"Bearer {wrong}"})
        assert reply.problem == ("forbidden" if "scraper" in wrong else "unauthenticated")
    for role in Role:
        if role < route.role:
            assert api.ask(route.name, *path, role=role).problem == "forbidden"


def test_what_is_wrong_with_a_request_is_named(api: Caller) -> None:
    assert api.ask("publish", raw=b"{}").problem == "media-type"
    for body, pointer in (
        ({"mqtt_topic": "a", "qos": 3}, "/qos"),
        ({"mqtt_topic": "a", "qoss": 1}, ""),
        ({"mqtt_topic": "a", "payload_base64": "%"}, "/payload_base64"),
    ):
        reply = api.ask("publish", body=body)
        assert reply.problem == "invalid"
        assert reply.body["errors"][0]["pointer"] == pointer
    broken = api.request(
        "POST",
        f"{BASE}/messages",
        b'{"mqtt_topic": ',
        {"Authorization": f"Bearer {TOKENS[Role.OPERATOR]}", "Content-Type": "application/json"},
    )
    assert broken.problem == "malformed"
    nothing = api.request("GET", f"{BASE}/nothing", b"", {"Authorization": f"Bearer {TOKENS[Role.VIEWER]}"})
    assert nothing.problem == "not-found"
    other = api.request("PATCH", f"{BASE}/topics/x", b"", {"Authorization": f"Bearer {TOKENS[Role.VIEWER]}"})
    assert (other.problem, other.headers["allow"]) == ("method-not-allowed", "DELETE, GET, PUT")
    limits = api.ask("list_topics", query="limit=1001")
    assert limits.body["errors"][0]["parameter"] == "limit"
    one = [{"mqtt_topic": "many"}]
    assert api.get("publish_many", body={"items": one * BATCH_MAX})["stored"] == BATCH_MAX
    assert api.ask("publish_many", body={"items": one * (BATCH_MAX + 1)}).problem == "invalid"
