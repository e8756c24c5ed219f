"""The log as bytes, for replication: a copy of it is the same to the last byte, blanks included.

A copy takes whole records only, each checked like after a crash: lengths, magic, topic, body CRC, and
the position it says it has. Neither offsets nor times are given anew.
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from iotmq.message.records.layout cimport (
    AT_MAGIC, AT_SIZE, BLANK_BYTES, BLANK_MAGIC, RECORD_FIXED_BYTES, SYS_FLAG_TRANSACTION_MASK,
    TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, get_u32,
)
from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.record cimport body_crc, parse_record
from iotmq.store.log.commit_log cimport CommitLog
from iotmq.store.log.queue cimport Queue
from iotmq.store.log.queue_table cimport is_topic
from iotmq.store.log.segment cimport Segment
from iotmq.store.queues.consume_queue cimport ConsumeQueue

from iotmq.errors import StoreCorruptError
from iotmq.files import sync_path
from iotmq.limits import QUEUE_OFFSET_MAX
from iotmq.message.records.record import problem_text
from iotmq.store.log.segment import segment_name

cdef int64_t OFFSET_MAX = QUEUE_OFFSET_MAX

cdef enum:
    # Zeros handed out at a time where a segment ends in a blank without disk blocks.
    ZEROS_BYTES_MAX = 65536


cdef struct Chunk:
    # What a chunk holds that can be taken.
    int64_t end_position
    int64_t records
    int64_t timestamp_ms


def read_raw(CommitLog log not None, int64_t position, int64_t bytes_max, int64_t end_position):
    """Return the log's bytes from `position` on, at most `bytes_max` of them, from one segment, up to `end_position`.

    Empty when `position` is `end_position`. Raises ValueError when the log does not have that range.
    """
    cdef Segment segment = log.segment_at(position)
    cdef int64_t stop, allocated
    if position == end_position == log.appended_position:
        return memoryview(b"")
    if segment is None or not position <= end_position <= log.appended_position or bytes_max < 1:
        raise ValueError(f"the log has no bytes {position}..{end_position}, {bytes_max} at a time")
    stop = min(end_position, segment.end_position, position + bytes_max)
    allocated = segment.start_position + segment.allocated_bytes
    if position >= allocated:
        # Behind the header of the blank that ends the segment; reading there must not cost disk.
        return memoryview(bytes(min(stop - position, <int64_t> ZEROS_BYTES_MAX)))
    return segment.view(position, min(stop, allocated))


def append_raw(CommitLog log not None, ConsumeQueue queues not None, int64_t position, data):
    """Append the whole records and blanks at the front of `data`, all or none; returns the new end of the log.

    What follows them, the beginning of one more record, is left to the caller. Raises ValueError when
    `position` is not the end of the log, StoreCorruptError (and takes nothing) when a record is not one
    or does not belong there, OSError when the log or a queue file cannot grow.
    """
    cdef Py_buffer buffer
    cdef Chunk chunk
    cdef const uint8_t* start
    if position != log.appended_position:
        raise ValueError(f"bytes for position {position}, but the log ends at {log.appended_position}")
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        start = <const uint8_t*> buffer.buf
        check(log, queues, start, start + buffer.len, &chunk)
        if chunk.end_position > position:
            write(log, start, chunk.end_position)
            log.appended_records += chunk.records
            if chunk.timestamp_ms:
                log.last_store_timestamp_ms = chunk.timestamp_ms
    finally:
        PyBuffer_Release(&buffer)
    return chunk.end_position


def wanted_bytes(data):
    """Return how many bytes the record at the front of `data` has in all; 0 while that cannot be told (below 8)."""
    view = memoryview(data)
    return int.from_bytes(view[:4], "big") if len(view) >= BLANK_BYTES else 0


cdef int check(CommitLog log, ConsumeQueue queues, const uint8_t* at, const uint8_t* end, Chunk* chunk) except -1:
    """Check every whole record, and have disk blocks for them and their queue entries."""
    cdef RecordParts parts
    cdef Queue queue
    cdef Py_ssize_t index = log.active_index
    cdef int64_t position = log.appended_position
    cdef int64_t segment_end = log.active.end_position
    cdef int64_t size
    cdef int problem, transaction
    # By queue: the next offset as it will be. Without a gap: those whose offsets follow on what is there.
    cdef dict next_offsets = {}
    cdef set gapless = set()
    chunk.records = 0
    chunk.timestamp_ms = 0
    while end - at >= BLANK_BYTES:
        size = get_u32(at + AT_SIZE)
        if get_u32(at + AT_MAGIC) == <uint32_t> BLANK_MAGIC:
            if size != segment_end - position:
                raise StoreCorruptError(
                    f"position {position}: a blank of {size} bytes with {segment_end - position} left in the file"
                )
            if end - at < size:
                break
            log.make_ready(index, position + BLANK_BYTES)
            index += 1
            # The log now ends where the next file starts, so that one has to be there.
            log.make_ready(index, segment_end + 1)
            position = segment_end
            segment_end = (<Segment> log.segments[index]).end_position
            at += size
            continue
        if size < RECORD_FIXED_BYTES or size > segment_end - BLANK_BYTES - position:
            raise StoreCorruptError(
                f"position {position}: a record of {size} bytes with {segment_end - position} left in the file"
            )
        if end - at < size:
            break
        problem = parse_record(at, at + size, &parts)
        if problem != FORMAT_OK:
            raise StoreCorruptError(f"position {position}: {problem_text(problem)}")
        if parts.position != position:
            raise StoreCorruptError(f"position {position}: a record that says it stands at {parts.position}")
        if body_crc(parts.body, parts.body_size) != parts.body_crc:
            raise StoreCorruptError(f"position {position}: the body's CRC is wrong")
        if not is_topic(parts.topic, parts.topic_size) or parts.queue_id < 0 or not 0 <= parts.queue_offset <= OFFSET_MAX:
            raise StoreCorruptError(f"position {position}: no topic and queue can have such names")
        transaction = parts.sys_flag & SYS_FLAG_TRANSACTION_MASK
        if transaction != TRANSACTION_PREPARED and transaction != TRANSACTION_ROLLBACK:
            queue = queues.table.find(parts.topic, parts.topic_size, parts.queue_id)
            if queue is None:
                queue = queues.insert(parts.topic[:parts.topic_size], parts.queue_id)
            if queue not in next_offsets:
                if parts.queue_offset == queue.next_offset:
                    gapless.add(queue)
            elif parts.queue_offset != next_offsets[queue]:
                gapless.discard(queue)
            next_offsets[queue] = max(parts.queue_offset + 1, next_offsets.get(queue, 0))
        log.make_ready(index, position + size + BLANK_BYTES)
        chunk.records += 1
        chunk.timestamp_ms = parts.store_timestamp_ms
        at += size
        position += size
    for key in gapless:
        queue = <Queue> key
        # For what follows a gap the dispatch has blocks reserved, without filling all of the gap.
        if next_offsets[queue] > queue.reserved_offset:
            queue.reserve(next_offsets[queue])
    for key, next_offset in next_offsets.items():
        queue = <Queue> key
        queue.next_offset = max(queue.next_offset, <int64_t> next_offset)
    chunk.end_position = position
    return 0


cdef int write(CommitLog log, const uint8_t* at, int64_t end_position) except -1:
    """Copy checked bytes, and move the end of the log."""
    cdef Py_ssize_t index = log.active_index
    cdef Segment segment = log.active
    cdef int64_t position = log.appended_position
    cdef int64_t taken, copied
    while position < end_position:
        # One record or blank: the check has found it whole.
        taken = copied = get_u32(at + AT_SIZE)
        if get_u32(at + AT_MAGIC) == <uint32_t> BLANK_MAGIC:
            # Behind its header a blank of another broker may hold anything. Here it stays zero, and without blocks.
            copied = BLANK_BYTES
        memcpy(segment.data + (position - segment.start_position), at, <size_t> copied)
        at += taken
        position += taken
        if position == segment.end_position:
            index += 1
            segment = <Segment> log.segments[index]
    log.active_index = index
    log.active = segment
    log.appended_position = position
    log.is_room_low = True
    return 0


def start_at(CommitLog log not None, int64_t position):
    """Let a log without a byte begin at `position`, a file's start in the log it becomes a copy of.

    Raises ValueError when the log is not empty, OSError.
    """
    cdef Segment segment
    if log.appended_position != log.min_position or position < 0:
        raise ValueError(f"a log of {log.min_position}..{log.appended_position} cannot begin at {position}")
    with log.lock:
        # Deleted first: without a file the next start begins at 0, with two it finds a gap between them.
        for segment in log.segments:
            os.unlink(segment.path)
        segment = Segment(
            os.path.join(log.directory, segment_name(position)), position, log.segment_bytes, keep_descriptor=True
        )
        sync_path(log.directory)
        log.segments[:] = [segment]
        log.active_index = 0
        log.active = segment
        segment.page_singly(0)
        log.appended_position = log.ready_position = position
