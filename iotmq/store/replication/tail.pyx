"""The tail of a log that is replicated: what was appended and is not confirmed yet.

No queue and no projection has its records, so it can be cut off again. Their offsets are given out all the
same: queues number on behind them.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.layout cimport (
    AT_MAGIC, AT_SIZE, BLANK_BYTES, BLANK_MAGIC, SYS_FLAG_TRANSACTION_MASK, TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK, get_u32,
)
from iotmq.message.records.record cimport parse_record
from iotmq.store.log.commit_log cimport CommitLog
from iotmq.store.log.queue cimport Queue
from iotmq.store.log.segment cimport Segment
from iotmq.store.queues.consume_queue cimport ConsumeQueue

from iotmq.errors import StoreCorruptError
from iotmq.limits import QUEUE_OFFSET_MAX
from iotmq.store import fail_points

cdef int64_t OFFSET_MAX = QUEUE_OFFSET_MAX


def number_on(CommitLog log not None, ConsumeQueue queues not None, int64_t start_position, int64_t end_position):
    """Let every queue's next offset be the one behind its entries and its records of [start, end).

    Raises StoreCorruptError when something else than records stands there.
    """
    cdef RecordParts parts
    cdef Queue queue
    cdef int64_t position = start_position
    cdef int transaction
    for queue in queues.table.queues:
        queue.next_offset = queue.max_offset
    while next_record(log, &position, end_position, &parts):
        transaction = parts.sys_flag & SYS_FLAG_TRANSACTION_MASK
        if transaction == TRANSACTION_PREPARED or transaction == TRANSACTION_ROLLBACK:
            continue
        queue = queues.queue_of(parts.topic, parts.topic_size, parts.queue_id)
        if queue is not None and queue.next_offset <= parts.queue_offset <= OFFSET_MAX:
            queue.next_offset = parts.queue_offset + 1


def positions_of(CommitLog log not None, bytes topic not None, int64_t start_position, int64_t end_position):
    """Return the positions of a topic's records in [start, end), which begins and ends with whole records."""
    cdef RecordParts parts
    cdef int64_t position = start_position
    cdef list positions = []
    while next_record(log, &position, end_position, &parts):
        if parts.topic_size == len(topic) and memcmp(parts.topic, <const char*> topic, parts.topic_size) == 0:
            positions.append(parts.position)
    return positions


def piece_end(CommitLog log not None, int64_t position, int64_t bytes_max):
    """Return where a piece of whole records ends that begins with the one at `position`.

    It stays inside one segment, and has `bytes_max` at most, or one record, or the blank of a segment's end.
    Raises StoreCorruptError when there is no record.
    """
    cdef Segment segment = log.segment_at(position)
    cdef int64_t start_position = position
    cdef int64_t size
    cdef Py_ssize_t room
    cdef const uint8_t* at
    if log.appended_position <= segment.end_position and log.appended_position - position <= bytes_max:
        # All that is left, which is what a follower that keeps up is sent.
        return log.appended_position
    while position < min(segment.end_position, log.appended_position):
        at = log.record_at(position, log.appended_position, &room)
        size = get_u32(at + AT_SIZE) if room >= BLANK_BYTES else 0
        if room >= BLANK_BYTES and get_u32(at + AT_MAGIC) == <uint32_t> BLANK_MAGIC:
            size = segment.end_position - position
        elif size < BLANK_BYTES or size > room:
            raise StoreCorruptError(f"no record at position {position}")
        if position > start_position and position + size - start_position > bytes_max:
            break
        position += size
    return position


def whole_records(CommitLog log not None, int64_t position, int64_t bytes_max, int64_t end_position):
    """Return where the records from `position` on end, where the next one begins, and their number.

    They are in one segment, end at or before `end_position`, and have `bytes_max` at most, or are one record. Of a
    blank only the header belongs to them: the next record begins behind it, and what stands there may be different
    in copies. Raises StoreCorruptError when there is no record.
    """
    cdef Segment segment = log.segment_at(position)
    cdef int64_t start_position = position
    cdef int64_t size
    cdef int64_t count = 0
    cdef Py_ssize_t room
    cdef const uint8_t* at
    if segment is None or not position < end_position <= log.appended_position:
        raise ValueError(f"the log has no bytes {position}..{end_position}")
    end_position = min(end_position, segment.end_position)
    while position < end_position:
        at = log.record_at(position, end_position, &room)
        size = get_u32(at + AT_SIZE) if room >= BLANK_BYTES else 0
        if size < BLANK_BYTES or size > room:
            raise StoreCorruptError(f"no record at position {position}")
        if get_u32(at + AT_MAGIC) == <uint32_t> BLANK_MAGIC:
            if count and position + BLANK_BYTES - start_position > bytes_max:
                break
            return position + BLANK_BYTES, segment.end_position, count + 1
        if count and position + size - start_position > bytes_max:
            break
        position += size
        count += 1
    return position, position, count


def is_boundary(CommitLog log not None, int64_t start_position, int64_t position):
    """Return whether a record ends at `position`, to be found from the start of one before it."""
    while start_position < position:
        start_position = piece_end(log, start_position, position - start_position)
    return start_position == position


def cut_log(CommitLog log not None, int64_t position, sync_file):
    """Remove the log from `position` on, where a record ends; it is gone for good when this returns.

    A crash meanwhile leaves the log up to some later record's end. Nobody may sync the log or hold views of
    what is removed. Raises OSError, and then the log cannot be used any more.
    """
    with log.ahead_lock, log.lock:
        # Later segments go first, from the last one on.
        log._settle(position)
        fail_points.reach("cut-files-deleted")
        # It may have been full, and is written to again.
        log.active.is_descriptor_kept = True
        log.cut()
        log.active.sync(sync_file)
        log.checked_position = min(log.checked_position, position)


cdef bint next_record(CommitLog log, int64_t* position, int64_t end_position, RecordParts* parts) except? True:
    """Take the record at `position` apart, over a blank if need be, and step behind it; False at the end."""
    cdef Py_ssize_t room
    cdef const uint8_t* at
    cdef Segment segment
    while position[0] < end_position:
        at = log.record_at(position[0], end_position, &room)
        if room >= BLANK_BYTES and get_u32(at + AT_MAGIC) == <uint32_t> BLANK_MAGIC:
            segment = log.segment_at(position[0])
            position[0] = segment.end_position
            continue
        if at == NULL or parse_record(at, at + room, parts) != FORMAT_OK or parts.position != position[0]:
            raise StoreCorruptError(f"no record at position {position[0]}")
        position[0] += parts.size
        return True
    return False
