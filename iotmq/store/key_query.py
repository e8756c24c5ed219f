"""Records by key: what the key index proposes, looked at one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from iotmq.limits import INDEX_CANDIDATES_MAX, INDEX_QUERY_RECORDS_MAX
from iotmq.message.properties import KEYS, UNIQ_KEY
from iotmq.message.record import decode_record, property_value

if TYPE_CHECKING:
    from iotmq.store.commit_log import CommitLog
    from iotmq.store.key_index import KeyIndex

_KEYS = KEYS.encode()
_UNIQ_KEY = UNIQ_KEY.encode()


def query_log(
    log: CommitLog,
    index: KeyIndex,
    topic: str,
    key: str,
    *,
    begin_ms: int,
    end_ms: int,
    records_max: int,
    confirmed_position: int,
    hidden_position: int = 0,
) -> list[memoryview]:
    """The records of `topic` with `key` stored in [begin_ms, end_ms], newest first.

    Those in [hidden_position, confirmed_position), at most `records_max` and INDEX_QUERY_RECORDS_MAX, and
    fewer when so many other keys have the same hash that the search has cost enough.
    """
    views: list[memoryview] = []
    records_max = min(records_max, INDEX_QUERY_RECORDS_MAX)
    for position in candidates(
        index, topic, key, begin_ms=begin_ms, end_ms=end_ms, hidden_position=hidden_position
    ):
        if len(views) >= records_max:
            break
        view = log.read_record(position, confirmed_position)
        if view is not None and is_match(view, topic, key, begin_ms, end_ms):
            views.append(view)
    return views


def candidates(
    index: KeyIndex, topic: str, key: str, *, begin_ms: int, end_ms: int, hidden_position: int
) -> Iterator[int]:
    """Positions from `hidden_position` on that the index proposes, newest first; INDEX_CANDIDATES_MAX."""
    lookup = index.look_up(topic, key, begin_ms=begin_ms, end_ms=end_ms)
    last_position = -1
    for _ in range(INDEX_CANDIDATES_MAX):
        position = lookup.next_position()
        if position < hidden_position or position < 0:
            # The ones that follow are older still.
            break
        # A record whose keys have one hash is proposed once for each.
        if position != last_position:
            last_position = position
            yield position


def is_match(view: memoryview, topic: str, key: str, begin_ms: int, end_ms: int) -> bool:
    """Whether a record is one of `topic`, with `key` as unique key or among its keys, and of that time."""
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
