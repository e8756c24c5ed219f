# The files of the log.

from libc.stdint cimport int64_t, uint8_t

from iotmq.store.log.segment cimport Segment

cdef class LogSegments:
    cdef readonly str directory
    cdef readonly bint is_new                # there were no files
    cdef readonly int64_t appended_position  # end of the last record: where the next one starts
    cdef readonly bint is_room_low           # make_room_ahead should be called
    cdef int64_t ready_position              # pages below it are in memory, those the writer comes to
    cdef int64_t segment_bytes
    cdef int64_t allocation_step_bytes
    cdef list segments                       # lowest first; the last may be an empty one made ahead
    cdef Py_ssize_t active_index             # of the segment that holds appended_position
    cdef Segment active
    cdef object lock                         # held while `segments` or an allocation changes
    cdef object ahead_lock                   # held while `make_room_ahead` runs: indexes stay what they are

    cdef Segment segment_at(self, int64_t position)
    cdef int make_room(self, Py_ssize_t index, int64_t position) except -1
    cdef int make_ready(self, Py_ssize_t index, int64_t position) except -1
    cdef Segment segment_number(self, Py_ssize_t index)
    cdef const uint8_t* record_at(self, int64_t position, int64_t end_position, Py_ssize_t* room)
