# The CommitLog: all records of all queues, one after another in segments.

from libc.stdint cimport int32_t, int64_t, uint8_t

from iotmq.message.records.fields cimport Element
from iotmq.message.records.record cimport RecordShared
from iotmq.store.log.log_segments cimport LogSegments
from iotmq.store.log.queue cimport Queue

# Where a batch went.
cdef struct Place:
    int64_t start_position         # of the first record
    int64_t end_position           # behind the last one
    int64_t first_offset
    int32_t count

cdef class Appended:
    cdef readonly int64_t start_position     # of the first record
    cdef readonly int64_t end_position       # behind the last one: appended_position after the call
    cdef readonly int64_t first_offset       # in the queue; 0 for records that take none
    cdef readonly int32_t count
    cdef readonly int64_t store_timestamp_ms
    cdef CommitLog log

cdef class CommitLog(LogSegments):
    cdef readonly int64_t last_store_timestamp_ms    # of the last record appended or recovered; 0 before
    cdef readonly int64_t appended_records
    cdef public int64_t checked_position     # from here on every record was checked at the start, or written since
    cdef readonly int64_t unreadable_count   # records reads have passed over
    cdef set unreadable                      # the first of them: (topic, queue id, offset, position)
    cdef int64_t record_bytes_max
    cdef bytes store_host

    cdef int share(self, RecordShared* shared, Queue queue, bytes born_host, bytes properties,
                   int sys_flag) except -1
    cdef int store_batch(self, Queue queue, const uint8_t* start, const uint8_t* end,
                         const RecordShared* shared, Place* place) except -1
    cdef int64_t position_after(self, int64_t position) except -1
    cdef int64_t trusted_position(self) noexcept
    cdef bint is_readable(self, str topic, int queue_id, int64_t offset, int64_t position) except -1
    cdef int place(self, const uint8_t* elements, const uint8_t* end, const RecordShared* shared) except -1
    cdef int64_t write(self, const uint8_t* at, const uint8_t* end, int32_t count, const RecordShared* shared,
                       int64_t first_offset, int64_t offset_step) except -1
    cdef int find_records(self, int64_t start_position, int64_t limit_position, int64_t bytes_max,
                          int64_t* found_start, int64_t* found_end) except -1
