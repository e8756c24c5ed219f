"""The headers of frames as clients usually write them, JSON or binary, read in C.

Usual is: JSON with spaces or without, numbers and truths for texts, fields in any order behind the code,
no key twice; binary without a remark; all of it within the limits of a frame. `FrameReader` takes everything
that is not.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memset

from iotmq.message.records.layout cimport get_u16, get_u32

from iotmq.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX

cdef enum:
    JSON = 0
    BINARY = 1
    BINARY_FIXED_BYTES = 21
    # Fewer than HEADER_FIELDS_MAX: a header with more is looked at by the general decoder.
    FIELDS_READ_MAX = 64
    # Keys of a JSON header that were seen.
    SEEN_CODE = 1
    SEEN_EXT = 2
    SEEN_FLAG = 4
    SEEN_LANGUAGE = 8
    SEEN_OPAQUE = 16
    SEEN_REMARK = 32
    SEEN_SERIALIZE = 64
    SEEN_VERSION = 128

cdef int64_t INT32_MIN = -(2**31)
cdef int64_t INT32_MAX = 2**31 - 1
cdef Py_ssize_t FRAME_MAX = FRAME_BYTES_MAX
cdef Py_ssize_t HEADER_MAX = HEADER_BYTES_MAX


# Characters that a text has nothing to say about: ASCII but for controls, the quote and the backslash.
cdef uint8_t is_usual[256]
for _character in range(256):
    is_usual[_character] = 0x20 <= _character < 0x80 and _character not in b'"\\'


cdef bint read_head(const uint8_t* start, Py_ssize_t at, Py_ssize_t end, Head* head, TakeField take,
                    void* context) except -1:
    cdef Py_ssize_t size, header_size
    cdef uint32_t word
    cdef const uint8_t* header
    if end - at < 8:
        return False
    size = <int32_t> get_u32(start + at)
    word = get_u32(start + at + 4)
    header_size = word & 0xFFFFFF
    if size > FRAME_MAX - 4 or header_size + 4 > size or not 0 < header_size <= HEADER_MAX:
        return False
    if size + 4 > end - at:
        return False
    memset(head, 0, sizeof(Head))
    header = start + at + 8
    head.end = at + 4 + size
    head.body = header + header_size
    head.body_size = <int32_t> (size - 4 - header_size)
    if word >> 24 == JSON:
        return read_json(head, take, context, header, header + header_size)
    head.is_binary = True
    return word >> 24 == BINARY and read_binary(head, take, context, header, header + header_size)


cdef bint read_json(Head* head, TakeField take, void* context, const uint8_t* at, const uint8_t* end) except -1:
    cdef Text key, value
    cdef int64_t number = 0
    cdef int seen = 0
    cdef int is_key
    at = skip_space(at, end)
    if at == end or at[0] != c"{":
        return False
    at = skip_space(at + 1, end)
    while True:
        at = read_text(at, end, &key)
        if at == NULL or not key.is_plain:
            return False
        at = skip_space(at, end)
        if at == end or at[0] != c":":
            return False
        at = skip_space(at + 1, end)
        is_key = json_key(&key)
        if is_key == 0 or seen & is_key:
            return False
        seen |= is_key
        if is_key == SEEN_EXT:
            # Which names fields have depends on the code.
            if not seen & SEEN_CODE:
                return False
            at = read_json_fields(head, take, context, at, end)
        elif is_key == SEEN_LANGUAGE or is_key == SEEN_SERIALIZE:
            at = read_text(at, end, &value)
            if at != NULL and not value.is_plain:
                return False
        elif is_key == SEEN_REMARK:
            if end - at < 4 or memcmp(at, b"null", 4):
                return False
            at += 4
        else:
            at = read_number(at, end, &number)
            if at == NULL or not INT32_MIN <= number <= INT32_MAX:
                return False
            if is_key == SEEN_CODE:
                head.code = <int32_t> number
            elif is_key == SEEN_FLAG:
                head.flag = <int32_t> number
            elif is_key == SEEN_OPAQUE:
                head.opaque = <int32_t> number
            else:
                head.version = <int32_t> number
        if at == NULL:
            return False
        at = skip_space(at, end)
        if at == end:
            return False
        if at[0] == c"}":
            break
        if at[0] != c",":
            return False
        at = skip_space(at + 1, end)
    return skip_space(at + 1, end) == end


cdef const uint8_t* read_json_fields(Head* head, TakeField take, void* context, const uint8_t* at,
                                     const uint8_t* end) except? NULL:
    """Behind the object of fields, NULL when it is unusual."""
    cdef Text name, value
    cdef int64_t number = 0
    cdef int count = 0
    if at == end or at[0] != c"{":
        return NULL
    at = skip_space(at + 1, end)
    while count < FIELDS_READ_MAX:
        at = read_text(at, end, &name)
        if at == NULL or not name.is_plain:
            return NULL
        at = skip_space(at, end)
        if at == end or at[0] != c":":
            return NULL
        at = skip_space(at + 1, end)
        if at == end:
            return NULL
        if at[0] == c'"':
            at = read_text(at, end, &value)
        else:
            # What clients in other languages write without quotes counts as the text it is written as.
            value.at = at
            value.is_plain = True
            if at[0] == c"t" and end - at >= 4 and not memcmp(at, b"true", 4):
                at += 4
            elif at[0] == c"f" and end - at >= 5 and not memcmp(at, b"false", 5):
                at += 5
            else:
                at = read_number(at, end, &number)
            if at != NULL:
                value.size = at - value.at
        if at == NULL or not take(context, head, &name, &value):
            return NULL
        count += 1
        at = skip_space(at, end)
        if at == end:
            return NULL
        if at[0] == c"}":
            return at + 1
        if at[0] != c",":
            return NULL
        at = skip_space(at + 1, end)
    return NULL


cdef bint read_binary(Head* head, TakeField take, void* context, const uint8_t* at, const uint8_t* end) except -1:
    cdef Text name, value
    cdef int count = 0
    if end - at < BINARY_FIXED_BYTES:
        return False
    head.code = <int16_t> get_u16(at)
    head.version = <int16_t> get_u16(at + 3)
    head.opaque = <int32_t> get_u32(at + 5)
    head.flag = <int32_t> get_u32(at + 9)
    # No remark, and fields up to the end.
    if get_u32(at + 13) != 0 or <int64_t> get_u32(at + 17) != end - at - BINARY_FIXED_BYTES:
        return False
    at += BINARY_FIXED_BYTES
    while at < end:
        if count == FIELDS_READ_MAX or end - at < 6:
            return False
        name.size = get_u16(at)
        name.at = at + 2
        if name.size > 0x7FFF or name.size > end - name.at - 4:
            return False
        at = name.at + name.size
        value.size = get_u32(at)
        value.at = at + 4
        if value.size > end - value.at:
            return False
        at = value.at + value.size
        name.is_plain = is_ascii(name.at, name.size)
        value.is_plain = is_ascii(value.at, value.size)
        if not name.is_plain or not take(context, head, &name, &value):
            return False
        count += 1
    return True


cdef inline const uint8_t* skip_space(const uint8_t* at, const uint8_t* end) noexcept:
    # Mostly there is none.
    while at < end and at[0] <= c" " and (at[0] == c" " or at[0] == c"\n" or at[0] == c"\t" or at[0] == c"\r"):
        at += 1
    return at


cdef const uint8_t* read_text(const uint8_t* at, const uint8_t* end, Text* text) noexcept:
    """Behind a JSON string, NULL when there is none; `text` is what stands between the quotes."""
    text.is_plain = True
    if at == end or at[0] != c'"':
        return NULL
    at += 1
    text.at = at
    while at < end:
        if is_usual[at[0]]:
            at += 1
            continue
        if at[0] == c'"':
            text.size = at - text.at
            return at + 1
        if at[0] < 0x20:
            return NULL
        if at[0] == c"\\":
            text.is_plain = False
            at += 1
            if at == end:
                return NULL
        elif at[0] >= 0x80:
            text.is_plain = False
        at += 1
    return NULL


cdef const uint8_t* read_number(const uint8_t* at, const uint8_t* end, int64_t* number) noexcept:
    """Behind a whole number in JSON, NULL when there is none. What follows it is for the caller to look at."""
    cdef bint is_negative = False
    cdef const uint8_t* first
    cdef int64_t value = 0
    if at < end and at[0] == c"-":
        is_negative = True
        at += 1
    first = at
    while at < end and c"0" <= at[0] <= c"9" and at - first < 18:
        value = value * 10 + (at[0] - c"0")
        at += 1
    # JSON has no leading zeros, and -0 is written as 0 once it has been read.
    if at == first or first[0] == c"0" and (at - first > 1 or is_negative):
        return NULL
    number[0] = -value if is_negative else value
    return at


cdef bint read_decimal(const Text* text, int64_t* number) noexcept:
    """Return the text as a number if it is decimal digits, perhaps with a minus, and nothing else."""
    cdef Py_ssize_t at = 0
    cdef int64_t value = 0
    cdef bint is_negative = text.size > 0 and text.at[0] == c"-"
    if is_negative:
        at = 1
    if not 0 < text.size - at <= 18:
        return False
    while at < text.size:
        if not c"0" <= text.at[at] <= c"9":
            return False
        value = value * 10 + (text.at[at] - c"0")
        at += 1
    number[0] = -value if is_negative else value
    return True


cdef bint is_ascii(const uint8_t* at, Py_ssize_t size) noexcept:
    cdef Py_ssize_t number
    cdef uint8_t all_bits = 0
    for number in range(size):
        all_bits |= at[number]
    return all_bits < 0x80


cdef int json_key(const Text* key) noexcept:
    """Return the bit of a key of the JSON header, 0 for one that is not known."""
    if is_text(key, b"code", 4):
        return SEEN_CODE
    if is_text(key, b"extFields", 9):
        return SEEN_EXT
    if is_text(key, b"flag", 4):
        return SEEN_FLAG
    if is_text(key, b"language", 8):
        return SEEN_LANGUAGE
    if is_text(key, b"opaque", 6):
        return SEEN_OPAQUE
    if is_text(key, b"remark", 6):
        return SEEN_REMARK
    if is_text(key, b"serializeTypeCurrentRPC", 23):
        return SEEN_SERIALIZE
    if is_text(key, b"version", 7):
        return SEEN_VERSION
    return 0
