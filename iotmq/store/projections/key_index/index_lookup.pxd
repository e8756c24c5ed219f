# A look-up of one key.

from libc.stdint cimport int32_t, int64_t, uint8_t

from iotmq.store.projections.key_index.index_file cimport IndexFile

cdef class Lookup:
    cdef list files                          # still to be looked at, the newest last
    cdef IndexFile file                      # None between two
    cdef int32_t hash
    cdef int32_t index                       # of the entry to look at next, 0 at the end of a chain
    cdef int64_t begin_ms
    cdef int64_t end_ms
    cdef int64_t steps_left
    cdef bint is_at_slot                     # of `file`: the slot was not looked at yet
    cdef bint is_patient
    cdef readonly object absent              # the ColdRead to be loaded, after -2

    cdef bint is_absent(self, const uint8_t* at, int64_t size_bytes) except -1
