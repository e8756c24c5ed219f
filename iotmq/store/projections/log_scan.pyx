"""Checking a log: which of its bytes are records that prove themselves, and which are damaged.

Positions are those of the log; whether bytes that are no records are damage or the end of the log is for
`recovery/recovery.py` to say.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from iotmq.message.records.layout cimport AT_MAGIC, AT_SIZE, BLANK_BYTES, BLANK_MAGIC, RECORD_FIXED_BYTES, get_u32
from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.record cimport parse_record
from iotmq.store.log.commit_log cimport CommitLog
from iotmq.store.log.marker cimport is_marker
from iotmq.store.log.resync cimport find_blank, find_record, proves_itself
from iotmq.store.log.segment cimport Segment

from iotmq.errors import StoreCorruptError


def scan(CommitLog log not None, int64_t start_position, int64_t stop_position=-1, int64_t pause_position=-1):
    """Check every record of [start_position, stop_position), both of them starts; by default to the end.

    Returns the damaged ranges, each inside one segment, and where the next record starts. Behind bytes
    that are no record the next one that proves itself is looked for. Without `stop_position` nothing
    says that the log goes on behind the last one that does, neither here nor in a later segment: it ends
    there, and what follows is not damage. Stops early at the first record's end from `pause_position`
    on. Changes nothing but `last_store_timestamp_ms`.
    """
    cdef Segment segment
    cdef Py_ssize_t index
    cdef int64_t position = start_position
    cdef int64_t end_position = start_position
    cdef int64_t limit_position, proven_position
    cdef list damaged = []
    # What is damaged if anything behind it proves itself.
    cdef list open_ranges = []
    if start_position == (<Segment> log.segments[len(log.segments) - 1]).end_position:
        return [], start_position
    index = index_of(log, start_position)
    while True:
        segment = <Segment> log.segments[index]
        limit_position = segment.end_position
        if stop_position >= 0:
            limit_position = min(limit_position, stop_position)
        while position < limit_position:
            if limit_position < segment.end_position and limit_position - position <= RECORD_FIXED_BYTES:
                # No record has room before a stop that is not a record's start, and no marker either.
                limit_position = segment.end_position
            proven_position = end_of_segment_records(
                log, segment, position,
                limit_position if pause_position < 0 else min(limit_position, pause_position),
            )
            if proven_position > position:
                end_position = position = proven_position
                damaged += open_ranges
                open_ranges = []
                if 0 <= pause_position <= position:
                    return damaged, position
                continue
            proven_position = next_proof(segment, position, limit_position)
            if proven_position < 0:
                open_ranges.append((position, limit_position))
                break
            open_ranges.append((position, proven_position))
            position = proven_position
            if get_u32(segment.data + (position - segment.start_position) + AT_MAGIC) == <uint32_t> BLANK_MAGIC:
                # It bounds the damage, but alone, behind no record, it does not prove that the log went on.
                break
        index += 1
        if index == len(log.segments) or 0 <= stop_position <= limit_position:
            break
        position = (<Segment> log.segments[index]).start_position
    if stop_position < 0:
        return damaged, end_position
    damaged += open_ranges
    if damaged:
        end_position = max(end_position, damaged[len(damaged) - 1][1])
    return damaged, max(stop_position, end_position)


def end_of_records(CommitLog log not None, int64_t position):
    """Position behind the last of the records that stand, and prove themselves, without a gap from `position` on."""
    cdef Py_ssize_t index
    cdef Segment segment
    if position == (<Segment> log.segments[len(log.segments) - 1]).end_position:
        return position
    index = index_of(log, position)
    while True:
        segment = <Segment> log.segments[index]
        position = end_of_segment_records(log, segment, position, segment.end_position)
        index += 1
        if position < segment.end_position or index == len(log.segments):
            return position


def marker_bounds(CommitLog log not None, int64_t position):
    """(start, end) of the markers around `position`, once the start of a record; it twice where none are.

    `start` is that of the first of several in a row, `end` that of the one `position` is inside of. For
    somebody who has seen everything below `position` before the damage was found.
    """
    cdef RecordParts parts
    cdef Segment segment = log.segment_at(position)
    cdef int64_t at_position, next_position
    # Start of the markers in front of `at_position`, -1 behind anything else.
    cdef int64_t run_position = -1
    cdef const uint8_t* at
    cdef const uint8_t* end
    if segment is None or position >= log.appended_position:
        return position, position
    end = segment.data + segment.allocated_bytes
    if proves_itself(
        segment.data + (position - segment.start_position), end, position, &parts
    ) and not is_marker(&parts):
        return position, position
    at_position = segment.start_position
    while at_position < position:
        at = segment.data + (at_position - segment.start_position)
        if parse_record(at, end, &parts) == FORMAT_OK and parts.position == at_position:
            if not is_marker(&parts):
                run_position = -1
            elif run_position < 0:
                run_position = run_start(log, segment, at_position)
            at_position += parts.size
        elif end - at >= BLANK_BYTES and get_u32(at + AT_MAGIC) == <uint32_t> BLANK_MAGIC:
            # What stood behind it is lost, too.
            return (segment.end_position if run_position < 0 else run_position), segment.end_position
        else:
            run_position = -1
            next_position = next_proof(segment, at_position, segment.end_position)
            if next_position < 0:
                return position, position
            at_position = next_position
    if run_position < 0:
        return position, position
    return run_position, at_position


def starts_record(CommitLog log not None, int64_t position):
    """Return whether a record, a blank or the log's end is at a position that somebody has written down.

    What proves itself is a record; of the rest the records before it in its file tell. Where they are damaged
    nobody can say: True.
    """
    cdef RecordParts parts
    cdef Segment segment = log.segment_at(position)
    cdef int64_t at_position
    cdef const uint8_t* at
    cdef const uint8_t* end
    if position >= log.appended_position or segment is None:
        return position == log.appended_position
    at_position = segment.start_position
    end = segment.data + segment.allocated_bytes
    if proves_itself(segment.data + (position - at_position), end, position, &parts):
        return True
    while at_position < position:
        at = segment.data + (at_position - segment.start_position)
        if parse_record(at, end, &parts) == FORMAT_OK and parts.position == at_position:
            at_position += parts.size
            continue
        at_position = next_proof(segment, at_position, segment.end_position)
        if at_position < 0 or at_position > position:
            return True
    return at_position == position


cdef int64_t run_start(CommitLog log, Segment segment, int64_t position) except -1:
    """Start of the markers that end by `position`, one; over the ends of files that end in markers."""
    cdef int64_t before
    if position > segment.start_position or segment is log.segments[0]:
        return position
    before = marker_bounds(log, position - 1)[0]
    return position if before == position - 1 else before


cdef Py_ssize_t index_of(CommitLog log, int64_t position) except -1:
    cdef Py_ssize_t index
    for index in range(len(log.segments)):
        if (<Segment> log.segments[index]).start_position <= position < (<Segment> log.segments[index]).end_position:
            return index
    raise StoreCorruptError(f"{log.directory}: no file holds position {position}")


cdef int64_t next_proof(Segment segment, int64_t position, int64_t limit_position) noexcept:
    """Position of the next record, or of the blank that ends the segment, that proves itself; -1 for none."""
    cdef const uint8_t* data = segment.data
    cdef const uint8_t* end = data + min(segment.allocated_bytes, limit_position - segment.start_position)
    # What was damaged was a record, and none is shorter.
    cdef int64_t start_bytes = position + RECORD_FIXED_BYTES + 1 - segment.start_position
    cdef const uint8_t* found
    if end - data <= start_bytes:
        return -1
    with nogil:
        found = find_record(data + start_bytes, end, segment.start_position + start_bytes)
        if found == NULL and limit_position == segment.end_position:
            found = find_blank(data + start_bytes, end, segment.size_bytes - start_bytes)
    return -1 if found == NULL else segment.start_position + (found - data)


cdef int64_t end_of_segment_records(CommitLog log, Segment segment, int64_t position,
                                    int64_t limit_position) noexcept:
    """End of the good records of a segment from `position` on; its end when a blank closes it."""
    cdef RecordParts parts
    cdef const uint8_t* at = segment.data + (position - segment.start_position)
    cdef const uint8_t* end = segment.data + segment.allocated_bytes
    cdef int64_t last_position = segment.end_position - BLANK_BYTES
    cdef int64_t timestamp_ms = 0
    with nogil:
        while position < limit_position and end - at >= BLANK_BYTES:
            if not proves_itself(at, end, position, &parts):
                if (
                    get_u32(at + AT_MAGIC) == <uint32_t> BLANK_MAGIC
                    and get_u32(at + AT_SIZE) == segment.end_position - position
                ):
                    position = segment.end_position
                break
            if position + parts.size > last_position:
                break
            timestamp_ms = parts.store_timestamp_ms
            at += parts.size
            position += parts.size
    if timestamp_ms:
        log.last_store_timestamp_ms = timestamp_ms
    return position
