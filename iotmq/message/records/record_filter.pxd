from libc.stdint cimport int64_t, uint8_t


cdef class RecordFilter:
    # What looking at records has cost since the owner of a scan set it to 0.
    cdef int64_t work_bytes

    # Whether the record of `size` bytes passes. A record that cannot be taken apart does not.
    cdef bint accepts(self, const uint8_t* record, Py_ssize_t size) noexcept
