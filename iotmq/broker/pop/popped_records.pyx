"""Read what is needed of records that are handed out: the key, and where the number of retries is."""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memchr

from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.layout cimport (
    AT_RECONSUME_TIMES, AT_SYS_FLAG, HOST_V6_EXTRA_BYTES, SYS_FLAG_BORN_HOST_V6, SYS_FLAG_STORE_HOST_V6, get_u32,
)
from iotmq.message.records.record cimport find_property, parse_record
from iotmq.message.records.text cimport mixed_hash

from iotmq.errors import StoreCorruptError


cdef uint64_t key_of(const uint8_t* record, Py_ssize_t size) except? 0:
    cdef RecordParts parts
    cdef const uint8_t* value
    cdef const uint8_t* end
    if parse_record(record, record + size, &parts) != FORMAT_OK:
        raise StoreCorruptError(f"a record of {size} bytes cannot be read")
    size = find_property(parts.properties, parts.properties_size, "__SHARDINGKEY", 13, &value)
    if size <= 0:
        # The first of several keys is the one that chose the queue.
        size = find_property(parts.properties, parts.properties_size, "KEYS", 4, &value)
        if size <= 0:
            return 0
        end = <const uint8_t*> memchr(value, c" ", size)
        if end != NULL:
            size = end - value
        if size == 0:
            return 0
    return mixed_hash(0, value, size) or 1


cdef Py_ssize_t retries_at(const uint8_t* record, Py_ssize_t size) except -1:
    cdef Py_ssize_t at = AT_RECONSUME_TIMES
    if get_u32(record + AT_SYS_FLAG) & SYS_FLAG_BORN_HOST_V6:
        at += HOST_V6_EXTRA_BYTES
    if get_u32(record + AT_SYS_FLAG) & SYS_FLAG_STORE_HOST_V6:
        at += HOST_V6_EXTRA_BYTES
    if at + 4 > size:
        raise StoreCorruptError(f"a record of {size} bytes has no number of times")
    return at
