# The CommitLog: all records of all queues, one after another in segments.

from libc.stdint cimport int32_t, int64_t, uint8_t

from iotmq.message.record cimport Element, RecordShared
from iotmq.store.queue cimport Queue
from iotmq.store.segment cimport Segment

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

cdef class CommitLog:
    cdef readonly str directory
    cdef readonly bint is_new                # there were no files
    cdef readonly int64_t appended_position  # end of the last record: where the next one starts
    cdef readonly int64_t last_store_timestamp_ms    # of the last record appended or recovered; 0 before
    cdef readonly int64_t appended_records
    cdef public int64_t checked_position     # from here on every record was checked at the start, or written since
    cdef readonly int64_t unreadable_count   # records reads have passed over
    cdef set unreadable                      # the first of them: (topic, queue id, offset, position)
    cdef readonly bint is_room_low           # make_room_ahead should be called
    cdef int64_t touched_position            # pages below it were mapped ahead of the writer
    cdef bint is_touching                    # there is a second core to do it on
    cdef int64_t segment_bytes
    cdef int64_t allocation_step_bytes
    cdef int64_t record_bytes_max
    cdef bytes store_host
    cdef list segments                       # lowest first; the last may be an empty one made ahead
    cdef Py_ssize_t active_index             # of the segment that holds appended_position
    cdef Segment active
    cdef object lock                         # held while `segments` or an allocation changes
    cdef object ahead_lock                   # held while `make_room_ahead` runs: indexes stay what they are

    cdef int share(self, RecordShared* shared, Queue queue, bytes born_host, bytes properties,
                   int sys_flag) except -1
    cdef int store_batch(self, Queue queue, const uint8_t* start, const uint8_t* end,
                         const RecordShared* shared, Place* place) except -1
    cdef int64_t position_after(self, int64_t position) except -1
    cdef int64_t trusted_position(self) noexcept
    cdef bint is_readable(self, str topic, int queue_id, int64_t offset, int64_t position) except -1
    cdef Segment segment_at(self, int64_t position)
    cdef int make_room(self, Py_ssize_t index, int64_t position) except -1
    cdef Segment segment_number(self, Py_ssize_t index)
    cdef int place(self, const uint8_t* elements, const uint8_t* end, const RecordShared* shared) except -1
    cdef int64_t write(self, const uint8_t* at, const uint8_t* end, int32_t count, const RecordShared* shared,
                       int64_t first_offset, int64_t offset_step) except -1
    cdef const uint8_t* record_at(self, int64_t position, int64_t end_position, Py_ssize_t* room)
    cdef int find_records(self, int64_t start_position, int64_t limit_position, int64_t bytes_max,
                          int64_t* found_start, int64_t* found_end) except -1
