"""How much is kept of devices while nobody knows who they are."""

from __future__ import annotations

from typing import Any

import pytest

from iotmq import limits
from iotmq.mqtt.codec.packets import Connect, Will
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt_front.access.undecided import Undecided

ONE: Any = "one"
OTHER: Any = "other"
PLAIN = Connect("", True, 0, None, None, None)


def size_of(connect: Connect | None) -> int:
    undecided = Undecided()
    assert undecided.add(ONE, connect)
    return undecided.size


def test_there_is_room_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    each = size_of(None)
    undecided = Undecided()
    monkeypatch.setattr(limits, "MQTT_UNDECIDED_BYTES_MAX", 2 * each)
    assert undecided.add(ONE, None)
    undecided.check_invariants()
    assert undecided.add(OTHER, None)
    undecided.check_invariants()
    assert len(undecided) == 2
    undecided.remove(OTHER)
    undecided.check_invariants()
    monkeypatch.setattr(limits, "MQTT_UNDECIDED_BYTES_MAX", 2 * each - 1)
    assert not undecided.add(OTHER, None)
    undecided.check_invariants()
    undecided.remove(OTHER)
    undecided.check_invariants()
    undecided.remove(ONE)
    undecided.check_invariants()
    undecided.remove(ONE)
    undecided.check_invariants()
    assert undecided.size == len(undecided) == 0


@pytest.mark.parametrize(
    ("connect", "more"),
    [
        (PLAIN._replace(client_id="c" * 100), 100),
        (PLAIN._replace(client_id="\U0001f600" * 100), 400),
        (PLAIN._replace(properties=Properties(user_properties=(("a" * 50, "b" * 49 + "\u20ac"),))), 250),
        (PLAIN._replace(user_name="u" * 100, password=b"p" * 100), 200),
        (PLAIN._replace(will=Will("t" * 100, b"x" * 100, 0, False)), 200),
        (PLAIN._replace(properties=Properties(authentication_data=b"d" * 100)), 300),
        (PLAIN._replace(properties=Properties(user_properties=(("a" * 50, "b" * 50),))), 100),
        (
            PLAIN._replace(
                will=Will("", b"", 0, False, Properties(correlation_data=bytes(90), content_type="c" * 10))
            ),
            100,
        ),
    ],
)
def test_what_may_be_long_counts(connect: Connect, more: int) -> None:
    assert size_of(connect) == size_of(PLAIN) + more
    assert size_of(PLAIN._replace(properties=NO_PROPERTIES)) == size_of(PLAIN) == size_of(None)
