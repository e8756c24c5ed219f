# One fixed-size file, mapped whole. Everything a writer or reader touches lies below `allocated_bytes`.

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp

# `size` rounded up to a multiple of `step`. (With C division `-size % step` is not what it is in Python.)
cdef inline int64_t whole_steps(int64_t size, int64_t step) noexcept nogil:
    return (size + step - 1) // step * step

# Whether `size` bytes are all zero.
cdef inline bint is_zero(const uint8_t* at, int64_t size) noexcept nogil:
    return size <= 0 or (at[0] == 0 and memcmp(at, at + 1, size - 1) == 0)

cdef class Segment:
    cdef readonly str path
    cdef readonly int64_t start_position     # of its first byte in the log (or the queue's entries)
    cdef readonly int64_t end_position       # start_position + size_bytes
    cdef readonly int64_t size_bytes
    cdef readonly int64_t allocated_bytes    # from the front; has disk blocks, so touching it is safe
    cdef uint8_t* data
    cdef int descriptor                      # -1 unless held open
    cdef bint is_descriptor_kept
    cdef readonly bint is_paged_singly       # from somewhere on

    cpdef int allocate(self, int64_t end_bytes) except -1
    cdef int write_zeros(self, int64_t start_bytes, int64_t end_bytes) except -1
    cdef void bring_in(self, int64_t start_bytes, int64_t end_bytes) noexcept
    cpdef object view(self, int64_t start_position, int64_t end_position)
    cdef int open_descriptor(self) except -1
    cdef int done_with(self, int descriptor) except -1
    cdef int64_t claim_data(self, int descriptor) except -1
