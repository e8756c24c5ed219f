"""Collect the retained messages of a stretch of the log.

Operations: a look at every record, and a call for the few that carry the flag. Goals: nothing per record but
finding that it has no flag. Plan: the property is looked for where the records lie.
"""

from libc.stdint cimport uint8_t
from libc.string cimport memcmp

from iotmq.message.records.device_topic cimport device_topic
from iotmq.message.records.fields cimport RecordParts
from iotmq.message.records.record cimport find_property, parse_record
from iotmq.message.records.record_walk cimport RecordWalk, begin_walk, check_walk, end_walk, next_record
from iotmq.message.records.short_bytes cimport find_byte
from iotmq.mqtt.topics.filters cimport is_topic

from iotmq.message.properties import MQTT_RETAIN
from iotmq.mqtt.topics.topics import PRIVATE_PREFIX
from iotmq.mqtt.operator_state import OPERATOR_TOPIC

cdef bytes _RETAIN = MQTT_RETAIN.encode()
cdef const char* _retain_key = _RETAIN
cdef Py_ssize_t _retain_key_size = len(_RETAIN)
cdef bytes _PRIVATE = PRIVATE_PREFIX.encode()
cdef const char* _private = _PRIVATE
cdef Py_ssize_t _PRIVATE_SIZE = len(_PRIVATE)
cdef bytes _OPERATOR_TOPIC = OPERATOR_TOPIC.encode()
cdef const char* _operator_topic = _OPERATOR_TOPIC
cdef Py_ssize_t _OPERATOR_TOPIC_SIZE = len(_OPERATOR_TOPIC)


def collect_retained(view, on_retained not None):
    """Call `on_retained(MQTT topic, record)` for each retained message of a stretch of the log, in order.

    Both are bytes; the record of a message without a body, which takes the retained one away, is None.
    StoreCorruptError when `view` holds something else than whole records.
    """
    cdef RecordWalk walk
    begin_walk(&walk, view)
    try:
        _collect(&walk, on_retained)
    finally:
        end_walk(&walk)
    check_walk(&walk)


cdef int _collect(RecordWalk* walk, on_retained) except -1:
    cdef RecordParts parts, record
    cdef const uint8_t* value
    cdef const uint8_t* topic
    cdef const uint8_t* properties_end
    cdef Py_ssize_t size
    while next_record(walk, &parts):
        properties_end = parts.properties + parts.properties_size
        # Most records have no R either: one pass says so in a fraction of the time it takes to look at each property.
        if find_byte(parts.properties, parts.properties, properties_end, c"R") == properties_end:
            continue
        parse_record(walk.at - parts.size, walk.at, &record)
        size = find_property(record.properties, record.properties_size, _retain_key, _retain_key_size, &value)
        if size == 1 and value[0] == b"1":
            size = device_topic(&record, &topic)
            # As live deliveries: what is no topic name no device can be sent [MQTT-3.3.2-2].
            if size > 0 and is_topic(topic, size) and (
                size < _PRIVATE_SIZE
                or memcmp(topic, _private, _PRIVATE_SIZE) != 0
                # No producer and no device speaks for front ends.
                or record.topic_size == _OPERATOR_TOPIC_SIZE
                and memcmp(record.topic, _operator_topic, _OPERATOR_TOPIC_SIZE) == 0
            ):
                on_retained(topic[:size], (walk.at - record.size)[:record.size] if record.body_size else None)
    return 0
