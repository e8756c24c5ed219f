# TLS of many connections, with bytes in memory.

from libc.stdint cimport uint8_t, uint32_t

cdef class Secure:
    cdef list contexts
    cdef object server_name
    cdef dict streams                  # by connection: the TLS object, and the memory on both its sides
    cdef bytes output                  # keeps the memory behind `output_data` alive
    cdef const uint8_t* output_data
    cdef Py_ssize_t output_size
    cdef readonly str last_error

    # All return -1 when TLS failed. Bytes for the server are left in `output_data`.
    cdef int begin(self, uint32_t index) noexcept with gil
    cdef int shake(self, uint32_t index) noexcept with gil
    cdef Py_ssize_t decrypt(self, uint32_t index, const uint8_t* data, Py_ssize_t size, uint8_t* target,
        Py_ssize_t capacity) noexcept with gil
    cdef int encrypt(self, uint32_t index, const uint8_t* data, Py_ssize_t size) noexcept with gil
    cdef void end(self, uint32_t index) noexcept with gil
