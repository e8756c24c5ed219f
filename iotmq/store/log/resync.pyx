"""Find the next believable record behind damage in the log.

A record proves itself by lengths that add up, its magic, a topic that can be one, the CRC of its body, and
its own position: the last makes 64 bits that hardly anything else has at that place, least of all a copy
of a record in another record's body.

The search looks at 64 bytes at a time for two bytes of the magic, in a loop that compilers turn into a few
vector instructions (7 GB/s of whatever bytes; memmem has 1), then for the position that belongs there, and
does the rest only for what has both.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, intptr_t, uint8_t, uint32_t

from iotmq.message.records.layout cimport (
    AT_MAGIC, AT_POSITION, AT_SIZE, BLANK_BYTES, BLANK_MAGIC, RECORD_FIXED_BYTES, get_u32, get_u64,
)
from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.record cimport body_crc, parse_record
from iotmq.store.log.queue_table cimport is_topic
from iotmq.store.log.segment cimport is_zero

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <stddef.h>
    /* The first of [at, stop) where `first` and `second` stand together, else stop; stop[0] must be readable. */
    static const uint8_t *iotmq_find_pair(const uint8_t *at, const uint8_t *stop, uint8_t first, uint8_t second)
    {
        while (stop - at >= 64) {
            uint8_t hits = 0;
            for (int n = 0; n < 64; n++)
                hits |= (uint8_t) ((at[n] == first) & (at[n + 1] == second));
            if (hits)
                break;
            at += 64;
        }
        while (at < stop && !(at[0] == first && at[1] == second))
            at++;
        return at;
    }
    """
    const uint8_t* find_pair "iotmq_find_pair"(const uint8_t* at, const uint8_t* stop, uint8_t first, uint8_t second)


cdef enum:
    # Far more queues than any topic has; a flipped bit above is noticed.
    QUEUE_IDS_MAX = 65536
    SECTOR_BYTES = 512


def next_record(buffer, Py_ssize_t at, int64_t position):
    """Return where in `buffer`, from `at` on, the first record stands that proves itself; None when none does.

    `position` is that of the buffer's first byte.
    """
    cdef Py_buffer view
    cdef const uint8_t* found
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= at <= view.len:
            raise ValueError(f"byte {at} of {view.len}")
        with nogil:
            found = find_record(
                <const uint8_t*> view.buf + at, <const uint8_t*> view.buf + view.len, position + at
            )
        return None if found == NULL else found - <const uint8_t*> view.buf
    finally:
        PyBuffer_Release(&view)


cdef bint proves_itself(const uint8_t* at, const uint8_t* end, int64_t position, RecordParts* out) noexcept nogil:
    return (
        parse_record(at, end, out) == FORMAT_OK
        and out.position == position
        and out.queue_offset >= 0
        and 0 <= out.queue_id < QUEUE_IDS_MAX
        and is_topic(out.topic, out.topic_size)
        and body_crc(out.body, out.body_size) == out.body_crc
        and not has_lost_sector(out)
    )


cdef const uint8_t* find_record(const uint8_t* start, const uint8_t* end, int64_t position) noexcept nogil:
    cdef RecordParts parts
    cdef const uint8_t* at = start + AT_MAGIC
    cdef const uint8_t* record
    # Behind it no record has room.
    cdef const uint8_t* stop = end - RECORD_FIXED_BYTES + AT_MAGIC
    while at < stop:
        at = find_pair(at, stop, 0xDA, 0xA3)
        record = at - AT_MAGIC
        if at < stop and <int64_t> get_u64(record + AT_POSITION) == position + (record - start) and proves_itself(
            record, end, position + (record - start), &parts
        ):
            return record
        at += 1
    return NULL


cdef const uint8_t* find_blank(const uint8_t* start, const uint8_t* end, int64_t left_bytes) noexcept nogil:
    cdef const uint8_t* at = start + AT_MAGIC
    cdef const uint8_t* stop = end - (BLANK_BYTES - AT_MAGIC)
    cdef const uint8_t* blank
    while at <= stop:
        at = find_pair(at, stop, 0xCB, 0xD4)
        blank = at - AT_MAGIC
        if (
            get_u32(at) == <uint32_t> BLANK_MAGIC
            and <int64_t> get_u32(blank + AT_SIZE) == left_bytes - (blank - start)
        ):
            return blank
        at += 1
    return NULL


cdef bint has_lost_sector(const RecordParts* parts) noexcept nogil:
    """Return whether part of the properties never reached the disk: a disk sector of theirs is all zero.

    A power cut loses what was not synced by sectors, and in a new file leaves zeros there. The body's CRC
    finds that in the body and lengths find it before, but properties have no checksum. Properties are text:
    a whole sector of zeros, or zeros from a sector's start to the record's end, nobody has sent.
    """
    cdef const uint8_t* end = parts.properties + parts.properties_size
    # Segments are mapped whole, so a sector starts where the address says so.
    cdef const uint8_t* at = parts.properties + (-<intptr_t> parts.properties & (SECTOR_BYTES - 1))
    while at < end:
        if is_zero(at, min(end - at, <Py_ssize_t> SECTOR_BYTES)):
            return True
        at += SECTOR_BYTES
    return False
