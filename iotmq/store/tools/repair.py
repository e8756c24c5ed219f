"""Repairing a data directory by hand: what a start does by itself, for the whole log.

A start checks what was written since the last checkpoint (or the last files); damage further back is found
by whoever comes across it, who passes over what does not prove itself. `repair` checks everything, keeps the
damaged bytes, covers them with markers, and says which bytes and which offsets are lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from iotmq.store.recovery.damage import Damage
from iotmq.store.store import Store
from iotmq.store.tools.inspection import ClosedStore

if TYPE_CHECKING:
    from iotmq.store.projections.catch_up import CatchUpProgress
    from iotmq.store.settings import StoreSettings

# Records are not made here, so nobody sees it.
_HOST = bytes(8)


class Report(msgspec.Struct, frozen=True):
    """Report the findings and changes of a repair. Positions are bytes of the log."""

    min_position: int
    end_position: int
    was_clean: bool
    # What was found now, in the order of the log.
    damage: tuple[Damage, ...]
    # What does not agree even so, as sentences.
    problems: tuple[str, ...]


def repair(directory: Path, settings: StoreSettings, *, progress: CatchUpProgress | None = None) -> Report:
    """Check the whole log of a directory nobody has open, repair it, and say what is lost.

    Raises StoreLockedError, which names the lock, when somebody has the directory open, and StoreError.
    """
    # Where no log is, none is made.
    with ClosedStore(directory):
        pass
    store = Store.open(directory, settings, store_host=_HOST, checks_all=True, progress=progress)
    try:
        return Report(
            min_position=store.min_position,
            end_position=store.appended_position,
            was_clean=store.recovery.was_clean,
            damage=store.recovery.damage,
            problems=tuple(store.check()),
        )
    finally:
        store.close()
