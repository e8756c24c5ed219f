# UTF-8 text of records, inline: its code points, and the hashes of keys, tags and topics.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy


# One code point of UTF-8 that starts with a byte >= 0x80: the bytes it takes, `point` set to it, or to
# U+FFFD for each longest start of a valid sequence in malformed text (Unicode 15, section 3.9).
cdef inline Py_ssize_t decode_point(const uint8_t* text, Py_ssize_t size, uint32_t* point) noexcept nogil:
    cdef uint8_t first = text[0]
    cdef uint8_t low = 0x80      # the range the second byte must be in: no long forms, no surrogates
    cdef uint8_t high = 0xBF
    cdef Py_ssize_t needed, taken
    cdef uint32_t value
    point[0] = 0xFFFD
    if first < 0xC2 or first > 0xF4:
        return 1
    if first < 0xE0:
        needed = 2
        value = first & 0x1F
    elif first < 0xF0:
        needed = 3
        value = first & 0x0F
        if first == 0xE0:
            low = 0xA0
        elif first == 0xED:
            high = 0x9F
    else:
        needed = 4
        value = first & 0x07
        if first == 0xF0:
            low = 0x90
        elif first == 0xF4:
            high = 0x8F
    taken = 1
    while taken < needed:
        if taken >= size or text[taken] < low or text[taken] > high:
            return taken
        value = (value << 6) | (text[taken] & 0x3F)
        low = 0x80
        high = 0xBF
        taken += 1
    point[0] = value
    return taken


# Java's String.hashCode, over the UTF-16 units of UTF-8 text (malformed bytes count as U+FFFD), of a text
# whose front has the hash `value` and which goes on with `text`; 0 is that of an empty front.
cdef inline uint32_t java_hash(uint32_t value, const uint8_t* text, Py_ssize_t size) noexcept nogil:
    cdef uint32_t point
    cdef uint32_t four
    cdef Py_ssize_t at = 0
    while at < size:
        if size - at >= 4:
            memcpy(&four, text + at, 4)
            if four & <uint32_t> 0x80808080 == 0:
                # Four at once, because each step waits for the one before.
                value = (
                    value * 923521 + <uint32_t> text[at] * 29791 + <uint32_t> text[at + 1] * 961
                    + <uint32_t> text[at + 2] * 31 + text[at + 3]
                )
                at += 4
                continue
        if text[at] < 0x80:
            value = value * 31 + text[at]
            at += 1
            continue
        at += decode_point(text + at, size - at, &point)
        if point >= 0x10000:
            point -= 0x10000
            value = (value * 31 + 0xD800 + (point >> 10)) * 31 + 0xDC00 + (point & 0x3FF)
        else:
            value = value * 31 + point
    return value


# 64 bits, eight bytes a step, from `seed` on. Stored in the names of waiting messages: it must stay what it is.
cdef inline uint64_t mixed_hash(uint64_t seed, const uint8_t* text, Py_ssize_t size) noexcept nogil:
    cdef uint64_t hash = seed ^ (<uint64_t> size * <uint64_t> 0xC4CEB9FE1A85EC53)
    cdef uint64_t part
    while size >= 8:
        memcpy(&part, text, 8)
        hash = (hash ^ part) * <uint64_t> 0xFF51AFD7ED558CCD
        hash ^= hash >> 32
        text += 8
        size -= 8
    part = 0
    while size:
        part = (part << 8) | text[0]
        text += 1
        size -= 1
    hash = (hash ^ part) * <uint64_t> 0xFF51AFD7ED558CCD
    return hash ^ (hash >> 29)
