from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef class PushChannel:
    cdef object receiver
    cdef uint8_t* pushes
    cdef Py_ssize_t size, capacity

    # Where the next `size` bytes of `pushes` go, until it is called again.
    cdef uint8_t* take_room(self, Py_ssize_t size) except NULL
    cdef int begin(self) except -1
    cdef int push(self, records) except -1


cdef class PushChannels:
    cdef list channels
    cdef readonly uint64_t failed_total

    # Before places are added that are those of `records` in the next `push`.
    cdef int begin(self) except -1
    cdef int push(self, records) except -1


# The size of the record at a place that was pushed. ValueError when it does not end inside `records`.
cdef Py_ssize_t record_size_at(const uint8_t[::1] records, int64_t place) except -1
