# The key index projection: hash files that lead from `topic#key` to positions in the log.

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from iotmq.store.projections.key_index.index_file cimport IndexFile

cdef enum:
    INDEX_TOPIC_BYTES_MAX = 255


@cython.final
cdef class KeyIndex:
    cdef readonly str name
    cdef readonly str directory
    cdef readonly int64_t applied_position
    cdef readonly int64_t added_entries      # since it was opened
    cdef str state_path
    cdef int32_t slots
    cdef int32_t entries
    cdef list files                          # oldest first
    cdef list dirty
    cdef object timestamp_at                 # store time of the record at a position of the log
    cdef int64_t removed_files               # from the front, since it was opened
    cdef IndexFile active                    # the last of `files`, None when there is none
    cdef object lock                         # held while the state is written
    cdef tuple written                       # the last state written
    # Every record below is done, and so many keys of the one that starts there: an apply that failed
    # goes on from here when its range comes again.
    cdef int64_t next_position
    cdef int32_t keys_done
    # The topic of the last record with a key, and the hash of `topic#`.
    cdef uint8_t topic[INDEX_TOPIC_BYTES_MAX]
    cdef Py_ssize_t topic_size
    cdef uint32_t topic_hash

    cdef int apply_range(self, const uint8_t* at, int64_t start_position, int64_t end_position) except -1
    cdef int apply_bytes(self, const uint8_t* at, const uint8_t* end, int64_t position) except -1
    cdef void set_topic(self, const uint8_t* topic, Py_ssize_t size) noexcept
    cdef int enter(self, int64_t position, int64_t timestamp_ms, const uint8_t* unique_key,
                   Py_ssize_t unique_key_size, const uint8_t* keys, Py_ssize_t keys_size) except -1
    cdef int put(self, int32_t hash, int64_t position, int64_t timestamp_ms) except -1
    cdef int roll(self, int64_t timestamp_ms) except -1
