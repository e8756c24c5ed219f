"""Keep PUBACK and PUBREC in the order of their PUBLISHes [MQTT-4.6.0-2].

Operations: one entry per PUBLISH of QoS 1 and 2, one call per run of messages that became durable. Plan: a
ring by sequence number, which grows while the device sends faster than the broker promises.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from iotmq.message.records.layout cimport put_u16
from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer, reserve
from iotmq.mqtt.codec.packet_types cimport PACKET_PUBACK, PACKET_PUBREC

from iotmq.mqtt import reason_codes
from iotmq.mqtt.errors import MqttProtocolError

cdef enum:
    UNACKNOWLEDGED_MAX = 65535      # there are no more packet ids
    IDLE_CAPACITY_MAX = 64          # a ring this small is kept between uses


cdef uint32_t expect_acknowledgement(AcknowledgementRing* ring, uint16_t packet_id, uint8_t packet_type) except? 0:
    cdef uint32_t at
    if ring.count == ring.capacity:
        if ring.count > UNACKNOWLEDGED_MAX:
            raise MqttProtocolError(
                reason_codes.RECEIVE_MAXIMUM_EXCEEDED, "more unacknowledged messages than packet ids"
            )
        _grow(ring)
    at = ring.first + ring.count
    ring.entries[at & (ring.capacity - 1)] = Acknowledgement(packet_id, packet_type, 0, 0)
    ring.qos1_count += packet_type == PACKET_PUBACK
    ring.count += 1
    return at


cdef int _grow(AcknowledgementRing* ring) except -1:
    cdef uint32_t capacity = ring.capacity * 2 if ring.capacity else 16
    cdef uint32_t at, index
    cdef Acknowledgement* entries = <Acknowledgement*>calloc(capacity, sizeof(Acknowledgement))
    if entries == NULL:
        raise MemoryError
    for index in range(ring.count):
        at = ring.first + index
        entries[at & (capacity - 1)] = ring.entries[at & (ring.capacity - 1)]
    free(ring.entries)
    ring.entries = entries
    ring.capacity = capacity
    return 0


cdef int check_expected(const AcknowledgementRing* ring, uint32_t sequence, uint32_t count) except -1:
    if <uint32_t>(sequence - ring.first) + <uint64_t>count > ring.count:
        raise ValueError("acknowledging what is not outstanding")
    return 0


cdef void refuse_repeated(AcknowledgementRing* ring, uint32_t sequence, uint8_t code) noexcept:
    cdef uint16_t packet_id = expected_at(ring, sequence).packet_id
    cdef uint32_t index
    cdef Acknowledgement* entry
    for index in range(sequence - ring.first + 1, ring.count):
        entry = expected_at(ring, ring.first + index)
        if entry.packet_type == PACKET_PUBREC and entry.packet_id == packet_id:
            entry.code = code


cdef int acknowledge_run(
    AcknowledgementRing* ring, uint32_t sequence, uint32_t count, uint8_t code, ByteBuffer* output
) except -1:
    cdef uint32_t mask = ring.capacity - 1
    cdef uint32_t index, due = 0
    cdef uint8_t* begin
    cdef uint8_t* target
    cdef Acknowledgement* entry
    check_expected(ring, sequence, count)
    for index in range(count):
        entry = &ring.entries[(sequence + index) & mask]
        entry.is_due = 1
        entry.code = code
    if sequence != ring.first:
        return 0
    target = begin = reserve(output, 5 * <uint64_t>ring.count)
    while due < ring.count:
        entry = &ring.entries[(ring.first + due) & mask]
        if not entry.is_due:
            break
        target[0] = <uint8_t>(entry.packet_type << 4)
        target[1] = 2
        put_u16(target + 2, entry.packet_id)
        target += 4
        if entry.code:
            target[-3] = 3
            target[0] = entry.code
            target += 1
        ring.qos1_count -= entry.packet_type == PACKET_PUBACK
        due += 1
    output.size += <uint32_t>(target - begin)
    ring.first += due
    ring.count -= due
    if ring.count == 0 and ring.capacity > IDLE_CAPACITY_MAX:
        free(ring.entries)
        ring.entries = NULL
        ring.capacity = 0
    return 0
