"""The values below $SYS/broker/: who gets which, and when."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from loop_turns import turn_s_max

from iotmq.message.properties import decode_properties
from iotmq.message.records.record import decode_record
from iotmq.mqtt_front.deliver.sys_topics import FrontEndTotals, SysTopics

CONNECTED = "$SYS/broker/clients/connected"
RECEIVED = "$SYS/broker/publish/messages/received"


class ListeningDevice:
    """Takes records while it has room."""

    client_id = "d"
    close_reason = None

    def __init__(self) -> None:
        self.records: list[tuple[str, str, int, bool]] = []
        self.has_room = True

    def send_record(self, record: bytes, granted: int, *, is_retained: bool) -> bool:
        if not self.has_room:
            return False
        found = decode_record(record)
        topic = decode_properties(found.properties)["MQTT_TOPIC"]
        self.records.append((topic, found.body.decode(), granted, is_retained))
        return True

    def take(self) -> list[tuple[str, str, int, bool]]:
        records, self.records = self.records, []
        return records


class Counted:
    """The numbers of a front end that a test makes up."""

    def __init__(self) -> None:
        self.values = dict.fromkeys(FrontEndTotals._fields, 0)
        self.tree = SysTopics(lambda: FrontEndTotals(**self.values), interval_s=10, now_s=100)
        self.tree.tick(100)

    def device(self, *subscriptions: tuple[str, int]) -> Any:
        device = ListeningDevice()
        self.tree.subscribe(device, subscriptions)  # type: ignore[arg-type]
        return device


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_a_subscriber_gets_what_there_is_as_retained_and_then_what_changes(counted: Counted) -> None:
    counted.values["sessions"] = 2
    device = counted.device((CONNECTED, 1), (RECEIVED, 0))
    assert sorted(device.take()) == [(CONNECTED, "0", 1, True), (RECEIVED, "0", 0, True)]
    counted.tree.tick(109.9)
    assert device.take() == [], "not yet"
    counted.tree.tick(110)
    assert device.take() == [(CONNECTED, "2", 1, False)]
    counted.tree.tick(120)
    assert device.take() == [], "nothing changed"
    assert counted.device((CONNECTED, 0)).take() == [(CONNECTED, "2", 0, True)]
    assert counted.tree.sent == 4


def test_a_device_with_very_many_filters_keeps_nobody_waiting(counted: Counted) -> None:
    filters = [(f"$SYS/broker/clients/{number}", 0) for number in range(9_999)]
    began_s = time.thread_time()
    device = counted.device(*filters[:1_000], (CONNECTED, 1))
    subscribed_s = time.thread_time() - began_s
    counted.tree.resume(device, filters)
    counted.values["sessions"] = 2
    began_s = time.thread_time()
    counted.tree.tick(110)
    sent_s = time.thread_time() - began_s
    assert max(subscribed_s, sent_s) < turn_s_max()
    assert device.take() == [(CONNECTED, "0", 1, True), (CONNECTED, "2", 1, False)]
    counted.tree.check_invariants()
    counted.tree.unsubscribe(device, ["$SYS/broker/clients/1", "$SYS/unknown"])
    counted.tree.check_invariants()
    counted.tree.forget(device)
    counted.tree.check_invariants()
    counted.tree.tick(120)
    assert device.take() == []


def test_wildcards_see_the_tree_from_their_first_level_on_only(counted: Counted) -> None:
    assert counted.device(("#", 1), ("+/broker/#", 1), ("other", 1)).take() == []
    device = counted.device(("$SYS/#", 0), ("$SYS/broker/clients/+", 2))
    found = {topic: granted for topic, _, granted, _ in device.take()}
    assert found.pop("$SYS/broker/clients/connected") == 2, "the highest QoS of the filters that match"
    assert found["$SYS/broker/version"] == 0
    assert {f"$SYS/broker/load/bytes/sent/{minutes}min" for minutes in (1, 5, 15)} <= found.keys()
    counted.tree.tick(110)
    assert [topic for topic, *_ in device.take()] == ["$SYS/broker/uptime"]


def test_who_left_or_unsubscribed_gets_nothing(counted: Counted) -> None:
    gone, changed = counted.device((CONNECTED, 0)), counted.device((CONNECTED, 0), (RECEIVED, 0))
    counted.tree.forget(gone)
    counted.tree.unsubscribe(changed, (CONNECTED, "unknown"))
    counted.tree.unsubscribe(gone, (CONNECTED,))
    gone.take(), changed.take()
    counted.values.update(sessions=5, messages_received=7)
    counted.tree.tick(110)
    assert gone.take() == []
    assert changed.take() == [(RECEIVED, "7", 0, False)]


def test_a_session_that_goes_on_gets_what_changes_only(counted: Counted) -> None:
    device = ListeningDevice()
    counted.tree.resume(device, [(CONNECTED, 1)])  # type: ignore[arg-type]
    assert device.take() == []
    counted.values["sessions"] = 1
    counted.tree.tick(110)
    assert device.take() == [(CONNECTED, "1", 1, False)]


def test_what_a_device_has_no_room_for_is_left_out(counted: Counted) -> None:
    device = counted.device((CONNECTED, 0))
    device.take()
    device.has_room = False
    counted.values["sessions"] = 1
    counted.tree.tick(110)
    device.has_room = True
    counted.values["sessions"] = 2
    counted.tree.tick(120)
    assert device.take() == [(CONNECTED, "2", 0, False)]


def test_loads_are_averages_per_minute_that_decay(counted: Counted) -> None:
    topic = "$SYS/broker/load/publish/received/1min"
    device = counted.device((topic, 0))
    assert device.take() == [(topic, "0.00", 0, True)]
    counted.values["messages_received"] = 600
    counted.tree.tick(160)
    once = 600 * (1 - math.exp(-1))
    assert device.take() == [(topic, f"{once:.2f}", 0, False)]
    counted.tree.tick(220)
    assert device.take() == [(topic, f"{once * math.exp(-1):.2f}", 0, False)]
