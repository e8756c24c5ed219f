"""The properties of a PUBLISH from a device (MQTT 5 section 3.3.2.3), read where they lie.

Operations: one call per PUBLISH. Goal: no Python object. Plan: values stay pointers into the packet; everything
about them is checked here, once. What `iotmq.mqtt.codec.properties` says about the same bytes is the same.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memchr, memset

from iotmq.message.records.layout cimport get_u16, get_u32
from iotmq.mqtt.codec.framing cimport read_variable_integer
from iotmq.mqtt.codec.packet_types cimport (
    CONTENT_TYPE, CORRELATION_DATA, MESSAGE_EXPIRY, PAYLOAD_FORMAT, RESPONSE_TOPIC, SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS,
    USER_PROPERTY,
)
from iotmq.mqtt.codec.text_values cimport is_text_value

from iotmq import limits
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import MALFORMED_PACKET, PROTOCOL_ERROR, QUOTA_EXCEEDED

cdef uint32_t PROPERTIES_BYTES_MAX = limits.MQTT_PROPERTIES_BYTES_MAX
cdef uint32_t USER_PROPERTIES_MAX = limits.MQTT_USER_PROPERTIES_MAX


cdef Py_ssize_t read_publish_properties(const uint8_t* body, Py_ssize_t size, PublishProperties* found) except -1:
    cdef uint32_t length
    cdef Py_ssize_t head
    memset(found, 0, sizeof(PublishProperties))
    if size and body[0] == 0:
        return 1
    head = _variable_integer(body, size, &length)
    if length > size - head:
        _malformed("PUBLISH ends in the middle of a field")
    if length > PROPERTIES_BYTES_MAX:
        raise MqttProtocolError(
            QUOTA_EXCEEDED,
            f"PUBLISH has {length} bytes of properties, at most {PROPERTIES_BYTES_MAX} are allowed",
        )
    found.raw = body + head
    found.raw_size = length
    _read_all(found)
    return head + length


cdef int _read_all(PublishProperties* found) except -1:
    cdef const uint8_t* at = found.raw
    cdef const uint8_t* end = at + found.raw_size
    cdef bint has_subscription_identifier = False
    cdef uint32_t number
    cdef uint8_t identifier
    while at < end:
        identifier = at[0]
        at += 1
        if identifier == USER_PROPERTY:
            at = _text(at, end)
            at = _text(at, end)
            found.user_count += 1
            if found.user_count > USER_PROPERTIES_MAX:
                raise MqttProtocolError(
                    QUOTA_EXCEEDED, f"PUBLISH has more than {USER_PROPERTIES_MAX} user properties"
                )
        elif identifier == PAYLOAD_FORMAT:
            _need(end - at, 1)
            _check_range(at[0] <= 1, "a payload format")
            _check_once(found.has_payload_format, "a payload format")
            found.has_payload_format = True
            found.payload_format = at[0]
            at += 1
        elif identifier == MESSAGE_EXPIRY:
            _need(end - at, 4)
            _check_once(found.has_expiry, "a message expiry interval")
            found.has_expiry = True
            found.expiry_s = get_u32(at)
            at += 4
        elif identifier == TOPIC_ALIAS:
            _need(end - at, 2)
            _check_range(get_u16(at) != 0, "a topic alias")      # [MQTT-3.3.2-8]
            _check_once(found.topic_alias != 0, "a topic alias")
            found.topic_alias = get_u16(at)
            at += 2
        elif identifier == CONTENT_TYPE:
            _text(at, end)
            _check_once(found.content_type != NULL, "a content type")
            found.content_type_size = get_u16(at)
            found.content_type = at + 2
            at += 2 + found.content_type_size
        elif identifier == RESPONSE_TOPIC:
            _text(at, end)
            _check_once(found.response_topic != NULL, "a response topic")
            found.response_topic_size = get_u16(at)
            found.response_topic = at + 2
            at += 2 + found.response_topic_size
        elif identifier == CORRELATION_DATA:
            _need(end - at, 2)
            _need(end - at, 2 + get_u16(at))
            _check_once(found.correlation_data != NULL, "correlation data")
            found.correlation_data_size = get_u16(at)
            found.correlation_data = at + 2
            at += 2 + found.correlation_data_size
        elif identifier == SUBSCRIPTION_IDENTIFIER:
            at += _variable_integer(at, end - at, &number)
            _check_range(number != 0, "a subscription identifier")
            has_subscription_identifier = True
        else:
            _malformed("PUBLISH has a property it cannot have")
    if found.response_topic != NULL and not _is_topic_name(found.response_topic, found.response_topic_size):
        raise MqttProtocolError(PROTOCOL_ERROR, "PUBLISH has an invalid response topic")
    if has_subscription_identifier:     # [MQTT-3.3.4-6]
        raise MqttProtocolError(PROTOCOL_ERROR, "PUBLISH of a client has a subscription identifier")
    return 0


cdef const uint8_t* _text(const uint8_t* at, const uint8_t* end) except NULL:
    """Check the text at `at`; returns what follows it."""
    cdef uint16_t size
    _need(end - at, 2)
    size = get_u16(at)
    _need(end - at, 2 + size)
    if not is_text_value(at + 2, size):
        _malformed("a property of PUBLISH is not UTF-8, or has a NUL or another separator")
    return at + 2 + size


cdef bint _is_topic_name(const uint8_t* topic, Py_ssize_t size) noexcept:
    return size != 0 and memchr(topic, 43, size) == NULL and memchr(topic, 35, size) == NULL


cdef Py_ssize_t _variable_integer(const uint8_t* at, Py_ssize_t size, uint32_t* value) except -1:
    """Returns the bytes it takes, in the shortest form [MQTT-1.5.5-1]."""
    cdef int taken = read_variable_integer(at, size, value)
    if taken == 0:
        return _malformed("PUBLISH ends in the middle of a field")
    if taken < 0 or taken > 1 and not at[taken - 1]:
        return _malformed("PUBLISH has a variable byte integer that is not in its shortest form")
    return taken


cdef inline int _need(Py_ssize_t has, Py_ssize_t wants) except -1:
    if has < wants:
        _malformed("PUBLISH ends in the middle of a field")
    return 0


cdef inline int _check_once(bint is_known, str what) except -1:
    if is_known:
        raise MqttProtocolError(PROTOCOL_ERROR, f"PUBLISH has {what} twice")
    return 0


cdef inline int _check_range(bint is_right, str what) except -1:
    if not is_right:
        raise MqttProtocolError(PROTOCOL_ERROR, f"PUBLISH has {what} that is out of its range")
    return 0


cdef int _malformed(str text) except -1:
    raise MqttProtocolError(MALFORMED_PACKET, text)


cdef dict named_properties(const PublishProperties* found):
    cdef const uint8_t* at
    cdef const uint8_t* end
    named = {}
    if found.topic_alias:
        named["topic_alias"] = found.topic_alias
    if found.has_payload_format:
        named["payload_format"] = found.payload_format
    if found.has_expiry:
        named["message_expiry_s"] = found.expiry_s
    if found.content_type != NULL:
        named["content_type"] = found.content_type[:found.content_type_size].decode()
    if found.response_topic != NULL:
        named["response_topic"] = found.response_topic[:found.response_topic_size].decode()
    if found.correlation_data != NULL:
        named["correlation_data"] = found.correlation_data[:found.correlation_data_size]
    if not found.user_count:
        return named
    pairs = []
    end = found.raw + found.raw_size
    at = next_user_property(found.raw, end)
    while at != NULL:
        name = at[2:2 + get_u16(at)].decode()
        at += 2 + get_u16(at)
        pairs.append((name, at[2:2 + get_u16(at)].decode()))
        at = next_user_property(at + 2 + get_u16(at), end)
    named["user_properties"] = tuple(pairs)
    return named


def decode_publish_properties(const uint8_t[::1] data not None):
    """(bytes taken, properties by name) of what stands at the start of `data`; for tests and tools."""
    cdef PublishProperties found
    cdef Py_ssize_t taken = read_publish_properties(&data[0] if data.shape[0] else NULL, data.shape[0], &found)
    return taken, named_properties(&found)
