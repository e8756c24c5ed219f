"""What did not arrive, and what came twice."""

from __future__ import annotations

import random

import pytest

from loadtest.swarm import stamp
from loadtest.users.faults import LOST, MISSED
from loadtest.users.sequences import (
    LOST_AFTER_S,
    MISSING_MAX,
    WORKERS_MAX,
    Loss,
    Scope,
    SequenceCheck,
    Stamp,
    Streams,
    stamp_of,
)


class Site:
    """One stream on topic `t`, and one scope that is subscribed to it since 10 ns."""

    def __init__(self) -> None:
        self.streams = Streams()
        self.check = SequenceCheck(self.streams.by_number)
        self.stream = self.streams.add("t")
        self.scope = self.check.scope()
        self.scope.filters["t"] = 10

    def send(self, count: int, *, now_ns: int = 20) -> None:
        for _ in range(count):
            self.stream.next_stamp(now_ns)

    def take(self, *sequences: int, scope: Scope | None = None, now_s: float = 0.0) -> list[bool]:
        return [
            self.check.received(scope or self.scope, Stamp(self.stream.number, each, 0), "t", 1, now_s)
            for each in sequences
        ]

    def lost(self, now_s: float = 0.0, *, is_over: bool = True) -> int:
        losses = self.check.losses(now_s, is_over=is_over)
        return sum(loss.message_count for loss in losses if loss.kind == LOST)


def test_a_stamp_is_found_in_front_of_a_payload_and_in_a_property() -> None:
    written = stamp(7, 9, 11)
    assert stamp_of(written + b"more", ()) == Stamp(7, 9, 11)
    assert stamp_of(b"", (("other", "x"), ("stamp", written.hex()))) == Stamp(7, 9, 11)


@pytest.mark.parametrize(
    "value", ["", "zz" * 24, "00" * 24, stamp(1, 2, 3).hex()[:-2], stamp(1, 2, 3).hex() + "00"]
)
def test_a_property_that_is_no_stamp_is_none(value: str) -> None:
    assert stamp_of(b"short", (("stamp", value),)) is None


def test_streams_of_workers_have_different_numbers() -> None:
    first, last = Streams(0).add("t").number, Streams(WORKERS_MAX - 1).add("t").number
    assert 0x8000_0000 <= first < last < 2**32
    with pytest.raises(ValueError, match="256 workers"):
        Streams(WORKERS_MAX)


def test_a_loss_has_the_owner_of_its_scope() -> None:
    class Owner:
        def received_row(self, topic: str, qos: int) -> tuple[str, str]:
            return "MQTT", topic

    site, owner = Site(), Owner()
    site.check.forget(site.scope)
    for scope in (site.check.scope(owner), site.check.group("$share/g/t", owner)):
        scope.filters["t" if not scope.is_shared else "$share/g/t"] = 10
    site.send(2)
    losses = site.check.losses(0.0, is_over=True)
    assert [(loss.owner, loss.message_count) for loss in losses] == [(owner, 2)] * 2


def test_everything_in_order_is_complete() -> None:
    site = Site()
    site.send(3)
    assert not site.check.is_complete
    assert site.take(0, 1, 2) == [True] * 3
    assert site.check.is_complete
    assert site.lost() == 0


def test_beginning_middle_and_end_can_be_lost() -> None:
    site = Site()
    site.send(10)
    site.take(2, 3, 6)
    assert not site.check.is_complete
    assert site.lost() == 2 + 2 + 3
    assert site.lost() == 0, "once"


def test_a_stream_of_which_nothing_came_is_lost_whole() -> None:
    site = Site()
    site.send(4)
    assert site.lost() == 4


def test_a_stream_that_began_before_the_subscription_is_followed_from_what_comes_first() -> None:
    site = Site()
    site.send(5, now_ns=5)
    site.take(3, 4)
    assert site.lost() == 0
    site = Site()
    site.send(5, now_ns=5)
    assert site.lost() == 0


def test_what_comes_twice_is_told() -> None:
    site = Site()
    site.send(3)
    assert site.take(0, 1, 1, 0, 2) == [True, True, False, False, True]


def test_what_comes_late_is_neither_lost_nor_repeated() -> None:
    site = Site()
    site.send(4)
    assert site.take(0, 3, 1, 2) == [True] * 4
    assert site.lost() == 0


def test_a_gap_is_lost_after_a_while() -> None:
    site = Site()
    site.send(3)
    site.take(0, 2, now_s=100.0)
    assert site.lost(100.0 + LOST_AFTER_S - 0.01, is_over=False) == 0
    assert site.lost(100.0 + LOST_AFTER_S, is_over=False) == 1


@pytest.mark.parametrize(("gap", "remembered"), [(MISSING_MAX, True), (MISSING_MAX + 1, False)])
def test_missing_messages_are_remembered_up_to_a_limit(gap: int, remembered: bool) -> None:
    site = Site()
    site.send(gap + 2)
    site.take(0, gap + 1)
    assert site.lost(is_over=False) == (0 if remembered else gap)
    assert site.take(5) == [remembered]


def test_what_is_sent_while_a_device_without_session_is_away_is_missed_and_not_lost() -> None:
    site = Site()
    site.send(10)
    site.take(0, 1)
    site.check.went_away(site.scope)
    site.take(6, 7, 9)
    assert site.check.losses(0.0, is_over=True) == [Loss(MISSED, "t", 1, 4), Loss(LOST, "t", 1, 1)]


def test_members_of_a_group_receive_together() -> None:
    site = Site()
    site.check.forget(site.scope)
    group = site.check.group("$share/g/t")
    assert site.check.group("$share/g/t") is group
    group.filters["$share/g/t"] = 10
    site.send(6)
    order = [0, 1, 2, 3, 5]
    random.Random(1).shuffle(order)
    assert all(site.take(*order, scope=group))
    assert site.lost() == 1


def test_a_scope_that_is_forgotten_loses_nothing() -> None:
    site = Site()
    site.send(5)
    site.take(0)
    site.check.forget(site.scope)
    assert site.check.is_complete
    assert site.lost() == 0


def test_any_pattern_of_loss_is_counted_exactly() -> None:
    chance = random.Random(5)
    for _ in range(200):
        site = Site()
        count = chance.randrange(1, 40)
        site.send(count)
        kept = [each for each in range(count) if chance.random() < 0.7]
        again = [each for each in kept if chance.random() < 0.2]
        came = (
            sorted(kept + again) if chance.random() < 0.5 else chance.sample(kept + again, len(kept + again))
        )
        assert site.take(*came).count(False) == len(again)
        assert site.lost() == count - len(kept)


def test_streams_of_which_nothing_came_are_found_by_wildcards_too() -> None:
    site = Site()
    site.scope.filters.clear()
    site.scope.filters["+/a"] = 10
    for topic in ("x/a", "y/a", "x/b"):
        site.streams.add(topic).next_stamp(20)
    assert not site.check.is_complete
    assert site.lost() == 2
    assert site.check.is_complete


def test_what_was_sent_before_the_run_is_of_another_one() -> None:
    check = SequenceCheck({}, began_ns=100)
    assert [check.is_of_this_run(Stamp(1, 0, time_ns)) for time_ns in (99, 100, 101)] == [False, True, True]
