# Going through a stretch of a log, record by record, where it lies.
#
#     cdef RecordWalk walk
#     cdef RecordParts parts
#     begin_walk(&walk, view)
#     try:
#         while next_record(&walk, &parts):
#             ...
#     finally:
#         end_walk(&walk)
#     check_walk(&walk)

from libc.stdint cimport uint8_t, uint32_t

from iotmq.message.records.layout cimport AT_MAGIC, BLANK_BYTES, BLANK_MAGIC, get_u32
from iotmq.message.records.fields cimport FORMAT_OK, RecordParts, parse_fields

cdef struct RecordWalk:
    Py_buffer view
    const uint8_t* at          # behind the record given last
    const uint8_t* end
    int problem                # FORMAT_OK, also behind the last record, until bytes come that are none


# Take hold of the bytes until `end_walk`, at the first record.
cdef int begin_walk(RecordWalk* walk, view) except -1

cdef int end_walk(RecordWalk* walk) except -1

# StoreCorruptError when the walk met something else than a record, or the blank that ends a file.
cdef int check_walk(const RecordWalk* walk) except -1


cdef inline bint next_record(RecordWalk* walk, RecordParts* out) noexcept nogil:
    """The next record, whose bytes end at `walk.at` then; False behind the last of them.

    Of parts that a loop never passes on only what it uses is read: take the few that need more apart once more.
    """
    cdef int problem
    if walk.at >= walk.end:
        return False
    problem = parse_fields(walk.at, walk.end, out)
    if problem != FORMAT_OK:
        if walk.end - walk.at < BLANK_BYTES or get_u32(walk.at + AT_MAGIC) != <uint32_t> BLANK_MAGIC:
            walk.problem = problem
        return False
    walk.at += out.size
    return True
