"""Which brokers are avoided."""

from __future__ import annotations

from iotmq import limits
from iotmq.client.transport.broker_health import FAILED_AVOID_S_MIN, BrokerHealth


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
