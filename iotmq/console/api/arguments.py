"""Decode the parameters of path and query into a route's struct."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

from iotmq.console.api.problems import MALFORMED, ProblemError, invalid_arguments

PARAMETERS_MAX: Final = 64
_HEADER: Final = "header"
_NO_HEADERS: Final[Mapping[str, str]] = {}


def header(name: str) -> Meta:
    """Make the mark of a field that stands in the head of a request."""
    return Meta(extra={_HEADER: name})


def decode_arguments(
    form: type[msgspec.Struct], path: Mapping[str, str], query: str, headers: Mapping[str, str] = _NO_HEADERS
) -> Any:
    """Return an instance of `form`; a parameter of a list may be there more than once.

    ProblemError names the parameter that is wrong.
    """
    in_head = headers_of(form)
    if not query and not path and not any(field.lower() in headers for field in in_head.values()):
        usual = _usual(form)
        if usual is not None:
            return usual
    fields: dict[str, Any] = {}
    lists = _lists(form)
    if query:
        try:
            pairs = parse_qsl(
                query,
                keep_blank_values=True,
                strict_parsing=True,
                errors="strict",
                max_num_fields=PARAMETERS_MAX,
            )
        except ValueError as error:
            raise ProblemError(MALFORMED, f"the query cannot be read: {error}") from None
        for name, value in pairs:
            if name in path or name in in_head:
                place = "path" if name in path else f"header {in_head[name]}"
                raise ProblemError(MALFORMED, f"the parameter {name} stands in the {place}")
            if name in lists:
                fields.setdefault(name, []).append(value)
            elif name in fields:
                raise ProblemError(MALFORMED, f"the parameter {name[:100]} is there twice")
            else:
                fields[name] = value
    fields.update(path)
    for name, field in in_head.items():
        if field.lower() in headers:
            fields[name] = headers[field.lower()]
    try:
        # Texts are numbers and truth values where the field is one.
        return msgspec.convert(fields, form, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_arguments(error, _choices(form)) from None


@cache
def _usual(form: type[msgspec.Struct]) -> msgspec.Struct | None:
    """Return the arguments without any that is given; None where one has to be, and for what can change."""
    if not form.__struct_config__.frozen:
        return None
    try:
        return msgspec.convert({}, form)
    except msgspec.ValidationError:
        return None


@cache
def _lists(form: type[msgspec.Struct]) -> frozenset[str]:
    """Return the fields of a struct that are lists."""
    kinds = (msgspec.inspect.ListType, msgspec.inspect.VarTupleType)
    info = msgspec.inspect.type_info(form)
    assert isinstance(info, msgspec.inspect.StructType)
    return frozenset(field.encode_name for field in info.fields if isinstance(field.type, kinds))


@cache
def _choices(form: type[msgspec.Struct]) -> dict[str, list[str]]:
    """Return the values of the fields that are one of a few words."""
    info = msgspec.inspect.type_info(form)
    assert isinstance(info, msgspec.inspect.StructType)
    found: dict[str, list[str]] = {}
    for field in info.fields:
        kinds = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
        for kind in kinds:
            if isinstance(kind, msgspec.inspect.LiteralType):
                found[field.encode_name] = [str(value) for value in kind.values]
    return found


@cache
def headers_of(form: type[msgspec.Struct]) -> dict[str, str]:
    """Return the fields that stand in the head, with the names of theirs there."""
    info = msgspec.inspect.type_info(form)
    assert isinstance(info, msgspec.inspect.StructType)
    return {
        field.encode_name: field.type.extra[_HEADER]
        for field in info.fields
        if isinstance(field.type, msgspec.inspect.Metadata) and field.type.extra
    }
