"""Records that stand where damaged bytes were, so that everybody can walk over them.

A marker is a record of a rolled back transaction: nobody who knows the format gives one a place in a queue
or an index, and whoever walks over the log steps over it like over any other. What tells it from a rolled
back record of a client, which cannot choose its store host:

    queue id             that of the lost records
    flag                 MARKER_FLAG
    queue offset         the first lost offset
    sys flag             12, nothing else
    store host           eight zero bytes, like the born host
    reconsume times      CRC-32 without its top bit of topic, queue id, first and end offset
    prepared position    end offset: the one behind the last lost one; 0 when no offsets are known
    body                 zeros, as many as the damaged range has bytes to cover
    topic                that of the lost records, or NO_TOPIC

So a marker needs no more bytes than the smallest record it can stand for.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from iotmq.message.records.layout cimport (
    AT_BODY, AT_BODY_CRC, AT_BODY_SIZE, AT_FLAG, AT_MAGIC, AT_POSITION, AT_PREPARED_POSITION, AT_QUEUE_ID,
    AT_QUEUE_OFFSET, AT_RECONSUME_TIMES, AT_SIZE, AT_STORE_TIMESTAMP, AT_SYS_FLAG, RECORD_FIXED_BYTES, RECORD_MAGIC,
    put_u32, put_u64,
)
from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.record cimport body_crc, parse_record

cdef enum:
    MARKER_FLAG = 0x444D4745
    MARKER_SYS_FLAG = 12


def lost_offsets(buffer, Py_ssize_t at=0):
    """(topic, queue id, first offset, end offset) of the marker at byte `at`, None when no marker stands there.

    Equal offsets: it is not known whether anything was lost.
    """
    cdef Py_buffer view
    cdef RecordParts parts
    cdef const uint8_t* start
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        start = <const uint8_t*> view.buf
        if not 0 <= at < view.len or parse_record(start + at, start + view.len, &parts) != FORMAT_OK:
            return None
        if not is_marker(&parts):
            return None
        topic = parts.topic[:parts.topic_size].decode("utf-8", "surrogateescape")
        return topic, parts.queue_id, parts.queue_offset, max(parts.queue_offset, parts.prepared_position)
    finally:
        PyBuffer_Release(&view)


cdef bint is_marker(const RecordParts* parts) noexcept nogil:
    return (
        parts.sys_flag == MARKER_SYS_FLAG
        and parts.flag == MARKER_FLAG
        and is_zero_host(parts.store_host)
        and is_zero_host(parts.born_host)
        and <uint32_t> parts.reconsume_times == proof(
            parts.topic, parts.topic_size, parts.queue_id, parts.queue_offset, parts.prepared_position
        )
    )


cdef void write_marker(uint8_t* target, int32_t size, int64_t position, const uint8_t* topic, int32_t topic_size,
                       int32_t queue_id, int64_t first_offset, int64_t end_offset,
                       int64_t store_timestamp_ms) noexcept nogil:
    cdef int32_t body_size = size - RECORD_FIXED_BYTES - topic_size
    # The size comes last: until it stands, the bytes are still no record.
    memset(target, 0, size)
    put_u32(target + AT_BODY_CRC, body_crc(target + AT_BODY, body_size))
    put_u32(target + AT_QUEUE_ID, <uint32_t> queue_id)
    put_u32(target + AT_FLAG, MARKER_FLAG)
    put_u64(target + AT_QUEUE_OFFSET, <uint64_t> first_offset)
    put_u64(target + AT_POSITION, <uint64_t> position)
    put_u32(target + AT_SYS_FLAG, MARKER_SYS_FLAG)
    put_u64(target + AT_STORE_TIMESTAMP, <uint64_t> store_timestamp_ms)
    put_u32(target + AT_RECONSUME_TIMES, proof(topic, topic_size, queue_id, first_offset, end_offset))
    put_u64(target + AT_PREPARED_POSITION, <uint64_t> end_offset)
    put_u32(target + AT_BODY_SIZE, <uint32_t> body_size)
    target[AT_BODY + body_size] = <uint8_t> topic_size
    memcpy(target + AT_BODY + body_size + 1, topic, topic_size)
    put_u32(target + AT_MAGIC, <uint32_t> RECORD_MAGIC)
    put_u32(target + AT_SIZE, <uint32_t> size)


cdef uint32_t proof(const uint8_t* topic, int32_t topic_size, int32_t queue_id, int64_t first_offset,
                    int64_t end_offset) noexcept nogil:
    cdef uint8_t text[276]
    memcpy(text, topic, min(topic_size, 255))
    put_u32(text + 256, <uint32_t> queue_id)
    put_u64(text + 260, <uint64_t> first_offset)
    put_u64(text + 268, <uint64_t> end_offset)
    memset(text + min(topic_size, 255), 0, 256 - min(topic_size, 255))
    return body_crc(text, 276)


cdef bint is_zero_host(const uint8_t* host) noexcept nogil:
    cdef int at
    for at in range(8):
        if host[at]:
            return False
    return True
