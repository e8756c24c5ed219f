"""The routes of the HTTP API for docs/reference/http-api.md, from the table of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from iotmq.config.setting_text import allowed_values, element_struct_of, settings_of, struct_of
from iotmq.console.api.api import BASE
from iotmq.console.api.arguments import headers_of
from iotmq.console.api.openapi import problems_of
from iotmq.console.api.problems import KINDS
from iotmq.console.api.route import Route
from iotmq.console.api.routes.table import ROUTES
from iotmq.console.server.messages import Answer


def text() -> str:
    """All routes by area, and all kinds of problems."""
    tags = dict.fromkeys(route.tag for route in ROUTES)
    areas = ["\n\n".join([f"## {tag.capitalize()}", *_area(tag)]) for tag in tags]
    return "\n\n".join([*areas, _problems()])


def _area(tag: str) -> Iterator[str]:
    for route in ROUTES:
        if route.tag == tag:
            yield f"### `{route.method} {BASE}{route.path}`"
            yield f"{route.summary} Role: {route.role.name.lower()}."
            rows = [*_rows(route.arguments, _places(route))]
            if route.body is bytes:
                rows.append(("", "the body", "any bytes", f"at most {route.body_bytes_max} bytes"))
            elif route.body is not None:
                rows += _rows(route.body, {})
            if rows:
                lines = ["| " + " | ".join(row) + " |" for row in rows]
                yield "\n".join(("| name | in | may be | meaning |", "| --- | --- | --- | --- |", *lines))
            own = [f"`{kind.word}` ({kind.status})" for kind in problems_of(route) if kind in route.problems]
            answer = "" if route.answer is Answer else f"Answer: {_answer(route.answer)}."
            yield " ".join(filter(None, (answer, f"Its own problems: {', '.join(own)}." if own else "")))


def _places(route: Route) -> dict[str, str]:
    in_head = headers_of(route.arguments)
    return {
        setting.key: "path"
        if setting.key in route.path_parameters
        else f"header {in_head[setting.key]}"
        if setting.key in in_head
        else "query"
        for setting in settings_of(route.arguments)
    }


def _rows(struct: type[msgspec.Struct], places: dict[str, str]) -> Iterator[tuple[str, str, str, str]]:
    for setting in settings_of(struct):
        has_none = setting.default in (msgspec.NODEFAULT, msgspec.UNSET, None, "", ())
        default = "" if has_none else setting.default
        value = f"; {msgspec.json.encode(default).decode()} by default" if default != "" else ""
        allowed = allowed_values(setting.type, setting.meta).replace("Raw or UnsetType", "any JSON")
        values = allowed.replace("|", "\\|") + value
        yield f"`{setting.key}`", places.get(setting.key, "body"), values, setting.description


def _answer(struct: Any) -> str:
    """The fields of an answer, and of what its lists are made of."""
    parts = []
    for setting in settings_of(struct):
        inner = struct_of(setting.type) or element_struct_of(setting.type)
        parts.append(f"`{setting.key}`" + (f" ({_answer(inner)})" if inner else ""))
    return ", ".join(parts)


def _problems() -> str:
    lines = [f"| `{kind.uri}` | {kind.status} | {kind.title} |" for kind in KINDS]
    return "\n".join(("## Problems", "", "| type | status | title |", "| --- | --- | --- |", *lines))
