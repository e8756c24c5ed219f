"""Repairing a data directory by hand: what a start does by itself, for the whole log, and two harder choices.

A start checks what was written since the last checkpoint (or the last files); damage further back is found
by the read that meets it. `repair` checks everything. With `is_truncated` the log ends at the first damage,
as it would with other brokers of this format: whatever stands behind it is given up, but for the bytes that
fit into `commitlog.damage/`.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from iotmq.errors import StoreError
from iotmq.store.commit_log import CommitLog
from iotmq.store.damage import Damage, DamageKeeper
from iotmq.store.inspection import ClosedStore
from iotmq.store.rebuild import QUEUES, rebuild
from iotmq.store.store import Store

if TYPE_CHECKING:
    from iotmq.store.catch_up import CatchUpProgress
    from iotmq.store.settings import StoreSettings

# Records are not made here, so nobody sees it.
_HOST = bytes(8)

logger = logging.getLogger("iotmq.store")


class Report(msgspec.Struct, frozen=True):
    """What a repair found and did. Positions are bytes of the log."""

    min_position: int
    end_position: int
    # In the order of the log; with `is_truncated` the cut is one of kind "torn".
    damage: tuple[Damage, ...]
    rebuilt: tuple[str, ...]


def repair(
    directory: Path,
    settings: StoreSettings,
    *,
    is_truncated: bool = False,
    is_rebuilt: bool = False,
    progress: CatchUpProgress | None = None,
) -> Report:
    """Check the whole log of a directory nobody has open, cover what is damaged, and say what is lost.

    `is_truncated` ends the log at the first damage instead; `is_rebuilt` makes the queues anew from the log
    afterwards. Raises StoreLockedError, which names the lock, when somebody has the directory open, and
    StoreError.
    """
    cut: list[Damage] = []
    with ClosedStore(directory):
        if is_truncated:
            try:
                cut = _truncate(directory, settings)
            except OSError as error:
                raise StoreError(f"cannot truncate the log of {directory}: {error}") from error
    store = Store.open(directory, settings, store_host=_HOST, checks_all=True, progress=progress)
    report = Report(
        min_position=store.min_position,
        end_position=store.appended_position,
        damage=(*cut, *store.recovery.damage),
        rebuilt=(),
    )
    store.close()
    if is_rebuilt:
        rebuilt = tuple(rebuild(directory, settings, [QUEUES], progress=progress))
        report = msgspec.structs.replace(report, rebuilt=rebuilt)
    return report


def _truncate(directory: Path, settings: StoreSettings) -> list[Damage]:
    """End the log where the first damage starts; the bytes behind it are kept as far as there is room."""
    log = CommitLog(
        str(directory / "commitlog"),
        segment_bytes=settings.segment_bytes,
        allocation_step_bytes=settings.allocation_step_bytes,
        record_bytes_max=min(settings.record_bytes_max, settings.segment_bytes - 8),
        store_host=_HOST,
    )
    ranges, end_position = log.scan(log.min_position)
    if not ranges:
        return []
    position = ranges[0][0]
    keeper = DamageKeeper(directory / "commitlog.damage")
    cut = []
    for segment in log.segments_between(position, end_position):
        start = max(position, segment.start_position)
        end = min(segment.end_position, end_position)
        damage = keeper.keep("torn", log.bytes_between(start, end), start, end)
        keeper.report(damage)
        cut.append(damage)
    # Both say that there was more; without them the start takes the log as it finds it.
    (directory / "checkpoint").unlink(missing_ok=True)
    (directory / "abort").touch()
    log.end_at(position)
    log.cut()
    return cut
