# The last undone offset of each key of a queue; see key_tails.pyx.

from libc.stdint cimport int64_t, uint64_t

cdef struct KeyTail:
    uint64_t key                   # 0: free
    int64_t offset


cdef class KeyTails:
    cdef readonly Py_ssize_t count
    cdef uint64_t multiplier       # odd: who chooses keys does not know it
    cdef KeyTail* slots            # NULL while there is none
    cdef int bits                  # there are 2 ** bits slots

    cpdef int64_t find(self, uint64_t key) noexcept
    cpdef int put(self, uint64_t key, int64_t offset) except -1
    cpdef int remove(self, uint64_t key) except -1
    cdef int clear(self) except -1
    cdef Py_ssize_t slot_of(self, uint64_t key) noexcept
    cdef int resize(self, int bits) except -1
