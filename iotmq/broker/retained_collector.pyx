"""Which records of the log are retained messages.

Operations: a look at every record, and a call for the few that carry the flag. Goals: nothing per record but
finding that it has no flag. Plan: the property is looked for where the records lie.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t

from iotmq.message.layout cimport (
    AT_MAGIC, BLANK_BYTES, BLANK_MAGIC, SYS_FLAG_TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, get_u32,
)
from iotmq.message.own_topics cimport is_brokers_own
from iotmq.message.record cimport FORMAT_OK, RecordParts, find_property, parse_record

from iotmq.errors import StoreCorruptError
from iotmq.message.properties import MQTT_RETAIN, MQTT_TOPIC
from iotmq.message.record import problem_text

cdef bytes _TOPIC = MQTT_TOPIC.encode()
cdef bytes _RETAIN = MQTT_RETAIN.encode()
cdef const char* _topic_key = _TOPIC
cdef const char* _retain_key = _RETAIN
cdef Py_ssize_t _topic_key_size = len(_TOPIC)
cdef Py_ssize_t _retain_key_size = len(_RETAIN)


def collect_retained(view, on_retained not None):
    """Call `on_retained(MQTT topic, record)` for each retained message of a stretch of the log, in order.

    Both are bytes; the record of a message without a body, which takes the retained one away, is None.
    StoreCorruptError when `view` holds something else than whole records.
    """
    cdef Py_buffer buffer
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef int problem = FORMAT_OK
    PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
    try:
        at = <const uint8_t*>buffer.buf
        end = at + buffer.len
        problem = _collect(at, end, on_retained)
    finally:
        PyBuffer_Release(&buffer)
    if problem != FORMAT_OK:
        raise StoreCorruptError(f"not a record where the log has one: {problem_text(problem)}")


cdef int _collect(const uint8_t* at, const uint8_t* end, on_retained) except 1:
    cdef RecordParts parts
    cdef const uint8_t* value
    cdef const uint8_t* topic
    cdef Py_ssize_t size
    cdef int problem, transaction
    while at < end:
        problem = parse_record(at, end, &parts)
        if problem != FORMAT_OK:
            if end - at >= BLANK_BYTES and get_u32(at + AT_MAGIC) == <uint32_t>BLANK_MAGIC:
                return FORMAT_OK
            return problem
        size = find_property(parts.properties, parts.properties_size, _retain_key, _retain_key_size, &value)
        transaction = parts.sys_flag & SYS_FLAG_TRANSACTION_MASK
        if (
            size == 1
            and value[0] == b"1"
            and not is_brokers_own(parts.topic, parts.topic_size)
            and transaction != TRANSACTION_PREPARED
            and transaction != TRANSACTION_ROLLBACK
        ):
            size = find_property(parts.properties, parts.properties_size, _topic_key, _topic_key_size, &topic)
            if size > 0:
                on_retained(topic[:size], at[:parts.size] if parts.body_size else None)
        at += parts.size
    return FORMAT_OK
