# Bytes of MQTT and WebSockets, as both ends of a load need them, and the bytes a connection keeps.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove, memset

from iotmq.message.records.layout cimport get_u16, put_u16, put_u64
from iotmq.mqtt.codec.framing cimport read_variable_integer

cdef enum:
    READ_BYTES = 256 * 1024
    PACKET_BYTES_LARGEST = 1024 * 1024 + 1024
    FRAME_HEADER_BYTES = 14     # of a frame to the server; those from it have no mask
    TOPIC_DIGITS_C = 7
    COUNTER_DIGITS_C = 10
    MILLISECOND_DIGITS_C = 13
    EVENTS_PER_TURN = 512
    WAKE_TOKEN = 0xFFFFFFFE
    TIMER_TOKEN = 0xFFFFFFFF


cdef inline void put_digits(uint8_t* target, uint64_t number) noexcept nogil:
    """TOPIC_DIGITS decimal digits."""
    cdef int i
    for i in range(TOPIC_DIGITS_C - 1, -1, -1):
        target[i] = <uint8_t>(48 + number % 10)
        number //= 10


cdef inline void put_decimal(uint8_t* target, uint64_t number, int digits, uint8_t filler) noexcept nogil:
    """The last digits of a number, with a filler in front of it."""
    cdef int i
    for i in range(digits - 1, -1, -1):
        target[i] = <uint8_t>(48 + number % 10) if number or i == digits - 1 else filler
        number //= 10


cdef inline void put_hexadecimal(uint8_t* target, uint64_t number) noexcept nogil:
    """16 hexadecimal digits."""
    cdef int i
    cdef uint8_t digit
    for i in range(15, -1, -1):
        digit = number & 15
        target[i] = digit + (48 if digit < 10 else 87)
        number >>= 4


cdef inline uint64_t get_hexadecimal(const uint8_t* source) noexcept nogil:
    """The number of 16 lower-case hexadecimal digits; some number for anything else."""
    cdef int i
    cdef uint64_t number = 0
    for i in range(16):
        number = number << 4 | <uint64_t>((source[i] - 48 if source[i] < 58 else source[i] - 87) & 15)
    return number


cdef inline Py_ssize_t packet_length(const uint8_t* data, Py_ssize_t size, Py_ssize_t* header) noexcept nogil:
    """Bytes of the packet that starts here, 0 when its length is not all there yet, -1 when malformed.

    ``header`` becomes the size of the fixed header [MQTT 2.2].
    """
    cdef uint32_t remaining
    cdef int taken = read_variable_integer(data + 1, size - 1, &remaining)
    if taken <= 0:
        return taken
    cdef Py_ssize_t at = 1 + taken
    header[0] = at
    if at + remaining > PACKET_BYTES_LARGEST:
        return -1
    return at + remaining


cdef inline Py_ssize_t past_properties(const uint8_t* packet, Py_ssize_t at, Py_ssize_t length) noexcept nogil:
    """Where the properties that begin at `at` end [MQTT 5, 2.2.2]; past the packet when they do not."""
    cdef uint32_t size
    cdef int taken = read_variable_integer(packet + at, length - at, &size)
    return at + taken + size if taken > 0 else length + 1


cdef inline uint32_t receive_maximum(const uint8_t* packet, Py_ssize_t at, Py_ssize_t length) noexcept nogil:
    """How many messages a CONNACK of MQTT 5 allows to be unacknowledged [MQTT 5, 3.2.2.3.3]; `at` its properties."""
    cdef uint32_t size
    cdef int taken = read_variable_integer(packet + at, length - at, &size)
    cdef Py_ssize_t end
    cdef uint8_t kind
    if taken <= 0 or at + taken + size > length:
        return 65_535
    at += taken
    end = at + size
    while at + 3 <= end:
        kind = packet[at]
        at += 1
        if kind == 0x21:
            return max(1, get_u16(packet + at))
        if kind in (0x13, 0x22):
            at += 2
        elif kind == 0x11 or kind == 0x27:
            at += 4
        elif kind in (0x24, 0x25, 0x28, 0x29, 0x2A):
            at += 1
        elif kind in (0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F):
            at += 2 + get_u16(packet + at)
        elif kind == 0x26:
            at += 2 + get_u16(packet + at)
            if at + 2 > end:
                return 65_535
            at += 2 + get_u16(packet + at)
        else:
            return 65_535
    return 65_535


cdef inline uint32_t put_frame_header(uint8_t* target, uint64_t size) noexcept nogil:
    """The header of a binary frame to the server, with a mask that changes nothing [RFC 6455 section 5.2].

    Any server unmasks with it as with another. Returns its length.
    """
    cdef uint32_t at = 2
    target[0] = 0x82
    if size < 126:
        target[1] = 0x80 | <uint8_t>size
    elif size < 1 << 16:
        target[1] = 0x80 | 126
        put_u16(target + 2, <uint16_t>size)
        at = 4
    else:
        target[1] = 0x80 | 127
        put_u64(target + 2, size)
        at = 10
    memset(target + at, 0, 4)
    return at + 4


cdef inline bint keep(uint8_t** target, uint32_t* capacity, uint32_t* size, const uint8_t* data,
               Py_ssize_t count) noexcept nogil:
    """Replaces the bytes a connection keeps; False without memory. ``data`` may lie inside the target."""
    cdef uint8_t* grown
    if <Py_ssize_t>capacity[0] < count:
        grown = <uint8_t*>malloc(count)
        if grown == NULL:
            return False
        if count:
            memcpy(grown, data, count)
        free(target[0])
        target[0] = grown
        capacity[0] = <uint32_t>count
    elif count:
        memmove(target[0], data, count)
    size[0] = <uint32_t>count
    return True
