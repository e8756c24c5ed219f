"""Find changes of popped messages in the log: records of POP_TOPIC, and dead letters that end a message.

Operations: look at every record of a stretch of the log. Goals: another record costs a comparison of its topic's
first byte. Plan: search the bytes where they lie.
"""

from libc.string cimport memcmp

from iotmq.message.records.fields cimport RecordParts
from iotmq.message.records.record cimport find_property
from iotmq.message.records.record_walk cimport RecordWalk, begin_walk, check_walk, end_walk, next_record
from libc.stdint cimport uint8_t

from iotmq.broker.tables.topics import DLQ_PREFIX, POP_TOPIC

cdef bytes _TOPIC = POP_TOPIC.encode()
cdef bytes _DLQ = DLQ_PREFIX.encode()


def collect_pops(view, on_changes not None, on_burial not None):
    """Call `on_changes(body)` and `on_burial(group, POP_DONE)` for the records that have changes.

    Raises StoreCorruptError when `view` is not made of whole records.
    """
    cdef RecordWalk walk
    begin_walk(&walk, view)
    try:
        _collect(&walk, on_changes, on_burial)
    finally:
        end_walk(&walk)
    check_walk(&walk)


cdef int _collect(RecordWalk* walk, on_changes, on_burial) except -1:
    cdef RecordParts parts
    cdef const uint8_t* value
    cdef Py_ssize_t size
    cdef Py_ssize_t dlq_size = len(_DLQ)
    while next_record(walk, &parts):
        if parts.topic_size == len(_TOPIC) and memcmp(parts.topic, <const char*> _TOPIC, parts.topic_size) == 0:
            on_changes(parts.body[:parts.body_size])
        elif parts.topic_size > dlq_size and memcmp(parts.topic, <const char*> _DLQ, dlq_size) == 0:
            size = find_property(parts.properties, parts.properties_size, "POP_DONE", 8, &value)
            if size > 0:
                on_burial(parts.topic[dlq_size:parts.topic_size], value[:size])
    return 0
