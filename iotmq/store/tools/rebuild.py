"""Making what is derived from the log anew, by hand.

Every start fills what is missing, from the log. So to rebuild a projection is to delete it while nobody has
the directory open, and to open and close the store: there is one way in which they are made.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iotmq.errors import StoreError
from iotmq.store.store import Store
from iotmq.store.tools.inspection import ClosedStore

if TYPE_CHECKING:
    from iotmq.store.projections.catch_up import CatchUpProgress
    from iotmq.store.settings import StoreSettings

QUEUES: Final = "consumequeue"
INDEX: Final = "index"
TIMERS: Final = "timers"

_INDEX_STATE: Final = "index.applied"
_KEY_VALUES: Final = "kv"
# Projections of which the log, too, has all there is.
_OWN: Final = frozenset((QUEUES, INDEX, TIMERS))
# Records are not made here, so nobody sees it.
_HOST: Final = bytes(8)


def projection_names(directory: Path, settings: StoreSettings) -> list[str]:
    """Return the projections that can be rebuilt; StoreError when the directory is open or none."""
    with ClosedStore(directory) as closed:
        return _names(closed, settings)


def rebuild(
    directory: Path,
    settings: StoreSettings,
    names: Sequence[str] | None = None,
    *,
    progress: CatchUpProgress | None = None,
) -> list[str]:
    """Delete the projections `names` (by default all) and fill them from the log; returns the names.

    Ones that belong to a part which is not the store, and are in its key-value database, are deleted, and
    filled when that part opens them. They may hold what retention has deleted of the log: once it has, they
    are left alone unless named. A crash in between costs nothing: the next start goes on. Raises
    StoreLockedError, which names the lock, when somebody has the directory open, and StoreError.
    """
    with ClosedStore(directory) as closed:
        known = _names(closed, settings)
        if names is None:
            chosen = [name for name in known if name in _OWN or closed.min_position == 0]
        else:
            chosen = list(dict.fromkeys(names))
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise StoreError(f"{directory} has no projection {unknown[0]}: it has {', '.join(known)}")
        for name in chosen:
            try:
                _delete(directory, settings, name)
            except OSError as error:
                raise StoreError(f"cannot delete {name} of {directory}: {error}") from error
    store = Store.open(directory, settings, store_host=_HOST, progress=progress)
    try:
        if TIMERS in chosen:
            store.timers(progress=progress)
    finally:
        store.close()
    return chosen


def has_key_values(directory: Path) -> bool:
    """Return whether there is a key-value database."""
    return (directory / _KEY_VALUES).is_dir()


def _names(closed: ClosedStore, settings: StoreSettings) -> list[str]:
    names = [QUEUES]
    if (closed.directory / INDEX).is_dir():
        names.append(INDEX)
    if has_key_values(closed.directory):
        from iotmq.store.tools.kv_check import open_read_only

        try:
            key_values = open_read_only(closed, settings)
        except StoreError:
            # Damaged: what was in it nobody can say. The start makes a new one.
            names.append(TIMERS)
        else:
            names += key_values.names()
            key_values.close()
    return names


def _delete(directory: Path, settings: StoreSettings, name: str) -> None:
    if name == QUEUES:
        # Its `.applied` first: a crash in between must not leave some of the queues to be relied on.
        (directory / QUEUES / ".applied").unlink(missing_ok=True)
        if (directory / QUEUES).exists():
            shutil.rmtree(directory / QUEUES)
    elif name == INDEX:
        (directory / _INDEX_STATE).unlink(missing_ok=True)
        shutil.rmtree(directory / INDEX)
    elif has_key_values(directory):
        from iotmq.store.kv.kv import KeyValueStore

        key_values = KeyValueStore(
            directory / _KEY_VALUES,
            cache_bytes=settings.kv_cache_bytes,
            write_buffer_bytes=settings.kv_write_buffer_bytes,
        )
        key_values.remove(name)
        key_values.close()
