"""What must wait according to a log, found the slow and plain way: by going through all of it."""

from __future__ import annotations

from typing import NamedTuple

from store_model import log_records

from iotmq.message.records.record import Record, property_value
from iotmq.store.kv.timer_index import TimerIndex
from iotmq.store.store import Store

LEVEL_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
USUAL_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)


class Expected(NamedTuple):
    """One message that waits."""

    due_ms: int
    position: int
    kind: int
    queue_offset: int
    body: bytes


def waiting_of(store: Store) -> list[Expected]:
    """Everything that waits, in the order of time."""
    waiting: dict[tuple[int, int], Expected] = {}
    for record in log_records(store):
        if record.prepared_position < 0:
            mark = -1 - record.prepared_position
            waiting.pop((mark % 2**54, mark // 2**54), None)
        found = _timer(record)
        if found is not None:
            kind, due_ms = found
            waiting[record.position, kind] = Expected(
                due_ms, record.position, kind, record.queue_offset, record.body
            )
    return sorted(waiting.values())


def check_index(store: Store, index: TimerIndex) -> list[Expected]:
    """Assert that the index says what the log says; what that is."""
    expected = waiting_of(store)
    found = index.waiting(timers_max=len(expected) + 1)
    assert [(one.due_ms, one.position, one.kind, one.queue_offset) for one in found] == [
        one[:4] for one in expected
    ]
    assert index.count == len(expected)
    by_kind = sorted(expected, key=lambda one: (one.kind, one.position))
    assert [(one.kind, one.position, one.due_ms) for one in index.before(2**62)] == [
        (one.kind, one.position, one.due_ms) for one in by_kind
    ]
    assert index.kinds() == sorted({one.kind for one in expected})
    assert index.first_position() == min((one.position for one in expected), default=None)
    for one in found:
        record = store.read_record(one.position)
        assert record is not None
        assert len(record) == one.size
    return expected


def _timer(record: Record) -> tuple[int, int] | None:
    due = property_value(record.properties, b"TIMER_OUT_MS")
    if record.topic == TIMER_TOPIC:
        if due is None or property_value(record.properties, b"TIMER_DEL_UNIQKEY") is not None:
            return None
        return 0, int(due)
    if record.topic != LEVEL_TOPIC:
        return None
    if due is not None:
        return record.queue_id + 1, int(due)
    level = int(property_value(record.properties, b"DELAY") or 0)
    return record.queue_id + 1, record.store_timestamp_ms + USUAL_S[min(level, 18) - 1] * 1_000


OWN = {
    "DELAY",
    "REAL_TOPIC",
    "REAL_QID",
    "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS",
    "TIMER_DELIVER_MS",
    "TIMER_ROLL_TIMES",
}


def delivered_properties(properties: bytes, *, has_own_time: bool) -> bytes:
    """What is left of the properties when a message is delivered."""
    dropped = OWN if has_own_time else OWN - {"DELAY", "REAL_TOPIC", "REAL_QID"} | {"TIMER_OUT_MS"}
    pairs = [pair for pair in properties.split(b"\x02") if pair]
    names = [pair.split(b"\x01")[0].decode("latin-1") if b"\x01" in pair else "" for pair in pairs]
    return b"\x02".join(pair for name, pair in zip(names, pairs, strict=True) if name not in dropped)
