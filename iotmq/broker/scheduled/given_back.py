"""The properties of the copy of a message, in a retry or dead-letter topic, that a consumer gave back."""

from __future__ import annotations

from iotmq.broker.scheduled.delay_levels import without_properties
from iotmq.broker.writing.message_ids import OffsetMessageIds
from iotmq.message.properties import POP_DONE
from iotmq.message.records.record import Record, property_value

_POP_DONE = POP_DONE.encode()


def given_back_properties(record: Record, message_ids: OffsetMessageIds) -> bytes:
    """Return those of the record, with its topic and id unless they are those of an older copy.

    Nobody waits for the copy: its consumer has let go of it.
    """
    properties = without_properties(record.properties, b"DELAY", b"WAIT", _POP_DONE) + b"WAIT\x01false\x02"
    if property_value(properties, b"RETRY_TOPIC") is None:
        properties += b"RETRY_TOPIC\x01%s\x02" % record.topic.encode()
    if property_value(properties, b"ORIGIN_MESSAGE_ID") is None:
        properties += b"ORIGIN_MESSAGE_ID\x01%s\x02" % message_ids.one(record.position).encode()
    return properties
