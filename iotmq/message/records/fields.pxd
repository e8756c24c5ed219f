# The fields of records and batch elements, inline: for the loops that go through every one there is.
#
# What such a loop does not use the compiler leaves out. Others call `parse_record` and `parse_element`.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from iotmq.message.records.layout cimport (
    AT_BODY_CRC, AT_BORN_HOST, AT_BORN_TIMESTAMP, AT_FLAG, AT_MAGIC, AT_POSITION, AT_QUEUE_ID, AT_QUEUE_OFFSET,
    AT_SIZE, AT_SYS_FLAG, ELEMENT_FIXED_BYTES, HOST_V6_EXTRA_BYTES, RECORD_FIXED_BYTES, RECORD_MAGIC,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6, get_u16, get_u32, get_u64,
)

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

cdef enum:
    # Magic of records whose topic size takes 2 bytes; newer brokers write them, we only read them.
    RECORD_MAGIC_LONG_TOPIC = 0xDAA320AB
    PROPERTIES_SIZE_READ_MAX = 32767


# As `parse_record` in record.pxd.
cdef inline int parse_fields(const uint8_t* at, const uint8_t* end, RecordParts* out) noexcept nogil:
    cdef Py_ssize_t left = end - at
    # Bytes the fixed part takes here, and of them those behind the body: sizes of topic and properties.
    cdef Py_ssize_t fixed = RECORD_FIXED_BYTES
    cdef Py_ssize_t topic_field = 1
    cdef Py_ssize_t size, part_size
    cdef const uint8_t* next_part
    cdef uint32_t magic
    cdef int32_t sys_flag
    if left < RECORD_FIXED_BYTES:
        return TRUNCATED_HEAD
    magic = get_u32(at + AT_MAGIC)
    if magic != <uint32_t> RECORD_MAGIC:
        if magic != <uint32_t> RECORD_MAGIC_LONG_TOPIC:
            return BAD_MAGIC
        topic_field = 2
        fixed += 1
    sys_flag = <int32_t> get_u32(at + AT_SYS_FLAG)
    out.born_host_size = 8
    out.store_host_size = 8
    if sys_flag & SYS_FLAG_BORN_HOST_V6:
        out.born_host_size = 8 + HOST_V6_EXTRA_BYTES
        fixed += HOST_V6_EXTRA_BYTES
    if sys_flag & SYS_FLAG_STORE_HOST_V6:
        out.store_host_size = 8 + HOST_V6_EXTRA_BYTES
        fixed += HOST_V6_EXTRA_BYTES
    size = <int32_t> get_u32(at + AT_SIZE)
    if size < fixed or size > left:
        return BAD_SIZE
    # From here `size` bytes are known to be readable, at least the `fixed` of them.
    out.size = <int32_t> size
    out.magic = magic
    out.body_crc = get_u32(at + AT_BODY_CRC)
    out.queue_id = <int32_t> get_u32(at + AT_QUEUE_ID)
    out.flag = <int32_t> get_u32(at + AT_FLAG)
    out.queue_offset = <int64_t> get_u64(at + AT_QUEUE_OFFSET)
    out.position = <int64_t> get_u64(at + AT_POSITION)
    out.sys_flag = sys_flag
    out.born_timestamp_ms = <int64_t> get_u64(at + AT_BORN_TIMESTAMP)
    next_part = at + AT_BORN_HOST
    out.born_host = next_part
    next_part += out.born_host_size
    out.store_timestamp_ms = <int64_t> get_u64(next_part)
    next_part += 8
    out.store_host = next_part
    next_part += out.store_host_size
    out.reconsume_times = <int32_t> get_u32(next_part)
    out.prepared_position = <int64_t> get_u64(next_part + 4)
    # `left` now counts the bytes that body, topic and properties may share.
    left = size - fixed
    part_size = <int32_t> get_u32(next_part + 12)
    if part_size < 0 or part_size > left:
        return BAD_BODY_SIZE
    next_part += 16
    out.body = next_part
    out.body_size = <int32_t> part_size
    next_part += part_size
    left -= part_size
    part_size = next_part[0] if topic_field == 1 else get_u16(next_part)
    if part_size > left:
        return BAD_TOPIC_SIZE
    next_part += topic_field
    out.topic = next_part
    out.topic_size = <int32_t> part_size
    next_part += part_size
    left -= part_size
    part_size = get_u16(next_part)
    if part_size > left or part_size > PROPERTIES_SIZE_READ_MAX:
        return BAD_PROPERTIES_SIZE
    if part_size != left:
        return SIZES_DISAGREE
    out.properties = next_part + 2
    out.properties_size = <int32_t> part_size
    return FORMAT_OK


# As `parse_element` in record.pxd.
cdef inline int element_fields(const uint8_t* at, const uint8_t* end, Element* out) noexcept nogil:
    cdef Py_ssize_t left = end - at
    cdef Py_ssize_t size, body_size, properties_size
    if left < ELEMENT_FIXED_BYTES:
        return TRUNCATED_HEAD
    size = <int32_t> get_u32(at)
    if size < ELEMENT_FIXED_BYTES or size > left:
        return BAD_SIZE
    body_size = <int32_t> get_u32(at + 16)
    if body_size < 0 or body_size > size - ELEMENT_FIXED_BYTES:
        return BAD_BODY_SIZE
    properties_size = get_u16(at + 20 + body_size)
    if properties_size > PROPERTIES_SIZE_READ_MAX:
        return BAD_PROPERTIES_SIZE
    if ELEMENT_FIXED_BYTES + body_size + properties_size != size:
        return SIZES_DISAGREE
    out.body = at + 20
    out.body_size = <int32_t> body_size
    out.properties = at + ELEMENT_FIXED_BYTES + body_size
    out.properties_size = <int32_t> properties_size
    out.flag = <int32_t> get_u32(at + 12)
    out.size = <int32_t> size
    return FORMAT_OK
