"""Packets out of bytes: the fixed header, its remaining length, and packets that come in pieces.

Goal: a packet that lies whole in what was read is handled where it lies. Only one that was cut is copied, and
its memory lives until it is handled.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from iotmq.message.records.layout cimport get_u16, put_u16
from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer, append
from iotmq.mqtt.codec.packet_types cimport LEVEL_3_1

from iotmq.mqtt import reason_codes
from iotmq.mqtt.errors import MqttProtocolError


cdef int next_packet(
    ByteBuffer* unfinished, const uint8_t* data, Py_ssize_t size, Py_ssize_t* at, uint32_t bytes_max, Packet* packet
) except -1:
    cdef Py_ssize_t begin = at[0], header_end
    cdef uint32_t remaining
    cdef int taken
    if unfinished.size:
        return _complete(unfinished, data, size, at, bytes_max, packet)
    if begin == size:
        return 0
    taken = read_variable_integer(data + begin + 1, size - begin - 1, &remaining)
    if taken:
        _check_size(taken, remaining, bytes_max)
    header_end = begin + 1 + taken
    if not taken or size - header_end < <Py_ssize_t>remaining:
        append(unfinished, data + begin, size - begin)
        at[0] = size
        return 0
    packet.first = data[begin]
    packet.body = data + header_end
    packet.size = <Py_ssize_t>remaining
    packet.memory = NULL
    packet.is_length_padded = taken > 1 and not data[header_end - 1]
    at[0] = header_end + packet.size
    return 1


cdef int read_publish_head(const Packet* packet, int protocol_level, PublishHead* head) except -1:
    cdef uint8_t first = packet.first
    cdef bint has_packet_id
    head.qos = first >> 1 & 3
    head.is_retained = first & 1
    head.is_duplicate = first >> 3 & 1
    if head.qos == 3:  # [MQTT-3.3.1-4]
        raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "PUBLISH has QoS 3")
    if head.qos == 0 and head.is_duplicate and protocol_level != LEVEL_3_1:  # [MQTT-3.3.1-2]
        raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "PUBLISH of QoS 0 has its DUP flag set")
    if packet.size < 2:
        raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "PUBLISH ends in its topic")
    has_packet_id = head.qos != 0
    head.topic = packet.body + 2
    head.topic_size = get_u16(packet.body)
    head.size = 2 + head.topic_size + 2 * has_packet_id
    head.packet_id = 0
    if head.size > packet.size:
        raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "PUBLISH ends in its topic or packet id")
    if has_packet_id:
        head.packet_id = get_u16(packet.body + head.size - 2)
        if not head.packet_id:  # [MQTT-2.2.1-3]
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "PUBLISH has packet id 0")
    return 0


cdef int _complete(
    ByteBuffer* unfinished, const uint8_t* data, Py_ssize_t size, Py_ssize_t* at, uint32_t bytes_max, Packet* packet
) except -1:
    """Add to the packet that has begun, as far as it goes."""
    cdef uint32_t remaining
    cdef uint64_t missing, header_size
    cdef int taken
    while True:
        taken = read_variable_integer(unfinished.data + 1, <Py_ssize_t>unfinished.size - 1, &remaining)
        if taken:
            break
        if at[0] == size:
            return 0
        append(unfinished, data + at[0], 1)
        at[0] += 1
    _check_size(taken, remaining, bytes_max)
    header_size = 1 + <uint64_t>taken
    missing = header_size + remaining - unfinished.size
    if missing > <uint64_t>(size - at[0]):
        missing = <uint64_t>(size - at[0])
    append(unfinished, data + at[0], missing)
    at[0] += <Py_ssize_t>missing
    if unfinished.size != header_size + remaining:
        return 0
    packet.first = unfinished.data[0]
    packet.body = unfinished.data + header_size
    packet.size = <Py_ssize_t>remaining
    # Whoever handles it may begin a new one.
    packet.memory = unfinished.data
    packet.is_length_padded = taken > 1 and not unfinished.data[header_size - 1]
    unfinished[0] = ByteBuffer(NULL, 0, 0, 0)
    return 1


cdef int _check_size(int taken, uint32_t remaining, uint32_t bytes_max) except -1:
    if taken < 0:
        raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "remaining length has more than four bytes")
    if remaining > bytes_max:
        raise MqttProtocolError(
            reason_codes.PACKET_TOO_LARGE,
            f"a packet of {remaining} bytes; at most {bytes_max} are taken here, see mqtt.packet_bytes_max"
        )
    return 0


# The same for callers in Python

def decode_variable_integer(bytes data not None, Py_ssize_t at=0):
    """(value, bytes taken) of the variable byte integer at `at`; 0 bytes when `data` ends first, -1 past four."""
    cdef uint32_t value
    cdef int taken = read_variable_integer(<const uint8_t*>data + at, len(data) - at, &value)
    return value, taken


def encode_variable_integer(value):
    """Encode a variable byte integer in one to four bytes [section 1.5.5]; ValueError past four."""
    cdef uint8_t[4] target
    if not 0 <= value < 1 << 28:
        raise ValueError(f"{value} is not a variable byte integer")
    return (<char*>target)[:put_variable_integer(target, value) - target]


def append_publish(
    bytearray target not None, int flags, bytes topic not None, uint16_t packet_id, bytes properties not None,
    bytes payload not None,
):
    """Add a PUBLISH; `flags` are those of its first byte, `properties` are encoded with their length, or empty."""
    cdef Py_ssize_t begin = PyByteArray_GET_SIZE(target)
    cdef Py_ssize_t remaining = 2 + len(topic) + (2 if flags & 6 else 0) + len(properties) + len(payload)
    cdef uint8_t* at
    if len(topic) > 0xFFFF or remaining >= 1 << 28:
        raise ValueError(f"a PUBLISH of {remaining} bytes with a topic of {len(topic)} bytes cannot be encoded")
    PyByteArray_Resize(target, begin + 1 + variable_integer_size(<uint32_t>remaining) + remaining)
    at = <uint8_t*>PyByteArray_AS_STRING(target) + begin
    at = put_publish_head(at, <uint8_t>flags, <uint32_t>remaining, topic, <uint16_t>len(topic))
    if flags & 6:
        put_u16(at, packet_id)
        at += 2
    memcpy(at, <const char*>properties, len(properties))
    memcpy(at + len(properties), <const char*>payload, len(payload))
