"""Marks of filters: found by topic, gone when removed or when their channel is; small and quick."""

from __future__ import annotations

import time

import pytest
from loop_turns import turn_s_max

from iotmq.broker.delivery.filter_marks import FilterMarks


def topic_of(number: int) -> bytes:
    return b"devices/device-%07d/commands" % number


def test_marks_are_found_by_topic_and_each_is_there_once() -> None:
    marks = FilterMarks()
    assert marks.of_topic(b"a") == []
    assert marks.add(b"a", 1, 7)
    assert not marks.add(b"a", 1, 7)
    assert marks.add(b"a", 2, 7)
    assert marks.add(b"a", 1, 8)
    assert marks.add(b"b", 1, 7)
    assert sorted(marks.of_topic(b"a")) == [(1, 7), (1, 8), (2, 7)]
    assert marks.count == 4
    assert not marks.remove(b"a", 3, 7)
    assert not marks.remove(b"c", 1, 7)
    assert marks.remove(b"a", 1, 7)
    assert not marks.remove(b"a", 1, 7)
    assert sorted(marks.of_topic(b"a")) == [(1, 8), (2, 7)]
    marks.check_invariants()


@pytest.mark.parametrize("channel", [1, 65_535])
def test_the_first_and_the_last_channel_and_id(channel: int) -> None:
    marks = FilterMarks()
    marks.add("ä/€".encode(), channel, (1 << 32) - 1)
    assert marks.of_topic("ä/€".encode()) == [(channel, (1 << 32) - 1)]


def test_channels_that_are_none() -> None:
    marks = FilterMarks()
    with pytest.raises(ValueError, match="begin with 1"):
        marks.add(b"a", 0, 1)
    for channel in (-1, 65_536):
        with pytest.raises(OverflowError):
            marks.add(b"a", channel, 1)
    for shard in (-1, 256):
        with pytest.raises(IndexError):
            marks.drop(1, shard)


@pytest.mark.slow
def test_a_mark_costs_less_than_twenty_bytes_and_what_is_removed_nothing() -> None:
    marks = FilterMarks()
    count = 300_000
    for number in range(count):
        marks.add(topic_of(number), 1 + number % 50, number + 1)
    marks.check_invariants()
    assert 12 * count < marks.memory_bytes < 20 * count
    assert all(marks.of_topic(topic_of(n)) == [(1 + n % 50, n + 1)] for n in range(0, count, 997))
    assert not any(marks.of_topic(topic_of(n)) for n in range(count, 2 * count))
    for number in range(count):
        assert marks.remove(topic_of(number), 1 + number % 50, number + 1)
    marks.check_invariants()
    assert marks.count == 0
    assert marks.memory_bytes <= 256 * 8 * 12


@pytest.mark.slow
def test_no_step_takes_a_turn_though_there_are_very_many() -> None:
    marks = FilterMarks()
    longest_s = 0.0
    for number in range(0, 1_000_000, 100):
        began_s = time.thread_time()
        for each in range(number, number + 100):
            marks.add(topic_of(each), 1 + each % 2, 1)
        longest_s = max(longest_s, time.thread_time() - began_s)
    for shard in range(256):
        began_s = time.thread_time()
        marks.drop(1, shard)
        longest_s = max(longest_s, time.thread_time() - began_s)
    assert longest_s < turn_s_max()
    assert marks.count == 500_000
    assert (marks.of_topic(topic_of(0)), marks.of_topic(topic_of(1))) == ([], [(2, 1)])
    marks.check_invariants()
