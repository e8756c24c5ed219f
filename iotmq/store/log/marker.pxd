# Records that stand where damaged bytes were, so that everybody can walk over them.

from libc.stdint cimport int32_t, int64_t, uint8_t

from iotmq.message.records.fields cimport RecordParts

# Whether a record stands for damaged bytes.
cdef bint is_marker(const RecordParts* parts) noexcept nogil

# Write a marker of `size` bytes, the topic's and 91 at least; `end_offset` 0 names no lost offsets.
cdef void write_marker(uint8_t* target, int32_t size, int64_t position, const uint8_t* topic, int32_t topic_size,
                       int32_t queue_id, int64_t first_offset, int64_t end_offset,
                       int64_t store_timestamp_ms) noexcept nogil
