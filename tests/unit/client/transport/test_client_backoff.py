"""Pauses between tries, and which brokers rest."""

from __future__ import annotations

from iotmq import limits
from iotmq.client.transport.backoff import Backoff
from iotmq.client.transport.broker_health import FAILED_AVOID_S_MIN, BrokerHealth


def test_pauses_double_up_to_the_maximum_and_start_again() -> None:
    backoff = Backoff(min_s=1, max_s=5, chance=lambda: 1.0)
    assert [backoff.next_s() for _ in range(4)] == [1, 2, 4, 5]
    backoff.reset()
    assert backoff.next_s() == 1


def test_jitter_takes_at_most_half_away() -> None:
    backoff = Backoff(min_s=2, max_s=2, chance=lambda: 0.0)
    assert backoff.next_s() == 1


def test_thousands_of_failures_do_not_overflow() -> None:
    backoff = Backoff(min_s=0.1, max_s=3, chance=lambda: 1.0)
    for _ in range(3000):
        pause_s = backoff.next_s()
    assert pause_s == 3


def test_a_failing_broker_is_avoided_longer_each_time() -> None:
    health = BrokerHealth(slow_s=0.5, avoided_s_max=30)
    assert not health.is_avoided("a", 0)
    health.failed("a", now_s=0)
    assert health.is_avoided("a", FAILED_AVOID_S_MIN * 0.99)
    assert not health.is_avoided("a", FAILED_AVOID_S_MIN)
    health.failed("a", now_s=10)
    assert health.is_avoided("a", 10 + 2 * FAILED_AVOID_S_MIN * 0.99)
    for _ in range(100):
        health.failed("a", now_s=20)
    assert health.is_avoided("a", 49.9)
    assert not health.is_avoided("a", 50)


def test_an_answer_in_time_forgives_and_a_slow_one_costs_twice_its_time() -> None:
    health = BrokerHealth(slow_s=0.5, avoided_s_max=30)
    health.failed("a", now_s=0)
    health.answered("a", took_s=0.5, now_s=0.1)
    assert not health.has_avoided
    health.answered("a", took_s=2, now_s=1)
    assert health.is_avoided("a", 4.9)
    assert not health.is_avoided("a", 5)
    assert not health.is_avoided("b", 2)


def test_so_many_brokers_are_remembered_and_no_more() -> None:
    health = BrokerHealth(slow_s=0.5, avoided_s_max=30)
    for number in range(limits.BROKERS_MAX):
        health.failed(f"broker-{number}", now_s=0)
    health.failed("broker-0", now_s=0)
    assert all(health.is_avoided(f"broker-{number}", 0.4) for number in range(limits.BROKERS_MAX))
    health.answered("one-more", took_s=1, now_s=0)
    assert health.is_avoided("one-more", 0.4)
    assert not health.is_avoided("broker-1", 0.4), "nobody has heard of it for longest"
    assert health.is_avoided("broker-0", 0.4)
