"""Reading a queue: from an offset to views of the log.

Records come out as they stand in the log. Neighbours in the log share one view of the mapping, with no
copy; small records that lie scattered between those of other queues are gathered into one buffer,
because a view of its own costs more than copying a few hundred bytes.
"""

import logging
from enum import IntEnum

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy

from iotmq.message.records.layout cimport (
    AT_BORN_HOST, AT_MAGIC, AT_POSITION, AT_QUEUE_ID, AT_QUEUE_OFFSET, AT_SIZE, AT_SYS_FLAG, BLANK_BYTES,
    HOST_V6_EXTRA_BYTES, RECORD_FIXED_BYTES, RECORD_MAGIC, SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_TRANSACTION_MASK,
    TRANSACTION_ROLLBACK, get_u32, get_u64,
)
from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.record cimport body_crc, parse_record
from iotmq.message.records.record_filter cimport RecordFilter
from iotmq.message.records.time_to_live cimport has_expired
from iotmq.store.log.commit_log cimport CommitLog
from iotmq.store.log.queue cimport Queue
from iotmq.store.log.queue_entry cimport FILLER_SIZE, put_entry
from iotmq.store.log.segment cimport Segment
from iotmq.store.queues.entry_search cimport find_offset

from iotmq.limits import FILTER_WORK_BYTES_MAX, PULL_LOST_RANGES_MAX, PULL_SCAN_ENTRIES_MIN

logger = logging.getLogger("iotmq.store")

cdef enum:
    # A run of records up to this size is copied next to its neighbours rather than given a view.
    GATHERED_BYTES_MAX = 8192

cdef int64_t SCAN_ENTRIES_MIN = PULL_SCAN_ENTRIES_MIN
cdef int64_t WORK_BYTES_MAX = FILTER_WORK_BYTES_MAX
cdef Py_ssize_t LOST_RANGES_MAX = PULL_LOST_RANGES_MAX


class ReadStatus(IntEnum):
    """Name the results of a read. The names are the remarks of pull responses."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8


cdef class Read:
    """The answer to one read: `count` records in `views`, and the offset to read from next.

    `lost` has the ranges of offsets that were passed over because the log has no record for them any more.
    """

    cdef readonly object status
    cdef readonly int64_t next_offset
    cdef readonly int64_t min_offset
    cdef readonly int64_t max_offset
    cdef readonly int32_t count
    cdef readonly int32_t expired_count
    cdef readonly int64_t size_bytes
    cdef readonly list views
    cdef readonly list lost

    def __repr__(self):
        return f"<Read {self.status.name} {self.count} records, next offset {self.next_offset}>"


# Records that stand together in one segment.
cdef struct Run:
    const uint8_t* data
    int64_t position
    int64_t size


def read_queue(CommitLog log not None, Queue queue, int64_t offset, *, int64_t records_max, int64_t bytes_max,
               tags=None, int64_t now_ms=0, int64_t entries_max=0):
    """Read up to `records_max` records of `queue` from `offset` on, in at most `bytes_max` bytes (but at least one).

    With `tags` only records whose tags code, as int32, is among them, or, when it is a RecordFilter, those
    that pass it; the search stops after max(800, records_max) entries (`entries_max` when given), and when
    the filter has worked as much as one read may cost. `queue` may be None: a queue nobody has heard of.
    Records whose time to live (property MSG_TTL_MS, from the store time on) is over at `now_ms` are passed
    over; 0 for none.
    """
    cdef Read read = Read.__new__(Read)
    read.views = []
    read.lost = []
    read.next_offset = offset
    if queue is None:
        read.status = ReadStatus.NO_MATCHED_LOGIC_QUEUE
        read.next_offset = 0
        return read
    read.min_offset = queue.min_offset
    read.max_offset = queue.max_offset
    if queue.max_offset == 0:
        read.status = ReadStatus.NO_MESSAGE_IN_QUEUE
        read.next_offset = 0
    elif offset < queue.min_offset:
        read.status = ReadStatus.OFFSET_TOO_SMALL
        read.next_offset = queue.min_offset
    elif offset == queue.max_offset:
        read.status = ReadStatus.OFFSET_OVERFLOW_ONE
    elif offset > queue.max_offset:
        read.status = ReadStatus.OFFSET_OVERFLOW_BADLY
        read.next_offset = queue.max_offset
    else:
        collect(read, log, queue, records_max, bytes_max, tags, now_ms if queue.may_expire else 0, entries_max)
    return read


cdef int collect(Read read, CommitLog log, Queue queue, int64_t records_max, int64_t bytes_max,
                 tags, int64_t now_ms, int64_t entries_max) except -1:
    cdef int64_t offset = read.next_offset
    cdef int64_t records_limit = max(<int64_t> 1, records_max)
    cdef int64_t scan_end = min(
        queue.max_offset, offset + (entries_max if entries_max > 0 else max(SCAN_ENTRIES_MIN, records_limit))
    )
    cdef int64_t min_position = (<Segment> log.segments[0]).start_position
    cdef int64_t trusted_position = log.trusted_position()
    cdef int64_t position, next_position = -1
    cdef int32_t size
    cdef Py_ssize_t tag_count = -1
    cdef int32_t* tag_codes = NULL
    cdef Run* runs = <Run*> PyMem_Malloc(min(records_limit, scan_end - offset) * sizeof(Run))
    cdef Py_ssize_t run_count = 0
    cdef bint was_removed = False
    cdef const uint8_t* entry
    cdef const uint8_t* record
    cdef Segment segment = log.active
    cdef RecordParts searched
    cdef int64_t mended_offset = -1
    cdef bint is_known
    cdef RecordFilter passing = None
    if runs == NULL:
        raise MemoryError
    try:
        if isinstance(tags, RecordFilter):
            passing = <RecordFilter> tags
            passing.work_bytes = 0
        elif tags is not None:
            tag_count = len(tags)
            tag_codes = <int32_t*> PyMem_Malloc((tag_count + 1) * sizeof(int32_t))
            if tag_codes == NULL:
                raise MemoryError
            for number, tag in enumerate(tags):
                tag_codes[<Py_ssize_t> number] = <int32_t> <int64_t> tag
        while offset < scan_end:
            entry = queue.entry_at(offset)
            if entry == NULL:
                if read.count == 0:
                    read.next_offset = queue.next_file_offset(offset)
                    read.status = ReadStatus.OFFSET_FOUND_NULL
                    note_lost(read, offset, read.next_offset)
                    return 0
                break
            position = <int64_t> get_u64(entry)
            size = <int32_t> get_u32(entry + 8)
            if size == FILLER_SIZE:
                if not note_lost(read, offset, offset + 1):
                    break
                offset += 1
                continue
            if tag_count >= 0 and not is_among(<int32_t> <int64_t> get_u64(entry + 12), tag_codes, tag_count):
                offset += 1
                continue
            if 0 <= position < min_position:
                if not note_lost(read, offset, offset + 1):
                    break
                was_removed = True
                offset += 1
                continue
            if not segment.start_position <= position < segment.end_position:
                segment = log.segment_at(position)
            record = NULL
            if segment is not None:
                record = proven_record(segment, position, size)
                if record != NULL and (
                    get_u32(record + AT_QUEUE_ID) != <uint32_t> queue.queue_id
                    or <int64_t> get_u64(record + AT_QUEUE_OFFSET) != offset
                    or get_u32(record + AT_SYS_FLAG) & SYS_FLAG_TRANSACTION_MASK == <uint32_t> TRANSACTION_ROLLBACK
                    or position < trusted_position and not is_whole(record, size, queue)
                ):
                    record = NULL
            if record == NULL:
                # The entry and the log disagree: what is there is not this queue's record, or no longer.
                is_known = segment is not None and is_marked(segment, position)
                if segment is None:
                    segment = log.active
                if not is_known:
                    if (
                        offset != mended_offset
                        and log.is_readable(queue.topic, queue.queue_id, offset, position)
                        and find_offset(log, queue, offset, &searched)
                    ):
                        logger.error(
                            "damaged queue entry: topic=%s queue=%d offset=%d; the log has its record at %d",
                            queue.topic, queue.queue_id, offset, searched.position,
                        )
                        put_entry(<uint8_t*> entry, &searched)
                        mended_offset = offset
                        continue
                    log.note_unreadable(queue.topic, queue.queue_id, offset, position)
                if not note_lost(read, offset, offset + 1):
                    break
                was_removed = True
                offset += 1
                continue
            if now_ms and is_over(record, size, now_ms):
                read.expired_count += 1
                offset += 1
                continue
            if passing is not None:
                if passing.work_bytes > WORK_BYTES_MAX:
                    break
                if not passing.accepts(record, size):
                    offset += 1
                    continue
            if read.count and (read.count >= records_limit or read.size_bytes + size > bytes_max):
                break
            if position == next_position:
                runs[run_count - 1].size += size
            else:
                runs[run_count].data = record
                runs[run_count].position = position
                runs[run_count].size = size
                run_count += 1
            next_position = position + size
            read.count += 1
            read.size_bytes += size
            offset += 1
            if read.count >= records_limit:
                break
        read.next_offset = offset
        if read.count:
            read.status = ReadStatus.FOUND
            add_views(read, log, runs, run_count)
        else:
            read.status = ReadStatus.MESSAGE_WAS_REMOVING if was_removed else ReadStatus.NO_MATCHED_MESSAGE
    finally:
        PyMem_Free(runs)
        PyMem_Free(tag_codes)
    return 0


cdef bint note_lost(Read read, int64_t offset, int64_t end_offset) except -1:
    """Add offsets to the ranges that are lost; False when there is no room, and the read has to end before them."""
    if read.lost and read.lost[len(read.lost) - 1][1] == offset:
        read.lost[len(read.lost) - 1] = (read.lost[len(read.lost) - 1][0], end_offset)
    elif len(read.lost) >= LOST_RANGES_MAX:
        return False
    else:
        read.lost.append((offset, end_offset))
    return True


cdef int add_views(Read read, CommitLog log, const Run* runs, Py_ssize_t run_count) except -1:
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t end
    cdef int64_t gathered_bytes
    cdef Segment segment
    cdef bytes gathered
    cdef char* target
    while start < run_count:
        end = start
        gathered_bytes = 0
        while end < run_count and runs[end].size <= GATHERED_BYTES_MAX:
            gathered_bytes += runs[end].size
            end += 1
        if end - start < 2:
            segment = log.segment_at(runs[start].position)
            read.views.append(segment.view(runs[start].position, runs[start].position + runs[start].size))
            start += 1
            continue
        gathered = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> gathered_bytes)
        target = PyBytes_AS_STRING(gathered)
        while start < end:
            memcpy(target, runs[start].data, <size_t> runs[start].size)
            target += runs[start].size
            start += 1
        read.views.append(memoryview(gathered))
    return 0


cdef const uint8_t* proven_record(Segment segment, int64_t position, int32_t size) noexcept:
    """Return the record an entry points to, if the log's bytes there agree with the entry; else NULL."""
    cdef const uint8_t* record = segment.data + (position - segment.start_position)
    # Room for a blank is left at the end of each segment: else neighbours could stand in two mappings.
    cdef int64_t last_position = min(segment.start_position + segment.allocated_bytes,
            segment.end_position - BLANK_BYTES)
    if size < RECORD_FIXED_BYTES or position + size > last_position:
        return NULL
    if get_u32(record + AT_SIZE) != <uint32_t> size or <int64_t> get_u64(record + AT_POSITION) != position:
        return NULL
    return record


cdef bint is_over(const uint8_t* record, int32_t size, int64_t now_ms) noexcept nogil:
    """Return whether the record has a time to live that is over."""
    cdef RecordParts parts
    return parse_record(record, record + size, &parts) == FORMAT_OK and has_expired(&parts, now_ms)


cdef bint is_marked(Segment segment, int64_t position) noexcept:
    """Return whether a record without a place in any queue stands at `position`: what was there is known to be lost."""
    cdef const uint8_t* record = segment.data + (position - segment.start_position)
    return (
        position + RECORD_FIXED_BYTES <= segment.start_position + segment.allocated_bytes
        and get_u32(record + AT_MAGIC) == <uint32_t> RECORD_MAGIC
        and <int64_t> get_u64(record + AT_POSITION) == position
        and get_u32(record + AT_SYS_FLAG) & SYS_FLAG_TRANSACTION_MASK == <uint32_t> TRANSACTION_ROLLBACK
    )


cdef bint is_whole(const uint8_t* record, int32_t size, Queue queue) noexcept:
    """Return whether a record not checked lately is one of this topic, with an undamaged body."""
    cdef RecordParts parts
    return (
        parse_record(record, record + size, &parts) == FORMAT_OK
        and parts.topic_size == PyBytes_GET_SIZE(queue.topic_bytes)
        and memcmp(parts.topic, PyBytes_AS_STRING(queue.topic_bytes), parts.topic_size) == 0
        and body_crc(parts.body, parts.body_size) == parts.body_crc
    )


cdef bint is_among(int32_t tag, const int32_t* tags, Py_ssize_t count) noexcept:
    cdef Py_ssize_t number
    for number in range(count):
        if tags[number] == tag:
            return True
    return False


def store_time_at(CommitLog log not None, int64_t position, int32_t size):
    """Store time (ms) of the record a queue entry leads to; 0 when the log has lost it."""
    cdef Segment segment = log.segment_at(position)
    cdef const uint8_t* record
    cdef Py_ssize_t at = AT_BORN_HOST + 8
    if segment is None:
        return 0
    record = proven_record(segment, position, size)
    if record == NULL:
        return 0
    if get_u32(record + AT_SYS_FLAG) & SYS_FLAG_BORN_HOST_V6:
        at += HOST_V6_EXTRA_BYTES
    return <int64_t> get_u64(record + at)
