"""The link of the log: once, and for a day."""

from __future__ import annotations

from manual_clock import ManualClock

from iotmq.console.access.first_link import LIFE_S, FirstLink


def test_a_link_counts_once() -> None:
    link = FirstLink(ManualClock())
    assert not link.is_open
    assert not link.take("")
    token = link.make()
    assert link.is_open
    assert not link.take(token + "x")
    assert not link.take("\udcff")
    assert link.take(token)
    assert not link.is_open
    assert not link.take(token)


def test_a_link_counts_for_a_day() -> None:
    clock = ManualClock()
    link = FirstLink(clock)
    token = link.make()
    clock.advance(LIFE_S - 1)
    assert link.is_open
    clock.advance(1)
    assert not link.is_open
    assert not link.take(token)


def test_a_new_link_takes_the_place_of_the_former_one_and_closing_ends_it() -> None:
    link = FirstLink(ManualClock())
    former, token = link.make(), link.make()
    assert not link.take(former)
    link.close()
    assert not link.take(token)
