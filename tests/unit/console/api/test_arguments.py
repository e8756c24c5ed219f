"""Parameters of path and query as the struct of a route."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from iotmq.console.api.arguments import PARAMETERS_MAX, decode_arguments, header
from iotmq.console.api.problems import INVALID, MALFORMED, ProblemError


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    limit: Annotated[int, Meta(ge=1, le=10)] = 5
    is_system: bool = False
    ids: tuple[int, ...] = ()
    until_ms: int | None = None
    step: Literal["hour", "day"] | None = None


class WithHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    last: Annotated[str, Meta(max_length=3), header("X-Last")] = ""


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


def test_a_wrong_word_is_answered_with_those_there_are() -> None:
    with pytest.raises(ProblemError, match="step: Invalid enum value 'year'") as raised:
        decode_arguments(Arguments, PATH, "step=year")
    assert raised.value.errors[0].detail.endswith("one of day, hour")


def test_so_many_parameters_are_read() -> None:
    assert len(decode_arguments(Arguments, PATH, "&".join(["ids=1"] * PARAMETERS_MAX)).ids) == PARAMETERS_MAX
    with pytest.raises(ProblemError, match="query"):
        decode_arguments(Arguments, PATH, "&".join(["ids=1"] * (PARAMETERS_MAX + 1)))


def test_a_field_of_the_head_is_taken_from_there_alone() -> None:
    assert decode_arguments(WithHead, {}, "", {"x-last": "abc", "x-other": "d"}) == WithHead(last="abc")
    assert decode_arguments(WithHead, {}, "") == WithHead()
    with pytest.raises(ProblemError, match="X-Last"):
        decode_arguments(WithHead, {}, "last=a")
    with pytest.raises(ProblemError) as raised:
        decode_arguments(WithHead, {}, "", {"x-last": "abcd"})
    assert [each.parameter for each in raised.value.errors] == ["last"]
