# An entry of a queue file: where a record stands.
#
#   0 position in the log 8 | 8 record size 4 | 12 tags code 8          big-endian, QUEUE_ENTRY_SIZE bytes
#
# A filler (position 0, size FILLER_SIZE, tags code 0) stands for an offset without a record. Inline: one is
# written per record stored, and read per record pulled.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from iotmq.message.records.layout cimport get_u32, put_u32, put_u64
from iotmq.message.records.fields cimport RecordParts
from iotmq.store.log.timer_record cimport entry_tags_code

cdef enum:
    FILLER_SIZE = 0x7FFFFFFF


# Write the entry of a record.
cdef inline void put_entry(uint8_t* at, const RecordParts* parts) noexcept nogil:
    put_u64(at, <uint64_t> parts.position)
    put_u32(at + 8, <uint32_t> parts.size)
    put_u64(at + 12, <uint64_t> entry_tags_code(parts))


cdef inline void put_filler(uint8_t* at) noexcept nogil:
    put_u64(at, 0)
    put_u32(at + 8, FILLER_SIZE)
    put_u64(at + 12, 0)


cdef inline bint is_filler(const uint8_t* at) noexcept nogil:
    return get_u32(at + 8) == FILLER_SIZE
