"""W3C trace contexts in the properties of records: 00-TRACE ID-SPAN ID-FLAGS, in lower-case hexadecimal digits."""

from libc.stdint cimport uint8_t
from libc.string cimport memchr, memcmp

cdef enum:
    PROPERTY_END = 2
    TRACE_ID_AT = 3
    SPAN_ID_AT = 36
    FLAGS_AT = 53


cdef const uint8_t* find_value(
    const uint8_t* properties, Py_ssize_t size, bytes name, Py_ssize_t* value_size
) noexcept:
    cdef const uint8_t* at = properties
    cdef const uint8_t* end = properties + size
    cdef const uint8_t* stop
    cdef Py_ssize_t name_size = len(name)
    while at < end:
        stop = <const uint8_t*>memchr(at, PROPERTY_END, end - at)
        if stop == NULL:
            stop = end
        if stop - at >= name_size and memcmp(at, <const char*>name, name_size) == 0:
            value_size[0] = stop - at - name_size
            return at + name_size
        at = stop + 1
    return NULL


cdef bint is_traceparent(const uint8_t* value, Py_ssize_t size) noexcept:
    return (
        size == TRACEPARENT_BYTES
        and memcmp(value, b"00-", 3) == 0
        and _is_id(value + TRACE_ID_AT, 32)
        and value[SPAN_ID_AT - 1] == 45
        and _is_id(value + SPAN_ID_AT, 16)
        and value[FLAGS_AT - 1] == 45
        and _digit(value[FLAGS_AT]) >= 0
        and _digit(value[FLAGS_AT + 1]) >= 0
    )


cdef bint is_sampled(const uint8_t* traceparent) noexcept:
    return _digit(traceparent[FLAGS_AT + 1]) & 1


def read_traceparent(const uint8_t[::1] value not None):
    """Return (trace id, span id, whether it is sampled), ids as digits; None for what is no context."""
    cdef bytes text
    if value.shape[0] != TRACEPARENT_BYTES or not is_traceparent(&value[0], TRACEPARENT_BYTES):
        return None
    text = bytes(value)
    return (
        text[TRACE_ID_AT:TRACE_ID_AT + 32].decode(),
        text[SPAN_ID_AT:SPAN_ID_AT + 16].decode(),
        bool(is_sampled(&value[0])),
    )


cdef bint _is_id(const uint8_t* at, Py_ssize_t size) noexcept:
    """Return whether these are digits, not all of them 0."""
    cdef Py_ssize_t index
    cdef int every = 0
    for index in range(size):
        if _digit(at[index]) < 0:
            return False
        every |= _digit(at[index])
    return every != 0


cdef int _digit(uint8_t character) noexcept:
    if 48 <= character <= 57:
        return character - 48
    return character - 87 if 97 <= character <= 102 else -1
