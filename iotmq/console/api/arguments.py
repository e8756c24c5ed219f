"""Decode the parameters of path and query into a route's struct."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from iotmq.console.api.problems import MALFORMED, ProblemError, invalid_arguments

PARAMETERS_MAX: Final = 64


def decode_arguments(form: type[msgspec.Struct], path: Mapping[str, str], query: str) -> Any:
    """Return an instance of `form`; a parameter of a list may be there more than once.

    ProblemError names the parameter that is wrong.
    """
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
            if name in path:
                raise ProblemError(MALFORMED, f"the parameter {name} stands in the path")
            if name in lists:
                fields.setdefault(name, []).append(value)
            elif name in fields:
                raise ProblemError(MALFORMED, f"the parameter {name[:100]} is there twice")
            else:
                fields[name] = value
    fields.update(path)
    try:
        # Texts are numbers and truth values where the field is one.
        return msgspec.convert(fields, form, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_arguments(error) from None


@cache
def _lists(form: type[msgspec.Struct]) -> frozenset[str]:
    """Return the fields of a struct that are lists."""
    kinds = (msgspec.inspect.ListType, msgspec.inspect.VarTupleType)
    info = msgspec.inspect.type_info(form)
    assert isinstance(info, msgspec.inspect.StructType)
    return frozenset(field.encode_name for field in info.fields if isinstance(field.type, kinds))
