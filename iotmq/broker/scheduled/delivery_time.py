"""Read a message's delivery time from its properties, and make the properties it is stored with to wait.

DELAY is a delay level. TIMER_DELAY_SEC, TIMER_DELAY_MS and TIMER_DELIVER_MS (of RocketMQ 5) name any time,
in this order when there are several; a level goes before all of them. TIMER_DEL_UNIQKEY takes back a message
that waits for the same topic.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from iotmq import limits
from iotmq.broker.scheduled.delay_levels import DelayLevels, without_properties
from iotmq.broker.tables.topics import TIMER_TOPIC
from iotmq.errors import RequestError
from iotmq.message.records.record import property_value
from iotmq.remoting.codes import ResponseCode
from iotmq.store.log.timer_record import DUE_MS_MAX

DELAY: Final = b"DELAY"
REAL_TOPIC: Final = b"REAL_TOPIC"
REAL_QUEUE_ID: Final = b"REAL_QID"
DELAY_S: Final = b"TIMER_DELAY_SEC"
DELAY_MS: Final = b"TIMER_DELAY_MS"
DELIVER_MS: Final = b"TIMER_DELIVER_MS"
DUE_MS: Final = b"TIMER_OUT_MS"
CANCELLED_KEY: Final = b"TIMER_DEL_UNIQKEY"
ROLL_TIMES: Final = b"TIMER_ROLL_TIMES"
UNIQUE_KEY: Final = b"UNIQ_KEY"

# In every name a sender may give, and seldom in other properties: what does not have it needs no look.
HINT: Final = b"DEL"

# For what is put in front of a message when it is copied farther on in the log.
_SPARE_BYTES: Final = 64


class DeliveryTime(NamedTuple):
    """Hold the delivery time a sender wants, as one of three; all are 0 or empty for delivery at once."""

    level: int = 0
    due_ms: int = 0
    cancelled_key: bytes = b""


class Diverted(NamedTuple):
    """A message as it is stored to wait: topic, queue and properties take the place of its own."""

    topic: str
    queue_id: int
    properties: bytes
    # 0 for one of a delay level.
    due_ms: int


NOW: Final = DeliveryTime()


def read_delivery_time(properties: bytes, levels: DelayLevels, *, now_ms: int) -> DeliveryTime:
    """Read the delivery time from properties; one in the past is delivery at once.

    Raises RequestError (13) naming the property that cannot be understood.
    """
    if HINT not in properties:
        return NOW
    level = levels.level_of(properties)
    if level:
        return DeliveryTime(level=level)
    _check_level(properties)
    cancelled_key = property_value(properties, CANCELLED_KEY)
    if cancelled_key is not None:
        if not cancelled_key:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL, "the property TIMER_DEL_UNIQKEY is empty: it names a unique key"
            )
        return DeliveryTime(cancelled_key=cancelled_key)
    for name, factor_ms in ((DELAY_S, 1_000), (DELAY_MS, 1)):
        value = property_value(properties, name)
        if value is not None:
            due_ms = now_ms + _number(name, value) * factor_ms
            break
    else:
        value = property_value(properties, DELIVER_MS)
        if value is None:
            return NOW
        name = DELIVER_MS
        due_ms = _number(name, value)
    if due_ms > DUE_MS_MAX:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the property {name.decode()} is {value.decode()}, later than {DUE_MS_MAX} ms after 1970",
        )
    return DeliveryTime(due_ms=due_ms) if due_ms > now_ms else NOW


def waiting_until(topic: str, queue_id: int, properties: bytes, due_ms: int) -> Diverted:
    """The message for a time of its own. Raises RequestError (13) when its properties are too long for it."""
    kept = without_properties(properties, REAL_TOPIC, REAL_QUEUE_ID, DUE_MS, ROLL_TIMES, CANCELLED_KEY)
    waiting = kept + b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01%s\x02REAL_QID\x01%d" % (
        due_ms,
        topic.encode(),
        queue_id,
    )
    check_room(waiting)
    return Diverted(TIMER_TOPIC, 0, waiting, due_ms)


def check_room(properties: bytes) -> None:
    """Raise RequestError (13) unless the properties of a waiting message have room for what it needs."""
    if len(properties) + _SPARE_BYTES > limits.PROPERTIES_BYTES_MAX:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the properties of a waiting message have {len(properties)} bytes with the broker's own, "
            f"more than {limits.PROPERTIES_BYTES_MAX - _SPARE_BYTES}",
        )


def moved_properties(properties: bytes, due_ms: int) -> bytes:
    """Return the properties of a waiting message that is copied farther on in the log."""
    times = property_value(properties, ROLL_TIMES) or b""
    kept = without_properties(properties, DELAY, DUE_MS, ROLL_TIMES, CANCELLED_KEY, b"MQTT_PACKET_ID")
    moved = kept + b"TIMER_OUT_MS\x01%d" % due_ms
    counted = moved + b"\x02TIMER_ROLL_TIMES\x01%d" % (int(times[:9]) + 1 if times.isdigit() else 1)
    return counted if len(counted) <= limits.PROPERTIES_BYTES_MAX else moved


def _check_level(properties: bytes) -> None:
    """A level that is no number must not become a message that does not wait; none and less are no level."""
    value = property_value(properties, DELAY)
    if value and not value.removeprefix(b"-").isdigit():
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the property DELAY is {value[:32].decode('utf-8', 'replace')!r}: a delay level is a number",
        )


def _number(name: bytes, value: bytes) -> int:
    if not value.isdigit() or len(value) > 19:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the property {name.decode()} is {value[:32].decode('utf-8', 'replace')!r}: "
            "a number of at most 19 digits is wanted",
        )
    return int(value)
