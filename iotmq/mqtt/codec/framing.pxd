from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from iotmq.message.records.layout cimport put_u16
from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer


cdef struct Packet:
    uint8_t first               # type and flags
    const uint8_t* body         # what follows the fixed header
    Py_ssize_t size
    uint8_t* memory             # the caller's to free when the packet was put together, else NULL
    bint is_length_padded       # the remaining length is not in its shortest form


cdef struct PublishHead:
    const uint8_t* topic
    uint16_t topic_size
    uint16_t packet_id          # 0 with QoS 0
    uint8_t qos
    bint is_retained
    bint is_duplicate
    Py_ssize_t size             # bytes of the body before the properties of MQTT 5, or the payload


# The next whole packet of `data` from `at[0]` on, which moves behind it; 0 when there is none yet, with the
# beginning of one kept in `unfinished`. Raises MqttProtocolError.
cdef int next_packet(ByteBuffer* unfinished, const uint8_t* data, Py_ssize_t size, Py_ssize_t* at,
        uint32_t bytes_max, Packet* packet) except -1

# What a PUBLISH begins with, in either direction [section 3.3]. Raises MqttProtocolError.
cdef int read_publish_head(const Packet* packet, int protocol_level, PublishHead* head) except -1


cdef inline int read_variable_integer(const uint8_t* at, Py_ssize_t size, uint32_t* value) noexcept nogil:
    """The bytes that a variable byte integer takes, in any form; 0 when it is not whole, -1 past four bytes."""
    cdef int place
    value[0] = 0
    for place in range(4):
        if place >= size:
            return 0
        value[0] |= <uint32_t>(at[place] & 0x7F) << (7 * place)
        if at[place] < 0x80:
            return place + 1
    return -1


cdef inline uint32_t variable_integer_size(uint32_t value) noexcept nogil:
    return 1 if value < 1 << 7 else 2 if value < 1 << 14 else 3 if value < 1 << 21 else 4


cdef inline uint8_t* put_variable_integer(uint8_t* target, uint32_t value) noexcept nogil:
    """A variable byte integer [section 2.2.3, MQTT 5 section 1.5.5]; returns what follows it."""
    while value >= 128:
        target[0] = <uint8_t>(value | 0x80)
        target += 1
        value >>= 7
    target[0] = <uint8_t>value
    return target + 1


cdef inline uint8_t* put_fixed_header(uint8_t* target, uint8_t first, uint32_t remaining) noexcept nogil:
    target[0] = first
    return put_variable_integer(target + 1, remaining)


cdef inline uint8_t* put_publish_head(
    uint8_t* target, uint8_t flags, uint32_t remaining, const uint8_t* topic, uint16_t topic_size
) noexcept nogil:
    """A PUBLISH up to its topic; a packet id with QoS 1 and 2, properties with MQTT 5 and the payload follow."""
    target = put_fixed_header(target, 0x30 | flags, remaining)
    put_u16(target, topic_size)
    memcpy(target + 2, topic, topic_size)
    return target + 2 + topic_size
