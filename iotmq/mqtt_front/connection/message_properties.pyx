"""The properties of an MQTT 5 message in its record, and back.

Operations: one call per PUBLISH that has properties, one per record that a device of MQTT 5 gets, whatever the
number of devices. Goal: no Python object. What a native producer has set is taken as it is, but for values that
MQTT 5 has no room for, which are left out.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from iotmq.message.records.layout cimport get_u16, put_u16
from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer, append, reserve
from iotmq.mqtt.codec.packet_types cimport (
    CONTENT_TYPE, CORRELATION_DATA, PAYLOAD_FORMAT, RESPONSE_TOPIC, USER_PROPERTY,
)
from iotmq.mqtt.codec.publish_properties cimport PublishProperties, next_user_property
from iotmq.mqtt.codec.text_values cimport is_text_value

from iotmq.message import properties as names

cdef enum:
    NAME_END = 1
    PROPERTY_END = 2

cdef bytes _TTL = names.TIME_TO_LIVE_MS.encode() + b"\x01"
cdef bytes _PAYLOAD_FORMAT = names.MQTT_PAYLOAD_FORMAT.encode() + b"\x01"
cdef bytes _CONTENT_TYPE = names.MQTT_CONTENT_TYPE.encode() + b"\x01"
cdef bytes _RESPONSE_TOPIC = names.MQTT_RESPONSE_TOPIC.encode() + b"\x01"
cdef bytes _CORRELATION_DATA = names.MQTT_CORRELATION_DATA.encode() + b"\x01"
cdef bytes _USER = names.MQTT_USER_PREFIX.encode()
cdef const char* _BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


cdef int append_record_properties(ByteBuffer* target, const PublishProperties* found) except -1:
    cdef const uint8_t* at
    if found.has_payload_format:
        _append_named(target, _PAYLOAD_FORMAT, <const uint8_t*>b"1" if found.payload_format else <const uint8_t*>b"0", 1)
    if found.has_expiry:
        _append_milliseconds(target, found.expiry_s)
    if found.content_type != NULL:
        _append_named(target, _CONTENT_TYPE, found.content_type, found.content_type_size)
    if found.response_topic != NULL:
        _append_named(target, _RESPONSE_TOPIC, found.response_topic, found.response_topic_size)
    if found.correlation_data != NULL:
        _append_base64(target, found.correlation_data, found.correlation_data_size)
    if found.user_count:
        at = next_user_property(found.raw, found.raw + found.raw_size)
        while at != NULL:
            append(target, <const uint8_t*>_USER, len(_USER))
            append(target, at + 2, get_u16(at))
            at += 2 + get_u16(at)
            _append_byte(target, NAME_END)
            append(target, at + 2, get_u16(at))
            at += 2 + get_u16(at)
            _append_byte(target, PROPERTY_END)
            at = next_user_property(at, found.raw + found.raw_size)
    return 0


cdef int _append_milliseconds(ByteBuffer* target, uint32_t seconds) except -1:
    """Append the expiry interval, in digits: less than half of the time that snprintf takes."""
    cdef uint8_t[16] digits
    cdef Py_ssize_t first = 16
    cdef uint64_t left = <uint64_t>seconds * 1000
    while first == 16 or left:
        first -= 1
        digits[first] = <uint8_t>(48 + left % 10)
        left //= 10
    return _append_named(target, _TTL, &digits[first], 16 - first)


cdef int _append_byte(ByteBuffer* target, uint8_t byte) except -1:
    reserve(target, 1)[0] = byte
    target.size += 1
    return 0


cdef int _append_named(ByteBuffer* target, bytes name, const uint8_t* value, Py_ssize_t size) except -1:
    append(target, <const uint8_t*>name, len(name))
    append(target, value, size)
    return _append_byte(target, PROPERTY_END)


cdef int _append_base64(ByteBuffer* target, const uint8_t* data, Py_ssize_t size) except -1:
    """Correlation data as `encode_correlation_data` writes it."""
    cdef uint8_t* at
    cdef uint32_t group
    cdef Py_ssize_t index, place
    append(target, <const uint8_t*>_CORRELATION_DATA, len(_CORRELATION_DATA))
    at = reserve(target, (size + 2) // 3 * 4)
    for index in range(0, size, 3):
        group = data[index] << 16
        if index + 1 < size:
            group |= data[index + 1] << 8
        if index + 2 < size:
            group |= data[index + 2]
        for place in range(4):
            # The last one or two stand for bytes that are not there.
            at[place] = 61 if index + place > size else _BASE64[group >> (18 - 6 * place) & 63]
        at += 4
    target.size += <uint32_t>((size + 2) // 3 * 4)
    return _append_byte(target, PROPERTY_END)


cdef int append_publish_properties(ByteBuffer* target, const uint8_t* properties, Py_ssize_t size) except -1:
    cdef const uint8_t* at = properties
    cdef const uint8_t* end = properties + size
    cdef const uint8_t* stop
    while at < end:
        stop = <const uint8_t*>memchr(at, PROPERTY_END, end - at)
        if stop == NULL:
            stop = end
        append_publish_property(target, at, stop)
        at = stop + 1
    return 0


cdef int append_user_property(ByteBuffer* target, bytes name, const uint8_t* value, Py_ssize_t size) except -1:
    if size <= 65535 and is_text_value(value, size):
        _append_byte(target, USER_PROPERTY)
        _append_sized(target, <const uint8_t*>name, len(name))
        _append_sized(target, value, size)
    return 0


cdef int append_publish_property(ByteBuffer* target, const uint8_t* at, const uint8_t* end) except -1:
    cdef const uint8_t* value
    cdef Py_ssize_t name_size
    if end - at <= 5 or memcmp(at, b"MQTT_", 5) != 0:
        return 0
    value = <const uint8_t*>memchr(at, NAME_END, end - at)
    if value == NULL:
        return 0
    value += 1
    name_size = value - at
    if not is_text_value(value, end - value):
        return 0
    if name_size > len(_USER) and memcmp(at, <const char*>_USER, len(_USER)) == 0:
        at += len(_USER)
        if is_text_value(at, value - 1 - at):
            _append_byte(target, USER_PROPERTY)
            _append_sized(target, at, value - 1 - at)
            _append_sized(target, value, end - value)
    elif _is_named(at, name_size, _PAYLOAD_FORMAT):
        if end - value == 1 and 48 <= value[0] <= 49:
            _append_byte(target, PAYLOAD_FORMAT)
            _append_byte(target, value[0] - 48)
    elif _is_named(at, name_size, _CONTENT_TYPE):
        _append_byte(target, CONTENT_TYPE)
        _append_sized(target, value, end - value)
    elif _is_named(at, name_size, _RESPONSE_TOPIC):
        if end > value and memchr(value, 43, end - value) == NULL and memchr(value, 35, end - value) == NULL:
            _append_byte(target, RESPONSE_TOPIC)
            _append_sized(target, value, end - value)
    elif _is_named(at, name_size, _CORRELATION_DATA):
        _append_binary(target, value, end - value)
    return 0


cdef bint _is_named(const uint8_t* at, Py_ssize_t size, bytes name) except -1:
    return size == len(name) and memcmp(at, <const char*>name, size) == 0


cdef int _append_sized(ByteBuffer* target, const uint8_t* data, Py_ssize_t size) except -1:
    cdef uint8_t* at = reserve(target, 2 + size)
    put_u16(at, <uint16_t>size)
    memcpy(at + 2, data, size)
    target.size += <uint32_t>(2 + size)
    return 0


cdef int _append_binary(ByteBuffer* target, const uint8_t* text, Py_ssize_t size) except -1:
    """Correlation data from its base64 form; nothing when it is not that."""
    cdef uint8_t* at
    cdef uint32_t group = 0
    cdef Py_ssize_t index, bytes_count
    cdef Py_ssize_t padding = 0
    cdef int digit
    if size % 4:
        return 0
    while padding < 2 and padding < size and text[size - 1 - padding] == 61:
        padding += 1
    at = reserve(target, 3 + size // 4 * 3)
    bytes_count = 0
    for index in range(size):
        digit = 0 if index >= size - padding else _digit(text[index])
        if digit < 0:
            return 0
        group = group << 6 | <uint32_t>digit
        if index % 4 == 3:
            at[3 + bytes_count] = <uint8_t>(group >> 16)
            at[4 + bytes_count] = <uint8_t>(group >> 8)
            at[5 + bytes_count] = <uint8_t>group
            bytes_count += 3
            group = 0
    bytes_count -= padding
    at[0] = CORRELATION_DATA
    put_u16(at + 1, <uint16_t>bytes_count)
    target.size += <uint32_t>(3 + bytes_count)
    return 0


cdef int _digit(uint8_t character) noexcept:
    if 65 <= character <= 90:
        return character - 65
    if 97 <= character <= 122:
        return character - 71
    if 48 <= character <= 57:
        return character + 4
    return 62 if character == 43 else 63 if character == 47 else -1
