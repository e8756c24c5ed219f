"""Requests made from the OpenAPI document, right ones and wrong ones, against a real gateway.

Every answer has to be one that the document names, with the body it describes, and the gateway goes on.
`HTTP_API_EXAMPLES=100` makes more of them.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
import schemathesis
from gateway_process import GatewayProcess
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation import GenerationMode

from iotmq.console.api.api import BASE
from iotmq.console.api.openapi import problems_of
from iotmq.console.api.route import Route
from iotmq.console.api.routes.table import ROUTES, openapi_json

TOKEN = "token-of-the-administrator"
SETTINGS = f"""[http]
open_paths = ["/healthz", "/readyz", "/metrics"]
[[http.tokens]]
name = "schema"
token = "{TOKEN}"
role = "administrator"
"""
EXAMPLES = int(os.environ.get("HTTP_API_EXAMPLES", "1"))
# An answer without an end, and what takes the gateway away from the others that ask it.
LEFT_OUT = {"stream_messages", "stream_changes", "drain_front_end", "change_settings"}
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
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("schema")
    config = directory / "iotmq.toml"
    config.write_text(SETTINGS)
    with GatewayProcess(directory / "data", config=config) as running:
        yield running
        status, _, body = ask(running, "GET", "/metrics", b"")
        assert status == 200
        assert b"iotmq_background_failures_total" not in body


def ask(gateway: GatewayProcess, method: str, target: str, body: bytes) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.ports["http"], timeout=60)
    try:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["content-type"], answer.read()
    finally:
        connection.close()


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


def test_answers_to_requests_made_from_the_document_are_those_that_it_names(gateway: GatewayProcess) -> None:
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
    base = f"http://127.0.0.1:{gateway.ports['http']}{BASE}"

    def check(case: Any) -> None:
        answer = case.call(base_url=base, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
        if answer.status_code in OF_THE_PORT:
            return
        case.validate_response(answer, excluded_checks=unwanted)
        assert answer.status_code < 500 or "problem:unhealthy" in answer.text, answer.text

    all_of(check, cases)


def test_hostile_texts_and_bodies_get_a_problem_that_the_document_names(gateway: GatewayProcess) -> None:
    def check(asked: tuple[Route, str, bytes]) -> None:
        route, target, body = asked
        status, content_type, answer = ask(gateway, route.method, target, body)
        if status in OF_THE_PORT:
            return
        documented = {200} | {kind.status for kind in problems_of(route)}
        assert status in documented, (route.name, target[:200], status, answer[:300])
        if status != 200:
            assert content_type == "application/problem+json"
            problem = json.loads(answer)
            assert problem["status"] == status
            assert status < 500 or problem["type"].endswith(":unhealthy"), (route.name, target[:200], problem)

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
