"""Records that wait for a time: when they are due, and how one is marked as done.

Two topics hold them, as the RocketMQ wire format says. A message of a delay level is in SCHEDULE_TOPIC_XXXX,
queue = level - 1, and is due so long after its store time as the level says; with the usual eighteen levels
nothing in the record says how long that is, so where a broker has others the record has TIMER_OUT_MS, too.
A message for any other time is in rmq_sys_wheel_timer with TIMER_OUT_MS, milliseconds since 1970.

A record that ends the waiting of another (its delivery, its cancellation, its copy farther on in the log)
carries a *mark* in its prepared transaction position, which senders cannot set: the complement of
`kind << 54 | position` of the other, and so negative, which it is for nothing else.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcmp, memcpy

from iotmq.message.layout cimport SYS_FLAG_TRANSACTION_MASK
from iotmq.message.record cimport FORMAT_OK, find_property, parse_record, tags_code

from iotmq.message.record import problem_text

cdef enum:
    TRANSACTION_PREPARED = 4
    TRANSACTION_ROLLBACK = 12
    # Both topics' names.
    NAME_BYTES = 19
    KIND_SHIFT = 54
    USUAL_LEVELS = 18
    DIGITS_MAX = 18

cdef int64_t[USUAL_LEVELS] usual_delays_ms = [
    1000, 5000, 10000, 30000, 60000, 120000, 180000, 240000, 300000, 360000, 420000, 480000, 540000, 600000,
    1200000, 1800000, 3600000, 7200000,
]

USUAL_DELAYS_MS = tuple(usual_delays_ms)
DELAY_LEVELS_MAX = LEVELS_MAX
DUE_MS_MAX = 999_999_999_999_999_999


def mark_of(int64_t position, int kind):
    """The prepared transaction position of a record that ends the waiting of the one at `position`."""
    if not 0 <= position < <int64_t> 1 << KIND_SHIFT or not 0 <= kind <= LEVELS_MAX:
        raise ValueError(f"no mark for position {position} of kind {kind}")
    return ~(<int64_t> kind << KIND_SHIFT | position)


def marked_by(int64_t mark):
    """(position, kind) of the record that a mark stands for; None for a number that is no mark."""
    if mark >= 0:
        return None
    mark = ~mark
    return mark & ((<int64_t> 1 << KIND_SHIFT) - 1), mark >> KIND_SHIFT


def due_time(buffer):
    """(kind, due in ms since 1970) of the record in `buffer`: 0 or the delay level; None when it waits for nothing."""
    cdef Py_buffer view
    cdef RecordParts parts
    cdef int problem, kind
    cdef int64_t due_ms
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        problem = parse_record(<const uint8_t*> view.buf, <const uint8_t*> view.buf + view.len, &parts)
        if problem != FORMAT_OK:
            raise ValueError(problem_text(problem))
        kind = timer_kind(&parts, &due_ms)
    finally:
        PyBuffer_Release(&view)
    return None if kind == NO_TIMER else (kind, due_ms)


def record_tags_code(buffer):
    """What the queue entry of the record in `buffer` has as tags code."""
    cdef Py_buffer view
    cdef RecordParts parts
    cdef int problem
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        problem = parse_record(<const uint8_t*> view.buf, <const uint8_t*> view.buf + view.len, &parts)
        if problem != FORMAT_OK:
            raise ValueError(problem_text(problem))
        return entry_tags_code(&parts)
    finally:
        PyBuffer_Release(&view)


def name_hash(bytes topic not None, bytes unique_key not None):
    """What waiting messages for `topic` with that unique key are found by; 0 for an empty key."""
    return hash_name(
        <const uint8_t*> PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic),
        <const uint8_t*> PyBytes_AS_STRING(unique_key), PyBytes_GET_SIZE(unique_key),
    )


cdef int timer_kind(const RecordParts* parts, int64_t* due_ms) noexcept nogil:
    cdef const uint8_t* value
    cdef Py_ssize_t size
    cdef int transaction
    if parts.topic_size != NAME_BYTES:
        return NO_TIMER
    if parts.topic[0] == c"S":
        if memcmp(parts.topic, "SCHEDULE_TOPIC_XXXX", NAME_BYTES) != 0:
            return NO_TIMER
        if not 0 <= parts.queue_id < LEVELS_MAX:
            return NO_TIMER
    elif parts.topic[0] != c"r" or memcmp(parts.topic, "rmq_sys_wheel_timer", NAME_BYTES) != 0:
        return NO_TIMER
    transaction = parts.sys_flag & SYS_FLAG_TRANSACTION_MASK
    if transaction == TRANSACTION_PREPARED or transaction == TRANSACTION_ROLLBACK:
        return NO_TIMER
    if parts.topic[0] == c"S":
        due_ms[0] = level_due_ms(parts)
        return parts.queue_id + 1
    if find_property(parts.properties, parts.properties_size, "TIMER_DEL_UNIQKEY", 17, &value) >= 0:
        return NO_TIMER
    size = find_property(parts.properties, parts.properties_size, "TIMER_OUT_MS", 12, &value)
    return ANY_TIME if read_number(value, size, due_ms) else NO_TIMER


cdef int64_t entry_tags_code(const RecordParts* parts) noexcept nogil:
    cdef const uint8_t* value
    if (
        parts.topic_size == NAME_BYTES
        and parts.topic[0] == c"S"
        and memcmp(parts.topic, "SCHEDULE_TOPIC_XXXX", NAME_BYTES) == 0
        and find_property(parts.properties, parts.properties_size, "DELAY", 5, &value) > 0
    ):
        return level_due_ms(parts)
    return tags_code(parts.properties, parts.properties_size)


cdef uint64_t timer_name(const RecordParts* parts) noexcept nogil:
    cdef const uint8_t* topic
    cdef const uint8_t* unique_key
    cdef Py_ssize_t topic_size = find_property(parts.properties, parts.properties_size, "REAL_TOPIC", 10, &topic)
    cdef Py_ssize_t size = find_property(parts.properties, parts.properties_size, "UNIQ_KEY", 8, &unique_key)
    return hash_name(topic, max(topic_size, <Py_ssize_t> 0), unique_key, max(size, <Py_ssize_t> 0))


cdef int64_t level_due_ms(const RecordParts* parts) noexcept nogil:
    cdef const uint8_t* value
    cdef int64_t number = 0
    cdef Py_ssize_t size = find_property(parts.properties, parts.properties_size, "TIMER_OUT_MS", 12, &value)
    if size > 0 and read_number(value, size, &number):
        return number
    size = find_property(parts.properties, parts.properties_size, "DELAY", 5, &value)
    if size <= 0 or not read_number(value, size, &number) or number == 0:
        return parts.store_timestamp_ms
    return parts.store_timestamp_ms + usual_delays_ms[min(number, <int64_t> USUAL_LEVELS) - 1]


cdef bint read_number(const uint8_t* at, Py_ssize_t size, int64_t* number) noexcept nogil:
    """Whether the text is a number of ASCII digits alone, not too many of them."""
    cdef Py_ssize_t index
    if size <= 0 or size > DIGITS_MAX:
        return False
    number[0] = 0
    for index in range(size):
        if at[index] < c"0" or at[index] > c"9":
            return False
        number[0] = number[0] * 10 + (at[index] - c"0")
    return True


cdef uint64_t hash_name(const uint8_t* topic, Py_ssize_t topic_size, const uint8_t* key, Py_ssize_t size) noexcept nogil:
    """Stored, so it must stay what it is. Equal hashes cost a look at one more record, nothing else."""
    cdef uint64_t hash
    if size <= 0:
        return 0
    hash = mixed(key, size, mixed(topic, topic_size, <uint64_t> 0x9E3779B97F4A7C15))
    return hash if hash else 1


cdef uint64_t mixed(const uint8_t* text, Py_ssize_t size, uint64_t hash) noexcept nogil:
    """Eight bytes a step."""
    cdef uint64_t part
    hash ^= <uint64_t> size * <uint64_t> 0xC4CEB9FE1A85EC53
    while size >= 8:
        memcpy(&part, text, 8)
        hash = (hash ^ part) * <uint64_t> 0xFF51AFD7ED558CCD
        hash ^= hash >> 32
        text += 8
        size -= 8
    part = 0
    while size:
        part = (part << 8) | text[0]
        text += 1
        size -= 1
    hash = (hash ^ part) * <uint64_t> 0xFF51AFD7ED558CCD
    return hash ^ (hash >> 29)
