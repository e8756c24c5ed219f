# What a record must show to be believed, and where the next such one is.

from libc.stdint cimport int64_t, uint8_t

from iotmq.message.records.fields cimport RecordParts

# Whether the bytes at `at` are the record of `position`, whole before `end`; then `out` has its parts.
cdef bint proves_itself(const uint8_t* at, const uint8_t* end, int64_t position, RecordParts* out) noexcept nogil

# The first record of [start, end) that proves itself, `position` being that of `start`; NULL when none does.
cdef const uint8_t* find_record(const uint8_t* start, const uint8_t* end, int64_t position) noexcept nogil

# The blank that closes a segment with [start, end) at its end, `left_bytes` being those from `start` to the
# segment's end; NULL when there is none.
cdef const uint8_t* find_blank(const uint8_t* start, const uint8_t* end, int64_t left_bytes) noexcept nogil
