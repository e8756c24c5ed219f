"""Send requests (codes 10, 310, 320) read from received bytes in one pass, many at a time.

Operations: take the sends that stand one behind the other at a place in a chunk; say where each begins.
Goal: no Python object and no Python call per request. Plan: a C structure per send with pointers into the
chunk; only what clients usually write is read, and everything else is left to the general decoder in
`frame.py`, which knows all of it. So whatever is read here means the same there, and nothing is refused
here: a frame that is unusual, wrong or not whole just ends the run. `tests/property/test_send_frames.py`
compares the two.

Usual is: a header in JSON or binary, whose JSON may have spaces, numbers for texts and escapes in
`properties`; fields in any order, unknown ones among them; numbers in plain decimal.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memset

from iotmq.message.layout cimport get_u16, get_u32
from iotmq.message.record cimport decode_point

from iotmq.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX

cdef enum:
    SEND_LONG = 10
    SEND_SHORT = 310
    SEND_BATCH = 320
    IS_RESPONSE = 1
    JSON = 0
    BINARY = 1
    BINARY_FIXED_BYTES = 21
    # Fewer than HEADER_FIELDS_MAX: a header with more is looked at by the general decoder.
    FIELDS_READ_MAX = 64
    # Fields by the letter that abbreviates them.
    GROUP = 0
    TOPIC = 1
    DEFAULT_TOPIC = 2
    DEFAULT_TOPIC_QUEUES = 3
    QUEUE_ID = 4
    SYS_FLAG = 5
    BORN_TIMESTAMP = 6
    FLAG = 7
    PROPERTIES = 8
    RECONSUME_TIMES = 9
    UNIT_MODE = 10
    MAX_RECONSUME_TIMES = 11
    BATCH = 12
    UNKNOWN = 13
    REQUIRED = 0xFF
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

# Read into when nothing is known yet; given away when there was something, kept when there was not.
cdef SendRun spare = None


# A text in the received bytes. `is_plain`: no escapes in it, and only ASCII.
cdef struct Text:
    const uint8_t* at
    Py_ssize_t size
    bint is_plain


cdef class SendRun:
    """Sends that were received one behind the other."""

    def __dealloc__(self):
        PyMem_Free(self.frames)
        PyMem_Free(self.aside)

    def __repr__(self):
        return f"<SendRun of {self.count}>"

    def start_of(self, int number):
        """Where the frame of a send begins in `data`; IndexError when there is none."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        return self.frames[number].start

    def codes(self, int start, int end):
        """How many of the sends [start, end) there are of each code."""
        cdef int counts[3]
        cdef int number
        counts[0] = counts[1] = counts[2] = 0
        for number in range(max(start, 0), min(end, self.count)):
            if self.frames[number].code == SEND_SHORT:
                counts[0] += 1
            elif self.frames[number].code == SEND_LONG:
                counts[1] += 1
            else:
                counts[2] += 1
        return (SEND_SHORT, counts[0]), (SEND_LONG, counts[1]), (SEND_BATCH, counts[2])

    def facts(self, int number):
        """What was read of a send, for tests."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        cdef const SendFrame* frame = &self.frames[number]
        return {
            "code": frame.code,
            "opaque": frame.opaque,
            "flag": frame.flag,
            "version": frame.version,
            "is_binary": bool(frame.is_binary),
            "is_batch": bool(frame.is_batch),
            "group": frame.group[:frame.group_size],
            "topic": frame.topic[:frame.topic_size],
            "queue_id": frame.queue_id,
            "sys_flag": frame.sys_flag,
            "born_timestamp_ms": frame.born_timestamp_ms,
            "message_flag": frame.message_flag,
            "reconsume_times": frame.reconsume_times,
            "properties": self.properties_of(frame)[:frame.properties_size] if frame.properties_size else b"",
            "body": frame.body[:frame.body_size],
        }

    cdef const uint8_t* properties_of(self, const SendFrame* frame) noexcept:
        return self.aside + frame.properties_at if frame.properties == NULL else frame.properties

    cdef SendFrame* slot(self) except NULL:
        """Room for one more send, all zero."""
        cdef SendFrame* frames
        cdef int capacity
        if self.count == self.capacity:
            capacity = max(16, 2 * self.capacity)
            frames = <SendFrame*> PyMem_Realloc(self.frames, capacity * sizeof(SendFrame))
            if frames == NULL:
                raise MemoryError
            self.frames = frames
            self.capacity = capacity
        memset(&self.frames[self.count], 0, sizeof(SendFrame))
        return &self.frames[self.count]

    cdef uint8_t* room_aside(self, Py_ssize_t size) except NULL:
        """Room for so many bytes behind what is aside already."""
        cdef uint8_t* aside
        cdef Py_ssize_t capacity
        if self.aside_capacity - self.aside_size < size or self.aside == NULL:
            capacity = max(4096, 2 * self.aside_capacity, self.aside_size + size)
            aside = <uint8_t*> PyMem_Realloc(self.aside, capacity)
            if aside == NULL:
                raise MemoryError
            self.aside = aside
            self.aside_capacity = capacity
        return self.aside + self.aside_size


def read_sends(bytes data not None, Py_ssize_t at):
    """The sends that stand at `at` one behind the other, as far as they are whole and usual; None for none."""
    global spare
    cdef const uint8_t* start = <const uint8_t*> PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t size, header_size
    cdef uint32_t word
    cdef SendFrame* frame
    cdef const uint8_t* header
    cdef SendRun run
    cdef bint is_read
    if at < 0:
        raise ValueError("bytes before the first")
    if spare is None:
        run = SendRun.__new__(SendRun)
    else:
        run, spare = spare, None
    while end - at >= 8:
        size = <int32_t> get_u32(start + at)
        word = get_u32(start + at + 4)
        header_size = word & 0xFFFFFF
        if size > FRAME_MAX - 4 or header_size + 4 > size or not 0 < header_size <= HEADER_MAX:
            break
        if size + 4 > end - at:
            break
        header = start + at + 8
        frame = run.slot()
        frame.start = at
        frame.body = header + header_size
        frame.body_size = <int32_t> (size - 4 - header_size)
        if word >> 24 == JSON:
            is_read = read_json(run, frame, header, header + header_size)
        elif word >> 24 == BINARY:
            is_read = read_binary(run, frame, header, header + header_size)
        else:
            is_read = False
        if not is_read or frame.fields & REQUIRED != REQUIRED or frame.flag & IS_RESPONSE:
            break
        if frame.code == SEND_BATCH:
            frame.is_batch = True
        run.count += 1
        at += 4 + size
    if run.count == 0:
        run.aside_size = 0
        spare = run
        return None
    run.data = data
    run.end = at
    return run


cdef bint read_json(SendRun run, SendFrame* frame, const uint8_t* at, const uint8_t* end) except -1:
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
            at = read_json_fields(run, frame, at, end)
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
                if number != SEND_LONG and number != SEND_SHORT and number != SEND_BATCH:
                    return False
                frame.code = <int32_t> number
            elif is_key == SEEN_FLAG:
                frame.flag = <int32_t> number
            elif is_key == SEEN_OPAQUE:
                frame.opaque = <int32_t> number
            else:
                frame.version = <int32_t> number
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


cdef const uint8_t* read_json_fields(SendRun run, SendFrame* frame, const uint8_t* at,
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
        if at == NULL or not take_field(run, frame, &name, &value, True):
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


cdef bint read_binary(SendRun run, SendFrame* frame, const uint8_t* at, const uint8_t* end) except -1:
    cdef Text name, value
    cdef int count = 0
    if end - at < BINARY_FIXED_BYTES:
        return False
    frame.code = get_u16(at)
    frame.version = <int16_t> get_u16(at + 3)
    frame.opaque = <int32_t> get_u32(at + 5)
    frame.flag = <int32_t> get_u32(at + 9)
    frame.is_binary = True
    if frame.code != SEND_LONG and frame.code != SEND_SHORT and frame.code != SEND_BATCH:
        return False
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
        if not name.is_plain or not take_field(run, frame, &name, &value, False):
            return False
        count += 1
    return True


cdef bint take_field(SendRun run, SendFrame* frame, const Text* name, const Text* value, bint is_json) except -1:
    """Note one field; False when it is unusual."""
    cdef int field = short_name(name) if frame.code != SEND_LONG else long_name(name)
    cdef int64_t number = 0
    if field == PROPERTIES:
        if frame.fields & 1 << PROPERTIES:
            return False
        frame.fields |= 1 << PROPERTIES
        return take_properties(run, frame, value, is_json)
    if not value.is_plain:
        return False
    if field == UNKNOWN:
        return True
    if frame.fields & 1 << field:
        return False
    frame.fields |= 1 << field
    if field == GROUP:
        frame.group = value.at
        frame.group_size = <int32_t> value.size
    elif field == TOPIC:
        frame.topic = value.at
        frame.topic_size = <int32_t> value.size
    elif field == BATCH:
        frame.is_batch = value.size == 4 and not memcmp(value.at, b"true", 4) or value.size == 1 and value.at[0] == c"1"
    elif field == DEFAULT_TOPIC or field == UNIT_MODE or field == MAX_RECONSUME_TIMES:
        pass
    elif not read_decimal(value, &number) or number > INT32_MAX and field != BORN_TIMESTAMP:
        return False
    elif field == QUEUE_ID:
        frame.queue_id = <int32_t> number
        return number >= INT32_MIN
    elif field == FLAG:
        frame.message_flag = <int32_t> number
        return number >= INT32_MIN
    elif field == DEFAULT_TOPIC_QUEUES:
        return number >= 1
    elif number < 0:
        return False
    elif field == SYS_FLAG:
        frame.sys_flag = <int32_t> number
    elif field == BORN_TIMESTAMP:
        frame.born_timestamp_ms = number
    else:
        frame.reconsume_times = <int32_t> number
    return True


cdef bint take_properties(SendRun run, SendFrame* frame, const Text* value, bint is_json) except -1:
    cdef uint8_t* target
    cdef const uint8_t* at = value.at
    cdef const uint8_t* end = value.at + value.size
    cdef uint32_t point
    cdef Py_ssize_t size
    if value.is_plain:
        frame.properties = value.at
        frame.properties_size = <int32_t> value.size
        return True
    # Unescaped it is never longer.
    target = run.room_aside(value.size)
    frame.properties = NULL
    frame.properties_at = run.aside_size
    while at < end:
        if at[0] == c"\\" and is_json:
            size = unescape(at, end, &target)
            if size == 0:
                return False
        elif at[0] < 0x80:
            target[0] = at[0]
            target += 1
            size = 1
        else:
            size = decode_point(at, end - at, &point)
            # U+FFFD may stand for bytes that are no UTF-8.
            if point == 0xFFFD:
                return False
            target[0] = at[0]
            target[1] = at[1]
            if size > 2:
                target[2] = at[2]
            if size > 3:
                target[3] = at[3]
            target += size
        at += size
    frame.properties_size = <int32_t> (target - run.aside - run.aside_size)
    run.aside_size += frame.properties_size
    return True


cdef Py_ssize_t unescape(const uint8_t* at, const uint8_t* end, uint8_t** target) noexcept:
    """Write what the escape at `at` stands for; bytes it takes, 0 when it is unusual."""
    cdef uint8_t* out = target[0]
    cdef int point = 0
    cdef int digit, number
    if end - at < 2:
        return 0
    if at[1] != c"u":
        if at[1] == c'"' or at[1] == c"\\" or at[1] == c"/":
            out[0] = at[1]
        elif at[1] == c"b":
            out[0] = 8
        elif at[1] == c"f":
            out[0] = 12
        elif at[1] == c"n":
            out[0] = 10
        elif at[1] == c"r":
            out[0] = 13
        elif at[1] == c"t":
            out[0] = 9
        else:
            return 0
        target[0] = out + 1
        return 2
    if end - at < 6:
        return 0
    for number in range(2, 6):
        digit = hex_digit(at[number])
        if digit < 0:
            return 0
        point = point * 16 + digit
    if point < 0x80:
        out[0] = <uint8_t> point
        target[0] = out + 1
    elif point < 0x800:
        out[0] = <uint8_t> (0xC0 | point >> 6)
        out[1] = <uint8_t> (0x80 | point & 0x3F)
        target[0] = out + 2
    elif 0xD800 <= point < 0xE000:
        # Half of a character.
        return 0
    else:
        out[0] = <uint8_t> (0xE0 | point >> 12)
        out[1] = <uint8_t> (0x80 | point >> 6 & 0x3F)
        out[2] = <uint8_t> (0x80 | point & 0x3F)
        target[0] = out + 3
    return 6


cdef inline int hex_digit(uint8_t character) noexcept:
    if c"0" <= character <= c"9":
        return character - c"0"
    character |= 0x20
    return character - c"a" + 10 if c"a" <= character <= c"f" else -1


cdef inline const uint8_t* skip_space(const uint8_t* at, const uint8_t* end) noexcept:
    while at < end and (at[0] == c" " or at[0] == c"\n" or at[0] == c"\t" or at[0] == c"\r"):
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
    """The text as a number if it is decimal digits, perhaps with a minus, and nothing else."""
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


cdef inline bint is_text(const Text* text, const char* word, Py_ssize_t size) noexcept:
    return text.size == size and not memcmp(text.at, word, size)


cdef int json_key(const Text* key) noexcept:
    """The bit of a key of the JSON header, 0 for one that is not known."""
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


cdef inline int short_name(const Text* name) noexcept:
    if name.size == 1 and c"a" <= name.at[0] <= c"m":
        return name.at[0] - c"a"
    return UNKNOWN


cdef int long_name(const Text* name) noexcept:
    if is_text(name, b"producerGroup", 13):
        return GROUP
    if is_text(name, b"topic", 5):
        return TOPIC
    if is_text(name, b"defaultTopic", 12):
        return DEFAULT_TOPIC
    if is_text(name, b"defaultTopicQueueNums", 21):
        return DEFAULT_TOPIC_QUEUES
    if is_text(name, b"queueId", 7):
        return QUEUE_ID
    if is_text(name, b"sysFlag", 7):
        return SYS_FLAG
    if is_text(name, b"bornTimestamp", 13):
        return BORN_TIMESTAMP
    if is_text(name, b"flag", 4):
        return FLAG
    if is_text(name, b"properties", 10):
        return PROPERTIES
    if is_text(name, b"reconsumeTimes", 14):
        return RECONSUME_TIMES
    if is_text(name, b"unitMode", 8):
        return UNIT_MODE
    if is_text(name, b"maxReconsumeTimes", 17):
        return MAX_RECONSUME_TIMES
    if is_text(name, b"batch", 5):
        return BATCH
    return UNKNOWN
