"""Columns that are made of what the decoder gives: for all rows of a pull at once, without Python loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy
import numpy.typing
import pyarrow

from iotmq.message import properties as names_of_properties
from iotmq.message.properties import MQTT_USER_PREFIX, decode_properties

NAME_END: Final = b"\x01"
PROPERTY_END: Final = b"\x02"

#: Gives a column of the decoder by its name there.
Decoded: TypeAlias = Callable[[str], pyarrow.Array]

_QOS_TEXTS: Final = ("0", "1", "2")
_STORED_TIME: Final = 1
# Names with a meaning of their own; all others are the producer's, and so is what has the prefix.
_OURS_PREFIX: Final = "MQTT_"
_OURS: Final = tuple(
    value
    for name, value in vars(names_of_properties).items()
    if name.isupper() and isinstance(value, str) and value[:1].isupper()
)


class _Pairs(NamedTuple):
    """All properties of all rows, in order: the number of its row, name and value of each."""

    rows: numpy.typing.NDArray[Any]
    names: pyarrow.Array
    values: pyarrow.Array


def qos(texts: pyarrow.Array) -> pyarrow.Array:
    """The QoS that an MQTT client published with; null for other records."""
    from pyarrow import compute

    return compute.index_in(texts, value_set=pyarrow.array(_QOS_TEXTS))


def retain(texts: pyarrow.Array, qos_texts: pyarrow.Array) -> pyarrow.Array:
    """Whether an MQTT client published with the retain flag; null for other records."""
    from pyarrow import compute

    is_set = compute.fill_null(compute.equal(texts, "1"), False)
    return compute.if_else(compute.is_valid(qos_texts), is_set, None)


def first_given(*columns: pyarrow.Array) -> pyarrow.Array:
    """Return the first value of each row that is not null."""
    from pyarrow import compute

    return compute.coalesce(*columns)


def stored_time(times: pyarrow.Array) -> pyarrow.Array:
    """Say for each row that its timestamp is the time of storing, with the number that Kafka has for that."""
    return pyarrow.repeat(pyarrow.scalar(_STORED_TIME, pyarrow.int32()), len(times))


def headers(raw: pyarrow.Array) -> pyarrow.Array:
    """User properties of MQTT 5, and the properties that producers have added to their messages.

    In order, and with names that come twice. A list of (key, value) for each row.
    """
    from pyarrow import compute

    pairs = _pairs(raw)
    names = None if pairs is None else _texts(pairs.names)
    if pairs is None or names is None:
        return _headers_slowly(raw)
    is_user = compute.starts_with(names, MQTT_USER_PREFIX)
    is_ours = compute.or_(
        compute.is_in(names, value_set=pyarrow.array(_OURS)), compute.starts_with(names, _OURS_PREFIX)
    )
    kept = compute.or_(is_user, compute.invert(is_ours))
    names = compute.if_else(
        is_user, compute.utf8_slice_codeunits(names, len(MQTT_USER_PREFIX), None), names
    ).filter(kept)
    rows = pairs.rows[kept.to_numpy(zero_copy_only=False)]
    listed = pyarrow.StructArray.from_arrays([names, pairs.values.filter(kept)], ["key", "value"])
    return pyarrow.ListArray.from_arrays(_list_offsets(rows, len(raw)), listed)


def properties_as_maps(raw: pyarrow.Array) -> pyarrow.Array:
    """Property strings of records (binary) as an Arrow map<string, string> column.

    As `decode_properties`: pieces without a name or without a separator are left out, and the last of
    several values of one name wins. Those rare cases, and text that is not UTF-8, take the slow way.
    """
    # Costs every planning process 40 ms of start, so only those pay that need it.
    from pyarrow import compute

    pairs = _pairs(raw)
    if pairs is None:
        return _maps_slowly(raw)
    names, values = _texts(pairs.names), _texts(pairs.values)
    if names is None or values is None:
        return _maps_slowly(raw)
    codes = compute.dictionary_encode(names)
    tickets = pairs.rows.astype(numpy.int64) * max(1, len(codes.dictionary)) + codes.indices.to_numpy()
    if len(numpy.unique(tickets)) != len(tickets):
        return _maps_slowly(raw)
    return pyarrow.MapArray.from_arrays(_list_offsets(pairs.rows, len(raw)), names, values)


def _pairs(raw: pyarrow.Array) -> _Pairs | None:
    """Split the properties of all rows; None when a piece has no name or no separator."""
    from pyarrow import compute

    pieces = compute.split_pattern(raw, PROPERTY_END)
    rows = compute.list_parent_indices(pieces).to_numpy()
    flat = compute.list_flatten(pieces)
    separator_at = compute.find_substring(flat, NAME_END)
    is_pair = compute.greater(separator_at, 0)
    if not compute.all(compute.or_(is_pair, compute.equal(compute.binary_length(flat), 0))).as_py():
        return None
    rows = rows[is_pair.to_numpy(zero_copy_only=False)]
    pairs = compute.list_flatten(compute.split_pattern(flat.filter(is_pair), NAME_END, max_splits=1))
    return _Pairs(
        rows,
        pairs.take(pyarrow.array(numpy.arange(0, len(pairs), 2))),
        pairs.take(pyarrow.array(numpy.arange(1, len(pairs), 2))),
    )


def _texts(values: pyarrow.Array) -> pyarrow.Array | None:
    try:
        return values.cast(pyarrow.string())
    except pyarrow.ArrowInvalid:
        return None


def _list_offsets(rows: numpy.typing.NDArray[Any], count: int) -> pyarrow.Array:
    """Where the lists of `count` rows begin, when `rows` has the row of each item."""
    offsets = numpy.zeros(count + 1, dtype=numpy.int32)
    numpy.cumsum(numpy.bincount(rows, minlength=count), out=offsets[1:])
    return pyarrow.array(offsets)


def _maps_slowly(raw: pyarrow.Array) -> pyarrow.Array:
    maps = [list(decode_properties(text).items()) for text in raw.to_pylist()]
    return pyarrow.array(maps, type=pyarrow.map_(pyarrow.string(), pyarrow.string()))


def _headers_slowly(raw: pyarrow.Array) -> pyarrow.Array:
    kind = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
    return pyarrow.array([_headers_of(text) for text in raw.to_pylist()], type=pyarrow.list_(kind))


def _headers_of(raw: bytes) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for piece in raw.split(PROPERTY_END):
        encoded, separator, value = piece.partition(NAME_END)
        name = encoded.decode("utf-8", "replace")
        is_user = name.startswith(MQTT_USER_PREFIX)
        if name and separator and (is_user or not (name in _OURS or name.startswith(_OURS_PREFIX))):
            found.append({"key": name.removeprefix(MQTT_USER_PREFIX), "value": value})
    return found
