"""Packets out of bytes: the fixed header, its remaining length, and packets that come in pieces.

Goal: a packet that lies whole in what was read is handled where it lies. Only one that was cut is copied, and
its memory lives until it is handled.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer, append, reserve

from iotmq.mqtt import reason_codes
from iotmq.mqtt.errors import MqttProtocolError


cdef int next_packet(
    ByteBuffer* unfinished, const uint8_t* data, Py_ssize_t size, Py_ssize_t* at, uint32_t bytes_max, Packet* packet
) except -1:
    cdef Py_ssize_t begin = at[0]
    cdef Py_ssize_t header_end = begin + 1
    cdef uint64_t remaining = 0
    cdef int shift = 0
    if unfinished.size:
        return _complete(unfinished, data, size, at, bytes_max, packet)
    if begin == size:
        return 0
    while header_end < size:
        remaining |= <uint64_t>(data[header_end] & 0x7F) << shift
        header_end += 1
        if not data[header_end - 1] & 0x80:
            shift = -1
            break
        shift += 7
        if shift == 28:
            _refuse_length()
    if shift < 0:
        _check_size(remaining, bytes_max)
    if shift >= 0 or <uint64_t>(size - header_end) < remaining:
        append(unfinished, data + begin, size - begin)
        at[0] = size
        return 0
    packet.first = data[begin]
    packet.body = data + header_end
    packet.size = <Py_ssize_t>remaining
    packet.memory = NULL
    packet.is_length_padded = header_end - begin > 2 and not data[header_end - 1]
    at[0] = header_end + packet.size
    return 1


cdef int _complete(
    ByteBuffer* unfinished, const uint8_t* data, Py_ssize_t size, Py_ssize_t* at, uint32_t bytes_max, Packet* packet
) except -1:
    """Add to the packet that has begun, as far as it goes."""
    cdef uint64_t remaining = 0, missing
    cdef uint32_t header_size = 1
    cdef int shift = 0
    while True:
        if header_size == unfinished.size:
            if at[0] == size:
                return 0
            reserve(unfinished, 1)[0] = data[at[0]]
            unfinished.size += 1
            at[0] += 1
        remaining |= <uint64_t>(unfinished.data[header_size] & 0x7F) << shift
        header_size += 1
        if not unfinished.data[header_size - 1] & 0x80:
            break
        shift += 7
        if shift == 28:
            _refuse_length()
    _check_size(remaining, bytes_max)
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
    packet.is_length_padded = header_size > 2 and not unfinished.data[header_size - 1]
    unfinished[0] = ByteBuffer(NULL, 0, 0, 0)
    return 1


cdef int _refuse_length() except -1:
    raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "remaining length has more than four bytes")


cdef int _check_size(uint64_t remaining, uint32_t bytes_max) except -1:
    if remaining > bytes_max:
        raise MqttProtocolError(
            reason_codes.PACKET_TOO_LARGE,
            f"a packet of {remaining} bytes; at most {bytes_max} are taken here, see mqtt.packet_bytes_max"
        )
    return 0
