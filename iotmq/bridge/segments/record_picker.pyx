"""Records of wanted queues out of a mapped CommitLog file, run by run, ready to become columns.

Operations: one look at every record of a file, whoever's it is; a copy of those that are wanted only where
others stand between them. Goal: half the cost of the columns made of them. Plan: the record's own proof (CRC,
position), then a look into a table of queues, where somebody is asked once per queue what of it is wanted.

A record *stands* where lengths add up and its own position is right. One that stands but does not prove itself
is damaged alone; where none stands, bytes up to the next one that proves itself are.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from iotmq.message.records.fields cimport FORMAT_OK, RecordParts, parse_fields
from iotmq.message.records.layout cimport (
    AT_MAGIC, AT_SIZE, BLANK_BYTES, BLANK_MAGIC, RECORD_FIXED_BYTES, SYS_FLAG_TRANSACTION_MASK,
    TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, get_u32,
)
from iotmq.message.records.record cimport body_crc
from iotmq.message.records.text cimport mixed_hash
from iotmq.message.records.time_to_live cimport has_expired
from iotmq.store.log.resync cimport find_blank, find_record, proves_itself

from iotmq.errors import StoreError

cdef enum:
    SLOTS_MIN = 64

cdef uint64_t KEY_STEP = <uint64_t> 0x9E3779B97F4A7C15


cdef class RecordPicker:
    """Picks what `decide(topic, queue_id)` wants.

    That returns None for nothing, or (position, first offset, end offset, first ms, end ms): records at or
    behind the position, whose offset and store time lie in these ranges, ends not included. It is asked once
    per queue; StoreError for more than `queues_max` of them. Records whose time to live was over at
    `expired_at_ms` are passed over; none are with 0.
    """

    cdef object _decide
    cdef list _names                    # owns the bytes that spans point to
    cdef QueueSpan* _slots              # open addressing over (topic, queue id); free where topic is NULL
    cdef Py_ssize_t _slot_count         # a power of two
    cdef Py_ssize_t _queues_max
    cdef int64_t _expired_at_ms

    def __cinit__(self, decide, *, Py_ssize_t queues_max=1_000_000, int64_t expired_at_ms=0):
        self._decide = decide
        self._expired_at_ms = expired_at_ms
        self._names = []
        self._queues_max = queues_max
        self._slots = <QueueSpan*> PyMem_Calloc(SLOTS_MIN, sizeof(QueueSpan))
        if self._slots == NULL:
            raise MemoryError
        self._slot_count = SLOTS_MIN

    def __dealloc__(self):
        PyMem_Free(self._slots)

    def pick(self, file, Py_ssize_t at, Py_ssize_t limit, *, int64_t start_position, Py_ssize_t bytes_max,
             bytearray room not None):
        """(records, next byte, whether it stopped there): the wanted ones that start in [at, limit) of `file`.

        Ends early once they are `bytes_max` long, or stops at bytes that are no record that proves itself. The
        records are a view of `file`, or of `room` (at least `bytes_max`), valid until the next call.
        """
        cdef Py_buffer view
        cdef RecordParts parts
        cdef const uint8_t* start
        cdef const uint8_t* here
        cdef const uint8_t* end
        cdef const uint8_t* stop
        cdef uint8_t* copies = <uint8_t*> room
        cdef QueueSpan* span = NULL
        # The wanted records are those of [run, run + run_size), none copied yet, or else `copied` bytes of copies.
        cdef const uint8_t* run = NULL
        cdef Py_ssize_t run_size = 0
        cdef Py_ssize_t copied = 0
        cdef bint is_stopped = False
        cdef int transaction
        if len(room) < bytes_max:
            raise ValueError("no room for the records")
        PyObject_GetBuffer(file, &view, PyBUF_SIMPLE)
        try:
            start = <const uint8_t*> view.buf
            here = start + at
            end = start + view.len
            if not 0 <= at <= limit <= view.len:
                raise ValueError(f"bytes {at}..{limit} of {view.len}")
            stop = start + limit
            while here < stop:
                if not proves_itself(here, end, start_position + (here - start), &parts):
                    is_stopped = True
                    break
                transaction = parts.sys_flag & SYS_FLAG_TRANSACTION_MASK
                if transaction == TRANSACTION_PREPARED or transaction == TRANSACTION_ROLLBACK:
                    here += parts.size
                    continue
                if span == NULL or not is_of(span, &parts):
                    span = self.span_of(&parts)
                if not is_wanted(span, &parts) or self._expired_at_ms and has_expired(&parts, self._expired_at_ms):
                    here += parts.size
                    continue
                if copied + run_size + parts.size > bytes_max and (copied or run_size):
                    break
                if run == NULL and not copied:
                    run = here
                if run != NULL and run + run_size == here:
                    run_size += parts.size
                else:
                    if run != NULL:
                        memcpy(copies, run, run_size)
                        copied = run_size
                        run = NULL
                        run_size = 0
                    memcpy(copies + copied, here, parts.size)
                    copied += parts.size
                here += parts.size
            at = here - start
            if run != NULL:
                records = memoryview(file)[run - start:run - start + run_size]
            else:
                records = memoryview(room)[:copied]
            return records, at, is_stopped
        finally:
            PyBuffer_Release(&view)

    cdef QueueSpan* span_of(self, const RecordParts* parts) except NULL:
        cdef uint64_t hash = mixed_hash(<uint64_t> parts.queue_id * KEY_STEP, parts.topic, parts.topic_size)
        cdef Py_ssize_t slot = <Py_ssize_t> (hash & <uint64_t> (self._slot_count - 1))
        while self._slots[slot].topic != NULL:
            if self._slots[slot].hash == hash and is_of(&self._slots[slot], parts):
                return &self._slots[slot]
            slot = (slot + 1) & (self._slot_count - 1)
        return self.ask(parts, hash)

    cdef QueueSpan* ask(self, const RecordParts* parts, uint64_t hash) except NULL:
        cdef QueueSpan span
        cdef bytes name = parts.topic[:parts.topic_size]
        if len(self._names) >= self._queues_max:
            raise StoreError(f"the log has records of more than {self._queues_max} queues")
        wanted = self._decide(name.decode(), parts.queue_id)
        span.topic = <const uint8_t*> PyBytes_AS_STRING(name)
        span.topic_size = parts.topic_size
        span.hash = hash
        span.queue_id = parts.queue_id
        span.from_position = span.start_offset = span.end_offset = span.start_ms = span.end_ms = 0
        if wanted is not None:
            span.from_position, span.start_offset, span.end_offset, span.start_ms, span.end_ms = wanted
        self._names.append(name)
        if len(self._names) * 2 > self._slot_count:
            self.grow()
        return put(self._slots, self._slot_count, &span)

    cdef int grow(self) except -1:
        cdef Py_ssize_t count = self._slot_count * 2
        cdef QueueSpan* slots = <QueueSpan*> PyMem_Calloc(count, sizeof(QueueSpan))
        cdef Py_ssize_t slot
        if slots == NULL:
            raise MemoryError
        for slot in range(self._slot_count):
            if self._slots[slot].topic != NULL:
                put(slots, count, &self._slots[slot])
        PyMem_Free(self._slots)
        self._slots = slots
        self._slot_count = count
        return 0


def step_over(file, Py_ssize_t at, *, int64_t start_position, int64_t end_position):
    """(what is wrong, next byte) where `pick` stopped: the bytes up to there are none that anybody can use.

    Nothing is wrong ("") with the blank that closes a file. The next byte is that of a record, or the end of the
    segment, which ends at `end_position`; of `file`, when that is shorter, less is there.
    """
    cdef Py_buffer view
    cdef RecordParts parts
    cdef const uint8_t* start
    cdef const uint8_t* here
    cdef const uint8_t* found
    cdef int64_t left_bytes = end_position - start_position - at
    PyObject_GetBuffer(file, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= at <= view.len:
            raise ValueError(f"byte {at} of {view.len}")
        start = <const uint8_t*> view.buf
        here = start + at
        if is_blank(here, start + view.len, left_bytes):
            return "", at + left_bytes
        if stands(here, start + view.len, start_position + at, &parts):
            if body_crc(parts.body, parts.body_size) != parts.body_crc:
                what = "the body does not match its CRC"
            else:
                what = "part of the record is missing"
            topic = parts.topic[:parts.topic_size].decode("utf-8", "replace")
            return f"{what} (topic {topic!r} queue {parts.queue_id} offset {parts.queue_offset})", at + parts.size
        found = NULL
        if view.len - at > RECORD_FIXED_BYTES:
            with nogil:
                found = find_record(here + 1, start + view.len, start_position + at + 1)
                if found == NULL and start_position + view.len >= end_position:
                    found = find_blank(here + 1, start + view.len, left_bytes - 1)
        if found == NULL:
            return "no record up to the end of the file", at + left_bytes
        return f"no record up to position {start_position + (found - start)}", found - start
    finally:
        PyBuffer_Release(&view)


def walk_to(file, Py_ssize_t at, Py_ssize_t target, *, int64_t start_position):
    """Return the first byte from `target` on where a record begins, or where from `at` on none stands.

    As `pick` goes, but by lengths alone.
    """
    cdef Py_buffer view
    cdef RecordParts parts
    cdef const uint8_t* start
    PyObject_GetBuffer(file, &view, PyBUF_SIMPLE)
    try:
        start = <const uint8_t*> view.buf
        target = min(target, view.len)
        if at < 0:
            raise ValueError("negative byte")
        with nogil:
            while at < target and stands(start + at, start + view.len, start_position + at, &parts):
                at += parts.size
        return at
    finally:
        PyBuffer_Release(&view)


def end_of_records(file, *, int64_t start_position):
    """Return the byte behind the last record of `file` that proves itself, 0 when none does.

    `file` may grow meanwhile: what stands behind such a record belongs to a later look.
    """
    cdef Py_buffer view
    cdef RecordParts parts
    cdef const uint8_t* start
    cdef const uint8_t* here
    cdef const uint8_t* end
    cdef const uint8_t* proven_end
    PyObject_GetBuffer(file, &view, PyBUF_SIMPLE)
    try:
        here = start = proven_end = <const uint8_t*> view.buf
        end = start + view.len
        with nogil:
            while here < end:
                if proves_itself(here, end, start_position + (here - start), &parts):
                    here += parts.size
                    proven_end = here
                elif stands(here, end, start_position + (here - start), &parts):
                    here += parts.size
                elif end - here <= RECORD_FIXED_BYTES:
                    break
                else:
                    here = find_record(here + 1, end, start_position + (here + 1 - start))
                    if here == NULL:
                        break
        return proven_end - start
    finally:
        PyBuffer_Release(&view)


def first_store_ms(file, *, int64_t start_position):
    """Store time of the first record, None when `file` does not begin with one."""
    cdef Py_buffer view
    cdef RecordParts parts
    cdef const uint8_t* start
    PyObject_GetBuffer(file, &view, PyBUF_SIMPLE)
    try:
        start = <const uint8_t*> view.buf
        if not proves_itself(start, start + view.len, start_position, &parts):
            return None
        return parts.store_timestamp_ms
    finally:
        PyBuffer_Release(&view)


cdef inline bint stands(const uint8_t* at, const uint8_t* end, int64_t position, RecordParts* out) noexcept nogil:
    return parse_fields(at, end, out) == FORMAT_OK and out.position == position


cdef inline bint is_blank(const uint8_t* at, const uint8_t* end, int64_t left_bytes) noexcept nogil:
    return (
        end - at >= BLANK_BYTES
        and get_u32(at + AT_MAGIC) == <uint32_t> BLANK_MAGIC
        and <int64_t> get_u32(at + AT_SIZE) == left_bytes
    )


cdef inline bint is_of(const QueueSpan* span, const RecordParts* parts) noexcept nogil:
    return (
        span.queue_id == parts.queue_id
        and span.topic_size == parts.topic_size
        and memcmp(span.topic, parts.topic, parts.topic_size) == 0
    )


cdef inline bint is_wanted(const QueueSpan* span, const RecordParts* parts) noexcept nogil:
    return (
        span.start_offset <= parts.queue_offset < span.end_offset
        and parts.position >= span.from_position
        and span.start_ms <= parts.store_timestamp_ms < span.end_ms
    )


cdef QueueSpan* put(QueueSpan* slots, Py_ssize_t slot_count, const QueueSpan* span) noexcept:
    cdef Py_ssize_t slot = <Py_ssize_t> (span.hash & <uint64_t> (slot_count - 1))
    while slots[slot].topic != NULL:
        slot = (slot + 1) & (slot_count - 1)
    slots[slot] = span[0]
    return &slots[slot]
