"""Read what properties ask of a send besides storing it: to wait for the disk (WAIT), or for a time.

The names for a time of delivery are those of `scheduled/delivery_time.py`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr, memcmp, memcpy

from iotmq.message.records.fields cimport FORMAT_OK, Element, element_fields

cdef extern from "string.h" nogil:
    void* memmem(const void* haystack, size_t haystack_size, const void* needle, size_t needle_size)

cdef enum:
    PROPERTY_END = 2


def without_wait(bytes properties not None):
    """Properties as they are stored: what WAIT asks for is done with when the send is answered."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(properties)
    cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(properties)
    cdef bytes kept
    if not has_text(at, size, b"WAIT\x01", 5):
        return properties
    kept = PyBytes_FromStringAndSize(NULL, size)
    size = put_properties(<uint8_t*> PyBytes_AS_STRING(kept), at, size, True)
    return kept[:size]


def element_wishes(const uint8_t[::1] elements):
    """Return the properties of each element of a batch that names a time of delivery.

    Ends at an element that cannot be one: the log says what is wrong with it.
    """
    cdef list found = []
    cdef Element element
    cdef const uint8_t* at = &elements[0] if elements.shape[0] else NULL
    cdef const uint8_t* end = at + elements.shape[0]
    while at < end:
        at = next_wish(at, end)
        if at == NULL:
            break
        if element_fields(at, end, &element) != FORMAT_OK:
            break
        found.append(PyBytes_FromStringAndSize(<const char*> element.properties, element.properties_size))
        at += element.size
    return found


cdef bint has_text(const uint8_t* at, Py_ssize_t size, const char* text, Py_ssize_t text_size) noexcept:
    return size > 0 and memmem(at, size, text, text_size) != NULL


cdef const uint8_t* next_wish(const uint8_t* at, const uint8_t* end) noexcept:
    cdef Element element
    while at < end and element_fields(at, end, &element) == FORMAT_OK:
        if element.properties_size and has_wish(element.properties, element.properties_size):
            return at
        at += element.size
    return NULL


cdef bint has_wish(const uint8_t* start, Py_ssize_t size) noexcept:
    """Return whether one of the names of scheduled/delivery_time.py is there as a name."""
    cdef const uint8_t* end = start + size
    cdef const uint8_t* at = start
    while True:
        at = <const uint8_t*> memmem(at, end - at, <const char*> b"DEL", 3)
        if at == NULL:
            return False
        if begins_name(start, at) and end - at > 5 and not memcmp(at, <const char*> b"DELAY\x01", 6):
            return True
        if at - start >= 6 and begins_name(start, at - 6) and not memcmp(at - 6, <const char*> b"TIMER_", 6):
            return True
        at += 3


cdef inline bint begins_name(const uint8_t* start, const uint8_t* at) noexcept:
    return at == start or at[-1] == PROPERTY_END


cdef Py_ssize_t put_properties(uint8_t* target, const uint8_t* at, Py_ssize_t size, bint has_wait) noexcept:
    cdef uint8_t* start = target
    cdef const uint8_t* end = at + size
    cdef const uint8_t* pair_end
    if not has_wait:
        if size:
            memcpy(target, at, size)
        return size
    while True:
        pair_end = <const uint8_t*> memchr(at, PROPERTY_END, end - at)
        if pair_end == NULL:
            pair_end = end
        if pair_end - at < 5 or memcmp(at, <const char*> b"WAIT\x01", 5):
            memcpy(target, at, pair_end - at)
            target += pair_end - at
            if pair_end < end:
                target[0] = PROPERTY_END
                target += 1
        if pair_end == end:
            return target - start
        at = pair_end + 1
