"""Connections from one task to the next."""

from __future__ import annotations

from unittest import mock

from manual_clock import ManualClock

from iotmq.bridge.cluster import Cluster
from iotmq.bridge.pool import KEPT_MAX, Pool


def cluster() -> mock.Mock:
    return mock.Mock(spec=Cluster)


def test_what_was_put_back_is_taken_by_one_other_with_the_same_key() -> None:
    pool, one, made = Pool(clock=ManualClock()), cluster(), cluster()
    pool.put_back("a", one)
    assert pool.take("b", lambda: made) is made
    assert pool.take("a", cluster) is one
    assert pool.take("a", lambda: made) is made
    one.close.assert_not_called()


def test_of_several_with_a_key_the_last_used_comes_first() -> None:
    pool, one, two = Pool(clock=ManualClock()), cluster(), cluster()
    pool.put_back("a", one)
    pool.put_back("a", two)
    assert pool.take("a", cluster) is two


def test_those_that_were_idle_for_long_are_closed() -> None:
    clock = ManualClock()
    pool, one, made = Pool(clock=clock), cluster(), cluster()
    pool.put_back("a", one)
    clock.advance(30.5)
    assert pool.take("a", lambda: made) is made
    one.close.assert_called_once_with()


def test_a_process_keeps_a_few() -> None:
    pool = Pool(clock=ManualClock())
    every = [cluster() for _ in range(KEPT_MAX + 1)]
    for number, each in enumerate(every[:KEPT_MAX]):
        pool.put_back(number, each)
    assert not any(each.close.called for each in every)
    pool.put_back(KEPT_MAX, every[KEPT_MAX])
    assert [each.close.called for each in every] == [True] + [False] * KEPT_MAX
