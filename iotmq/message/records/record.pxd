# The compiled interface of the record codec. Every function takes explicit bounds, none raises.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from iotmq.message.records.fields cimport Element, RecordParts

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
