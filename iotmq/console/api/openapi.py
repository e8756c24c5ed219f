"""The OpenAPI 3.1 document of a table of routes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from iotmq.console.api.arguments import headers_of
from iotmq.console.api.problems import (
    CONFLICT,
    FORBIDDEN,
    INTERNAL,
    INVALID,
    MALFORMED,
    MEDIA_TYPE,
    NOT_SUPPORTED,
    TIMEOUT,
    UNAUTHENTICATED,
    UNAVAILABLE,
    Kind,
    Problem,
)
from iotmq.console.api.route import Route
from iotmq.console.server.messages import Answer
from iotmq.setting_types import texts_below_fields

_REFERENCE: Final = "#/components/schemas/{name}"
# Those of the way to a handler, and those that any broker may answer with.
_OF_ALL: Final = (UNAUTHENTICATED, FORBIDDEN, CONFLICT, INTERNAL, NOT_SUPPORTED, UNAVAILABLE, TIMEOUT)


def problems_of(route: Route) -> Sequence[Kind]:
    """Return the problems that a route may answer with, by status."""
    kinds = {*_OF_ALL, *route.problems}
    if route.path_parameters or msgspec.structs.fields(route.arguments):
        kinds |= {MALFORMED, INVALID}
    if route.body not in (None, bytes):
        kinds |= {MALFORMED, INVALID, MEDIA_TYPE}
    return sorted(kinds, key=lambda kind: (kind.status, kind.word))


def document(routes: Iterable[Route], *, base: str, version: str) -> dict[str, Any]:
    """Make the document; `base` is the path that the routes stand below."""
    routes = list(routes)
    structs = {Problem, *(route.arguments for route in routes)}
    for route in routes:
        structs |= {form for form in (route.answer, route.body) if form not in (None, bytes, Answer)}
    (_, components) = msgspec.json.schema_components(structs, ref_template=_REFERENCE)
    for struct in _all_structs(structs):
        _describe(components.get(struct.__name__, {}), struct)
    names = {route.arguments.__name__ for route in routes}
    arguments = {name: components.pop(name) for name in names}
    paths: dict[str, Any] = {}
    for route in routes:
        path = paths.setdefault(route.path.replace("...}", "}"), {})
        path[route.method.lower()] = _operation(route, arguments[route.arguments.__name__])
    return {
        "openapi": "3.1.0",
        "info": {"title": "iotmq", "version": version, "summary": "The HTTP API of an iotmq gateway."},
        "servers": [{"url": base}],
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in routes)],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, arguments: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.tag],
        "x-role": route.role.name.lower(),
        "parameters": list(_parameters(route, arguments)),
        "responses": {"200": _response(route), **_problem_responses(route)},
    }
    if route.is_open:
        operation["security"] = []
    if route.body is bytes:
        operation["requestBody"] = {"required": True, "content": {"*/*": {"schema": {"type": "string"}}}}
    elif route.body is not None:
        schema = {"$ref": _REFERENCE.format(name=route.body.__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _parameters(route: Route, arguments: dict[str, Any]) -> Iterable[dict[str, Any]]:
    in_path = route.path_parameters
    in_head = headers_of(route.arguments)
    required = arguments.get("required", ())
    for name, schema in arguments.get("properties", {}).items():
        described = dict(schema)
        text = described.pop("description", "")
        yield {
            "name": in_head.get(name, name),
            "in": "path" if name in in_path else "header" if name in in_head else "query",
            "required": name in in_path or name in required,
            **({"description": text} if text else {}),
            "schema": described,
        }


def _response(route: Route) -> dict[str, Any]:
    if route.answer is Answer:
        schema: dict[str, Any] = {} if route.answer_type == "application/json" else {"type": "string"}
        return {"description": "As it is.", "content": {route.answer_type: {"schema": schema}}}
    schema = {"$ref": _REFERENCE.format(name=route.answer.__name__)}
    return {"description": "Done.", "content": {"application/json": {"schema": schema}}}


def _problem_responses(route: Route) -> dict[str, Any]:
    schema = {"$ref": _REFERENCE.format(name=Problem.__name__)}
    responses: dict[str, Any] = {}
    for kind in problems_of(route):
        known = responses.get(str(kind.status))
        text = f"`{kind.uri}`: {kind.title}"
        responses[str(kind.status)] = {
            "description": text if known is None else f"{known['description']} {text}",
            "content": {"application/problem+json": {"schema": schema}},
        }
    assert all(HTTPStatus(int(status)) for status in responses)
    return responses


def _describe(schema: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    texts = texts_below_fields(struct)
    for field in msgspec.structs.fields(struct):
        text = texts.get(field.name)
        if text and field.encode_name in schema.get("properties", {}):
            # Beside a reference, too: JSON Schema 2020-12 allows it.
            schema["properties"][field.encode_name]["description"] = text


def _all_structs(structs: Iterable[Any]) -> set[type[msgspec.Struct]]:
    """Return the structs with all that stand in their fields."""
    found: set[type[msgspec.Struct]] = set()
    waiting = [msgspec.inspect.type_info(struct) for struct in structs]
    while waiting:
        info: Any = waiting.pop()
        match info:
            case msgspec.inspect.StructType(cls=struct, fields=fields) if struct not in found:
                found.add(struct)
                waiting += [field.type for field in fields]
            case msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item):
                waiting.append(item)
            case msgspec.inspect.DictType(value_type=value):
                waiting.append(value)
            case msgspec.inspect.UnionType(types=types):
                waiting += types
    return found
