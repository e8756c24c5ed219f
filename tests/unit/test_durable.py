"""Kept sessions of one front end, without a broker behind them."""

from __future__ import annotations

import random
from typing import Any

from fake_gateway import Front
from mqtt_core import CollectingSink

from iotmq.client.session_ports import OpenedSession, SessionSubscription
from iotmq.mqtt_front.device import Device
from iotmq.mqtt_front.durable import DurableEgress, DurableSession


class SilentPort:
    """A broker that answers nothing."""

    def read_queue(self, *arguments: Any) -> None:
        pass

    def progress(self, *arguments: Any) -> None:
        pass


def open_sessions(count: int) -> tuple[DurableEgress, list[DurableSession]]:
    """Sessions that all subscribe one queue, and each one of its own."""
    front = Front(CollectingSink())
    egress = DurableEgress(front.group, SilentPort(), SilentPort())  # type: ignore[arg-type]
    sessions = []
    for number in range(count):
        subscriptions = [
            SessionSubscription("all/#", 1, 7, 0, 0),
            SessionSubscription(f"own/{number}", 1, 100 + number, 0, 0),
        ]
        opened = OpenedSession(1, True, subscriptions, [], [])
        device = Device(front.group, front.settings)
        device.client_id = str(number)
        session = egress.open(device, device.client_id, opened)
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
