"""Read the numbers of numbered batches, in properties and in the log.

The first message of such a batch has the property BATCH_NUMBER:

    PRODUCER BATCH NUMBER SKIPPED COUNT QUEUES

in decimal, and one space between them. PRODUCER and QUEUES are the sender's words. SKIPPED is how many messages of
the batch stand before this one: 0, or what was there when the rest of it was stored. COUNT is how many it has.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memchr, memcmp

from iotmq.message.records.device_topic cimport is_brokers_own
from iotmq.message.records.fields cimport RecordParts
from iotmq.message.records.record cimport find_property
from iotmq.message.records.record_walk cimport RecordWalk, begin_walk, check_walk, end_walk, next_record

from iotmq.broker.tables.topics import SCHEDULE_TOPIC, TIMER_TOPIC

cdef bytes _TIMER_TOPIC = TIMER_TOPIC.encode()
cdef bytes _SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()

cdef enum:
    PRODUCER_BYTES_MAX = 200
    NUMBER_BITS = 27
    BATCH_BITS = 36
    COUNT_MAX = 65536

cdef struct BatchMark:
    const uint8_t* producer
    Py_ssize_t producer_size
    # The batch in the upper bits, the number in the lower.
    uint64_t number
    uint64_t skipped
    uint64_t count
    const uint8_t* queues
    Py_ssize_t queues_size


def read_mark(properties not None):
    """Return (producer, number, skipped, count, queues); None without a valid BATCH_NUMBER."""
    cdef Py_buffer buffer
    cdef BatchMark mark
    PyObject_GetBuffer(properties, &buffer, PyBUF_SIMPLE)
    try:
        if not find_mark(<const uint8_t*> buffer.buf, buffer.len, &mark):
            return None
        return (
            mark.producer[:mark.producer_size], mark.number, mark.skipped, mark.count,
            mark.queues[:mark.queues_size],
        )
    finally:
        PyBuffer_Release(&buffer)


def collect_numbers(view, on_numbered not None):
    """Call `on_numbered(key, position, number, skipped)` for each record with a valid BATCH_NUMBER.

    The key is the topic, 0x00 and the producer. Records in the brokers' own topics are copies of records seen
    before, and are passed over. Those that wait for their time are not: they come there first. Raises
    StoreCorruptError when `view` is not made of whole records.
    """
    cdef RecordWalk walk
    begin_walk(&walk, view)
    try:
        _collect(&walk, on_numbered)
    finally:
        end_walk(&walk)
    check_walk(&walk)


cdef int _collect(RecordWalk* walk, on_numbered) except -1:
    cdef RecordParts parts
    cdef BatchMark mark
    cdef const uint8_t* topic
    cdef Py_ssize_t topic_size
    while next_record(walk, &parts):
        topic = parts.topic
        topic_size = parts.topic_size
        if is_brokers_own(topic, topic_size):
            if not is_waiting(topic, topic_size):
                continue
            topic_size = find_property(parts.properties, parts.properties_size, "REAL_TOPIC", 10, &topic)
            if topic_size <= 0:
                continue
        if find_mark(parts.properties, parts.properties_size, &mark):
            on_numbered(
                topic[:topic_size] + b"\0" + mark.producer[:mark.producer_size],
                parts.position, mark.number, mark.skipped,
            )
    return 0


cdef bint is_waiting(const uint8_t* topic, Py_ssize_t size) noexcept:
    return (
        size == len(_TIMER_TOPIC) and memcmp(topic, <const char*> _TIMER_TOPIC, size) == 0
        or size == len(_SCHEDULE_TOPIC) and memcmp(topic, <const char*> _SCHEDULE_TOPIC, size) == 0
    )


cdef bint find_mark(const uint8_t* properties, Py_ssize_t size, BatchMark* out) noexcept:
    """Return whether there is a BATCH_NUMBER that is one."""
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef const uint8_t* space
    cdef uint64_t batch
    cdef Py_ssize_t value_size = find_property(properties, size, "BATCH_NUMBER", 12, &at)
    if value_size <= 0:
        return False
    end = at + value_size
    space = <const uint8_t*> memchr(at, c" ", value_size)
    if space == NULL or space == at or space - at > PRODUCER_BYTES_MAX or memchr(at, 0, space - at) != NULL:
        return False
    out.producer = at
    out.producer_size = space - at
    at = space
    if not (
        read_number(&at, end, &batch) and read_number(&at, end, &out.number)
        and read_number(&at, end, &out.skipped) and read_number(&at, end, &out.count)
    ):
        return False
    if batch >> BATCH_BITS or out.number >> NUMBER_BITS or out.count > COUNT_MAX or out.skipped >= out.count:
        return False
    out.number |= batch << NUMBER_BITS
    if at < end and at[0] != c" ":
        return False
    out.queues = at + 1 if at < end else at
    out.queues_size = end - out.queues
    return True


cdef bint read_number(const uint8_t** at, const uint8_t* end, uint64_t* out) noexcept:
    """Read a space and a number of 1 to 11 digits."""
    cdef const uint8_t* here = at[0]
    cdef const uint8_t* start
    if here == end or here[0] != c" ":
        return False
    here += 1
    start = here
    out[0] = 0
    while here < end and c"0" <= here[0] <= c"9" and here - start < 11:
        out[0] = out[0] * 10 + (here[0] - c"0")
        here += 1
    at[0] = here
    return here > start
