"""Finding what does not agree between the log and the key-value database of a closed data directory."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from iotmq.errors import StoreError
from iotmq.message.records.record import decode_record, property_value
from iotmq.store.kv.kv import KV_DIRECTORY, KeySpace, KeyValueStore
from iotmq.store.kv.kv_projection import MARKER_KEY, read_marker
from iotmq.store.tools.timer_check import check_timers

if TYPE_CHECKING:
    from iotmq.store.settings import StoreSettings
    from iotmq.store.tools.inspection import ClosedStore

_LATEST: Final = "latest"
_TIMERS: Final = "timers"
_LATEST_VALUE: Final = struct.Struct(">qqq")


def check_key_values(
    store: ClosedStore, settings: StoreSettings, *, end_position: int, is_lost: Callable[[int], bool]
) -> Iterator[str]:
    """Every inconsistency as a sentence. Reads the whole database, and for `latest` each record it names.

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
    for key, value in space.scan(b"\x01"):
        # The others' keys mean something only to their owners; going through them finds damaged blocks.
        if space.name == _LATEST:
            yield from _check_latest(store, key[1:], value, position, is_lost)


def _check_latest(
    store: ClosedStore,
    topic: bytes,
    value: bytes,
    applied_position: int,
    is_lost: Callable[[int], bool],
) -> Iterator[str]:
    where = f"projection latest, MQTT topic {topic.decode('utf-8', 'backslashreplace')!r}"
    if len(value) != _LATEST_VALUE.size:
        yield f"{where}: a value of {len(value)} bytes"
        return
    position, queue_offset, timestamp_ms = _LATEST_VALUE.unpack(value)
    if position < store.min_position:
        return
    if position >= applied_position:
        yield f"{where}: position {position}, though only {applied_position} has been applied"
        return
    if is_lost(position):
        return
    view = store.record_at(position)
    if view is None:
        yield f"{where}: there is no record at {position}"
        return
    record = decode_record(view)
    if property_value(record.properties, b"MQTT_TOPIC") != topic:
        yield f"{where}: the record at {position} is another topic's"
    elif (record.queue_offset, record.store_timestamp_ms) != (queue_offset, timestamp_ms):
        yield f"{where}: offset or time are not those of the record at {position}"
