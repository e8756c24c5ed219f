"""A bridge: which message it gives up, and when its alarm is on."""

from __future__ import annotations

from typing import Any

from manual_clock import ManualClock

from iotmq.mqtt_bridge.bridge import Bridge, _Way
from iotmq.mqtt_bridge.connection import BridgeCounts, RefusingSink
from iotmq.mqtt_bridge.settings import BridgeSettings, SendRuleSettings


class Ended:
    """A connection that has ended."""

    def __init__(self, acknowledged: int = 0) -> None:
        self.acknowledged = acknowledged
        self.given_up = 0

    def give_up_oldest(self) -> str:
        self.given_up += 1
        return "mqtt/broker-a/0@7"


def bridge_of(**settings: Any) -> Bridge:
    fields = {"name": "b", "address": "mqtt://127.0.0.1", "send": (SendRuleSettings(),)} | settings
    return Bridge(
        BridgeSettings(**fields),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        lambda: ("mqtt",),
        gateway="g",
        sink=(RefusingSink(), BridgeCounts()),
        clock=ManualClock(),
    )


def given_up(*endings: tuple[bool, int]) -> list[int]:
    """How often a message is given up at each ending: at fault or not, and what was acknowledged before."""
    bridge = bridge_of()
    way = _Way(bridge, 0)
    found = []
    for is_at_fault, acknowledged in endings:
        ended = Ended(acknowledged)
        way.connection = ended  # type: ignore[assignment]
        way.is_at_fault = is_at_fault
        bridge._learn(way)
        found.append(ended.given_up)
    return found


def test_a_message_is_given_up_when_nothing_else_is_left() -> None:
    assert given_up(*[(True, 0)] * 4) == [0, 0, 0, 1]


def test_no_message_is_given_up_for_connections_that_are_lost() -> None:
    assert given_up(*[(False, 0)] * 20) == [0] * 20


def test_what_is_acknowledged_meanwhile_begins_the_count_again() -> None:
    assert given_up((True, 0), (True, 0), (True, 5), (True, 0), (True, 0), (True, 0)) == [0] * 6
    assert given_up((True, 0), (True, 0), (True, 0), (False, 0), (True, 0)) == [0] * 5


def test_without_a_connection_there_is_nothing_to_learn() -> None:
    bridge = bridge_of()
    way = _Way(bridge, 0)
    way.is_at_fault = True
    bridge._learn(way)
    assert way.faults == 0


def test_the_client_id_names_gateway_bridge_and_connection() -> None:
    bridge = bridge_of(connections=2)
    assert [_Way(bridge, number).client_id for number in range(2)] == ["g-b", "g-b-2"]
    assert _Way(bridge_of(client_id="x"), 1).client_id == "x-2"


def test_no_alarm_without_a_limit() -> None:
    assert bridge_of().not_ready_reason is None
    assert bridge_of(alarm_age_s=5).not_ready_reason is None
