"""Kept sessions of one front end, without a broker behind them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fake_gateway import Front, receive
from mqtt_core import CollectingSink

from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.sessions.durable import DurableSession, open_session
from iotmq.mqtt_front.sessions.durable_egress import DurableEgress
from iotmq.ports.sessions import OpenedSession, Refused, SessionProgress, SessionSubscription


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
            session._invariants()
        session.end()
        session._invariants()
        for other in sessions:
            other._invariants()
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
