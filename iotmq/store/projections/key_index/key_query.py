"""Records by key: what the key index proposes, looked at one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iotmq.limits import INDEX_CANDIDATES_MAX
from iotmq.message.properties import KEYS, UNIQ_KEY
from iotmq.message.records.record import decode_record, property_value

if TYPE_CHECKING:
    from iotmq.store.projections.key_index.key_index import KeyIndex
    from iotmq.store.queues.cold_steps import Steps

_KEYS = KEYS.encode()
_UNIQ_KEY = UNIQ_KEY.encode()


def candidate_steps(
    index: KeyIndex, topic: str, key: str, *, begin_ms: int, end_ms: int, hidden_position: int
) -> Steps[list[int]]:
    """Positions from `hidden_position` on that the index proposes, newest first; INDEX_CANDIDATES_MAX.

    Fewer when so many other keys have the same hash that the search has cost enough.
    """
    positions: list[int] = []
    lookup = index.look_up(topic, key, begin_ms=begin_ms, end_ms=end_ms, is_patient=True)
    last_position = -1
    candidates_left = INDEX_CANDIDATES_MAX
    while candidates_left:
        position = lookup.next_position()
        if position == -2:
            yield lookup.absent
            continue
        if position < hidden_position or position < 0:
            # The ones that follow are older still.
            break
        candidates_left -= 1
        # A record whose keys have one hash is proposed once for each.
        if position != last_position:
            last_position = position
            positions.append(position)
    return positions


def is_match(view: memoryview, topic: str, key: str, begin_ms: int, end_ms: int) -> bool:
    """Return whether a record is of `topic` and the time, with `key` as unique key or among its keys."""
    record = decode_record(view)
    return (
        record.topic == topic
        and begin_ms <= record.store_timestamp_ms <= end_ms
        and key.encode("utf-8", "replace") in record_keys(record.properties)
    )


def record_keys(properties: bytes) -> list[bytes]:
    """The keys of raw properties that the index enters, in its order: UNIQ_KEY, then every word of KEYS."""
    unique_key = property_value(properties, _UNIQ_KEY) or b""
    words = (property_value(properties, _KEYS) or b"").split(b" ")
    return [key for key in (unique_key, *words) if key]
