# One queue of a topic: its offsets, and the mapped files with its entries.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from iotmq.store.log.segment cimport Segment

cdef class Queue:
    cdef readonly str topic
    cdef readonly int queue_id
    cdef readonly int64_t min_offset         # first offset that can be read
    cdef readonly int64_t first_offset       # where readers were told to begin: what is before is hidden
    cdef readonly int64_t max_offset         # next to be dispatched: what readers see as the end
    cdef readonly int64_t next_offset        # next to be appended: ahead of max_offset under sync flush
    cdef public int watched                  # by how many; not 0: report it in ConsumeQueue.take_dispatched
    cdef readonly bint may_expire            # some record may have a time to live (MSG_TTL_MS)
    cdef bint is_dispatched                  # in the list take_dispatched returns next
    cdef bint is_dirty                       # has entries that were not synced yet
    cdef bint is_new                         # has files whose directory was not synced yet
    cdef bytes topic_bytes
    cdef uint64_t hash                       # of topic and queue id, for the QueueTable
    cdef str directory
    cdef int64_t file_bytes
    cdef list files                          # Segments, lowest first; gaps only where records were lost
    cdef int64_t synced_bytes                # files that end by here are full and on the disk
    cdef Segment reading                     # file of the last entry_at
    cdef int64_t log_position                # start of the log at the last trim
    cdef int64_t reserved_offset             # entries in [max_offset, reserved_offset) have disk blocks
    cdef int64_t unfilled_offset             # the next new file still has to get fillers up to here; 0 for none
    cdef int64_t marker_position             # of the last marker that named offsets of this queue; 0 before
    # The last record whose offset was not plausible, while none has followed it; size 0 when there is none.
    cdef int64_t doubted_offset
    cdef int64_t doubted_position
    cdef int64_t doubted_tags
    cdef int32_t doubted_size
    cdef uint8_t* write_at                   # where entry max_offset goes, while below write_stop
    cdef uint8_t* write_stop

    cdef bint has_entries(self) noexcept
    cdef int reserve(self, int64_t end_offset) except -1
    cdef int skip_to(self, int64_t offset) except -1
    cdef int aim(self) except -1
    cdef Segment file_of(self, int64_t offset)
    cpdef int64_t last_offset_before(self, int64_t offset)
    cdef const uint8_t* entry_at(self, int64_t offset) except? NULL
    cdef int64_t position_up_to(self, int64_t offset, int64_t first) except? -2
    cdef int64_t last_position_of(self, Segment file) except? -2
    cdef int advance_to(self, int64_t min_position) except -1
    cpdef int64_t first_from(self, int64_t position) except -1
    cdef bint is_kept_whole(self, Py_ssize_t index, int64_t position) noexcept
