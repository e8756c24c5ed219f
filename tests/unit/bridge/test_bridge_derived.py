"""Columns made of properties, beside what each record says by itself."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

import pyarrow
from hypothesis import given
from hypothesis import strategies as st

from iotmq.bridge.derived import headers, properties_as_maps, qos, retain
from iotmq.message.properties import decode_properties

PIECES = st.one_of(
    st.sampled_from(
        [b"", b"a", b"a\x01", b"\x01b", b"a\x011", b"a\x012", b"b\x01c\x01d", b"\xff\x01x", b"x\x01\xc3"]
    ),
    st.sampled_from([b"KEYS\x01k", b"MQTT_TOPIC\x01t", b"MQTT_USER.a\x01\xff", b"MQTT_USER.a\x012"]),
    st.binary(max_size=6),
)
RECORDS = st.lists(st.lists(PIECES, max_size=5).map(b"\x02".join), max_size=8)


def binary(raw: list[bytes]) -> pyarrow.Array:
    return pyarrow.array(raw, type=pyarrow.binary())


@given(RECORDS)
def test_maps_agree_with_decoding_each_record(raw: list[bytes]) -> None:
    maps = properties_as_maps(binary(raw))
    assert maps.type == pyarrow.map_(pyarrow.string(), pyarrow.string())
    maps.validate(full=True)
    assert [dict(pairs) for pairs in maps.to_pylist()] == [decode_properties(text) for text in raw]


def headers_of(raw: bytes) -> list[dict[str, object]]:
    """The slow, obvious way."""
    found: list[dict[str, object]] = []
    for piece in raw.split(b"\x02"):
        name, separator, value = piece.partition(b"\x01")
        text = name.decode("utf-8", "replace")
        if not name or not separator:
            continue
        if text.startswith("MQTT_USER."):
            found.append({"key": text[10:], "value": value})
        elif not text.startswith("MQTT_") and text != "KEYS":
            found.append({"key": text, "value": value})
    return found


@given(RECORDS)
def test_headers_agree_with_decoding_each_record(raw: list[bytes]) -> None:
    made = headers(binary(raw))
    made.validate(full=True)
    assert made.to_pylist() == [headers_of(text) for text in raw]


def test_qos_and_retain_are_null_for_records_that_did_not_come_over_mqtt() -> None:
    texts = pyarrow.array(["0", "1", "2", None, "9", ""])
    assert qos(texts).to_pylist() == [0, 1, 2, None, None, None]
    flags = pyarrow.array(["1", None, "0", "1", None, None])
    assert retain(flags, texts).to_pylist() == [True, False, False, None, False, False]
