from libc.stdint cimport uint8_t, uint16_t, uint32_t

from iotmq.mqtt.codec.packet_types cimport MESSAGE_EXPIRY, PAYLOAD_FORMAT, TOPIC_ALIAS, USER_PROPERTY


cdef struct PublishProperties:
    # Those of one PUBLISH from a device, as they lie in the packet; NULL or 0 where one is absent.
    uint16_t topic_alias
    bint has_payload_format
    uint8_t payload_format
    bint has_expiry
    uint32_t expiry_s
    const uint8_t* content_type
    uint16_t content_type_size
    const uint8_t* response_topic
    uint16_t response_topic_size
    const uint8_t* correlation_data
    uint16_t correlation_data_size
    uint32_t user_count
    const uint8_t* raw          # all of them, checked
    uint32_t raw_size


# Read the length and the properties at `body`; returns how many bytes they are. Raises MqttProtocolError.
cdef Py_ssize_t read_publish_properties(const uint8_t* body, Py_ssize_t size, PublishProperties* found) except -1


# Those that are there as Python objects, by name: user properties are a tuple of pairs.
cdef dict named_properties(const PublishProperties* found)


cdef inline const uint8_t* next_user_property(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """The next user property of checked properties, behind its identifier, from `at` on; NULL at the end."""
    cdef uint8_t identifier
    while at < end:
        identifier = at[0]
        at += 1
        if identifier == USER_PROPERTY:
            return at
        if identifier == PAYLOAD_FORMAT:
            at += 1
        elif identifier == MESSAGE_EXPIRY:
            at += 4
        elif identifier == TOPIC_ALIAS:
            at += 2
        else:
            at += 2 + (at[0] << 8 | at[1])
    return NULL
