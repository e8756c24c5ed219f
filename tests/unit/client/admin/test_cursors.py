"""Cursors: the place in a list that they name, and those that are none."""

from __future__ import annotations

import base64

import msgspec
import pytest

from iotmq.client.admin.cursors import CursorError, decode_cursor, encode_cursor


@pytest.mark.parametrize("name", ["", "a", "pump/7", "\u00e9" * 100])
def test_a_cursor_says_the_name_it_was_made_of(name: str) -> None:
    assert decode_cursor(encode_cursor("names", name), "names", str) == name


def test_a_place_may_have_several_parts() -> None:
    place = (1.5, "a", 3)
    assert decode_cursor(encode_cursor("clients", place), "clients", tuple[float, str, int]) == place


def test_an_empty_cursor_is_the_beginning() -> None:
    assert decode_cursor("", "names", str) is None


def cursor_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "%",
        "a",
        "_w",
        "\u00e9",
        encode_cursor("others", "a"),
        encode_cursor("names", 7),
        cursor_of(msgspec.msgpack.encode(("names", "a")) + b"\0"),
        cursor_of(msgspec.msgpack.encode("names")),
        cursor_of(b"\x92\xa5names\xa2\xff\xff"),
        cursor_of(b"\x92\xa5names" + b"\x91" * 4_500 + b"\0"),
    ],
)
def test_a_cursor_that_is_none_of_the_list_is_refused(cursor: str) -> None:
    with pytest.raises(CursorError, match="none of this list"):
        decode_cursor(cursor, "names", str)
