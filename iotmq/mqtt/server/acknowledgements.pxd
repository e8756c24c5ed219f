from libc.stdint cimport uint8_t, uint16_t, uint32_t

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer


cdef struct Acknowledgement:
    uint16_t packet_id
    uint8_t packet_type     # PUBACK or PUBREC
    uint8_t is_due          # set when the message is as durable as promised, or refused
    uint8_t code            # of MQTT 5; not 0 for a message that was refused


cdef struct AcknowledgementRing:
    Acknowledgement* entries    # per sequence number modulo capacity
    uint32_t capacity
    uint32_t count
    uint32_t first              # sequence number of the oldest
    uint32_t qos1_count         # PUBACKs among them


# Keep a place for an acknowledgement; returns its sequence number.
cdef uint32_t expect_acknowledgement(AcknowledgementRing* ring, uint16_t packet_id, uint8_t packet_type) except? 0
# Raises ValueError unless all of these are waited for.
cdef int check_expected(const AcknowledgementRing* ring, uint32_t sequence, uint32_t count) except -1
# `count` acknowledgements from `sequence` on are due: write those that nothing older holds up.
cdef int acknowledge_run(AcknowledgementRing* ring, uint32_t sequence, uint32_t count, uint8_t code,
        ByteBuffer* output) except -1


# A PUBREC that refuses is due: one for the same message, sent again meanwhile, says the same.
cdef void refuse_repeated(AcknowledgementRing* ring, uint32_t sequence, uint8_t code) noexcept


cdef inline Acknowledgement* expected_at(AcknowledgementRing* ring, uint32_t sequence) noexcept:
    return &ring.entries[sequence & (ring.capacity - 1)]
