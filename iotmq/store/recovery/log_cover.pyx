"""Making a log with damaged bytes one to walk over: markers, and a blank where a file ends in damage."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memset

from iotmq.message.records.layout cimport AT_MAGIC, AT_SIZE, BLANK_BYTES, BLANK_MAGIC, RECORD_FIXED_BYTES, put_u32
from iotmq.store.log.commit_log cimport CommitLog
from iotmq.store.log.marker cimport write_marker
from iotmq.store.log.segment cimport Segment

from iotmq.errors import StoreCorruptError

cdef enum:
    # A marker over a longer damage is followed by others, so that walkers are not given what they cannot take.
    MARKER_BYTES_MAX = 1048576

# The topic of a marker that names no queue.
cdef bytes NO_TOPIC = b"~"


def cover(CommitLog log not None, int64_t start_position, int64_t end_position, list losses not None,
          int64_t store_timestamp_ms):
    """Write markers over a damaged range inside one segment, so that the log can be walked again.

    `losses` are (topic, queue id, first offset, end offset) for what is known to be lost there. A range
    that reaches the end of its segment is closed by a blank. Raises OSError when the disk is full.
    """
    cdef Segment segment = log.segment_at(start_position)
    cdef bint is_closing = end_position == segment.end_position
    cdef int64_t room = end_position - start_position - (BLANK_BYTES if is_closing else 0)
    cdef list markers = []
    cdef int64_t size, needed_bytes, used_bytes
    cdef bytes topic
    if not segment.start_position <= start_position < end_position <= segment.end_position:
        raise ValueError(f"{start_position}..{end_position} is not inside {segment!r}")
    for loss in losses:
        size = RECORD_FIXED_BYTES + PyBytes_GET_SIZE(loss[0])
        # Offsets come from files that may be damaged themselves: what has no room was not there.
        if size <= room:
            markers.append([size, *loss])
            room -= size
    if is_closing:
        if not markers and room > RECORD_FIXED_BYTES:
            markers.append([RECORD_FIXED_BYTES + 1, NO_TOPIC, 0, 0, 0])
    elif room <= RECORD_FIXED_BYTES:
        if not markers:
            raise StoreCorruptError(f"{start_position}..{end_position} is too short for a record")
        markers[len(markers) - 1][0] += room
    else:
        while room:
            size = min(room, log.record_bytes_max, <int64_t> MARKER_BYTES_MAX)
            if 0 < room - size <= RECORD_FIXED_BYTES:
                size -= RECORD_FIXED_BYTES + 1
            markers.append([size, NO_TOPIC, 0, 0, 0])
            room -= size
    needed_bytes = sum([marker[0] for marker in markers]) + BLANK_BYTES
    segment.allocate(min(start_position - segment.start_position + needed_bytes, segment.size_bytes))
    if is_closing:
        # A blank is zero but for its head: copies of the log are checked for it.
        used_bytes = start_position - segment.start_position
        memset(segment.data + used_bytes, 0, <size_t> (segment.allocated_bytes - used_bytes))
        used_bytes += needed_bytes - BLANK_BYTES
        put_u32(segment.data + used_bytes + AT_MAGIC, <uint32_t> BLANK_MAGIC)
        put_u32(segment.data + used_bytes + AT_SIZE, <uint32_t> (segment.size_bytes - used_bytes))
    for marker_size, topic, queue_id, first_offset, end_offset in markers:
        write_marker(
            segment.data + (start_position - segment.start_position), marker_size, start_position,
            <const uint8_t*> PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), queue_id, first_offset,
            end_offset, store_timestamp_ms,
        )
        start_position += marker_size
