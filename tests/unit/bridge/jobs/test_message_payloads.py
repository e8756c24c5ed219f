"""Payloads that are decoded message by message, whatever they are."""

from __future__ import annotations

import struct

import pyarrow
import pytest

pytest.importorskip("pyspark")

from iotmq.bridge.jobs.message_payloads import decode_each

TYPE = pyarrow.struct([("n", pyarrow.int32())])


def parse(body: bytes) -> dict[str, int]:
    if len(body) != 8:
        raise ValueError("not 8 bytes")
    return {"n": struct.unpack(">q", body)[0]}


def test_each_payload_is_a_row_or_has_a_reason() -> None:
    numbers = [1, 2**31 - 1, 2**31, -(2**31)]
    values = pyarrow.array([*(struct.pack(">q", n) for n in numbers), b"x", None], pyarrow.binary())
    rows, reasons = decode_each(values, TYPE, parse)
    assert rows.to_pylist() == [{"n": 1}, {"n": 2**31 - 1}, None, {"n": -(2**31)}, None, None]
    first, second, beyond, *others = reasons.to_pylist()
    assert (first, second, others) == (None, None, [None, "not 8 bytes", "no payload"])
    assert beyond.startswith("a value does not fit its column: ")


def test_no_payloads_are_no_rows() -> None:
    rows, reasons = decode_each(pyarrow.array([], pyarrow.binary()), TYPE, parse)
    assert (rows.type, len(rows), len(reasons)) == (TYPE, 0, 0)
