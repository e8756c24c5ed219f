"""UTF-8 of payloads, and of values that become properties of a record (iotmq.mqtt.topics.topics.decode_value
for people)."""

from libc.stdint cimport uint8_t


cdef inline bint is_text_value(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Well-formed UTF-8 [MQTT-1.5.4-1] without NUL [MQTT-1.5.4-2] and the two that separate a record's properties."""
    return is_utf8(at, size, 3)


cdef inline bint is_utf8(const uint8_t* at, Py_ssize_t size, uint8_t lowest) noexcept nogil:
    """Well-formed UTF-8 whose code points are not below `lowest`, which is at most 0x80."""
    cdef const uint8_t* end = at + size
    cdef uint8_t first
    cdef int more, index
    while at < end:
        first = at[0]
        if first < 0x80:
            if first < lowest:
                return False
            at += 1
            continue
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
        elif 0xF0 <= first <= 0xF4:
            more = 3
        else:
            return False
        if end - at <= more:
            return False
        for index in range(1, more + 1):
            if at[index] & 0xC0 != 0x80:
                return False
        # Overlong forms, surrogates, and what is past U+10FFFF.
        if (
            first == 0xE0 and at[1] < 0xA0
            or first == 0xED and at[1] > 0x9F
            or first == 0xF0 and at[1] < 0x90
            or first == 0xF4 and at[1] > 0x8F
        ):
            return False
        at += 1 + more
    return True
