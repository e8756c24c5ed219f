"""Records of light queues for a front end in another process: those it is told of, and nothing else.

Operations: one call per push, which is what the log brought since the last: find the records that are wanted,
copy each once. Goals: a record goes out once however many queues have it; a push fits a frame. Plan: pushes
are in the order of the log, so equal places stand together.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from iotmq.broker.delivery.push_channel cimport record_size_at
from iotmq.message.records.layout cimport get_u32, put_u32

cdef enum:
    PUSH_BYTES = 8              # place 4 | queue id 4


def gather_queued(
    const uint8_t[::1] records not None, const uint8_t[::1] pushes not None, Py_ssize_t start, Py_ssize_t bytes_max
):
    """(records, pushes with their new places, start of the next call) of the pushes from byte `start` on.

    Takes as many as have at most `bytes_max` of records, and at least one record.
    """
    cdef Py_ssize_t end = pushes.shape[0] // PUSH_BYTES * PUSH_BYTES
    cdef Py_ssize_t at = start, size = 0, target_place = 0, record_size
    cdef int64_t place, last = -1
    cdef uint8_t* target
    cdef uint8_t* moved
    while at < end:
        place = get_u32(&pushes[0] + at)
        if place != last:
            record_size = record_size_at(records, place)
            if size and size + record_size > bytes_max:
                break
            size += record_size
            last = place
        at += PUSH_BYTES
    end = at
    gathered = bytearray(size)
    renumbered = bytearray(end - start)
    if end == start:
        return gathered, renumbered, end
    target = gathered
    moved = renumbered
    memcpy(moved, &pushes[0] + start, end - start)
    last = -1
    size = 0
    for at in range(0, end - start, PUSH_BYTES):
        place = get_u32(moved + at)
        if place != last:
            record_size = get_u32(&records[0] + place)
            memcpy(target + size, &records[0] + place, record_size)
            target_place = size
            size += record_size
            last = place
        put_u32(moved + at, <uint32_t>target_place)
    return gathered, renumbered, end
