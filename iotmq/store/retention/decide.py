"""Decide which segments go, and when the disk is too full for more: decisions only, no files.

Three things make segments go, oldest first and never the active one: they are past their age and it is
the hour for it (or the disk is filling, or somebody asked); the disk is so full that age no longer
counts. What groups have not consumed may be kept until then, and not longer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from iotmq.clock import Clock
    from iotmq.store.settings import StoreSettings

# Past every position there can be.
NO_LIMIT_POSITION = 2**63 - 1

Reason = Literal["none", "expired", "forced"]


class DiskUsage(NamedTuple):
    """One file system as its users see it: `total_bytes` leaves out what is kept for root."""

    path: str
    used_bytes: int
    total_bytes: int

    @property
    def ratio(self) -> float:
        """0.0 for empty, 1.0 for full."""
        return self.used_bytes / self.total_bytes if self.total_bytes > 0 else 0.0


class SegmentAge(Protocol):
    """A segment as far as retention is concerned."""

    @property
    def end_position(self) -> int: ...

    @property
    def disk_bytes(self) -> int: ...

    @property
    def stored_ms(self) -> int:
        """Store time of the last record. Asked of no more segments than necessary: it may cost a read."""


class Decision(NamedTuple):
    """Hold the result of one look at the disks."""

    # So many segments from the front are to be deleted.
    delete_count: int
    reason: Reason
    # Whether appends are to be refused.
    is_refusing: bool
    # Segments whose time has come, kept because something in them was not consumed.
    protected_count: int
    # There is more to delete than one pass may; a manual trigger holds on.
    has_more: bool


def read_disk_usage(path: Path) -> DiskUsage:
    """Return the usage of the file system that holds `path`; raises OSError."""
    stat = os.statvfs(path)
    used_bytes = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    return DiskUsage(str(path), used_bytes, used_bytes + stat.f_bavail * stat.f_frsize)


class Machine(NamedTuple):
    """Give a store time, bytes brought to the disk, and the room there is; tests replace them."""

    clock: Clock
    sync_file: Callable[[int], object]
    read_usage: Callable[[Path], DiskUsage]


def hours_of(text: str) -> frozenset[int]:
    """Return the hours named by a `delete_hour` setting such as "04" or "04;16"."""
    return frozenset(int(hour) for hour in text.replace(",", ";").split(";"))


def local_hour(now_ms: int) -> int:
    """Return the hour of the day, in the machine's time zone."""
    return time.localtime(now_ms / 1000).tm_hour


def is_refusing_at(usages: Iterable[DiskUsage], settings: StoreSettings, *, is_refusing: bool) -> bool:
    """Return whether appends are to be refused, after `is_refusing` so far.

    From full on, until room is back.
    """
    force_percent = min(settings.disk_force_percent, settings.disk_full_percent)
    percent = force_percent if is_refusing else settings.disk_full_percent
    return any(usage.used_bytes * 100 > usage.total_bytes * percent for usage in usages)


def decide(
    segments: Sequence[SegmentAge],
    usages: Iterable[DiskUsage],
    settings: StoreSettings,
    *,
    now_ms: int,
    hour: int,
    is_refusing: bool,
    is_asked: bool = False,
    limit_position: int = NO_LIMIT_POSITION,
    consumed_position: int = NO_LIMIT_POSITION,
    kept_position: int = NO_LIMIT_POSITION,
    leaving_bytes: int = 0,
) -> Decision:
    """Decide about `segments`: those of the log without the active one, oldest first.

    The first of `usages` is the log's disk, further ones are disks of what is derived from it, when they
    are others; `leaving_bytes` of the first are those of segments on their way out. Nothing is deleted
    at or past `limit_position` whatever happens, nor at or past `consumed_position` while the disk is
    below the forced watermark; what is at or past `kept_position` has no age before that. `is_asked`: do
    not wait for the hour. `is_refusing`: the state so far.
    """
    disks = list(usages)
    is_refusing = is_refusing_at(disks, settings, is_refusing=is_refusing)
    deletable = [segment for segment in segments if segment.end_position <= limit_position]
    forced_count = min(_forced_count(deletable, disks, settings, leaving_bytes), settings.delete_files_max)
    if forced_count:
        return Decision(forced_count, "forced", is_refusing, 0, is_asked)
    oldest_ms = now_ms - settings.retention_hours * 3_600_000
    is_filling = any(
        disk.used_bytes * 100 > disk.total_bytes * settings.disk_delete_percent for disk in disks
    )
    is_due = is_asked or is_filling or hour in hours_of(settings.delete_hour)
    expired_count = _leading(
        segment.end_position <= kept_position and segment.stored_ms < oldest_ms for segment in deletable
    )
    consumed_count = _leading(segment.end_position <= consumed_position for segment in deletable)
    # Kept ones are a state, not something that happens at an hour of the day.
    protected_count = max(0, expired_count - consumed_count)
    if not is_due:
        return Decision(0, "none", is_refusing, protected_count, False)
    count = min(expired_count, consumed_count)
    delete_count = min(count, settings.delete_files_max)
    return Decision(
        delete_count,
        "expired" if delete_count else "none",
        is_refusing,
        protected_count,
        count > delete_count,
    )


def _forced_count(
    segments: Sequence[SegmentAge], disks: Sequence[DiskUsage], settings: StoreSettings, leaving_bytes: int
) -> int:
    """Return how many must go for the disks to be at the forced watermark or below; no more than that."""
    count = 0
    for number, disk in enumerate(disks):
        excess_bytes = disk.used_bytes - disk.total_bytes * settings.disk_force_percent // 100
        if excess_bytes <= 0:
            continue
        if number > 0:
            # What a segment frees on another disk is not known: one at a time.
            count = max(count, min(1, len(segments)) if leaving_bytes == 0 else 0)
            continue
        excess_bytes -= leaving_bytes
        while excess_bytes > 0 and count < len(segments):
            excess_bytes -= segments[count].disk_bytes
            count += 1
    return count


def _leading(conditions: Iterable[bool]) -> int:
    """Return how many conditions hold before the first that does not."""
    count = 0
    for holds in conditions:
        if not holds:
            break
        count += 1
    return count
