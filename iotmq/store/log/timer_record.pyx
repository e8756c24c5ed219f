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
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint16_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy

from iotmq.message.records.layout cimport (
    ELEMENT_FIXED_BYTES, SYS_FLAG_TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, put_u16, put_u32,
)
from iotmq.message.records.fields cimport FORMAT_OK
from iotmq.message.records.record cimport find_property, parse_record, tags_code
from iotmq.message.records.text cimport mixed_hash

from iotmq.message.records.record import problem_text

cdef enum:
    KIND_SHIFT = 54
    USUAL_LEVELS = 18
    DIGITS_MAX = 18

cdef int64_t[USUAL_LEVELS] usual_delays_ms = [
    1000, 5000, 10000, 30000, 60000, 120000, 180000, 240000, 300000, 360000, 420000, 480000, 540000, 600000,
    1200000, 1800000, 3600000, 7200000,
]

USUAL_DELAYS_MS = tuple(usual_delays_ms)
DELAY_LEVELS_MAX = LEVELS_MAX
WAITING_TOPICS = frozenset(("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"))
DUE_MS_MAX = 999_999_999_999_999_999


def mark_of(int64_t position, int kind):
    """Return the prepared transaction position of a record that ends the waiting of the one at `position`."""
    if not 0 <= position < <int64_t> 1 << KIND_SHIFT or not 0 <= kind <= LEVELS_MAX:
        raise ValueError(f"no mark for position {position} of kind {kind}")
    return ~(<int64_t> kind << KIND_SHIFT | position)


def due_time(buffer):
    """(kind, due in ms since 1970) of the record in `buffer`: 0 or the delay level; None when it waits for nothing."""
    cdef Py_buffer view
    cdef RecordParts parts
    cdef int kind
    cdef int64_t due_ms
    hold_record(buffer, &view, &parts)
    try:
        kind = timer_kind(&parts, &due_ms)
    finally:
        PyBuffer_Release(&view)
    return None if kind == NO_TIMER else (kind, due_ms)


def record_tags_code(buffer):
    """Return the tags code of the queue entry for the record in `buffer`."""
    cdef Py_buffer view
    cdef RecordParts parts
    hold_record(buffer, &view, &parts)
    try:
        return entry_tags_code(&parts)
    finally:
        PyBuffer_Release(&view)


def name_hash(bytes topic not None, bytes unique_key not None):
    """Hash `topic` and unique key to find waiting messages by; 0 for an empty key."""
    return hash_name(
        <const uint8_t*> PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic),
        <const uint8_t*> PyBytes_AS_STRING(unique_key), PyBytes_GET_SIZE(unique_key),
    )


def is_for(buffer, bytes topic not None, bytes unique_key not None):
    """Return whether the record in `buffer` waits for that topic and has that unique key. Copies nothing."""
    cdef Py_buffer view
    cdef RecordParts parts
    cdef const uint8_t* value
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if parse_record(<const uint8_t*> view.buf, <const uint8_t*> view.buf + view.len, &parts) != FORMAT_OK:
            return False
        for name, wanted in ((b"REAL_TOPIC", topic), (b"UNIQ_KEY", unique_key)):
            size = find_property(
                parts.properties, parts.properties_size, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), &value
            )
            if size < 0 or value[:size] != wanted:
                return False
        return True
    finally:
        PyBuffer_Release(&view)


cdef class RestoredMessage:
    """Restore a waiting record's message: all that an append needs."""

    cdef readonly str topic                  # as in REAL_TOPIC; empty when that is missing
    cdef readonly int queue_id               # as in REAL_QID; -1 when that is missing or no number
    cdef readonly bytes element              # a batch of one: body, flag, and the properties that stay
    cdef readonly int64_t born_timestamp_ms
    cdef readonly bytes born_host
    cdef readonly int sys_flag               # without the bits of a transaction
    cdef readonly int reconsume_times


def restored_message(buffer, bint has_own_time):
    """Return the message that waits in the record in `buffer`, without what was only there for it to wait.

    With `has_own_time` it keeps TIMER_OUT_MS, of a level DELAY, REAL_TOPIC and REAL_QID. Raises ValueError
    for what is no record.
    """
    cdef Py_buffer view
    cdef RecordParts parts
    hold_record(buffer, &view, &parts)
    try:
        return restore_message(&parts, has_own_time)
    finally:
        PyBuffer_Release(&view)


cdef int hold_record(buffer, Py_buffer* view, RecordParts* parts) except -1:
    """The parts of the record in `buffer`, there until the caller releases `view`; ValueError for no record."""
    cdef int problem
    PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE)
    problem = parse_record(<const uint8_t*> view.buf, <const uint8_t*> view.buf + view.len, parts)
    if problem != FORMAT_OK:
        PyBuffer_Release(view)
        raise ValueError(problem_text(problem))
    return 0


cdef RestoredMessage restore_message(const RecordParts* parts, bint has_own_time):
    cdef RestoredMessage message = RestoredMessage.__new__(RestoredMessage)
    cdef const uint8_t* value
    cdef int64_t number = -1
    cdef Py_ssize_t size = find_property(parts.properties, parts.properties_size, "REAL_TOPIC", 10, &value)
    message.topic = value[:size].decode("utf-8", "replace") if size > 0 else ""
    size = find_property(parts.properties, parts.properties_size, "REAL_QID", 8, &value)
    message.queue_id = -1
    if read_number(value, size, &number) and number <= 0x7FFFFFFF:
        message.queue_id = <int> number
    message.element = make_element(parts, has_own_time)
    message.born_timestamp_ms = parts.born_timestamp_ms
    message.born_host = parts.born_host[:parts.born_host_size]
    message.sys_flag = parts.sys_flag & ~SYS_FLAG_TRANSACTION_MASK
    message.reconsume_times = parts.reconsume_times
    return message


cdef bytes make_element(const RecordParts* parts, bint has_own_time):
    """size 4 | magic 4 | CRC 4 | flag 4 | body size 4 | body | properties size 2 | properties"""
    cdef Py_ssize_t properties_size = kept_properties(parts, has_own_time, NULL)
    cdef Py_ssize_t size = ELEMENT_FIXED_BYTES + parts.body_size + properties_size
    cdef bytes element = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* at = <uint8_t*> PyBytes_AS_STRING(element)
    put_u32(at, <uint32_t> size)
    put_u32(at + 4, 0)
    put_u32(at + 8, 0)
    put_u32(at + 12, <uint32_t> parts.flag)
    put_u32(at + 16, <uint32_t> parts.body_size)
    memcpy(at + 20, parts.body, parts.body_size)
    at += 20 + parts.body_size
    put_u16(at, <uint16_t> properties_size)
    kept_properties(parts, has_own_time, at + 2)
    return element


cdef Py_ssize_t kept_properties(const RecordParts* parts, bint has_own_time, uint8_t* target) noexcept nogil:
    """Copy the properties that stay to `target`, a separator between them; NULL only counts the bytes."""
    cdef const uint8_t* at = parts.properties
    cdef const uint8_t* end = at + parts.properties_size
    cdef const uint8_t* stop
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t size
    while at < end:
        stop = <const uint8_t*> memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        size = stop - at
        if size and not is_for_waiting(at, size, has_own_time):
            if total:
                if target != NULL:
                    target[total] = 2
                total += 1
            if target != NULL:
                memcpy(target + total, at, size)
            total += size
        at = stop + 1
    return total


cdef bint is_for_waiting(const uint8_t* pair, Py_ssize_t size, bint has_own_time) noexcept nogil:
    """Return whether a property says when and where to; its sender may have given it, it is carried out now.

    Those of a delay level stay, as in the original: consumers see how long a message has waited.
    """
    if pair[0] == c"D":
        return has_own_time and is_named(pair, size, "DELAY\x01", 6)
    if pair[0] == c"R":
        if not has_own_time:
            return False
        return is_named(pair, size, "REAL_TOPIC\x01", 11) or is_named(pair, size, "REAL_QID\x01", 9)
    if pair[0] == c"M":
        # Noted when the message came; its sender has the packet id for other messages by now.
        return is_named(pair, size, "MQTT_PACKET_ID\x01", 15)
    if pair[0] != c"T" or not is_named(pair, size, "TIMER_", 6):
        return False
    if is_named(pair, size, "TIMER_OUT_MS\x01", 13):
        return not has_own_time
    return (
        is_named(pair, size, "TIMER_DELAY_SEC\x01", 16)
        or is_named(pair, size, "TIMER_DELAY_MS\x01", 15)
        or is_named(pair, size, "TIMER_DELIVER_MS\x01", 17)
        or is_named(pair, size, "TIMER_ROLL_TIMES\x01", 17)
    )


cdef inline bint is_named(const uint8_t* pair, Py_ssize_t size, const char* name, Py_ssize_t name_size) noexcept nogil:
    return size >= name_size and memcmp(pair, name, name_size) == 0


cdef int timer_kind(const RecordParts* parts, int64_t* due_ms) noexcept nogil:
    cdef const uint8_t* value
    cdef Py_ssize_t size
    cdef int transaction
    if parts.topic_size != TIMER_NAME_BYTES:
        return NO_TIMER
    if parts.topic[0] == c"S":
        if memcmp(parts.topic, "SCHEDULE_TOPIC_XXXX", TIMER_NAME_BYTES) != 0:
            return NO_TIMER
        if not 0 <= parts.queue_id < LEVELS_MAX:
            return NO_TIMER
    elif parts.topic[0] != c"r" or memcmp(parts.topic, "rmq_sys_wheel_timer", TIMER_NAME_BYTES) != 0:
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
        parts.topic_size == TIMER_NAME_BYTES
        and parts.topic[0] == c"S"
        and memcmp(parts.topic, "SCHEDULE_TOPIC_XXXX", TIMER_NAME_BYTES) == 0
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
    """Return whether the text is a number of ASCII digits alone, not too many of them."""
    cdef Py_ssize_t index
    if size <= 0 or size > DIGITS_MAX:
        return False
    number[0] = 0
    for index in range(size):
        if at[index] < c"0" or at[index] > c"9":
            return False
        number[0] = number[0] * 10 + (at[index] - c"0")
    return True


cdef uint64_t hash_name(const uint8_t* topic, Py_ssize_t topic_size, const uint8_t* key,
        Py_ssize_t size) noexcept nogil:
    """Stored, so it must stay what it is. Equal hashes cost a look at one more record, nothing else."""
    cdef uint64_t hash
    if size <= 0:
        return 0
    hash = mixed_hash(mixed_hash(<uint64_t> 0x9E3779B97F4A7C15, topic, topic_size), key, size)
    return hash if hash else 1
