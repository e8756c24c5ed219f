# Big-endian loads and stores, and the fixed offsets of a record with IPv4 hosts.
#
# Record (RocketMQ 4.x, magic v1):
#   0 size 4 | 4 magic 4 | 8 body crc 4 | 12 queue id 4 | 16 flag 4 | 20 queue offset 8
#   28 position 8 | 36 sys flag 4 | 40 born timestamp ms 8 | 48 born host 4+4 | 56 store timestamp ms 8
#   64 store host 4+4 | 72 reconsume times 4 | 76 prepared transaction position 8
#   84 body size 4 + body | topic size 1 + topic | properties size 2 + properties
# A host is 16+4 bytes when its bit in sys flag is set; fields behind it move by 12.
#
# Batch element (body of request 320): size 4 | magic 4 = 0 | crc 4 = 0 | flag 4 |
#   body size 4 + body | properties size 2 + properties
#
# Queue entry: position 8 | size 4 | tags code 8

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint16_t iotmq_get_u16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
    static inline uint32_t iotmq_get_u32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
    static inline uint64_t iotmq_get_u64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
    static inline void iotmq_put_u16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
    static inline void iotmq_put_u32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
    static inline void iotmq_put_u64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
    """
    uint16_t get_u16 "iotmq_get_u16"(const uint8_t *p) noexcept
    uint32_t get_u32 "iotmq_get_u32"(const uint8_t *p) noexcept
    uint64_t get_u64 "iotmq_get_u64"(const uint8_t *p) noexcept
    void put_u16 "iotmq_put_u16"(uint8_t *p, uint16_t v) noexcept
    void put_u32 "iotmq_put_u32"(uint8_t *p, uint32_t v) noexcept
    void put_u64 "iotmq_put_u64"(uint8_t *p, uint64_t v) noexcept

cdef enum:
    RECORD_MAGIC = 0xDAA320A7
    BLANK_MAGIC = 0xCBD43194
    AT_SIZE = 0
    AT_MAGIC = 4
    AT_BODY_CRC = 8
    AT_QUEUE_ID = 12
    AT_FLAG = 16
    AT_QUEUE_OFFSET = 20
    AT_POSITION = 28
    AT_SYS_FLAG = 36
    AT_BORN_TIMESTAMP = 40
    AT_BORN_HOST = 48
    AT_STORE_TIMESTAMP = 56
    AT_STORE_HOST = 64
    AT_RECONSUME_TIMES = 72
    AT_PREPARED_POSITION = 76
    AT_BODY_SIZE = 84
    AT_BODY = 88
    RECORD_FIXED_BYTES = 91        # with IPv4 hosts and nothing variable
    HOST_V6_EXTRA_BYTES = 12
    BLANK_BYTES = 8                # always kept free at the end of a segment
    ELEMENT_FIXED_BYTES = 22       # batch element with empty body and properties
    QUEUE_ENTRY_SIZE = 20
    SYS_FLAG_COMPRESSED = 1
    SYS_FLAG_BORN_HOST_V6 = 16
    SYS_FLAG_STORE_HOST_V6 = 32
    SYS_FLAG_TRANSACTION_MASK = 12
    # Of records without a place in a queue: transaction types, within the mask.
    TRANSACTION_PREPARED = 4
    TRANSACTION_ROLLBACK = 12
    # What separates names and values of properties.
    NAME_END = 1
    PROPERTY_END = 2
