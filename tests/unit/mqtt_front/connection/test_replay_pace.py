"""The pace of what had waited: never faster than told, a burst at a time, and no credit for idle time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotmq.mqtt_front.connection.replay_pace import BURST_S, Pace, PaceLimits


def sent_within(pace: Pace, seconds: float, *, size: int = 100, start_s: float = 50.0) -> int:
    """How many messages go when each goes as soon as it may."""
    now_s, count = start_s, 0
    while now_s <= start_s + seconds:
        pause_s = pace.pause_s(now_s)
        if pause_s > 0:
            now_s += pause_s
            continue
        pace.count(size, now_s)
        count += 1
    return count


def test_without_limits_there_is_no_pace() -> None:
    assert PaceLimits().begin() is None
    assert PaceLimits().records_at_once(128) == 128


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "size", "per_s"),
    [
        (PaceLimits(messages_per_s=100), 1_000, 100),
        (PaceLimits(bytes_per_s=10_000), 100, 100),
        (PaceLimits(messages_per_s=100, bytes_per_s=1 << 20), 1, 100),
        (PaceLimits(messages_per_s=1_000, bytes_per_s=10_000), 100, 100),
        (PaceLimits(messages_per_s=1), 1, 1),
        (PaceLimits(messages_per_s=100_000), 1, 100_000),
    ],
)
def test_the_slower_limit_holds(limits: PaceLimits, size: int, per_s: int) -> None:
    pace = limits.begin()
    assert pace is not None
    count = sent_within(pace, 10, size=size)
    assert per_s * (10 - 2 * BURST_S) <= count <= per_s * (10 + 2 * BURST_S) + 2


@given(st.integers(1, 1_000), st.lists(st.tuples(st.floats(0, 3), st.integers(1, 50)), max_size=20))
def test_no_window_has_more_than_its_share(per_s: int, steps: list[tuple[float, int]]) -> None:
    pace = PaceLimits(messages_per_s=per_s).begin()
    assert pace is not None
    now_s = 0.0
    gone: list[float] = []
    for idle_s, wanted in steps:
        now_s += idle_s
        for _ in range(wanted):
            if pace.pause_s(now_s) == 0:
                pace.count(1, now_s)
                gone.append(now_s)
    for place, start_s in enumerate(gone):
        within = sum(1 for at in gone[place:] if at <= start_s + 1.0)
        assert within <= per_s * (1.0 + 2 * BURST_S) + 2


def test_reads_are_no_larger_than_a_burst() -> None:
    assert PaceLimits(messages_per_s=50).records_at_once(128) == 6
    assert PaceLimits(messages_per_s=1).records_at_once(128) == 1
    assert PaceLimits(messages_per_s=1_000_000).records_at_once(128) == 128
    assert PaceLimits(bytes_per_s=5).records_at_once(128) == 128
