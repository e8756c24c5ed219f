"""The two passes that make columns of records, compiled and without the GIL; see `iotmq.message.records.columns`.

The first checks every length and counts, the second fills memory of the right size, and grows it where bodies
inflate or text has to be cleaned. No byte outside the input is read, whatever it says.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy, memset

from iotmq.message.records.layout cimport NAME_END, PROPERTY_END, SYS_FLAG_COMPRESSED
from iotmq.message.records.fields cimport BAD_BODY_CRC, FORMAT_OK, RecordParts
from iotmq.message.records.record cimport body_crc, parse_record, tags_code
from iotmq.message.records.text cimport decode_point

from iotmq.message.bodies import inflate_body as open_body
from iotmq.message.errors import BodyTooLargeError, CompressionMissingError, MessageFormatError

cdef extern from "zlib.h" nogil:
    int inflateInit(z_stream* stream)
    int inflateReset(z_stream* stream)
    int inflateEnd(z_stream* stream)
    int inflate(z_stream* stream, int flush)
    enum:
        Z_OK
        Z_STREAM_END
        Z_NO_FLUSH

cdef enum:
    INFLATE_STEP_BYTES = 16384
    # Input taken into one Columns: text may triple when U+FFFD replaces its bytes, and still fits int32.
    INPUT_BYTES_MAX = 512 * 1024 * 1024
    POSITION_BYTES = 8
    COLUMNS_FULL = -105            # not an error: the record goes to the next Columns


cdef int count_records(const uint8_t* start, const uint8_t* end, Py_ssize_t count_max,
                       Counted* counted) noexcept nogil:
    cdef RecordParts parts
    cdef const uint8_t* at = start
    cdef int problem
    memset(counted, 0, sizeof(Counted))
    while at < end and counted.count < count_max:
        problem = parse_record(at, end, &parts)
        if problem != FORMAT_OK:
            return problem
        if counted.size + parts.size > INPUT_BYTES_MAX and counted.count:
            return FORMAT_OK
        at += parts.size
        counted.count += 1
        counted.size = at - start
        counted.body_bytes += parts.body_size
        counted.topic_bytes += parts.topic_size
        counted.properties_bytes += parts.properties_size
        counted.message_id_bytes += 2 * (parts.store_host_size + POSITION_BYTES)
    return FORMAT_OK


cdef int fill(Outputs* outputs, const uint8_t* at, Counted* counted) noexcept nogil:
    cdef const uint8_t* start = at
    cdef const uint8_t* end = at + counted.size
    cdef RecordParts parts
    cdef Py_ssize_t index = 0
    cdef int problem = FORMAT_OK
    # The arrays have room for `count`: held to even if somebody writes to the input meanwhile.
    while at < end and index < counted.count:
        problem = parse_record(at, end, &parts)
        if problem == FORMAT_OK:
            problem = fill_record(outputs, index, &parts)
        if problem != FORMAT_OK:
            break
        at += parts.size
        index += 1
    counted.count = index
    counted.size = at - start
    return <int> FORMAT_OK if problem == COLUMNS_FULL else problem


cdef inline int fill_record(Outputs* outputs, Py_ssize_t index, const RecordParts* parts) noexcept nogil:
    cdef int problem
    # Body first: it may turn out that the record belongs in the next Columns.
    if outputs.body != NULL:
        problem = add_body(outputs, index, parts)
        if problem != FORMAT_OK:
            return problem
    if outputs.topic != NULL and not add_text(outputs.topic, index, parts.topic, parts.topic_size):
        return OUT_OF_MEMORY
    if outputs.properties != NULL and not add_bytes(outputs.properties, index, parts.properties, parts.properties_size):
        return OUT_OF_MEMORY
    if outputs.message_id != NULL and not add_message_id(outputs.message_id, index, parts):
        return OUT_OF_MEMORY
    if outputs.wanted_count and not add_wanted(outputs, index, parts):
        return OUT_OF_MEMORY
    if outputs.queue_id != NULL:
        outputs.queue_id[index] = parts.queue_id
    if outputs.queue_offset != NULL:
        outputs.queue_offset[index] = parts.queue_offset
    if outputs.position != NULL:
        outputs.position[index] = parts.position
    if outputs.born_timestamp != NULL:
        outputs.born_timestamp[index] = scaled(parts.born_timestamp_ms, outputs.timestamp_factor)
    if outputs.store_timestamp != NULL:
        outputs.store_timestamp[index] = scaled(parts.store_timestamp_ms, outputs.timestamp_factor)
    if outputs.flag != NULL:
        outputs.flag[index] = parts.flag
    if outputs.sys_flag != NULL:
        outputs.sys_flag[index] = parts.sys_flag
    if outputs.reconsume_times != NULL:
        outputs.reconsume_times[index] = parts.reconsume_times
    if outputs.tags_code != NULL:
        outputs.tags_code[index] = tags_code(parts.properties, parts.properties_size)
    return FORMAT_OK


cdef inline int64_t scaled(int64_t timestamp_ms, int64_t factor) noexcept nogil:
    # A timestamp is whatever the sender wrote: at the ends of the range it sticks instead of wrapping.
    if timestamp_ms > INT64_MAX // factor:
        return INT64_MAX
    if timestamp_ms < -(INT64_MAX // factor):
        return INT64_MIN
    return timestamp_ms * factor


cdef int add_body(Outputs* outputs, Py_ssize_t index, const RecordParts* parts) noexcept nogil:
    cdef Values* values = outputs.body
    cdef Py_ssize_t size_before = values.data.size
    cdef int problem = FORMAT_OK
    if outputs.check_crc and body_crc(parts.body, parts.body_size) != parts.body_crc:
        problem = BAD_BODY_CRC
    elif parts.sys_flag & SYS_FLAG_COMPRESSED and outputs.inflate:
        # Bits 8-10 say how: 0 (older senders) and 3 are zlib, 1 LZ4, 2 ZSTD.
        if (parts.sys_flag >> 8) & 7 == 0 or (parts.sys_flag >> 8) & 7 == 3:
            problem = inflate_body(outputs, parts.body, parts.body_size)
        else:
            problem = open_by_library(outputs, parts)
    elif not append(&values.data, parts.body, parts.body_size):
        problem = OUT_OF_MEMORY
    # What another process could open is never made a null.
    if problem == OUT_OF_MEMORY or problem == LZ4_MISSING or problem == ZSTD_MISSING:
        return problem
    if problem != FORMAT_OK:
        if not outputs.bad_bodies_null:
            return problem
        values.data.size = size_before
        values.null_count += 1
    elif values.data.size > outputs.bytes_max:
        # The first record is taken whatever its size, within what an int32 offset can say.
        if index or values.data.size > INT32_MAX:
            values.data.size = size_before
            return COLUMNS_FULL if index else BODY_TOO_LARGE
    if problem == FORMAT_OK and values.is_valid != NULL:
        values.is_valid[index >> 3] |= 1 << (index & 7)
    values.offsets[index + 1] = <int32_t> values.data.size
    return FORMAT_OK


cdef int inflate_body(Outputs* outputs, const uint8_t* body, Py_ssize_t size) noexcept nogil:
    cdef Bytes* out = &outputs.body.data
    cdef z_stream* stream = &outputs.inflater
    cdef Py_ssize_t left = outputs.inflated_bytes_max
    cdef Py_ssize_t step
    cdef int status
    if not outputs.inflater_ready:
        if inflateInit(stream) != Z_OK:
            return OUT_OF_MEMORY
        outputs.inflater_ready = True
    elif inflateReset(stream) != Z_OK:
        return BROKEN_BODY
    stream.next_in = <uint8_t*> body       # zlib only reads it
    stream.avail_in = <unsigned int> size
    while True:
        # One byte more than allowed, so that a body at the limit and one past it come out differently.
        step = min(<Py_ssize_t> INFLATE_STEP_BYTES, left + 1)
        if not reserve(out, step):
            return OUT_OF_MEMORY
        stream.next_out = out.data + out.size
        stream.avail_out = <unsigned int> step
        status = inflate(stream, Z_NO_FLUSH)
        step -= stream.avail_out
        out.size += step
        left -= step
        if left < 0:
            return BODY_TOO_LARGE
        if status == Z_STREAM_END:
            return FORMAT_OK
        # No progress, or room left over with all input taken: the stream is cut off.
        if status != Z_OK or (stream.avail_in == 0 and stream.avail_out != 0):
            return BROKEN_BODY


cdef int open_by_library(Outputs* outputs, const RecordParts* parts) noexcept with gil:
    """As `inflate_body`, for what has no compiled code here."""
    cdef int method = (parts.sys_flag >> 8) & 7
    cdef bytes plain
    if method > 2:
        return UNKNOWN_COMPRESSION
    try:
        plain = open_body(parts.body[:parts.body_size], parts.sys_flag, bytes_max=outputs.inflated_bytes_max)
    except CompressionMissingError:
        return LZ4_MISSING if method == 1 else ZSTD_MISSING
    except BodyTooLargeError:
        return BODY_TOO_LARGE
    except MessageFormatError:
        return BROKEN_BODY
    except MemoryError:
        return OUT_OF_MEMORY
    if not append(&outputs.body.data, <const uint8_t*> PyBytes_AS_STRING(plain), len(plain)):
        return OUT_OF_MEMORY
    return FORMAT_OK


cdef inline bint add_bytes(Values* values, Py_ssize_t index, const uint8_t* value, Py_ssize_t size) noexcept nogil:
    # INPUT_BYTES_MAX keeps the sum within an int32.
    if not append(&values.data, value, size):
        return False
    values.offsets[index + 1] = <int32_t> values.data.size
    return True


cdef bint add_message_id(Values* values, Py_ssize_t index, const RecordParts* parts) noexcept nogil:
    # As `iotmq.message.message_ids.offset_message_id`.
    cdef const char* digits = "0123456789ABCDEF"
    cdef Py_ssize_t size = 2 * (parts.store_host_size + POSITION_BYTES)
    cdef uint8_t* target
    cdef int32_t at
    cdef int shift
    if not reserve(&values.data, size):
        return False
    target = values.data.data + values.data.size
    for at in range(parts.store_host_size):
        target[0] = digits[parts.store_host[at] >> 4]
        target[1] = digits[parts.store_host[at] & 15]
        target += 2
    for shift in range(60, -4, -4):
        target[0] = digits[(parts.position >> shift) & 15]
        target += 1
    values.data.size += size
    values.offsets[index + 1] = <int32_t> values.data.size
    return True


cdef bint add_text(Values* values, Py_ssize_t index, const uint8_t* text, Py_ssize_t size) noexcept nogil:
    if is_ascii(text, size):
        return add_bytes(values, index, text, size)
    if not append_clean_text(&values.data, text, size):
        return False
    values.offsets[index + 1] = <int32_t> values.data.size
    return True


cdef inline bint is_ascii(const uint8_t* text, Py_ssize_t size) noexcept nogil:
    cdef uint64_t word
    cdef uint64_t seen = 0
    cdef Py_ssize_t at = 0
    while at + 8 <= size:
        memcpy(&word, text + at, 8)
        seen |= word
        at += 8
    while at < size:
        seen |= text[at]
        at += 1
    return seen & 0x8080808080808080ULL == 0


cdef bint append_clean_text(Bytes* out, const uint8_t* text, Py_ssize_t size) noexcept nogil:
    """Append UTF-8, with U+FFFD (3 bytes) in place of what is not: Arrow and Spark trust their strings."""
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t taken
    cdef uint32_t point
    cdef uint8_t* target
    if not reserve(out, 3 * size):
        return False
    target = out.data + out.size
    while at < size:
        if text[at] < 0x80:
            target[0] = text[at]
            target += 1
            at += 1
            continue
        taken = decode_point(text + at, size - at, &point)
        if point == 0xFFFD:
            target[0] = 0xEF
            target[1] = 0xBF
            target[2] = 0xBD
            target += 3
        else:
            memcpy(target, text + at, taken)
            target += taken
        at += taken
    out.size = target - out.data
    return True


cdef bint add_wanted(Outputs* outputs, Py_ssize_t index, const RecordParts* parts) noexcept nogil:
    """Find the wanted properties in one walk over the record's properties, then add them."""
    cdef Wanted* wanted
    cdef Wanted* wanted_end = outputs.wanted + outputs.wanted_count
    cdef const uint8_t* at = parts.properties
    cdef const uint8_t* end = at + parts.properties_size
    cdef const uint8_t* piece_end
    cdef Py_ssize_t size
    wanted = outputs.wanted
    while wanted < wanted_end:
        wanted.found = NULL
        wanted += 1
    while at < end:
        piece_end = <const uint8_t*> memchr(at, PROPERTY_END, end - at)
        if piece_end == NULL:
            piece_end = end
        size = piece_end - at
        wanted = outputs.wanted
        while wanted < wanted_end:
            if (size > wanted.name_size and at[wanted.name_size] == NAME_END
                    and memcmp(at, wanted.name, wanted.name_size) == 0):
                wanted.found = at + wanted.name_size + 1
                wanted.found_size = size - wanted.name_size - 1
                break
            wanted += 1
        at = piece_end + 1
    wanted = outputs.wanted
    while wanted < wanted_end:
        if wanted.found == NULL:
            wanted.values.null_count += 1
            wanted.values.offsets[index + 1] = <int32_t> wanted.values.data.size
        else:
            wanted.values.is_valid[index >> 3] |= 1 << (index & 7)
            if not add_text(&wanted.values, index, wanted.found, wanted.found_size):
                return False
        wanted += 1
    return True


cdef inline bint append(Bytes* out, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    if out.capacity - out.size < size and not reserve(out, size):
        return False
    memcpy(out.data + out.size, data, size)
    out.size += size
    return True


cdef bint reserve(Bytes* out, Py_ssize_t extra) noexcept nogil:
    cdef void* memory = NULL
    cdef Py_ssize_t capacity
    if out.capacity - out.size >= extra:
        return True
    capacity = max(out.size + extra, out.capacity + out.capacity // 2, <Py_ssize_t> ALIGNMENT_BYTES)
    if posix_memalign(&memory, ALIGNMENT_BYTES, capacity) != 0:
        return False
    if out.size:
        memcpy(memory, out.data, out.size)
    free(out.data)
    out.data = <uint8_t*> memory
    out.capacity = capacity
    return True


cdef void free_values(Values* values) noexcept nogil:
    free(values.data.data)
    free(values.offsets)
    free(values.is_valid)


cdef void free_outputs(Outputs* outputs) noexcept nogil:
    cdef Py_ssize_t index
    free_values(&outputs.body_values)
    free_values(&outputs.topic_values)
    free_values(&outputs.properties_values)
    free_values(&outputs.message_id_values)
    for index in range(outputs.wanted_count):
        free_values(&outputs.wanted[index].values)
    free(outputs.wanted)
    if outputs.inflater_ready:
        inflateEnd(&outputs.inflater)
