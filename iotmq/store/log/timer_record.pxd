# Which records wait for a time, and for which.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from iotmq.message.records.fields cimport RecordParts

cdef enum:
    # `timer_kind` of a record that waits for nothing; of the others it is 0 or the delay level.
    NO_TIMER = -1
    ANY_TIME = 0
    LEVELS_MAX = 511
    # Of the names of both topics.
    TIMER_NAME_BYTES = 19

# NO_TIMER, ANY_TIME or the delay level, with `due_ms` set to when it is due.
cdef int timer_kind(const RecordParts* parts, int64_t* due_ms) noexcept nogil

# What a queue entry has as tags code: when the record is due for delay levels, the hash of TAGS for others.
cdef int64_t entry_tags_code(const RecordParts* parts) noexcept nogil

# Hash of the topic a waiting message is for and its unique key; 0 without a unique key.
cdef uint64_t timer_name(const RecordParts* parts) noexcept nogil
