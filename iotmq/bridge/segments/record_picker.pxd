# The records of some queues, picked out of CommitLog files by their content alone.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

# What is wanted of one queue, once somebody was asked; nothing when `end_offset` is 0.
cdef struct QueueSpan:
    const uint8_t* topic
    Py_ssize_t topic_size
    uint64_t hash
    int64_t from_position
    int64_t start_offset
    int64_t end_offset
    int64_t start_ms
    int64_t end_ms
    int32_t queue_id
