"""The OpenAPI document of the table of routes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest

from iotmq.console.api.arguments import headers_of
from iotmq.console.api.problems import KINDS
from iotmq.console.api.route import Route
from iotmq.console.api.routes.table import ROUTES, openapi_json

DOCUMENT: dict[str, Any] = msgspec.json.decode(openapi_json())
METHODS = {"get", "put", "patch", "post", "delete"}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            if key == "$ref":
                yield each
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def operation(route: Route) -> dict[str, Any]:
    path = re.sub(r"\.\.\.}", "}", route.path)
    found: dict[str, Any] = DOCUMENT["paths"][path][route.method.lower()]
    return found


def test_all_references_lead_somewhere_and_nothing_is_left_over() -> None:
    named = {each.removeprefix("#/components/schemas/") for each in references(DOCUMENT)}
    assert named == set(DOCUMENT["components"]["schemas"])


def test_every_schema_is_one() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_names_of_operations_are_unique() -> None:
    names = [each["operationId"] for path in DOCUMENT["paths"].values() for each in path.values()]
    assert len(names) == len(set(names)) == len(ROUTES)
    assert {method for path in DOCUMENT["paths"].values() for method in path} <= METHODS


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_an_operation_says_all_that_the_route_asks_for(route: Route) -> None:
    found = operation(route)
    parameters = {each["name"]: each for each in found["parameters"]}
    in_head = headers_of(route.arguments)
    assert set(parameters) == {
        in_head.get(field.encode_name, field.encode_name) for field in msgspec.structs.fields(route.arguments)
    }
    assert {name for name, each in parameters.items() if each["in"] == "header"} == set(in_head.values())
    in_path = {name for name, each in parameters.items() if each["in"] == "path"}
    assert in_path == set(route.path_parameters)
    assert all(parameters[name]["required"] for name in in_path)
    assert (found.get("security") == []) == route.is_open
    assert ("requestBody" in found) == (route.body is not None)
    assert found["x-role"] == route.role.name.lower()
    assert {"200", "401", "403", "500", "503", "504"} <= set(found["responses"])
    assert all(each["description"] for each in found["responses"].values())


def test_every_field_and_parameter_of_a_request_has_a_meaning() -> None:
    missing = [
        f"{route.name}: {each['name']}"
        for route in ROUTES
        for each in operation(route)["parameters"]
        if not each.get("description")
    ]
    bodies = {route.body for route in ROUTES if route.body not in (None, bytes)}
    for body in bodies:
        schema = DOCUMENT["components"]["schemas"][body.__name__]
        missing += [
            f"{body.__name__}.{name}"
            for name, each in schema["properties"].items()
            if not each.get("description")
        ]
    assert missing == []


def test_kinds_of_problems_have_words_of_their_own() -> None:
    assert len({kind.word for kind in KINDS}) == len(KINDS)
    assert all(re.fullmatch(r"[a-z-]+", kind.word) and 400 <= kind.status < 600 for kind in KINDS)
