# One hash file of the key index.

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from iotmq.store.log.segment cimport Segment

cdef enum:
    INDEX_HEADER_BYTES = 40
    INDEX_SLOT_BYTES = 4
    INDEX_ENTRY_BYTES = 20


@cython.final
cdef class IndexFile:
    cdef readonly str path
    cdef readonly int64_t number             # the file's name, which is all digits, as a number
    cdef readonly int32_t slots
    cdef readonly int32_t entries            # the file has room for one less: entry 0 means "none"
    cdef readonly int64_t begin_timestamp_ms
    cdef readonly int64_t end_timestamp_ms
    cdef readonly int64_t begin_position
    cdef readonly int64_t end_position
    cdef readonly int32_t used_slots
    cdef readonly int32_t count              # index of the next entry; 1 in an empty file
    cdef readonly bint is_deleted
    cdef bint is_dirty                       # has entries that were not synced yet
    cdef bint is_new                         # its directory was not synced yet
    cdef readonly Segment segment
    cdef uint8_t* slots_at
    cdef uint8_t* entries_at
    cdef int32_t writable_count              # entries below it have disk blocks
    cdef int32_t ready_count                 # those below it can be written

    cdef int put(self, int32_t hash, int64_t position, int64_t timestamp_ms) except -1
    cdef int make_ready(self) except -1
    cdef int reserve(self) except -1
    cdef void write_header(self) noexcept
    cdef int64_t entries_below(self, int64_t position) noexcept


# What a hash becomes in an entry: Math.abs, with 0 for the one number that has no opposite.
cdef inline int32_t without_sign(uint32_t hash) noexcept nogil:
    cdef int32_t value = <int32_t> hash
    if value >= 0:
        return value
    return <int32_t> (0 - hash) if hash != <uint32_t> 0x80000000 else 0
