"""Counts within a window: when it ends, and how many names there are."""

from __future__ import annotations

from iotmq.credentials.window_counts import WindowCounts


def test_a_window_begins_with_the_first_count() -> None:
    counts: WindowCounts[str] = WindowCounts(window_s=10, names_max=5)
    assert counts.count_of("a", 0) == 0
    assert counts.add("a", 0) == 1
    assert counts.add("a", 9.9) == 2
    assert counts.count_of("a", 9.9) == 2
    assert counts.count_of("a", 10) == 0
    assert counts.add("a", 10) == 1


def test_names_are_bounded_and_the_one_that_began_first_goes() -> None:
    counts: WindowCounts[str] = WindowCounts(window_s=10, names_max=3)
    for number, name in enumerate("abc"):
        counts.add(name, number)
    # A new window is a new beginning.
    counts.add("a", 10)
    counts.add("d", 10)
    counts.check_invariants()
    assert len(counts) == 3
    assert [counts.count_of(name, 10) for name in "abcd"] == [1, 0, 1, 1]


def test_forgotten_is_not_counted() -> None:
    counts: WindowCounts[str] = WindowCounts(window_s=10, names_max=3)
    counts.add("a", 0)
    counts.forget("a")
    counts.forget("b")
    assert counts.count_of("a", 0) == len(counts) == 0
