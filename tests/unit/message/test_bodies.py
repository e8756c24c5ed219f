"""Bodies of messages as text."""

from __future__ import annotations

import pytest

from iotmq.message.bodies import text_beginning


@pytest.mark.parametrize(
    ("body", "bytes_max", "text"),
    [
        (b"", 0, ""),
        (b"on", 2, "on"),
        (b"on", 1, "o"),
        ("\u00e9\u00e9".encode(), 4, "\u00e9\u00e9"),
        ("\u00e9\u00e9".encode(), 3, "\u00e9"),
        ("\u00e9".encode(), 1, ""),
        ("a\U0001f600".encode(), 4, "a"),
        (b"on\xff", 2, "on"),
    ],
)
def test_the_beginning_of_a_text_has_no_half_character(body: bytes, bytes_max: int, text: str) -> None:
    assert text_beginning(body, bytes_max) == text


@pytest.mark.parametrize(
    ("body", "bytes_max"),
    [
        (b"\xff", 1),
        (b"on\xc3", 3),
        (b"on\xc3", 100),
        (b"\xc3on", 3),
        (b"\xff\xff", 1),
        (b"\xf0\x9f\x98\xffa", 4),
    ],
)
def test_what_is_no_text_is_not_made_one_by_its_end(body: bytes, bytes_max: int) -> None:
    with pytest.raises(UnicodeDecodeError):
        text_beginning(body, bytes_max)
