"""Values of series at steps of time: what is shown, and what is not."""

from __future__ import annotations

import math

from iotmq.history.rings import Resolution, Ring

STEP_MS = 10_000
BASE = 1_700_000_000_000 // STEP_MS


def ring() -> Ring:
    return Ring(Resolution(10, 6))


def shown(values: list[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


def fill(of: Ring, *slots: int, value: float = 1.0) -> None:
    for slot in slots:
        of.add((BASE + slot) * STEP_MS + 5_000, [(0, value + slot)])


def test_a_value_is_the_mean_of_its_step() -> None:
    made = ring()
    for value in (1.0, 2.0, 6.0):
        made.add(BASE * STEP_MS, [(0, value)])
    assert made.read(0, first_slot=BASE, count=2) == [3.0, *made.read(0, first_slot=BASE + 1, count=1)]
    assert shown(made.read(0, first_slot=BASE - 1, count=3)) == [None, 3.0, None]


def test_the_oldest_go_when_the_ring_is_full() -> None:
    made = ring()
    fill(made, *range(8))
    assert shown(made.read(0, first_slot=BASE, count=8)) == [None, None, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def test_steps_that_were_skipped_are_gaps() -> None:
    made = ring()
    fill(made, 0, 1, 2, 3, 4, 5, 9)
    assert shown(made.read(0, first_slot=BASE + 4, count=6)) == [5.0, 6.0, None, None, None, 10.0]


def test_a_clock_that_is_set_back_leaves_nothing_at_times_to_come() -> None:
    made = ring()
    fill(made, 0, 1, 2, 3)
    fill(made, 1, value=11.0)
    assert shown(made.read(0, first_slot=BASE, count=4)) == [1.0, 12.0, None, None]
    # The loop misses a step, where something stood before the clock was set.
    fill(made, 3, value=21.0)
    assert shown(made.read(0, first_slot=BASE, count=4)) == [1.0, 12.0, None, 24.0]


def test_a_series_that_has_no_value_in_a_step_has_a_gap_there() -> None:
    made = ring()
    for slot in range(3):
        made.add((BASE + slot) * STEP_MS, [(0, 1.0)] if slot == 1 else [(0, 1.0), (1, 5.0)])
    assert shown(made.read(1, first_slot=BASE, count=3)) == [5.0, None, 5.0]
    assert shown(made.read(7, first_slot=BASE, count=1)) == [None]


def test_a_number_that_is_given_to_another_series_is_empty() -> None:
    made = ring()
    fill(made, 0, 1)
    made.clear(0)
    assert shown(made.read(0, first_slot=BASE, count=2)) == [None, None]
    made.add((BASE + 1) * STEP_MS, [(0, 7.0)])
    assert shown(made.read(0, first_slot=BASE, count=2)) == [None, 7.0]


def test_the_memory_is_known() -> None:
    made = ring()
    fill(made, 0)
    assert made.size_bytes == 6 * 4
