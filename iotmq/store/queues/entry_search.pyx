"""Finding a record whose queue entry is damaged.

Entries have no checksum, but whoever reads by one sees that the log has another record at that place, or
none. The one it should lead to stands between the records of the offsets before and after it: the log is
walked from the one before, for at most SEARCHED_BYTES_MAX.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from iotmq.message.records.layout cimport (
    AT_MAGIC, BLANK_BYTES, BLANK_MAGIC, SYS_FLAG_TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, get_u32,
    get_u64,
)
from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.record cimport parse_record
from iotmq.store.log.commit_log cimport CommitLog
from iotmq.store.log.queue cimport Queue
from iotmq.store.log.queue_entry cimport is_filler
from iotmq.store.log.resync cimport proves_itself
from iotmq.store.log.segment cimport Segment

cdef enum:
    SEARCHED_BYTES_MAX = 4194304
    # Entries before the damaged one that may be damaged, too.
    NEIGHBOURS_MAX = 64


cdef bint find_offset(CommitLog log, Queue queue, int64_t offset, RecordParts* out) except -1:
    cdef int64_t position = start_position(log, queue, offset)
    cdef int64_t stop_position = min(position + SEARCHED_BYTES_MAX, log.appended_position)
    cdef Segment segment
    cdef const uint8_t* at
    cdef Py_ssize_t room
    while 0 <= position < stop_position:
        at = log.record_at(position, log.appended_position, &room)
        if at != NULL and room >= BLANK_BYTES and get_u32(at + AT_MAGIC) == <uint32_t> BLANK_MAGIC:
            segment = log.segment_at(position)
            position = segment.end_position
            continue
        if at == NULL or parse_record(at, at + room, out) != FORMAT_OK or out.position != position:
            return False
        if is_of(out, queue) and out.queue_offset >= offset:
            return out.queue_offset == offset and proves_itself(at, at + room, position, out)
        position += out.size
    return False


cdef bint is_of(const RecordParts* parts, Queue queue) noexcept:
    """Return whether a record has a place in a queue. Markers have none."""
    cdef int transaction = parts.sys_flag & SYS_FLAG_TRANSACTION_MASK
    return (
        parts.queue_id == queue.queue_id
        and parts.topic_size == PyBytes_GET_SIZE(queue.topic_bytes)
        and memcmp(parts.topic, PyBytes_AS_STRING(queue.topic_bytes), parts.topic_size) == 0
        and transaction != TRANSACTION_PREPARED
        and transaction != TRANSACTION_ROLLBACK
    )


cdef int64_t start_position(CommitLog log, Queue queue, int64_t offset) except -2:
    """Return where to begin.

    Behind the record of the nearest offset before, or where the log begins; -1 for nowhere.
    """
    cdef RecordParts parts
    cdef const uint8_t* entry
    cdef const uint8_t* at
    cdef Py_ssize_t room
    cdef int64_t before
    for before in range(offset - 1, max(offset - 1 - NEIGHBOURS_MAX, queue.min_offset - 1), -1):
        entry = queue.entry_at(before)
        if entry == NULL or is_filler(entry):
            continue
        at = log.record_at(<int64_t> get_u64(entry), log.appended_position, &room)
        if (
            at != NULL
            and parse_record(at, at + room, &parts) == FORMAT_OK
            and parts.position == <int64_t> get_u64(entry)
            and parts.queue_offset == before
            and is_of(&parts, queue)
        ):
            return parts.position + parts.size
    if offset - queue.min_offset <= NEIGHBOURS_MAX:
        return (<Segment> log.segments[0]).start_position
    return -1
