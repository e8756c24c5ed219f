"""Kept sessions of one front end, without a broker behind them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fake_gateway import Front, receive, split_output
from mqtt_core import CollectingSink

from iotmq.message.properties import encode_properties
from iotmq.message.records.record import encode_record
from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.sessions.durable import DurableSession, open_session
from iotmq.mqtt_front.sessions.durable_egress import DurableEgress
from iotmq.ports.sessions import (
    OpenedSession,
    QueueRead,
    QueueRecords,
    Refused,
    SessionProgress,
    SessionSubscription,
)


class SilentPort:
    """A broker that answers nothing."""

    def read_queue(self, *arguments: Any) -> None:
        pass

    def progress(self, *arguments: Any) -> None:
        pass


class AnsweringPort(SilentPort):
    """A broker that answers reports, when it is told to."""

    def __init__(self) -> None:
        self.reports: list[tuple[Sequence[SessionProgress], Callable[[Refused | None], None]]] = []

    def progress(self, changes: Sequence[SessionProgress], done: Callable[[Refused | None], None]) -> None:
        self.reports.append((changes, done))


def open_sessions(count: int, port: SilentPort | None = None) -> tuple[DurableEgress, list[DurableSession]]:
    """Sessions that all subscribe one queue, and each one of its own."""
    front = Front(CollectingSink())
    egress = DurableEgress(front.group, port or SilentPort(), SilentPort())  # type: ignore[arg-type]
    sessions = []
    for number in range(count):
        subscriptions = [
            SessionSubscription("all/#", 1, 7, 0, 0),
            SessionSubscription(f"own/{number}", 1, 100 + number, 0, 0),
        ]
        opened = OpenedSession(1, True, subscriptions, [], [])
        device = Device(front.group, front.settings)
        device.client_id = str(number)
        session = open_session(egress, device, device.client_id, opened)
        session.add(subscriptions)
        sessions.append(session)
    return egress, sessions


def test_sessions_of_one_filter_leave_it_in_any_order() -> None:
    egress, sessions = open_sessions(200)
    source = random.Random(1)
    while sessions:
        session = sessions.pop(source.randrange(len(sessions)))
        if source.random() < 0.2:
            session.remove(["all/#"])
            session.check_invariants()
        session.end()
        session.check_invariants()
        for other in sessions:
            other.check_invariants()
        assert egress.queue_count == len(sessions) + bool(sessions)


@pytest.mark.parametrize("answer", ["none yet", "stored", "refused"])
def test_a_session_that_ends_tells_only_what_its_broker_may_not_know(answer: str) -> None:
    port = AnsweringPort()
    egress, (session,) = open_sessions(1, port)
    session.remove(["own/0"])
    egress.tell_progress()
    ((changes, done),) = port.reports
    assert [change.cursors for change in changes] == [[]]
    if answer != "none yet":
        done(None if answer == "stored" else Refused(1, "the disk is full"))
    progress = session.end()
    assert progress is not None
    assert progress.cursors == ([] if answer == "stored" else [(7, 0, 0)])


def test_a_session_that_ends_tells_of_queues_whose_broker_was_away() -> None:
    egress, sessions = open_sessions(2)
    egress.missed([100])
    ended = [session.end() for session in sessions]
    assert [progress and progress.cursors for progress in ended] == [[(100, 0, 0)], []]


def test_a_report_that_was_refused_says_again_that_no_packet_id_is_left() -> None:
    front, port = Front(CollectingSink()), AnsweringPort()
    egress = DurableEgress(front.group, port, SilentPort())  # type: ignore[arg-type]
    device, _ = front.connect("d")
    subscriptions = [SessionSubscription(name, 1, number, 0, 0) for number, name in enumerate("abc")]
    session = open_session(egress, device, "d", OpenedSession(1, True, subscriptions, [5], []))
    session.add(subscriptions)
    receive(device, bytes((0x62, 2, 0, 5)))
    assert device.received_packet_ids == []
    for name, answer in (("a", Refused(1, "the disk is full")), ("b", None)):
        session.remove([name])
        egress.tell_progress()
        ((change,), done) = port.reports.pop()
        assert change.received == []
        done(answer)
    session.remove(["c"])
    egress.tell_progress()
    (((change,), _),) = port.reports
    assert change.received is None


class ReadPort(AnsweringPort):
    """A broker whose queue has three messages of QoS 2."""

    def read_queue(self, request: QueueRead, done: Callable[[QueueRecords], None]) -> None:
        properties = encode_properties({"MQTT_TOPIC": "t", "MQTT_QOS": "2"})
        records = [
            encode_record(topic="mqtt", body=b"%d" % position, properties=properties, position=position)
            for position in range(request.position, 3)
        ]
        done(QueueRecords(records, 3, True))


class ReceivingDevice:
    """A device with a kept session that was sent three messages of QoS 2, whose packet ids are 1 to 3."""

    def __init__(self) -> None:
        self.front, self.port = Front(CollectingSink()), ReadPort()
        egress = DurableEgress(self.front.group, self.port, SilentPort())  # type: ignore[arg-type]
        self._device, self._out = self.front.connect("d")
        opened = OpenedSession(1, True, [SessionSubscription("t", 2, 7, 0, 0)], [], [])
        self.session = open_session(egress, self._device, "d", opened)
        self.session.start(opened)
        self.front.loop.run()
        self.answer(None)
        assert [first >> 4 for first, _body in split_output(self._out.take())] == [packets.PUBLISH] * 3

    def answer(self, *answers: Refused | None) -> None:
        """Have the broker answer the reports that it was sent so far."""
        reports, self.port.reports = self.port.reports, []
        for (_changes, done), answer in zip(reports, answers, strict=True):
            done(answer)
        self.front.loop.run()
        self.session.check_invariants()

    def receive(self, *packet_ids: int) -> None:
        """Send PUBREC, of which the broker is told in one report."""
        for packet_id in packet_ids:
            receive(self._device, packets.encode_acknowledgement(packets.PUBREC, packet_id))
        self.front.loop.run()

    def released(self) -> list[int]:
        """Return the packet ids of the PUBREL packets since the last call."""
        found = split_output(self._out.take())
        assert all(first >> 4 == packets.PUBREL for first, _body in found)
        return [int.from_bytes(body[:2]) for _first, body in found]


GONE = Refused(14, "this broker is master no more")


@pytest.mark.parametrize(
    "answers",
    [(GONE, None, None), (GONE, GONE, None), (GONE, None, GONE), (GONE, GONE, GONE), (None, GONE, None)],
)
def test_pubrel_keeps_the_order_of_pubrec_when_reports_are_refused(answers: Sequence[Refused | None]) -> None:
    """A master that goes refuses the reports under way, and the next one takes what is told again."""
    device = ReceivingDevice()
    for packet_id in (1, 2, 3):
        device.receive(packet_id)
    assert device.released() == []
    device.answer(*answers)
    released = device.released()
    while device.front.loop.timers:
        device.front.loop.fire()
        device.answer(*(None for _ in device.port.reports))
        released += device.released()
    assert released == [1, 2, 3]


def test_pubrel_that_waits_for_a_report_told_again_is_not_overtaken_by_a_later_one() -> None:
    device = ReceivingDevice()
    device.receive(1)
    device.answer(GONE)
    device.receive(2)
    device.answer(GONE)
    device.receive(3)
    device.front.loop.fire()
    while device.port.reports:
        device.answer(*(None for _ in device.port.reports))
    while device.front.loop.timers:
        device.front.loop.fire()
        device.answer(*(None for _ in device.port.reports))
    assert device.released() == [1, 2, 3]


def test_pubrel_of_a_report_that_the_lost_connection_refuses_first_does_not_overtake() -> None:
    """A report for which there is no connection is refused at once, before those of the lost connection are."""
    device = ReceivingDevice()
    device.receive(1)
    device.receive(2)
    device.port.reports.reverse()
    device.answer(GONE, GONE)
    device.front.loop.fire()
    device.answer(*(None for _ in device.port.reports))
    assert device.released() == [1, 2]


@pytest.mark.parametrize("seed", range(60))
def test_pubrel_comes_in_the_order_of_pubrec_and_when_the_broker_knows_in_whatever_order_it_answers(
    seed: int,
) -> None:
    source = random.Random(seed)
    device = ReceivingDevice()
    to_receive, released, known = [1, 2, 3], [], set()

    def answer(place: int, refused: Refused | None) -> None:
        changes, done = device.port.reports.pop(place)
        done(refused)
        device.front.loop.run()
        device.session.check_invariants()
        if refused is None:
            (change,) = changes
            known.update(flight.packet_id for flight in change.in_flight or () if flight.is_released)

    while len(released) < 3:
        match source.randrange(4):
            case 0 if to_receive:
                device.receive(to_receive.pop(0))
            case 1 if device.port.reports:
                answer(source.randrange(len(device.port.reports)), GONE)
            case 2 if device.port.reports:
                answer(source.randrange(len(device.port.reports)), None)
            case 3 if device.front.loop.timers:
                device.front.loop.fire()
        released += device.released()
        assert set(released) <= known
    assert released == [1, 2, 3]


class CountingPort(SilentPort):
    """A broker that is asked, and does not answer."""

    def __init__(self) -> None:
        self.reads = 0

    def read_queue(self, *arguments: Any) -> None:
        self.reads += 1


def test_sessions_whose_broker_was_away_read_on_over_several_turns() -> None:
    front, port = Front(CollectingSink()), CountingPort()
    egress = DurableEgress(front.group, port, SilentPort())  # type: ignore[arg-type]
    for number in range(300):
        device, _ = front.connect(f"d{number}")
        subscriptions = [SessionSubscription("a", 1, number, 0, 0)]
        session = open_session(egress, device, f"d{number}", OpenedSession(1, True, subscriptions, [], []))
        session.add(subscriptions, is_resumed=True)
    front.loop.run()
    assert port.reads == 0
    egress.missed(range(300))
    counts = [0]
    while front.loop.ready:
        front.loop.turn()
        counts.append(port.reads)
    assert counts[-1] == 300
    assert max(after - before for before, after in itertools.pairwise(counts)) <= 64
    egress.missed([0])
    front.loop.run()
    assert port.reads == 300, "it is being read"
