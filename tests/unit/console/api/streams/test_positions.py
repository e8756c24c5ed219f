"""Event ids as positions in the logs of brokers."""

from __future__ import annotations

import pytest

from iotmq.console.api.streams.positions import decode_positions, encode_positions


def test_names_of_any_kind_come_back() -> None:
    positions = {"broker-a": 0, "b,=\n%": (1 << 63) - 1, "ü": 7}
    text = encode_positions(positions)
    assert text.isascii()
    assert "\n" not in text
    assert decode_positions(text) == positions


@pytest.mark.parametrize(
    "text", ["", "broker", "broker=", "=1", "b=-1", "b=1,", f"b={1 << 63}", "b=1 ", "%FF=1", "b=١"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no id of an event|codec"):
        decode_positions(text)
