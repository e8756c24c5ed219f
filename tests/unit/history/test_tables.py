"""Statistics by minute, hour and day: sums, restarts, clocks that are set, limits, retention."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from iotmq import limits
from iotmq.history.questions import QuestionError, StatisticsAnswer, StatisticsQuestion
from iotmq.history.tables import Growth, StatisticsTables

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
# Midnight.
BASE = 1_700_006_400_000
KEPT = {"minute": 3, "hour": 3, "day": 3}


def tables(directory: Path, *, names_max: int = 5, **kept: int) -> StatisticsTables:
    return StatisticsTables(directory, names_max=names_max, kept={**KEPT, **kept})  # type: ignore[dict-item]


def counted(**messages: int) -> Growth:
    return {"topics": {name: (count, 10 * count, 0, 0) for name, count in messages.items()}}


def ask(of: StatisticsTables, step: str, begin: int, end: int, *names: str, **more: Any) -> StatisticsAnswer:
    question = StatisticsQuestion(
        table="topics",
        step=step,  # type: ignore[arg-type]
        names=names,
        from_ms=begin,
        to_ms=end,
        **more,
    )
    return of.answer(question, end)


def series(of: StatisticsTables, step: str, begin: int, end: int, name: str) -> list[int | None]:
    return ask(of, step, begin, end, name).steps[0].counts["messages"]


def sums(of: StatisticsTables, step: str, begin: int, end: int, **more: Any) -> dict[str, int]:
    return {each.name: each.counts["messages"] for each in ask(of, step, begin, end, **more).sums}


def test_minutes_hours_and_days_say_the_same(tmp_path: Path) -> None:
    made = tables(tmp_path)
    for minute in range(0, 26 * 60, 7):
        made.add(BASE + minute * MINUTE, counted(a=minute, b=1))
    end = BASE + 26 * HOUR
    total = sum(range(0, 26 * 60, 7))
    for step in ("minute", "hour", "day"):
        assert sums(made, step, BASE, end) == {"a": total, "b": 223}
    assert series(made, "hour", BASE, BASE + HOUR, "b") == [9, 9]
    assert series(made, "day", BASE, end, "b") == [206, 17]
    assert series(made, "minute", BASE, BASE + 8 * MINUTE, "b") == [1, *[None] * 6, 1, None]


def test_a_minute_in_which_nothing_happened_is_no_gap(tmp_path: Path) -> None:
    made = tables(tmp_path)
    made.add(BASE, counted(a=1))
    made.add(BASE + MINUTE, {})
    assert series(made, "minute", BASE, BASE + 2 * MINUTE, "a") == [1, 0, None]
    assert series(made, "minute", BASE, BASE + MINUTE, "unknown") == [0, 0]
    assert ask(made, "minute", BASE, BASE + MINUTE, "a").oldest_ms == BASE


def test_nothing_is_lost_by_restarts(tmp_path: Path) -> None:
    for minute in range(0, 30 * 60, 11):
        made = tables(tmp_path)
        made.add(BASE + minute * MINUTE, counted(a=1))
    made = tables(tmp_path)
    end = BASE + 30 * HOUR
    for step in ("minute", "hour", "day"):
        assert sums(made, step, BASE, end) == {"a": 164}
    assert None not in series(made, "hour", BASE, BASE + 29 * HOUR, "a")


def test_a_crash_between_an_hour_and_its_next_minute_counts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tables(tmp_path)
    made.add(BASE, counted(a=1))
    pwrite, written = os.pwrite, 0

    def fail_third(descriptor: int, data: bytes, at: int) -> int:
        nonlocal written
        written += 1
        if written == 3:
            raise OSError(28, "No space left on device")
        taken = len(data) // 2 + 1 if written == 2 else len(data)
        return pwrite(descriptor, data[:taken], at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", fail_third)
        with pytest.raises(OSError, match="No space"):
            made.add(BASE + 25 * HOUR, counted(a=2))
    for again, total in ((made, 3), (tables(tmp_path), 5)):
        again.add(BASE + 25 * HOUR, counted(a=2))
        for step in ("minute", "hour", "day"):
            assert sums(again, step, BASE, BASE + 25 * HOUR) == {"a": total}
    assert series(again, "hour", BASE, BASE, "a") == [1]


def test_a_clock_that_is_set_back_into_an_hour_adds_to_it(tmp_path: Path) -> None:
    made = tables(tmp_path)
    for at in (0, HOUR, 2 * HOUR, MINUTE, HOUR, 3 * HOUR):
        made.add(BASE + at, counted(a=1))
    made.add(BASE + 25 * HOUR, counted(a=1))
    assert series(made, "hour", BASE, BASE + 3 * HOUR, "a") == [2, 2, 1, 1]
    assert series(made, "minute", BASE + HOUR, BASE + HOUR, "a") == [2]
    assert series(made, "day", BASE, BASE + DAY, "a") == [6, 1]


def test_the_names_with_fewest_count_together(tmp_path: Path) -> None:
    made = tables(tmp_path, names_max=2)
    made.add(BASE, counted(a=5, b=1, c=3, d=1))
    assert sums(made, "minute", BASE, BASE) == {"a": 5, "c": 3, "": 2}
    assert series(made, "minute", BASE, BASE, "") == [2]
    made.add(BASE + HOUR, counted(b=9))
    assert sums(made, "hour", BASE, BASE) == {"a": 5, "c": 3, "": 2}
    assert sums(made, "minute", BASE, BASE + HOUR, names_max=1) == {"b": 9, "": 10}


def test_the_default_names_have_a_place_each_and_one_more_is_with_the_others(tmp_path: Path) -> None:
    made = tables(tmp_path, names_max=limits.STATISTICS_NAMES_MAX)
    made.add(BASE, counted(**{f"t{number}": 2 for number in range(limits.STATISTICS_NAMES_MAX)}))
    assert "" not in sums(made, "minute", BASE, BASE)
    made.add(BASE + MINUTE, counted(**{f"t{number}": 2 for number in range(limits.STATISTICS_NAMES_MAX + 1)}))
    assert sums(made, "minute", BASE + MINUTE, BASE + MINUTE)[""] == 2


def test_names_past_the_limit_are_with_the_others_and_add_up(tmp_path: Path) -> None:
    made = tables(tmp_path)
    longest = "x" * limits.STATISTICS_NAME_BYTES_MAX
    made.add(BASE, counted(**{longest: 1, longest + "x": 2, longest + "y": 4, "\ud800": 3}))
    assert sums(made, "minute", BASE, BASE) == {"?": 3, longest: 1, "": 6}


def test_files_that_are_farthest_in_time_go_first(tmp_path: Path) -> None:
    made = tables(tmp_path, minute=3)
    for day in range(6):
        made.add(BASE + day * DAY, counted(a=1))
    assert sorted(path.name for path in tmp_path.glob("minute-*")) == [
        "minute-20231118",
        "minute-20231119",
        "minute-20231120",
    ]
    # A clock that is wrong for a while takes no more than its place.
    made.add(BASE + 400 * DAY, counted(a=1))
    made.add(BASE + 5 * DAY + HOUR, counted(a=1))
    made.add(BASE + 6 * DAY, counted(a=1))
    assert sorted(path.name for path in tmp_path.glob("minute-*")) == [
        "minute-20231119",
        "minute-20231120",
        "minute-20231121",
    ]
    assert sums(made, "hour", BASE, BASE + 7 * DAY) == {"a": 8}


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    names = ("minute-2023111", "minute-20231399", "hour-202313", "day-202", "no", "minute-２０２３１１１８")
    for name in names:
        (tmp_path / name).write_text("mine")
    made = tables(tmp_path, minute=1, hour=1, day=1)
    for day in range(3):
        made.add(BASE + day * DAY, counted(a=1))
    assert len([path for path in tmp_path.iterdir() if path.read_bytes() == b"mine"]) == 6


def test_so_many_steps_of_names_are_answered(tmp_path: Path) -> None:
    made = tables(tmp_path)
    made.add(BASE, counted(a=1))
    steps = limits.STATISTICS_POINTS_MAX // 2
    assert ask(made, "minute", BASE, BASE + (steps - 1) * MINUTE, "a", "b").count == steps
    with pytest.raises(QuestionError, match="take a larger step"):
        ask(made, "minute", BASE, BASE + steps * MINUTE, "a", "b")
    with pytest.raises(QuestionError, match="ends before it begins"):
        ask(made, "minute", BASE + HOUR, BASE, "a")
    # Sums cost no more for more steps.
    assert sums(made, "minute", 1, BASE + 365 * DAY) == {"a": 1}


def test_times_at_the_end_of_all_calendars_are_taken(tmp_path: Path) -> None:
    made = tables(tmp_path)
    made.add(1 << 52, counted(a=1))
    made.add(0, counted(a=1))
    assert sums(made, "day", 1, 1 << 52) == {"a": 2}


def test_a_damaged_end_of_a_file_costs_that_end(tmp_path: Path) -> None:
    made = tables(tmp_path)
    for minute in range(3):
        made.add(BASE + minute * MINUTE, counted(a=1))
    (path,) = tmp_path.glob("minute-*")
    path.write_bytes(path.read_bytes()[:-5])
    made = tables(tmp_path)
    assert series(made, "minute", BASE, BASE + 2 * MINUTE, "a") == [1, 1, 1]
    made.add(BASE + 3 * MINUTE, counted(a=1))
    assert series(made, "minute", BASE, BASE + 3 * MINUTE, "a") == [1, 1, 1, 1]


def test_files_are_not_all_in_memory_at_one_time(tmp_path: Path) -> None:
    days, minutes = 8, 20
    made = tables(tmp_path, names_max=200, minute=days)
    for minute in range(days * minutes):
        day, left = divmod(minute, minutes)
        made.add(BASE + day * DAY + left * MINUTE, counted(**{f"n{number}": 1 for number in range(200)}))
    largest = max(file.stat().st_size for file in tmp_path.glob("minute-*"))
    tracemalloc.start()
    try:
        found = sums(made, "minute", BASE, BASE + days * DAY)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == {f"n{number}": days * minutes for number in range(200)}
    # One that is added up, and the next.
    assert peak < 4 * largest
