# The ConsumeQueue projection: an entry for every record, in the files of its queue.

from libc.stdint cimport int64_t, uint8_t

from iotmq.message.records.fields cimport RecordParts
from iotmq.store.log.queue cimport Queue
from iotmq.store.log.queue_table cimport QueueTable

cdef class ConsumeQueue:
    cdef readonly str name
    cdef readonly int64_t applied_position
    cdef readonly int64_t ignored_count      # records whose entry was there already, or cannot have one
    cdef bint may_expire                     # some queue's may_expire is set
    cdef readonly str directory
    cdef int64_t entries_per_file
    cdef int64_t min_position                # of the log, at the last rewind
    cdef QueueTable table
    cdef list dispatched
    cdef list dirty
    cdef bint was_cleared                    # everything was, or is to be, taken from the log again
    cdef list gaps                           # offsets without a record, since take_gaps
    cdef Queue last                          # queue of the last record: most batches are one queue's

    cdef int apply_bytes(self, const uint8_t* at, const uint8_t* end) except -1
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
