"""Wills that brokers keep for devices that have gone: how many are looked at, and how they are dropped."""

from __future__ import annotations

from typing import Any

import pytest
from manual_clock import ManualClock

from iotmq import limits
from iotmq.mqtt.reason_codes import NOT_AUTHORIZED
from iotmq.mqtt_front.permissions.topic_template import Subject
from iotmq.mqtt_front.sessions.left_wills import LeftWill, LeftWills
from iotmq.ports.sessions import CloseRequest


class Brokers:
    def __init__(self) -> None:
        self.closed: list[CloseRequest] = []

    def close_session(self, request: CloseRequest) -> None:
        self.closed.append(request)


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def book(brokers: Any, clock: ManualClock) -> LeftWills:
    return LeftWills(brokers, clock)


def leave(book: LeftWills, client_id: str, *, epoch: int = 1, delay_s: float = 10.0) -> LeftWill:
    will = LeftWill(book, Subject(client_id, address="192.0.2.1"), None, None, is_for_rules=True)
    book.add(will, epoch=epoch, delay_s=delay_s)
    return will


def test_so_many_are_looked_at_and_the_oldest_goes(book: LeftWills) -> None:
    for number in range(limits.MQTT_LEFT_WILLS_MAX):
        leave(book, f"c{number}")
    assert next(iter(book)).client_id == "c0"
    assert len(book) == limits.MQTT_LEFT_WILLS_MAX
    leave(book, "one more")
    assert len(book) == limits.MQTT_LEFT_WILLS_MAX
    assert next(iter(book)).client_id == "c1"
    # One that comes and goes has one place.
    leave(book, "one more")
    assert len(book) == limits.MQTT_LEFT_WILLS_MAX


def test_a_will_is_dropped_once(book: LeftWills, brokers: Brokers) -> None:
    former = leave(book, "c", epoch=1)
    will = leave(book, "c", epoch=2)
    leave(book, "d")
    former.close(NOT_AUTHORIZED)
    assert brokers.closed == [], "it is of a session that has gone on"
    for _ in range(2):
        will.close(NOT_AUTHORIZED, "why")
        will.finish()
    assert brokers.closed == [CloseRequest(client_id="c", epoch=2, expiry_s=0, drops_will=True)]
    assert will.close_reason == NOT_AUTHORIZED
    assert [each.client_id for each in book] == ["d"]
    assert (will.user, will.address) == (None, "192.0.2.1")


def test_who_is_back_or_whose_will_was_published_is_forgotten(book: LeftWills, clock: ManualClock) -> None:
    leave(book, "back")
    leave(book, "soon", delay_s=5)
    leave(book, "late", delay_s=20)
    book.forget("back")
    book.forget("unknown")
    clock.advance(5)
    assert [each.client_id for each in book] == ["late"]
    assert len(book) == 1
