"""Deadlines: who is late when, without a timer per device."""

from __future__ import annotations

import pytest
from fake_gateway import FakeTransport, Front, receive

from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.server.publish_sink import CollectingSink
from iotmq.mqtt_front.connection.deadlines import RECHECK_S, Deadlines
from iotmq.mqtt_front.connection.device import Device

START_S = 1_000.0


@pytest.fixture
def front() -> Front:
    return Front(CollectingSink(), connect_timeout_s=10.0)


@pytest.fixture
def deadlines() -> Deadlines:
    return Deadlines(START_S)


def late_at(deadlines: Deadlines, front: Front, *seconds: float) -> list[tuple[float, Device]]:
    """(time, device) of everybody who is late when the clock passes these times."""
    found = []
    for now_s in seconds:
        front.group.now_s = now_s
        found += [(now_s, device) for device in deadlines.late(now_s)]
    return found


def test_a_connection_without_a_session_is_late_at_its_deadline(front: Front, deadlines: Deadlines) -> None:
    device = Device(front.group, front.settings)
    device.connection_made(FakeTransport(device))  # type: ignore[arg-type]
    deadlines.watch_connecting(device)
    assert late_at(deadlines, front, START_S + 1, START_S + 9.9) == []
    assert late_at(deadlines, front, START_S + 10) == [(START_S + 10, device)]
    assert late_at(deadlines, front, START_S + 11, START_S + 100) == []


def test_connections_that_opened_or_ended_are_not_late(front: Front, deadlines: Deadlines) -> None:
    opened, ended = Device(front.group, front.settings), Device(front.group, front.settings)
    for device in (opened, ended):
        device.connection_made(FakeTransport(device))  # type: ignore[arg-type]
        deadlines.watch_connecting(device)
    receive(opened, packets.encode_connect(packets.Connect("d", True, 0, None, None, None)))
    ended.connection_lost(None)
    assert late_at(deadlines, front, START_S + 10, START_S + 200) == []


def test_keep_alive_is_one_and_a_half_times_what_was_asked_for(front: Front, deadlines: Deadlines) -> None:
    device, _ = front.connect(keep_alive_s=20)
    deadlines.watch(device, START_S)
    assert late_at(deadlines, front, START_S + 15, START_S + 29) == []
    assert late_at(deadlines, front, START_S + 30) == [(START_S + 30, device)]
    assert late_at(deadlines, front, START_S + 31, START_S + 500) == [], "it is not watched any longer"


def test_anything_received_moves_the_deadline(front: Front, deadlines: Deadlines) -> None:
    device, _ = front.connect(keep_alive_s=20)
    deadlines.watch(device, START_S)
    assert late_at(deadlines, front, START_S + 29) == []
    receive(device, packets.PINGREQ_PACKET[:1])
    assert late_at(deadlines, front, START_S + 30, START_S + 58) == []
    assert late_at(deadlines, front, START_S + 59) == [(START_S + 59, device)]


def test_the_clock_may_jump_over_many_seconds(front: Front, deadlines: Deadlines) -> None:
    early, later = front.connect("a", keep_alive_s=1)[0], front.connect("b", keep_alive_s=40)[0]
    for device in (early, later):
        deadlines.watch(device, START_S)
    assert late_at(deadlines, front, START_S + 45.5) == [(START_S + 45.5, early)]
    assert late_at(deadlines, front, START_S + 59.9) == []
    assert late_at(deadlines, front, START_S + 60.1) == [(START_S + 60.1, later)]


@pytest.mark.parametrize("keep_alive_s", [0, 65_535])
def test_a_device_that_ended_is_forgotten_within_the_recheck(
    front: Front, deadlines: Deadlines, keep_alive_s: int
) -> None:
    device, _ = front.connect(keep_alive_s=keep_alive_s)
    deadlines.watch(device, START_S)
    for seconds in range(1, 3 * RECHECK_S):
        assert late_at(deadlines, front, START_S + seconds) == []
    device.connection_lost(None)
    for seconds in range(3 * RECHECK_S, 4 * RECHECK_S + 1):
        assert late_at(deadlines, front, START_S + seconds) == []
    assert not deadlines._buckets


def test_a_device_that_was_told_to_go_and_stays_is_late(front: Front, deadlines: Deadlines) -> None:
    device, _ = front.connect(keep_alive_s=0)
    device.close(reason_codes.SESSION_TAKEN_OVER)
    deadlines.watch(device, START_S)
    assert late_at(deadlines, front, START_S + RECHECK_S + 1) == [(START_S + RECHECK_S + 1, device)]


def test_a_device_is_not_late_while_it_is_us_who_do_not_read(front: Front, deadlines: Deadlines) -> None:
    """Publishers are held back while a broker is away, for longer than their keep-alive."""
    device, transport = front.connect(keep_alive_s=10)
    deadlines.watch(device, START_S)
    front.group.congest(1)
    receive(device, packets.PINGREQ_PACKET)
    assert not transport.is_reading
    for seconds in range(1, 200):
        assert late_at(deadlines, front, START_S + seconds) == []
    front.group.relieve(1)
    assert transport.is_reading
    assert late_at(deadlines, front, *(START_S + seconds for seconds in range(200, 213))) == []
    late = late_at(deadlines, front, *(START_S + seconds for seconds in range(213, 213 + RECHECK_S)))
    assert [found for _, found in late] == [device], "its time begins anew"


def test_a_device_that_does_not_take_its_answers_is_late_all_the_same(
    front: Front, deadlines: Deadlines
) -> None:
    device, _ = front.connect(keep_alive_s=10)
    deadlines.watch(device, START_S)
    device.pause_writing()
    front.group.congest(1)
    receive(device, packets.PINGREQ_PACKET)
    assert late_at(deadlines, front, START_S + 15) == [(START_S + 15, device)]


def test_a_connect_in_pieces_is_read_to_its_end_while_publishers_are_held_back(front: Front) -> None:
    front.group.congest(1)
    device = Device(front.group, front.settings)
    transport = FakeTransport(device)
    device.connection_made(transport)  # type: ignore[arg-type]
    packet = packets.encode_connect(packets.Connect("d", True, 0, None, None, None))
    receive(device, packet[:5])
    assert transport.is_reading
    receive(device, packet[5:])
    assert not transport.is_reading
    assert front.group.paused_count == 1


def test_a_connection_ends_with_its_token_whatever_it_sends(front: Front, deadlines: Deadlines) -> None:
    device, _ = front.connect(keep_alive_s=0)
    device.expires_s = START_S + 90.5
    deadlines.watch(device, START_S)
    for seconds in range(1, 91):
        receive(device, packets.PINGREQ_PACKET)
        assert late_at(deadlines, front, START_S + seconds) == []
    assert late_at(deadlines, front, START_S + 91) == [(START_S + 91, device)]


def test_also_while_it_is_us_who_do_not_read(front: Front, deadlines: Deadlines) -> None:
    device, _ = front.connect(keep_alive_s=10)
    device.expires_s = START_S + 20
    deadlines.watch(device, START_S)
    front.group.congest(1)
    receive(device, packets.PINGREQ_PACKET)
    assert late_at(deadlines, front, START_S + 19.9) == []
    assert late_at(deadlines, front, START_S + 20) == [(START_S + 20, device)]


def test_a_deadline_that_comes_nearer_or_goes_further(front: Front, deadlines: Deadlines) -> None:
    """A device stands in several buckets then; the last one counts, and it is late once."""
    device, _ = front.connect(keep_alive_s=0)
    for ahead_s in (50, 20, 40, 5, 30):
        device.expires_s = START_S + ahead_s
        deadlines.watch(device, START_S)
    assert late_at(deadlines, front, *(START_S + seconds for seconds in range(1, 30))) == []
    assert late_at(deadlines, front, START_S + 30) == [(START_S + 30, device)]
    assert late_at(deadlines, front, *(START_S + seconds for seconds in range(31, 200))) == []
    assert not deadlines._buckets
