"""Parameters of path and query as the struct of a route."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from iotmq.console.api.arguments import PARAMETERS_MAX, decode_arguments
from iotmq.console.api.problems import INVALID, MALFORMED, ProblemError


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    limit: Annotated[int, Meta(ge=1, le=10)] = 5
    is_system: bool = False
    ids: tuple[int, ...] = ()
    until_ms: int | None = None


PATH = {"name": "a"}


def test_texts_become_what_the_fields_are() -> None:
    found = decode_arguments(Arguments, PATH, "limit=7&is_system=true&ids=1&ids=2&until_ms=9")
    assert found == Arguments(name="a", limit=7, is_system=True, ids=(1, 2), until_ms=9)
    assert decode_arguments(Arguments, PATH, "") == Arguments(name="a")


@pytest.mark.parametrize(
    ("path", "query", "kind", "parameter"),
    [
        (PATH, "limit=11", INVALID, "limit"),
        (PATH, "limit=x", INVALID, "limit"),
        (PATH, "ids=1&ids=x", INVALID, "ids"),
        (PATH, "limits=1", INVALID, "limits"),
        ({}, "limit=1", INVALID, "name"),
        (PATH, "limit=1&limit=2", MALFORMED, ""),
        (PATH, "name=b", MALFORMED, ""),
        (PATH, "limit", MALFORMED, ""),
        (PATH, "limit=%FF", MALFORMED, ""),
    ],
)
def test_a_wrong_parameter_is_named(path: dict[str, str], query: str, kind: object, parameter: str) -> None:
    with pytest.raises(ProblemError) as raised:
        decode_arguments(Arguments, path, query)
    assert raised.value.kind is kind
    assert [each.parameter for each in raised.value.errors] == ([parameter] if parameter else [])


def test_so_many_parameters_are_read() -> None:
    assert len(decode_arguments(Arguments, PATH, "&".join(["ids=1"] * PARAMETERS_MAX)).ids) == PARAMETERS_MAX
    with pytest.raises(ProblemError, match="query"):
        decode_arguments(Arguments, PATH, "&".join(["ids=1"] * (PARAMETERS_MAX + 1)))
