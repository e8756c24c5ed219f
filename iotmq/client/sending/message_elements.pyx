"""Encode messages as batch elements, and tell each message of a batch what became of it.

Once per message that is sent, so everything here is one call into compiled code for each.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from iotmq.message.records.layout cimport (
    ELEMENT_FIXED_BYTES, NAME_END, PROPERTY_END, put_u16, put_u32,
)

from iotmq.errors import MessageRefusedError
from iotmq.limits import PROPERTIES_BYTES_MAX
from iotmq.client.transport.message import SendResult
from iotmq.message.properties import (
    BATCH_NUMBER, DELAY, MQTT_PACKET_ID, REPLY_TO_CLIENT, TIMER_CANCELS, TIMER_DELAY_MS, TIMER_DELAY_S,
    TIMER_DELIVER_MS, TRANSACTION_PREPARED, WAIT,
)

# Brokers look for these in the properties of a request only, and some refuse a batch that has them.
cdef frozenset _ALONE = frozenset((
    BATCH_NUMBER, DELAY, MQTT_PACKET_ID, REPLY_TO_CLIENT, TIMER_CANCELS, TIMER_DELAY_MS, TIMER_DELAY_S,
    TIMER_DELIVER_MS, TRANSACTION_PREPARED, WAIT,
))

cdef Py_ssize_t _PROPERTIES_MAX = PROPERTIES_BYTES_MAX
# What precedes the body in an element, and what stands around the values of KEYS, TAGS and UNIQ_KEY.
cdef enum:
    HEAD_BYTES = 20
    AROUND_KEY = 6
    AROUND_TAGS = 6
    AROUND_UNIQUE_KEY = 10


def batch_element(message not None, str unique_key not None, Py_ssize_t body_bytes_max):
    """Encode a message as an element of a batch; None when it has to go alone.

    So do those with a body larger than `body_bytes_max`, those that wait for a time, those that do not wait for
    the disk, and those with a property that brokers look for in front of a request only.
    """
    if len(message.body) > body_bytes_max or not message.wait_stored:
        return None
    if message.delay_level or message.delay_ms or message.deliver_at_ms:
        return None
    properties = message.properties
    if properties and not _ALONE.isdisjoint(properties):
        return None
    return encode_element(message, unique_key)


cpdef bytes encode_element(message, str unique_key):
    """Encode a message as an element of a batch. MessageRefusedError for what cannot be stored."""
    cdef bytes body = _bytes_of(message.body)
    cdef bytes encoded
    cdef bytes element
    cdef str key = message.key
    cdef str tags = message.tags
    cdef Py_ssize_t key_size, tags_size, unique_size, size
    cdef const char* key_at
    cdef const char* tags_at
    cdef const char* unique_at
    cdef uint8_t* at
    cdef uint32_t flag = _flag_of(message.flag)
    cdef bint is_plain = not (message.properties or message.keys or message.ttl_ms) and message.wait_stored
    if is_plain and key.isprintable() and tags.isprintable():
        key_at = PyUnicode_AsUTF8AndSize(key, &key_size)
        tags_at = PyUnicode_AsUTF8AndSize(tags, &tags_size)
        unique_at = PyUnicode_AsUTF8AndSize(unique_key, &unique_size)
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
    encoded = message.encoded_properties(unique_key)
    element = _new_element(body, flag, PyBytes_GET_SIZE(encoded), &at)
    memcpy(at, PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))
    return element


def split_element(bytes element not None):
    """Return the body and the properties of what `encode_element` made."""
    cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(element)
    cdef Py_ssize_t body_size = (at[16] << 24) | (at[17] << 16) | (at[18] << 8) | at[19]
    return element[HEAD_BYTES:HEAD_BYTES + body_size], element[HEAD_BYTES + body_size + 2:]


def tell_results(list waiting not None, batch not None):
    """End the futures of the messages of a batch, which are the second of each entry; the third is its id."""
    cdef Py_ssize_t number
    cdef list ids = batch.offset_message_ids
    cdef bint has_ids = len(ids) == len(waiting)
    cdef object first_offset = batch.queue_offset
    status, queue = batch.status, batch.queue
    for number in range(len(waiting)):
        entry = <tuple> waiting[number]
        future = entry[1]
        if not future.done():
            future.set_result(
                SendResult(
                    status,
                    queue,
                    first_offset if first_offset < 0 else first_offset + number,
                    1,
                    entry[2],
                    ids[number] if has_ids else "",
                )
            )


cdef bytes _bytes_of(body):
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
