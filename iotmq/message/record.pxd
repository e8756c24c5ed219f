# The compiled interface of the record codec. Every function takes explicit bounds, none raises.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

# What can be wrong with bytes; 0 is right. `problem_text` in record.pyx has the words. The codes are
# negative so that a function may return "a size, or what is wrong" in one number.
cdef enum Problem:
    FORMAT_OK = 0
    TRUNCATED_HEAD = -1            # fewer bytes left than the fixed part has
    BAD_SIZE = -2                  # size field smaller than the fixed part, or past the end
    BAD_MAGIC = -3
    BAD_BODY_SIZE = -4             # body runs past the record
    BAD_TOPIC_SIZE = -5
    BAD_PROPERTIES_SIZE = -6
    SIZES_DISAGREE = -7            # the parts do not add up to the size field
    BAD_BODY_CRC = -8
    TOPIC_TOO_LONG = -9            # encode: past 127 bytes
    PROPERTIES_TOO_LONG = -10      # encode: both parts and the separator past 32,767 bytes
    RECORD_TOO_LONG = -11          # encode: past what the size field can say
    NO_ROOM = -12                  # encode: target too small

# One element of a batch body; the pointers point into the batch.
cdef struct Element:
    const uint8_t* body
    const uint8_t* properties
    int32_t body_size
    int32_t properties_size
    int32_t flag
    int32_t size                   # of the whole element: the next one is at `at + size`

# What all records of one append share. The hosts have 8 bytes, or 20 when their bit in sys_flag is set.
cdef struct RecordShared:
    const uint8_t* topic
    const uint8_t* properties      # come after each element's own
    const uint8_t* born_host
    const uint8_t* store_host
    int64_t born_timestamp_ms
    int64_t store_timestamp_ms
    int64_t prepared_position
    Py_ssize_t topic_size
    Py_ssize_t properties_size
    int32_t queue_id
    int32_t sys_flag
    int32_t reconsume_times

# The bytes that all records of one append have: everything before the body, with the fields of each record
# left open, and the topic with its size.
cdef struct RecordTemplate:
    uint8_t head[112]
    uint8_t topic[128]
    Py_ssize_t head_size           # 88, and 12 more for each host with 20 bytes

# One decoded record; the pointers point into what was decoded.
cdef struct RecordParts:
    const uint8_t* born_host
    const uint8_t* store_host
    const uint8_t* body
    const uint8_t* topic
    const uint8_t* properties
    int64_t queue_offset
    int64_t position
    int64_t born_timestamp_ms
    int64_t store_timestamp_ms
    int64_t prepared_position
    int32_t size
    uint32_t magic
    uint32_t body_crc
    int32_t queue_id
    int32_t flag
    int32_t sys_flag
    int32_t reconsume_times
    int32_t born_host_size
    int32_t store_host_size
    int32_t body_size
    int32_t topic_size
    int32_t properties_size

# One code point of UTF-8 that starts with a byte >= 0x80: the bytes it takes, `point` set to it, or to
# U+FFFD for each longest start of a valid sequence in malformed text (Unicode 15, section 3.9).
cdef Py_ssize_t decode_point(const uint8_t* text, Py_ssize_t size, uint32_t* point) noexcept nogil

# Hash of the TAGS property, sign-extended as a queue entry holds it; 0 when there is none.
cdef int64_t tags_code(const uint8_t* properties, Py_ssize_t size) noexcept nogil

# Size of the value of `key`, `value` set to it; -1 when absent. The last of several wins.
cdef Py_ssize_t find_property(const uint8_t* properties, Py_ssize_t size, const char* key,
                              Py_ssize_t key_size, const uint8_t** value) noexcept nogil

# CRC-32 of a stored body without its top bit, as records hold it.
cdef uint32_t body_crc(const uint8_t* body, Py_ssize_t size) noexcept nogil

# The element at `at`, every length checked against `end`: FORMAT_OK or a Problem (`out` undefined then).
cdef int parse_element(const uint8_t* at, const uint8_t* end, Element* out) noexcept nogil

# The record at `at`, every length checked against `end`: FORMAT_OK or a Problem (`out` undefined then).
# Does not check the body CRC.
cdef int parse_record(const uint8_t* at, const uint8_t* end, RecordParts* out) noexcept nogil

# Bytes the record of `element` takes, or a Problem (negative).
cdef Py_ssize_t element_record_size(const Element* element, const RecordShared* shared) noexcept nogil

# Write the record of `element` to `target`: bytes written, or a Problem with nothing written.
# Computes the body CRC; puts \x02 between element and shared properties where it is missing.
cdef Py_ssize_t write_record(uint8_t* target, Py_ssize_t room, const Element* element,
                             const RecordShared* shared, int64_t queue_offset,
                             int64_t position) noexcept nogil

# Fill a template; the topic has at most 127 bytes.
cdef void make_template(RecordTemplate* template, const RecordShared* shared) noexcept nogil

# `write_record` for many records of one append; `template` is made from `shared`.
cdef Py_ssize_t write_like(uint8_t* target, Py_ssize_t room, const Element* element, const RecordShared* shared,
                           const RecordTemplate* template, int64_t queue_offset,
                           int64_t position) noexcept nogil
