"""The smallest unconsumed offset, against a set of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotmq.client.consuming.pushing.progress import QueueProgress


def test_commits_only_up_to_the_first_open_range() -> None:
    progress = QueueProgress(10)
    progress.taken(10, 20)
    progress.taken(20, 30)
    progress.done(20)
    assert progress.committable == 10
    progress.done(10)
    assert progress.committable == 30


def test_skipping_counts_as_done_unless_something_before_is_open() -> None:
    progress = QueueProgress(0)
    progress.skipped_to(5)
    assert progress.committable == 5
    progress.taken(5, 6)
    progress.skipped_to(9)
    assert (progress.committable, progress.next_offset) == (5, 9)
    progress.done(5)
    assert progress.committable == 9


def test_never_goes_back() -> None:
    progress = QueueProgress(7)
    progress.skipped_to(3)
    assert progress.committable == 7
    with pytest.raises(ValueError, match="does not follow"):
        progress.taken(6, 8)
    with pytest.raises(ValueError, match="does not follow"):
        progress.taken(8, 8)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=30), st.randoms(use_true_random=False)
)
def test_agrees_with_a_set_of_offsets(ranges, chance) -> None:
    progress = QueueProgress(100)
    at = 100
    open_ranges: list[tuple[int, int]] = []
    undone: set[int] = set()
    for gap, size in ranges:
        first, at = at + gap, at + gap + size
        progress.taken(first, at)
        open_ranges.append((first, at))
        undone.update(range(first, at))
        if chance.random() < 0.5:
            first, end = open_ranges.pop(chance.randrange(len(open_ranges)))
            progress.done(first)
            undone.difference_update(range(first, end))
        assert progress.committable == (min(undone) if undone else at)
