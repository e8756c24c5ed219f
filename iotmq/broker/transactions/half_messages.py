"""Half messages and op records: how a transaction stands in the log (the RocketMQ wire format, section 11).

A *half* is a prepared message in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC with its real topic and queue as
properties. A check writes it again: TRANSACTION_CHECK_TIMES counts, and TRAN_PREPARED_QUEUE_OFFSET holds the
queue offset it had at first, which is what tells transactions apart; the last copy stands for it. An *op*
record in queue 0 of RMQ_SYS_TRANS_OP_HALF_TOPIC (tag `d`, body: decimal offsets, comma between) says that the
halves at those offsets are done with.
"""

from __future__ import annotations

from typing import NamedTuple

from iotmq.broker.scheduled.scheduling import without_properties
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.message.records.record import Record, property_value

TYPE_MASK = 12
NOT_A_TRANSACTION = 0
PREPARED = 4
COMMIT = 8
ROLLBACK = 12

_PREPARED_PROPERTY = b"TRAN_MSG"
_REAL_TOPIC = b"REAL_TOPIC"
_REAL_QUEUE_ID = b"REAL_QID"
_CHECK_TIMES = b"TRANSACTION_CHECK_TIMES"
_FIRST_OFFSET = b"TRAN_PREPARED_QUEUE_OFFSET"
_IMMUNITY_S = b"CHECK_IMMUNITY_TIME_IN_SECONDS"

# What a copy of a half may have more than the half: a separator, and all the digits there can be.
COPY_PROPERTIES_BYTES = len(
    b"\x02TRANSACTION_CHECK_TIMES\x01%d\x02TRAN_PREPARED_QUEUE_OFFSET\x01%d\x02" % (10**5, 10**18)
)

_OP_PROPERTIES = b"WAIT\x01true\x02TAGS\x01d"
# A number in a property or an op record has at most so many digits, or it is none of ours.
_DIGITS_MAX = 18


class Half(NamedTuple):
    """Hold the properties of a half message that concern its transaction."""

    first_offset: int
    """Queue offset of the transaction's first half record."""
    topic: str
    queue_id: int
    group: str
    check_times: int
    immunity_ms: int
    """How long after its beginning nobody asks about it; -1 leaves that to the broker."""


def is_prepared(properties: bytes, sys_flag: int) -> bool:
    """Return whether a send with these is the first half of a transaction; clients set one, or both."""
    if sys_flag & TYPE_MASK == PREPARED:
        return True
    value = property_value(properties, _PREPARED_PROPERTY) if _PREPARED_PROPERTY in properties else None
    return value is not None and value.lower() == b"true"


def half_properties(topic: str, queue_id: int, properties: bytes) -> bytes:
    """The properties of a new half. What only brokers may say is taken out: it could name another's half."""
    kept = without_properties(properties, _REAL_TOPIC, _REAL_QUEUE_ID, _CHECK_TIMES, _FIRST_OFFSET)
    return kept + b"REAL_TOPIC\x01%s\x02REAL_QID\x01%d" % (topic.encode(), queue_id)


def copied_properties(properties: bytes, *, first_offset: int, check_times: int) -> bytes:
    """Return the properties of a half that is written again."""
    kept = without_properties(properties, _CHECK_TIMES, _FIRST_OFFSET)
    return kept + b"TRANSACTION_CHECK_TIMES\x01%d\x02TRAN_PREPARED_QUEUE_OFFSET\x01%d" % (
        check_times,
        first_offset,
    )


def resumed_properties(properties: bytes) -> bytes:
    """Return the properties of a half that begins anew, with all its checks before it."""
    return without_properties(properties, _CHECK_TIMES, _FIRST_OFFSET).removesuffix(b"\x02")


def read_half(record: Record) -> Half | None:
    """Read a record of the half topic; None when it is not a half message."""
    return parse_half(record.properties, record.queue_offset)


def parse_half(properties: bytes, queue_offset: int) -> Half | None:
    """`read_half` for a record that was just written."""
    topic = property_value(properties, _REAL_TOPIC)
    queue_id = _number(property_value(properties, _REAL_QUEUE_ID))
    if not topic or queue_id is None:
        return None
    first_offset = _number(property_value(properties, _FIRST_OFFSET))
    # Brokers of the Java kind may write -1 there.
    if first_offset is None or first_offset > queue_offset:
        first_offset = queue_offset
    immunity_s = _number(property_value(properties, _IMMUNITY_S))
    return Half(
        first_offset=first_offset,
        topic=topic.decode("utf-8", "replace"),
        queue_id=queue_id,
        group=(property_value(properties, b"PGROUP") or b"").decode("utf-8", "replace"),
        check_times=_number(property_value(properties, _CHECK_TIMES)) or 0,
        immunity_ms=-1 if immunity_s is None else immunity_s * 1000,
    )


def encode_op(half_offset: int) -> bytes:
    """Return the op record that ends the half at `half_offset`, as a batch of one."""
    return encode_element(b"%d" % half_offset, _OP_PROPERTIES, 0)


def read_op(record: Record) -> list[int]:
    """Return the offsets of the halves an op record ends; empty for one that is none."""
    if property_value(record.properties, b"TAGS") != b"d":
        return []
    offsets = [_number(part.strip()) for part in record.body.split(b",")]
    return [offset for offset in offsets if offset is not None]


def _number(text: bytes | None) -> int | None:
    if text is None or not text.isdigit() or len(text) > _DIGITS_MAX:
        return None
    return int(text)
