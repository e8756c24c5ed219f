from libc.stdint cimport uint8_t

cdef enum:
    TRACEPARENT_BYTES = 55

# The value of the first property with a name, which ends in \x01; NULL without one.
cdef const uint8_t* find_value(const uint8_t* properties, Py_ssize_t size, bytes name, Py_ssize_t* value_size) noexcept
# Whether it is a W3C trace context of version 00.
cdef bint is_traceparent(const uint8_t* value, Py_ssize_t size) noexcept
# Whether its flags say so.
cdef bint is_sampled(const uint8_t* traceparent) noexcept
