# Filling columns from records: where each column goes, and the two passes over the input.

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void** memory, size_t alignment, size_t size)

cdef extern from "zlib.h" nogil:
    ctypedef struct z_stream:
        uint8_t* next_in
        unsigned int avail_in
        uint8_t* next_out
        unsigned int avail_out

cdef enum:
    ALIGNMENT_BYTES = 64           # what Arrow recommends
    # Problems of bodies, beside those of the record codec.
    BROKEN_BODY = -101
    BODY_TOO_LARGE = -102
    UNKNOWN_COMPRESSION = -103
    OUT_OF_MEMORY = -104
    # -105 is not one.
    LZ4_MISSING = -106             # their libraries are not installed
    ZSTD_MISSING = -107

# Bytes that grow by appending, and a column of such values: offsets[i]..offsets[i + 1] is value i.
cdef struct Bytes:
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t capacity

cdef struct Values:
    Bytes data
    int32_t* offsets
    uint8_t* is_valid              # bit i: value i is not null; NULL when none is
    Py_ssize_t null_count

# A property to pick out; `found` is where it stands in the current record.
cdef struct Wanted:
    const char* name
    const uint8_t* found
    Py_ssize_t name_size
    Py_ssize_t found_size
    Values values

# Where each column goes; NULL where it is not asked for.
cdef struct Outputs:
    int32_t* queue_id
    int64_t* queue_offset
    int64_t* position
    int64_t* born_timestamp
    int64_t* store_timestamp
    int32_t* flag
    int32_t* sys_flag
    int32_t* reconsume_times
    int64_t* tags_code
    Values* body
    Values* topic
    Values* properties
    Values* message_id             # where the record is stored, as its id says it
    Values body_values
    Values topic_values
    Values properties_values
    Values message_id_values
    Wanted* wanted
    Py_ssize_t wanted_count
    int64_t timestamp_factor       # 1 for ms, 1,000 for us
    Py_ssize_t inflated_bytes_max
    Py_ssize_t bytes_max
    bint check_crc
    bint inflate
    bint bad_bodies_null
    bint inflater_ready
    z_stream inflater

# What the first pass has found.
cdef struct Counted:
    Py_ssize_t count
    Py_ssize_t size                # of the records counted
    Py_ssize_t body_bytes
    Py_ssize_t topic_bytes
    Py_ssize_t properties_bytes
    Py_ssize_t message_id_bytes

# First pass, over at most `count_max` records: every one checked. On a Problem `counted` says which record has it.
cdef int count_records(const uint8_t* start, const uint8_t* end, Py_ssize_t count_max, Counted* counted) noexcept nogil

# Second pass, over what the first has checked. Ends early, with FORMAT_OK, when the columns are full; `counted`
# has then what went in, and on a Problem which record has it.
cdef int fill(Outputs* outputs, const uint8_t* at, Counted* counted) noexcept nogil

# Room for `extra` more bytes, growing by half at least; False without memory.
cdef bint reserve(Bytes* out, Py_ssize_t extra) noexcept nogil

# Let go of all memory that outputs have.
cdef void free_outputs(Outputs* outputs) noexcept nogil
