cdef class SendRoom:
    cdef Py_ssize_t _count_max
    cdef Py_ssize_t _bytes_max
    cdef Py_ssize_t _bytes
    cdef object _waiting
    cdef list _waiting_for_drain
    # Sends without a result yet.
    cdef readonly Py_ssize_t count

    cpdef void add(self, Py_ssize_t size, Py_ssize_t count=*)
    cdef bint has_none(self) noexcept
