"""Finding what does not agree between the log and the key-value database of a closed data directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from iotmq.errors import StoreError
from iotmq.store.kv.kv import KV_DIRECTORY, KeySpace, KeyValueStore
from iotmq.store.kv.kv_projection import MARKER_KEY, read_marker
from iotmq.store.tools.timer_check import check_timers

if TYPE_CHECKING:
    from iotmq.store.settings import StoreSettings
    from iotmq.store.tools.inspection import ClosedStore

_TIMERS: Final = "timers"


def check_key_values(
    store: ClosedStore, settings: StoreSettings, *, end_position: int, is_lost: Callable[[int], bool]
) -> Iterator[str]:
    """Every inconsistency as a sentence. Reads the whole database.

    `is_lost` says of a position that damage has been repaired there.
    """
    try:
        key_values = open_read_only(store, settings)
    except StoreError as error:
        yield f"{error} (the next start makes a new one and fills it from the log)"
        return
    try:
        for name in key_values.names():
            try:
                yield from _check_space(store, key_values.space(name), end_position, is_lost)
            except StoreError as error:
                yield f"projection {name}: {error}"
    finally:
        key_values.close()


def open_read_only(store: ClosedStore, settings: StoreSettings) -> KeyValueStore:
    """Return the database of a closed store; raises StoreError."""
    return KeyValueStore(
        store.directory / KV_DIRECTORY,
        cache_bytes=settings.kv_cache_bytes,
        write_buffer_bytes=settings.kv_write_buffer_bytes,
        is_read_only=True,
    )


def _check_space(
    store: ClosedStore, space: KeySpace, end_position: int, is_lost: Callable[[int], bool]
) -> Iterator[str]:
    marker = space.get(MARKER_KEY)
    position = read_marker(marker)
    if position is None:
        if marker is not None or next(space.scan(b"\x01"), None) is not None:
            yield f"projection {space.name} has data without a marker that says up to where"
        return
    if position > end_position:
        yield f"projection {space.name} has applied the log up to {position}, which ends at {end_position}"
    if space.name == _TIMERS:
        yield from check_timers(store, space, position, is_lost)
        return
    for _ in space.scan(b"\x01"):
        # The keys mean something only to their owners; going through them finds damaged blocks.
        pass
