"""Encode messages as batch elements, in compiled code: once per message that is sent."""

from types import MemberDescriptorType

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from iotmq.message.records.layout cimport (
    ELEMENT_FIXED_BYTES, NAME_END, PROPERTY_END, put_u16, put_u32,
)

from iotmq.client.transport.message import Message
from iotmq.errors import MessageRefusedError
from iotmq.limits import PROPERTIES_BYTES_MAX
from iotmq.message.properties import (
    BATCH_NUMBER, DELAY, MQTT_PACKET_ID, REPLY_TO_CLIENT, TIMER_CANCELS, TIMER_DELAY_MS, TIMER_DELAY_S,
    TIMER_DELIVER_MS, TRANSACTION_PREPARED, WAIT,
)

# Brokers look for these in the properties of a request only, and some refuse a batch that has them.
cdef frozenset _ALONE = frozenset((
    BATCH_NUMBER, DELAY, MQTT_PACKET_ID, REPLY_TO_CLIENT, TIMER_CANCELS, TIMER_DELAY_MS, TIMER_DELAY_S,
    TIMER_DELIVER_MS, TRANSACTION_PREPARED, WAIT,
))

cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        pass
    object PyMember_GetOne(const char* at, PyMemberDef* member)

cdef extern from "Python.h":
    ctypedef struct PyMemberDescrObject:
        PyMemberDef* d_member

# The fields of a message, read where they stand: looked up by name, a dozen of them cost more than the encoding.
cdef PyMemberDef* _TOPIC = _member("topic")
cdef PyMemberDef* _BODY = _member("body")
cdef PyMemberDef* _KEY = _member("key")
cdef PyMemberDef* _TAGS = _member("tags")
cdef PyMemberDef* _KEYS = _member("keys")
cdef PyMemberDef* _PROPERTIES = _member("properties")
cdef PyMemberDef* _DELAY_LEVEL = _member("delay_level")
cdef PyMemberDef* _DELAY_MS = _member("delay_ms")
cdef PyMemberDef* _DELIVER_AT_MS = _member("deliver_at_ms")
cdef PyMemberDef* _TTL_MS = _member("ttl_ms")
cdef PyMemberDef* _FLAG = _member("flag")
cdef PyMemberDef* _WAIT_STORED = _member("wait_stored")


cdef PyMemberDef* _member(str name) except NULL:
    field = getattr(Message, name)
    assert isinstance(field, MemberDescriptorType), f"{name} is no field of messages"
    return (<PyMemberDescrObject*> field).d_member


cdef inline object _field(message, PyMemberDef* member):
    return PyMember_GetOne(<const char*> <PyObject*> message, member)


cdef Py_ssize_t _PROPERTIES_MAX = PROPERTIES_BYTES_MAX
# What precedes the body in an element, and what stands around the values of KEYS, TAGS and UNIQ_KEY.
cdef enum:
    HEAD_BYTES = 20
    AROUND_KEY = 6
    AROUND_TAGS = 6
    AROUND_UNIQUE_KEY = 10


cdef bytes batch_element(message, const char* unique_key, Py_ssize_t body_bytes_max):
    """Encode a message as an element of a batch, with a unique key of 32 characters; None when it has to go
    alone.

    So do those with a body larger than `body_bytes_max`, those that wait for a time, those that do not wait for
    the disk, and those with a property that brokers look for in front of a request only. The message is checked
    by `check_message`.
    """
    cdef object body = _field(message, _BODY)
    cdef object properties = _field(message, _PROPERTIES)
    if len(body) > body_bytes_max or not _field(message, _WAIT_STORED):
        return None
    if _field(message, _DELAY_LEVEL) or _field(message, _DELAY_MS) or _field(message, _DELIVER_AT_MS):
        return None
    if properties and not _ALONE.isdisjoint(properties):
        return None
    return _element(message, _bytes_of(body), not properties, unique_key, UNIQUE_KEY_BYTES)


cdef int check_message(message) except -1:
    """Raise TypeError unless it is one, whose fields are where they are read."""
    if type(message) is not Message and not isinstance(message, Message):
        raise TypeError(f"a Message is sent, not {message!r}")
    return 0


cdef str topic_of(message):
    return _text(message, _TOPIC, "topic")


cdef str key_of(message):
    return _field(message, _KEY)


def encode_element(message, str unique_key not None):
    """Encode a message as an element of a batch. MessageRefusedError for what cannot be stored."""
    check_message(message)
    cdef Py_ssize_t size
    cdef const char* at = PyUnicode_AsUTF8AndSize(unique_key, &size)
    cdef bint is_plain = not _field(message, _PROPERTIES) and _field(message, _WAIT_STORED)
    return _element(message, _bytes_of(_field(message, _BODY)), is_plain, at, size)


def split_element(bytes element not None):
    """Return the body and the properties of what `encode_element` made."""
    cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(element)
    cdef Py_ssize_t body_size = (at[16] << 24) | (at[17] << 16) | (at[18] << 8) | at[19]
    return element[HEAD_BYTES:HEAD_BYTES + body_size], element[HEAD_BYTES + body_size + 2:]


cdef str unique_key_text(const char* unique_key):
    return PyUnicode_DecodeASCII(unique_key, UNIQUE_KEY_BYTES, NULL)


cdef bytes _element(message, bytes body, bint is_plain, const char* unique_at, Py_ssize_t unique_size):
    cdef bytes encoded
    cdef bytes element
    cdef str key = _text(message, _KEY, "key")
    cdef str tags = _text(message, _TAGS, "tags")
    cdef Py_ssize_t key_size, tags_size, size
    cdef const char* key_at
    cdef const char* tags_at
    cdef uint8_t* at
    cdef uint32_t flag = _flag_of(_field(message, _FLAG))
    is_plain = is_plain and not (_field(message, _KEYS) or _field(message, _TTL_MS))
    if is_plain and (not key or key.isprintable()) and (not tags or tags.isprintable()):
        key_at = PyUnicode_AsUTF8AndSize(key, &key_size)
        tags_at = PyUnicode_AsUTF8AndSize(tags, &tags_size)
        size = unique_size + AROUND_UNIQUE_KEY
        if key_size:
            size += key_size + AROUND_KEY
        if tags_size:
            size += tags_size + AROUND_TAGS
        if size <= _PROPERTIES_MAX:
            element = _new_element(body, flag, size, &at)
            if key_size:
                at = _put(at, "KEYS", 4, key_at, key_size)
            if tags_size:
                at = _put(at, "TAGS", 4, tags_at, tags_size)
            _put(at, "UNIQ_KEY", 8, unique_at, unique_size)
            return element
    encoded = message.encoded_properties(PyUnicode_DecodeASCII(unique_at, unique_size, NULL))
    element = _new_element(body, flag, PyBytes_GET_SIZE(encoded), &at)
    memcpy(at, PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))
    return element


cdef str _text(message, PyMemberDef* member, str name):
    value = _field(message, member)
    if not isinstance(value, str):
        raise TypeError(f"{name} of a message is a text, not {value!r}")
    return value


cdef bytes _bytes_of(body):
    if isinstance(body, str):
        raise TypeError("the body of a message is bytes: encode a text")
    # What may change before it is written has to be copied.
    return body if type(body) is bytes else bytes(memoryview(body))


cdef uint32_t _flag_of(flag) except? 0:
    cdef int32_t number
    try:
        number = flag
    except OverflowError:
        raise MessageRefusedError(f"a flag of {flag}: it must fit 32 bits with a sign") from None
    return <uint32_t> number


cdef bytes _new_element(bytes body, uint32_t flag, Py_ssize_t properties_size, uint8_t** properties_at):
    cdef Py_ssize_t body_size = PyBytes_GET_SIZE(body)
    cdef Py_ssize_t size = ELEMENT_FIXED_BYTES + body_size + properties_size
    if size > 0x7FFFFFFF:
        raise MessageRefusedError(f"a message of {size} bytes")
    cdef bytes element = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* at = <uint8_t*> PyBytes_AS_STRING(element)
    put_u32(at, <uint32_t> size)
    memset(at + 4, 0, 8)
    put_u32(at + 12, flag)
    put_u32(at + 16, <uint32_t> body_size)
    memcpy(at + HEAD_BYTES, PyBytes_AS_STRING(body), body_size)
    at += HEAD_BYTES + body_size
    put_u16(at, <uint16_t> properties_size)
    properties_at[0] = at + 2
    return element


cdef uint8_t* _put(
    uint8_t* at, const char* name, Py_ssize_t name_size, const char* value, Py_ssize_t size
) noexcept:
    memcpy(at, name, name_size)
    at += name_size
    at[0] = NAME_END
    memcpy(at + 1, value, size)
    at[size + 1] = PROPERTY_END
    return at + size + 2
