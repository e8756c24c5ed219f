# The ConsumeQueue projection: 20-byte entries per (topic, queue id) in mapped files.

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from iotmq.message.record cimport RecordParts
from iotmq.store.segment cimport Segment

cdef enum:
    # Record size in an entry that stands for an offset without a record.
    FILLER_SIZE = 0x7FFFFFFF
    # Transaction types, in the sys flag, of records that have no place in a queue.
    TRANSACTION_PREPARED = 4
    TRANSACTION_ROLLBACK = 12

cdef class Queue:
    cdef readonly str topic
    cdef readonly int queue_id
    cdef readonly int64_t min_offset         # first offset that can be read
    cdef readonly int64_t first_offset       # where readers were told to begin: what is before is hidden
    cdef readonly int64_t max_offset         # next to be dispatched: what readers see as the end
    cdef readonly int64_t next_offset        # next to be appended: ahead of max_offset under sync flush
    cdef public bint watched                 # report it in ConsumeQueue.take_dispatched
    cdef readonly bint may_expire            # some record may have a time to live (MSG_TTL_MS)
    cdef bint is_dispatched                  # in the list take_dispatched returns next
    cdef bint is_dirty                       # has entries that were not synced yet
    cdef bint is_new                         # has files whose directory was not synced yet
    cdef bytes topic_bytes
    cdef uint64_t hash
    cdef str directory
    cdef int64_t file_bytes
    cdef list files                          # Segments, lowest first; gaps only where records were lost
    cdef int64_t synced_bytes                # files that end by here are full and on the disk
    cdef Segment reading                     # file of the last entry_at
    cdef int64_t log_position                # start of the log at the last trim
    cdef int64_t reserved_offset             # entries in [max_offset, reserved_offset) have disk blocks
    cdef int64_t marker_position             # of the last marker that named offsets of this queue; 0 before
    # The last record whose offset was not plausible, while none has followed it; size 0 when there is none.
    cdef int64_t doubted_offset
    cdef int64_t doubted_position
    cdef int64_t doubted_tags
    cdef int32_t doubted_size
    cdef uint8_t* write_at                   # where entry max_offset goes, while below write_stop
    cdef uint8_t* write_stop

    cdef int reserve(self, int64_t end_offset) except -1
    cdef int skip_to(self, int64_t offset) except -1
    cdef int aim(self) except -1
    cdef Segment file_of(self, int64_t offset)
    cdef const uint8_t* entry_at(self, int64_t offset) except? NULL
    cdef int64_t position_up_to(self, int64_t offset, int64_t first) except? -2
    cdef int64_t last_position_of(self, Segment file) except? -2
    cdef int advance_to(self, int64_t min_position) except -1
    cdef bint is_kept_whole(self, Py_ssize_t index, int64_t position) noexcept

# Write the entry of a record.
cdef void put_entry(uint8_t* at, const RecordParts* parts) noexcept nogil

# Whether the bytes can name a topic, and so a directory of ours.
cdef bint is_topic(const uint8_t* topic, Py_ssize_t size) noexcept nogil

cdef class ConsumeQueue:
    cdef readonly str name
    cdef readonly int64_t applied_position
    cdef readonly int64_t ignored_count      # records whose entry was there already, or cannot have one
    cdef bint may_expire                     # some queue's may_expire is set
    cdef readonly str directory
    cdef int64_t entries_per_file
    cdef int64_t min_position                # of the log, at the last rewind
    cdef list queue_list                     # owns what the table points to
    cdef list dispatched
    cdef list dirty
    cdef list gaps                           # offsets without a record, since take_gaps
    cdef Queue last                          # queue of the last record: most batches are one queue's
    cdef PyObject** table                    # open addressing over (topic bytes, queue id)
    cdef Py_ssize_t table_size               # a power of two

    cdef int apply_bytes(self, const uint8_t* at, const uint8_t* end) except -1
    cdef Queue lookup(self, const uint8_t* topic, Py_ssize_t topic_size, int queue_id)
    cdef Queue insert(self, bytes topic_bytes, int queue_id)
    cdef Queue queue_of(self, const uint8_t* topic, Py_ssize_t topic_size, int queue_id)
    cdef int count_entry(self, Queue queue) except -1
    cdef int enter(self, Queue queue, const RecordParts* parts) except -1
    cdef int enter_late(self, Queue queue, const RecordParts* parts) except -1
    cdef int enter_loss(self, const RecordParts* parts) except -1
    cdef bint is_plausible(self, Queue queue, int64_t offset, int64_t position) except -1
    cdef bint is_confirmed(self, Queue queue, const RecordParts* parts) except -1
    cdef int note_gap(self, Queue queue, int64_t offset, int64_t position) except -1
    cdef int mark(self, Queue queue) except -1
    cdef int grow_table(self) except -1
    cdef int fill_table(self, Py_ssize_t size) except -1
