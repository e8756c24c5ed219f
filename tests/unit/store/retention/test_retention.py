"""Which segments go, and when appends are refused: the decisions alone, over invented segments and disks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from manual_clock import ManualClock

from iotmq.store.retention.decide import (
    Decision,
    DiskUsage,
    decide,
    hours_of,
    is_refusing_at,
    local_hour,
    read_disk_usage,
)
from iotmq.store.settings import StoreSettings

HOUR_MS = 3_600_000
GIB = 1 << 30
CLOCK = ManualClock()
NOW_MS = CLOCK.now_ms()
NIGHT, DAY = 4, 15


class Aged(NamedTuple):
    end_position: int
    stored_ms: int
    disk_bytes: int


def aged(*hours: float) -> list[Aged]:
    """Segments of 1 GiB whose last records are so many hours old."""
    return [Aged((n + 1) * GIB, NOW_MS - round(age * HOUR_MS), GIB) for n, age in enumerate(hours)]


def disk(percent: float, path: str = "log", gib: int = 100) -> DiskUsage:
    return DiskUsage(path, round(percent * gib * GIB / 100), gib * GIB)


def look(
    segments: list[Aged], *disks: DiskUsage, settings: StoreSettings | None = None, **more: Any
) -> Decision:
    facts: dict[str, Any] = {"now_ms": NOW_MS, "hour": DAY, "is_refusing": False, **more}
    return decide(segments, disks or (disk(10),), settings or StoreSettings(), **facts)


@pytest.mark.parametrize(
    ("ages", "hour", "percent", "is_asked", "deleted"),
    [
        # Past its age, and at its hour.
        ((100, 80, 50, 1), NIGHT, 10, False, 2),
        # Not at other hours,
        ((100, 80, 50, 1), DAY, 10, False, 0),
        # unless the disk is filling: above 75 %, not at it,
        ((100, 80, 50, 1), DAY, 75, False, 0),
        ((100, 80, 50, 1), DAY, 75.1, False, 2),
        # or somebody asked.
        ((100, 80, 50, 1), DAY, 10, True, 2),
        # 72 hours to the millisecond are not past it yet.
        ((72.001, 72), NIGHT, 10, False, 1),
        ((72, 71), NIGHT, 10, False, 0),
        # A younger one in front keeps the ones behind it: the log has no holes.
        ((10, 100, 100), NIGHT, 10, False, 0),
        ((), NIGHT, 10, True, 0),
    ],
)
def test_age(ages: tuple[float, ...], hour: int, percent: float, is_asked: bool, deleted: int) -> None:
    decision = look(aged(*ages), disk(percent), hour=hour, is_asked=is_asked)
    assert decision == Decision(deleted, "expired" if deleted else "none", False, 0, False)


@pytest.mark.parametrize(
    ("percent", "deleted"),
    [(85, 0), (85.01, 1), (86, 1), (86.5, 2), (88.5, 4), (100, 5)],
)
def test_forced_deletes_no_more_than_brings_the_disk_back(percent: float, deleted: int) -> None:
    decision = look(aged(5, 4, 3, 2, 1), disk(percent))
    assert (decision.delete_count, decision.reason) == (deleted, "forced" if deleted else "none")


def test_what_is_leaving_already_counts_as_gone() -> None:
    segments = aged(5, 4, 3, 2, 1)
    assert look(segments, disk(88), leaving_bytes=0).delete_count == 3
    assert look(segments, disk(88), leaving_bytes=2 * GIB).delete_count == 1
    assert look(segments, disk(88), leaving_bytes=3 * GIB).delete_count == 0


def test_a_disk_of_its_own_for_the_queues_counts_too() -> None:
    segments = aged(100, 4, 3)
    # Filling: the ones past their age go, at any hour.
    assert look(segments, disk(10), disk(76, "queues")).delete_count == 1
    # Too full: one at a time, because what it frees there is not known.
    decision = look(aged(5, 4, 3), disk(10), disk(89, "queues"))
    assert (decision.delete_count, decision.reason, decision.is_refusing) == (1, "forced", False)
    assert look(aged(5, 4), disk(10), disk(89, "queues"), leaving_bytes=1).delete_count == 0
    assert look(aged(5), disk(10), disk(91, "queues")).is_refusing


def test_at_most_so_many_a_pass() -> None:
    many = aged(*(100 for _ in range(25)))
    decision = look(many, hour=NIGHT)
    assert (decision.delete_count, decision.has_more) == (10, True)
    assert look(many, disk(99)).delete_count == 10
    few = StoreSettings(delete_files_max=3)
    assert look(many[:3], hour=NIGHT, settings=few) == Decision(3, "expired", False, 0, False)
    assert look(many[:4], hour=NIGHT, settings=few) == Decision(3, "expired", False, 0, True)


def test_nothing_that_is_not_safe_goes_whatever_happens() -> None:
    assert look(aged(100, 100, 100), hour=NIGHT, limit_position=2 * GIB).delete_count == 2
    assert look(aged(100, 100, 100), hour=NIGHT, limit_position=2 * GIB - 1).delete_count == 1
    assert look(aged(100, 100), disk(99), limit_position=GIB - 1).delete_count == 0


@pytest.mark.parametrize(
    ("consumed", "percent", "deleted", "protected"),
    [
        # Everything that is past its age was consumed.
        (3 * GIB, 10, 3, 0),
        # One byte of the second file was not.
        (2 * GIB - 1, 10, 1, 2),
        (0, 10, 0, 3),
        # A filling disk does not change that,
        (0, 80, 0, 3),
        # but the forced watermark does.
        (0, 87, 2, 0),
    ],
)
def test_unconsumed_is_kept_until_the_forced_watermark(
    consumed: int, percent: float, deleted: int, protected: int
) -> None:
    decision = look(aged(100, 100, 100, 1), disk(percent), hour=NIGHT, consumed_position=consumed)
    assert (decision.delete_count, decision.protected_count) == (deleted, protected)


def test_protected_files_are_counted_at_any_hour() -> None:
    assert look(aged(100, 100, 1), consumed_position=GIB) == Decision(0, "none", False, 1, False)


def test_refusal_begins_above_full_and_ends_at_forced() -> None:
    is_refusing = False
    seen = []
    for percent in (50, 89, 90, 90.1, 95, 89, 86, 85.1, 85, 89.9, 91, 20):
        is_refusing = look([], disk(percent), is_refusing=is_refusing).is_refusing
        seen.append(is_refusing)
    assert seen == [False, False, False, True, True, True, True, True, False, False, True, False]


def test_watermarks_in_the_wrong_order_still_end_a_refusal() -> None:
    settings = StoreSettings(disk_force_percent=95, disk_full_percent=80)
    assert is_refusing_at([disk(81)], settings, is_refusing=False)
    assert is_refusing_at([disk(81)], settings, is_refusing=True)
    assert not is_refusing_at([disk(80)], settings, is_refusing=True)
    # It deletes where it was told to, and not to take more.
    assert look(aged(1, 1), disk(81), settings=settings).delete_count == 0
    assert look(aged(1, 1), disk(96), settings=settings).delete_count == 1
    never = StoreSettings(disk_force_percent=100)
    assert look(aged(1, 1), disk(100), settings=never) == Decision(0, "none", True, 0, False)


def test_ages_are_asked_for_only_as_far_as_needed() -> None:
    class Reluctant:
        end_position, disk_bytes = 4 * GIB, GIB

        @property
        def stored_ms(self) -> int:
            raise AssertionError("asked for the age of a segment behind one that stays")

    segments: list[Any] = [*aged(100, 100, 1), Reluctant()]
    assert look(segments, hour=NIGHT).delete_count == 2


def test_hours() -> None:
    assert hours_of("04") == {4}
    assert hours_of("04;16,23") == {4, 16, 23}
    assert look(aged(100), hour=16, settings=StoreSettings(delete_hour="04;16")).delete_count == 1


def test_the_hour_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    noon_utc_ms = 1_700_049_600_000
    try:
        for zone, hour in (("UTC0", 12), ("EAST-8", 20), ("WEST+5", 7)):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert local_hour(noon_utc_ms) == hour
    finally:
        monkeypatch.undo()
        time.tzset()


def test_usage_is_what_users_see(tmp_path: Path) -> None:
    usage = read_disk_usage(tmp_path)
    assert usage.path == str(tmp_path)
    assert 0 < usage.used_bytes < usage.total_bytes
    assert usage.ratio == usage.used_bytes / usage.total_bytes
    assert DiskUsage("none", 0, 0).ratio == 0.0


def test_missing_disks_neither_delete_nor_refuse() -> None:
    assert decide(aged(100), [], StoreSettings(), now_ms=NOW_MS, hour=DAY, is_refusing=False) == Decision(
        0, "none", False, 0, False
    )


def test_what_others_keep_has_no_age() -> None:
    segments = aged(100, 100, 100)
    assert look(segments, is_asked=True, kept_position=2 * GIB).delete_count == 2
    assert look(segments, is_asked=True, kept_position=2 * GIB - 1).delete_count == 1
    assert look(segments, disk(87), kept_position=0).delete_count == 2, "but room has to be made"
