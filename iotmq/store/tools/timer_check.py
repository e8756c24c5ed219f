"""Finding what does not agree between the log and the timer index of a closed data directory."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from iotmq.message.records.record import decode_record, property_value
from iotmq.store.log.timer_record import due_time, name_hash

if TYPE_CHECKING:
    from iotmq.store.kv.kv import KeySpace
    from iotmq.store.tools.inspection import ClosedStore

# Tag, due time or kind or name, and position; the values that belong to them (see kv/timer_index.py).
_DUE: Final = 1
_PLACE: Final = 2
_NAME: Final = 3
_COUNT: Final = 4
_DUE_KEY: Final = struct.Struct(">BQQ")
_PLACE_KEY: Final = struct.Struct(">BHQ")
_KEYS: Final = {_DUE: _DUE_KEY, _PLACE: _PLACE_KEY, _NAME: struct.Struct(">BQQ")}
_VALUES: Final = {_DUE: struct.Struct(">HIq"), _PLACE: struct.Struct(">qqQI"), _NAME: struct.Struct(">Hq")}


def check_timers(
    store: ClosedStore, space: KeySpace, applied_position: int, is_lost: Callable[[int], bool]
) -> Iterator[str]:
    """Yield every inconsistency as a sentence. Reads each record that the index names.

    `is_lost` says of a position that damage has been repaired there.
    """
    counts = dict.fromkeys((_DUE, _PLACE, _NAME), 0)
    named = 0
    for key, value in space.scan(bytes((_DUE,)), bytes((_COUNT,))):
        tag = key[0]
        where = f"projection timers, key {key.hex()}"
        if len(key) != _KEYS[tag].size or len(value) != _VALUES[tag].size:
            yield f"{where}: a key of {len(key)} and a value of {len(value)} bytes"
            continue
        counts[tag] += 1
        if tag == _PLACE:
            named += _VALUES[tag].unpack(value)[2] != 0
            if not is_lost(_PLACE_KEY.unpack(key)[2]):
                yield from _check_place(store, space, where, key, value, applied_position)
    if counts[_DUE] != counts[_PLACE]:
        yield f"projection timers: {counts[_PLACE]} messages wait, {counts[_DUE]} have a time"
    if counts[_NAME] != named:
        yield f"projection timers: {named} messages have a name, {counts[_NAME]} can be found by one"
    stored = space.get(bytes((_COUNT,)))
    count = 0 if stored is None else int.from_bytes(stored, "big")
    if count != counts[_PLACE]:
        yield f"projection timers: {counts[_PLACE]} messages wait, and {count} are counted"


def _check_place(
    store: ClosedStore, space: KeySpace, where: str, key: bytes, value: bytes, applied_position: int
) -> Iterator[str]:
    _, kind, position = _PLACE_KEY.unpack(key)
    due_ms, queue_offset, name, size = _VALUES[_PLACE].unpack(value)
    if space.get(_DUE_KEY.pack(_DUE, due_ms, position)) != _VALUES[_DUE].pack(kind, size, queue_offset):
        yield f"{where}: the message at {position} has no entry for its time {due_ms}, or another one"
    if position >= applied_position:
        yield f"{where}: position {position}, though only {applied_position} has been applied"
        return
    view = store.record_at(position)
    if view is None:
        yield f"{where}: a message waits at {position}, where there is no record"
        return
    record = decode_record(view)
    if due_time(view) != (kind, due_ms):
        yield f"{where}: the record at {position} is due at {due_time(view)}, not at {(kind, due_ms)}"
    if (len(view), record.queue_offset) != (size, queue_offset):
        yield f"{where}: size or offset are not those of the record at {position}"
    topic = property_value(record.properties, b"REAL_TOPIC") or b""
    if name != name_hash(topic, property_value(record.properties, b"UNIQ_KEY") or b""):
        yield f"{where}: the name is not that of the record at {position}"
