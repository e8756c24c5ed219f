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
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy, memset

from iotmq.message.records.text cimport decode_point
from iotmq.remoting.frames.frame_header cimport Head, Text, is_text, read_decimal, read_head

from iotmq.limits import GROUP_BYTES_MAX, TOPIC_BYTES_MAX

cdef enum:
    SEND_LONG = 10
    SEND_SHORT = 310
    SEND_BATCH = 320
    IS_RESPONSE = 1
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

# Longer names are refused by the general path.
cdef Py_ssize_t GROUP_SIZE_MAX = GROUP_BYTES_MAX
cdef Py_ssize_t TOPIC_SIZE_MAX = TOPIC_BYTES_MAX

cdef int64_t INT32_MIN = -(2**31)
cdef int64_t INT32_MAX = 2**31 - 1

# Read into when nothing is known yet; given away when there was something, kept when there was not.
cdef SendRun spare = None


# What a field is noted in.
cdef struct Reading:
    void* run
    SendFrame* frame


cdef class SendRun:
    """Sends that were received one behind the other."""

    def __dealloc__(self):
        PyMem_Free(self.frames)
        PyMem_Free(self.aside)

    def __repr__(self):
        return f"<SendRun of {self.count}>"

    def start_of(self, int number):
        """Return where the frame of a send begins in `data`; IndexError when there is none."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        return self.frames[number].start

    def codes(self, int start, int end):
        """Return how many of the sends [start, end) there are of each code."""
        cdef int counts[3]
        cdef int number
        cdef int code
        start, end = max(start, 0), min(end, self.count)
        if start >= end:
            return ()
        code = self.frames[start].code
        number = start + 1
        while number < end and self.frames[number].code == code:
            number += 1
        if number == end:
            # As most runs are.
            return ((code, end - start),)
        counts[0] = counts[1] = counts[2] = 0
        for number in range(start, end):
            if self.frames[number].code == SEND_SHORT:
                counts[0] += 1
            elif self.frames[number].code == SEND_LONG:
                counts[1] += 1
            else:
                counts[2] += 1
        return (SEND_SHORT, counts[0]), (SEND_LONG, counts[1]), (SEND_BATCH, counts[2])

    def facts(self, int number):
        """Return the fields that were read of a send, for tests."""
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
    """Return the sends that stand at `at` one behind the other, as far as they are whole and usual; None for none."""
    global spare
    cdef const uint8_t* start = <const uint8_t*> PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data)
    cdef Head head
    cdef Reading reading
    cdef SendFrame* frame
    cdef SendRun run
    if at < 0:
        raise ValueError("bytes before the first")
    if spare is None:
        run = SendRun.__new__(SendRun)
    else:
        run, spare = spare, None
    reading.run = <void*> run
    run.allowed = -1
    while end - at >= 8:
        reading.frame = frame = run.slot()
        if not read_head(start, at, end, &head, note_field, &reading):
            break
        if frame.fields & REQUIRED != REQUIRED or head.flag & IS_RESPONSE:
            break
        frame.start = at
        frame.body = head.body
        frame.body_size = head.body_size
        frame.code = head.code
        frame.opaque = head.opaque
        frame.flag = head.flag
        frame.version = head.version
        frame.is_binary = head.is_binary
        if frame.code == SEND_BATCH:
            frame.is_batch = True
        run.count += 1
        at = head.end
    if run.count == 0:
        run.aside_size = 0
        spare = run
        return None
    run.data = data
    run.end = at
    return run


cdef bint note_field(void* context, const Head* head, const Text* name, const Text* value) except -1:
    """Note one field; False when it is unusual."""
    cdef SendRun run = <SendRun> (<Reading*> context).run
    cdef SendFrame* frame = (<Reading*> context).frame
    cdef int field
    if head.code == SEND_LONG:
        field = long_name(name)
    elif head.code == SEND_SHORT or head.code == SEND_BATCH:
        field = short_name(name)
    else:
        return False
    cdef int64_t number = 0
    if field == PROPERTIES:
        if frame.fields & 1 << PROPERTIES:
            return False
        frame.fields |= 1 << PROPERTIES
        return note_properties(run, frame, value, not head.is_binary)
    if not value.is_plain:
        return False
    if field == UNKNOWN:
        # What may be stored already is looked for by the general path.
        return not (
            is_text(name, b"isRepeat", 8) or is_text(name, b"hasPacketIds", 12) or is_text(name, b"isNumbered", 10)
        )
    if frame.fields & 1 << field:
        return False
    frame.fields |= 1 << field
    if field == GROUP:
        if value.size > GROUP_SIZE_MAX:
            return False
        frame.group = value.at
        frame.group_size = <int32_t> value.size
    elif field == TOPIC:
        frame.topic = value.at
        frame.topic_size = <int32_t> value.size
    elif field == BATCH:
        frame.is_batch = value.size == 4 and not memcmp(value.at, b"true", 4) or value.size == 1 and value.at[0] == c"1"
    elif field == DEFAULT_TOPIC:
        return value.size <= TOPIC_SIZE_MAX
    elif field == UNIT_MODE or field == MAX_RECONSUME_TIMES:
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


cdef bint note_properties(SendRun run, SendFrame* frame, const Text* value, bint is_json) except -1:
    cdef Py_ssize_t size
    if value.is_plain:
        frame.properties = value.at
        frame.properties_size = <int32_t> value.size
        return True
    size = put_text(run.room_aside(value.size), value, is_json)
    if size < 0:
        return False
    frame.properties = NULL
    frame.properties_at = run.aside_size
    frame.properties_size = <int32_t> size
    run.aside_size += size
    return True


cdef Py_ssize_t put_text(uint8_t* target, const Text* value, bint is_json) noexcept:
    cdef uint8_t* start = target
    cdef const uint8_t* at = value.at
    cdef const uint8_t* end = value.at + value.size
    cdef uint32_t point
    cdef Py_ssize_t size
    if value.is_plain:
        memcpy(target, at, value.size)
        return value.size
    while at < end:
        if at[0] == c"\\" and is_json:
            size = unescape(at, end, &target)
            if size == 0:
                return -1
        elif at[0] < 0x80:
            target[0] = at[0]
            target += 1
            size = 1
        else:
            size = decode_point(at, end - at, &point)
            # U+FFFD may stand for bytes that are no UTF-8.
            if point == 0xFFFD:
                return -1
            memcpy(target, at, size)
            target += size
        at += size
    return target - start


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
