"""What properties of sends ask for, compiled, against the slow obvious ways."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iotmq.broker.writing.send_properties import element_wishes, without_wait
from iotmq.message.records.record import encode_batch

WISHES = (b"DELAY", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS", b"TIMER_DEL_UNIQKEY")

pieces = st.sampled_from(
    [b"WAIT\x01true", b"WAIT\x01false", b"WAIT\x01", b"WAIT", b"AWAIT\x01x", b"k\x01WAIT\x01", b"", b"a\x01b"]
    + [name + b"\x011" for name in WISHES]
    + [
        b"MODEL\x01DELAY",
        b"xDELAY\x011",
        b"k\x01TIMER_DELAY_MS",
        b"DEL",
        b"DELA",
        b"TIMER_DE",
        b"DELAYED\x011",
    ]
)
properties = st.lists(pieces, max_size=6).map(b"\x02".join)


@given(properties)
def test_wait_is_taken_out_pair_by_pair_and_nothing_else(given_properties: bytes) -> None:
    pairs = [(pair, b"\x02") for pair in given_properties.split(b"\x02")]
    # What stands last has no separator behind it.
    pairs[-1] = (pairs[-1][0], b"")
    expected = b"".join(pair + end for pair, end in pairs if not pair.startswith(b"WAIT\x01"))
    assert without_wait(given_properties) == expected


@given(st.lists(properties, min_size=1, max_size=5))
def test_elements_with_a_time_of_delivery_are_found_by_the_names_of_their_properties(
    elements: list[bytes],
) -> None:
    expected = [
        one
        for one in elements
        if any(pair.startswith((b"DELAY\x01", b"TIMER_DEL")) for pair in one.split(b"\x02"))
    ]
    batch = encode_batch([(b"DELAY\x011\x02", one, 0) for one in elements])
    assert element_wishes(batch) == expected


def test_a_batch_that_is_none_has_no_wishes() -> None:
    good = encode_batch([(b"", b"DELAY\x011", 0)])
    assert element_wishes(b"") == []
    assert element_wishes(good[:-1]) == []
    assert element_wishes(good + b"x") == [b"DELAY\x011"]
