from libc.stdint cimport uint8_t, uint64_t


cdef class PushChannel:
    cdef object receiver
    cdef uint8_t* pushes
    cdef Py_ssize_t size, capacity

    # Where the next `size` bytes of `pushes` go, until it is called again.
    cdef uint8_t* take_room(self, Py_ssize_t size) except NULL
    cdef int push(self, records) except -1


cdef class PushChannels:
    cdef list channels
    cdef readonly uint64_t failed_total

    cdef int push(self, records) except -1
