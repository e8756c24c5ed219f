"""Payloads that are decoded message by message, Protobuf and Avro, as Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import pyarrow

#: Returns the columns of one payload; raises ValueError with what is wrong with it, as a sentence's end.
Parse: TypeAlias = Callable[[bytes], dict[str, Any]]


def decode_each(
    values: pyarrow.Array, data_type: pyarrow.DataType, parse: Parse
) -> tuple[pyarrow.Array, pyarrow.Array]:
    """Return a struct for each value, and what is wrong with those that have none."""
    bodies: Iterable[bytes | None] = values.to_pylist()
    data: list[dict[str, Any] | None] = []
    reasons: list[str | None] = []
    for body in bodies:
        row, reason = None, None
        if body is None:
            reason = "no payload"
        else:
            try:
                row = parse(body)
            except ValueError as error:
                reason = str(error)
        data.append(row)
        reasons.append(reason)
    try:
        made = pyarrow.array(data, type=data_type)
    except (pyarrow.ArrowException, OverflowError, ValueError, TypeError):
        made = pyarrow.array(_those_that_fit(data, reasons, data_type), type=data_type)
    return made, pyarrow.array(reasons, type=pyarrow.string())


def _those_that_fit(
    data: list[dict[str, Any] | None], reasons: list[str | None], data_type: pyarrow.DataType
) -> list[dict[str, Any] | None]:
    """Return `data` without the rows that have a value beyond its type, and say so in `reasons`."""
    kept: list[dict[str, Any] | None] = []
    for number, row in enumerate(data):
        try:
            pyarrow.array([row], type=data_type)
        except (pyarrow.ArrowException, OverflowError, ValueError, TypeError) as error:
            reasons[number] = f"a value does not fit its column: {error}"
            kept.append(None)
        else:
            kept.append(row)
    return kept
