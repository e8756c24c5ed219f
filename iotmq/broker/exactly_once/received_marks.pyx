"""Find the messages of QoS 2 that carry a packet id, in batches and in the log.

A message of a kept session is marked: its property MQTT_PACKET_ID has the packet id in decimal. Its key is the client
id, 0x00 and that packet id. Its digest tells it from other messages of the same id: CRC-32 of the body in the upper
half, of the MQTT topic in the lower.

Operations: look at every message of a batch with marked ones, and at every record of a stretch of the log. Goals: an
unmarked message costs one search for the property; a marked one few objects. Plan: search the bytes where they lie.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp

from iotmq.message.records.crc cimport crc32
from iotmq.message.records.fields cimport FORMAT_OK, Element, RecordParts, element_fields
from iotmq.message.records.device_topic cimport is_brokers_own
from iotmq.message.records.record cimport find_property
from iotmq.message.records.record_walk cimport RecordWalk, begin_walk, check_walk, end_walk, next_record

from iotmq.broker.tables.topics import RECEIVED_TOPIC, TIMER_TOPIC
from iotmq.message.errors import MessageFormatError
from iotmq.message.records.record import problem_text

cdef bytes _RECEIVED_TOPIC = RECEIVED_TOPIC.encode()
cdef bytes _TIMER_TOPIC = TIMER_TOPIC.encode()


cdef object mark_of(const uint8_t* properties, Py_ssize_t size):
    """Return the key of a marked message, else None."""
    cdef const uint8_t* value
    cdef const uint8_t* client
    cdef Py_ssize_t value_size = find_property(properties, size, "MQTT_PACKET_ID", 14, &value)
    cdef Py_ssize_t client_size
    if value_size <= 0:
        return None
    client_size = find_property(properties, size, "MQTT_CLIENT_ID", 14, &client)
    if client_size < 0:
        return None
    return client[:client_size] + b"\0" + value[:value_size]


cdef uint64_t digest_of(
    const uint8_t* body, Py_ssize_t body_size, const uint8_t* properties, Py_ssize_t properties_size
) noexcept:
    cdef const uint8_t* topic
    cdef Py_ssize_t topic_size = find_property(properties, properties_size, "MQTT_TOPIC", 10, &topic)
    cdef uint64_t digest = <uint64_t> crc32(body, <size_t> body_size) << 32
    if topic_size > 0:
        digest |= crc32(topic, <size_t> topic_size)
    return digest


def marked_elements(elements):
    """Return (key, digest, start, end) of each marked element of a batch. Raises MessageFormatError."""
    cdef Py_buffer buffer
    cdef Element element
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef int problem
    cdef Py_ssize_t start
    cdef list found = []
    PyObject_GetBuffer(elements, &buffer, PyBUF_SIMPLE)
    try:
        at = <const uint8_t*> buffer.buf
        end = at + buffer.len
        while at < end:
            problem = element_fields(at, end, &element)
            start = at - <const uint8_t*> buffer.buf
            if problem != FORMAT_OK:
                raise MessageFormatError(f"batch element at byte {start}: {problem_text(problem)}", start)
            key = mark_of(element.properties, element.properties_size)
            if key is not None:
                digest = digest_of(element.body, element.body_size, element.properties, element.properties_size)
                found.append((key, digest, start, start + element.size))
            at += element.size
    finally:
        PyBuffer_Release(&buffer)
    return found


def collect_received(view, on_received not None, on_released not None):
    """Call `on_received(key, position, digest)` for each marked record, and `on_released(body)` for each release.

    Records in the brokers' own topics are copies of records seen before, and are passed over. Those that wait for
    their time are not: they come there first. Raises StoreCorruptError when `view` is not made of whole records.
    """
    cdef RecordWalk walk
    begin_walk(&walk, view)
    try:
        _collect(&walk, on_received, on_released)
    finally:
        end_walk(&walk)
    check_walk(&walk)


cdef int _collect(RecordWalk* walk, on_received, on_released) except -1:
    cdef RecordParts parts
    while next_record(walk, &parts):
        if is_brokers_own(parts.topic, parts.topic_size):
            if is_topic(&parts, _RECEIVED_TOPIC):
                on_released(parts.body[:parts.body_size])
                continue
            if not is_topic(&parts, _TIMER_TOPIC):
                continue
        key = mark_of(parts.properties, parts.properties_size)
        if key is not None:
            on_received(
                key, parts.position,
                digest_of(parts.body, parts.body_size, parts.properties, parts.properties_size),
            )
    return 0


cdef bint is_topic(const RecordParts* parts, bytes topic) noexcept:
    return parts.topic_size == len(topic) and memcmp(parts.topic, <const char*> topic, parts.topic_size) == 0
