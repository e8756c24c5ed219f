from libc.stdint cimport uint8_t, uint64_t


cdef enum FrameState:
    FRAME_RIGHT = 0
    FRAME_WRONG = 1         # it has another checksum
    FRAME_SHORT = 2         # it has no room for one


cdef class Checksum:
    cdef uint64_t _table[256]
    cdef uint64_t _start                # of the register
    cdef uint64_t _xor_out
    cdef uint64_t _mask
    cdef int _width                     # bits
    cdef bint _is_reversed
    cdef bint _is_little
    cdef bint _is_at_end
    cdef Py_ssize_t _size               # bytes of the checksum
    cdef Py_ssize_t _distance
    cdef Py_ssize_t _skip_first
    cdef Py_ssize_t _skip_last
    cdef readonly str name

    cdef uint64_t crc(self, const uint8_t* data, Py_ssize_t size) noexcept nogil
    # Says what the frame has and what its bytes give, but for FRAME_SHORT.
    cdef FrameState check(self, const uint8_t* frame, Py_ssize_t size, uint64_t* has, uint64_t* gives) noexcept nogil
    cdef str wrong(self, const uint8_t* frame, Py_ssize_t size)
