"""Collect from a stretch of the log the waiting messages it adds and those it ends.

Operations: go through every record of the log, of which few wait or end a waiting; once in a while hand
out what was found and start over. Per record that is a parse and two comparisons; no Python object before
`take`. Waiting messages that are ended in the same stretch are never handed out: with short delays that is
most of them.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from iotmq.message.records.layout cimport get_u64, put_u16, put_u32, put_u64
from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.record cimport parse_record
from iotmq.message.records.record_walk cimport RecordWalk, begin_walk, check_walk, end_walk, next_record
from iotmq.store.log.timer_record cimport NO_TIMER, TIMER_NAME_BYTES, timer_kind, timer_name

cdef enum:
    TAG_DUE = 1
    TAG_PLACE = 2
    TAG_NAME = 3
    DUE_KEY_BYTES = 17
    DUE_VALUE_BYTES = 14
    PLACE_KEY_BYTES = 11
    PLACE_VALUE_BYTES = 28
    NAME_KEY_BYTES = 17
    NAME_VALUE_BYTES = 10
    # Memory kept by `clear`.
    ENTRIES_KEPT = 16384

cdef int64_t NEVER_MS = 0x7FFFFFFFFFFFFFFF
cdef int64_t POSITION_MASK = (<int64_t> 1 << 54) - 1

cdef struct Entry:
    int64_t position
    int64_t due_ms
    int64_t queue_offset
    uint64_t name
    int32_t size
    uint16_t kind
    bint is_ended

cdef struct Mark:
    int64_t position
    uint16_t kind


cdef class TimerCollector:
    """Three keys for each waiting message, all numbers big-endian; `kind` is 0 or the delay level.

    0x01 due_ms 8 position 8 -> kind 2 | size 4 | queue offset 8          in the order in which they are due
    0x02 kind 2 position 8   -> due_ms 8 | queue offset 8 | name 8 | size 4   in the order of the log
    0x03 name 8 position 8   -> kind 2 | due_ms 8                         only with a unique key
    """

    cdef Entry* entries
    cdef Mark* marks
    cdef Py_ssize_t entry_count, entry_room, mark_count, mark_room
    # When the first of those added since the last `clear` is due; NEVER_MS without any.
    cdef readonly int64_t first_due_ms

    def __cinit__(self):
        self.entries = NULL
        self.marks = NULL
        self.first_due_ms = NEVER_MS

    def __dealloc__(self):
        PyMem_Free(self.entries)
        PyMem_Free(self.marks)

    @property
    def count(self):
        """Keys to write or to remove, about."""
        return (self.entry_count + self.mark_count) * 3

    @property
    def is_empty(self):
        """Return whether nothing was found since the last `clear`."""
        return self.entry_count == 0 and self.mark_count == 0

    @property
    def growth(self):
        """Return how many more messages wait than are stored, unless some ended twice."""
        return self.entry_count - self.mark_count

    def collect(self, view):
        """Take in the whole records of `view`, or nothing: StoreCorruptError when it holds something else."""
        cdef RecordWalk walk
        cdef Py_ssize_t entries_before = self.entry_count
        cdef Py_ssize_t marks_before = self.mark_count
        begin_walk(&walk, view)
        try:
            self.collect_records(&walk)
        finally:
            end_walk(&walk)
        if walk.problem != FORMAT_OK:
            self.entry_count = entries_before
            self.mark_count = marks_before
        check_walk(&walk)

    def items(self):
        """Return nothing: `take` writes, which needs what is stored, too."""
        return [], []

    def take(self, get):
        """(keys, values, keys to remove, by how many there are more now). `get` gives the stored value of a key."""
        cdef list keys = []
        cdef list values = []
        cdef list removed = []
        cdef Py_ssize_t number, more = 0
        cdef Entry* entry
        cdef Mark* mark
        cdef set ended = set()
        cdef bytes key, stored
        cdef const uint8_t* value
        for number in range(self.mark_count):
            mark = &self.marks[number]
            entry = self.find(mark.position)
            if entry != NULL:
                entry.is_ended = True
                continue
            key = place_key(mark.kind, mark.position)
            if key in ended:
                continue
            ended.add(key)
            stored = get(key)
            # None: ended before, or from a part of the log that is gone.
            if stored is not None and PyBytes_GET_SIZE(stored) == PLACE_VALUE_BYTES:
                value = <const uint8_t*> PyBytes_AS_STRING(stored)
                add_keys(removed, mark.kind, mark.position, <int64_t> get_u64(value), get_u64(value + 16))
                more -= 1
        for number in range(self.entry_count):
            entry = &self.entries[number]
            if not entry.is_ended:
                add_keys(keys, entry.kind, entry.position, entry.due_ms, entry.name)
                add_values(values, entry)
                more += 1
        return keys, values, removed, more

    def clear(self):
        """Forget everything."""
        if self.entry_room > ENTRIES_KEPT:
            PyMem_Free(self.entries)
            self.entries = NULL
            self.entry_room = 0
        if self.mark_room > ENTRIES_KEPT:
            PyMem_Free(self.marks)
            self.marks = NULL
            self.mark_room = 0
        self.entry_count = self.mark_count = 0
        self.first_due_ms = NEVER_MS

    cdef int collect_records(self, RecordWalk* walk) except -1:
        cdef RecordParts parts, record
        cdef Entry* entry
        cdef int kind
        cdef int64_t due_ms
        while next_record(walk, &parts):
            if parts.prepared_position < 0:
                self.add_mark(~parts.prepared_position)
            if parts.topic_size != TIMER_NAME_BYTES:
                continue
            parse_record(walk.at - parts.size, walk.at, &record)
            kind = timer_kind(&record, &due_ms)
            if kind == NO_TIMER:
                continue
            entry = self.add_entry()
            entry.position = record.position
            entry.due_ms = due_ms
            entry.queue_offset = record.queue_offset
            entry.name = timer_name(&record)
            entry.size = record.size
            entry.kind = <uint16_t> kind
            entry.is_ended = False
            if due_ms < self.first_due_ms:
                self.first_due_ms = due_ms
        return 0

    cdef Entry* find(self, int64_t position) noexcept nogil:
        """Return the entry at `position`, by halves: they are in the order of the log."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.entry_count
        cdef Py_ssize_t middle
        while low < high:
            middle = (low + high) // 2
            if self.entries[middle].position < position:
                low = middle + 1
            else:
                high = middle
        if low < self.entry_count and self.entries[low].position == position:
            return &self.entries[low]
        return NULL

    cdef Entry* add_entry(self) except NULL:
        cdef void* grown
        cdef Py_ssize_t room = max(<Py_ssize_t> 64, self.entry_room * 2)
        if self.entry_count == self.entry_room:
            grown = PyMem_Realloc(self.entries, room * sizeof(Entry))
            if grown == NULL:
                raise MemoryError
            self.entries = <Entry*> grown
            self.entry_room = room
        self.entry_count += 1
        return &self.entries[self.entry_count - 1]

    cdef int add_mark(self, int64_t mark) except -1:
        cdef void* grown
        cdef Py_ssize_t room = max(<Py_ssize_t> 64, self.mark_room * 2)
        if self.mark_count == self.mark_room:
            grown = PyMem_Realloc(self.marks, room * sizeof(Mark))
            if grown == NULL:
                raise MemoryError
            self.marks = <Mark*> grown
            self.mark_room = room
        self.marks[self.mark_count].position = mark & POSITION_MASK
        self.marks[self.mark_count].kind = <uint16_t> (mark >> 54)
        self.mark_count += 1
        return 0


def keys_of(*, int kind, int64_t position, int64_t due_ms, uint64_t name):
    """Return all keys of one waiting message."""
    cdef list keys = []
    add_keys(keys, <uint16_t> kind, position, due_ms, name)
    return keys


cdef int add_keys(list keys, uint16_t kind, int64_t position, int64_t due_ms, uint64_t name) except -1:
    cdef uint8_t key[DUE_KEY_BYTES]
    key[0] = TAG_DUE
    put_u64(key + 1, <uint64_t> due_ms)
    put_u64(key + 9, <uint64_t> position)
    keys.append(<bytes> key[:DUE_KEY_BYTES])
    keys.append(place_key(kind, position))
    if name:
        key[0] = TAG_NAME
        put_u64(key + 1, name)
        keys.append(<bytes> key[:NAME_KEY_BYTES])
    return 0


cdef int add_values(list values, const Entry* entry) except -1:
    """Append the value of an entry, in the order of `add_keys`."""
    cdef uint8_t value[PLACE_VALUE_BYTES]
    put_u16(value, entry.kind)
    put_u32(value + 2, <uint32_t> entry.size)
    put_u64(value + 6, <uint64_t> entry.queue_offset)
    values.append(<bytes> value[:DUE_VALUE_BYTES])
    put_u64(value, <uint64_t> entry.due_ms)
    put_u64(value + 8, <uint64_t> entry.queue_offset)
    put_u64(value + 16, entry.name)
    put_u32(value + 24, <uint32_t> entry.size)
    values.append(<bytes> value[:PLACE_VALUE_BYTES])
    if entry.name:
        put_u16(value, entry.kind)
        put_u64(value + 2, <uint64_t> entry.due_ms)
        values.append(<bytes> value[:NAME_VALUE_BYTES])
    return 0


cdef bytes place_key(uint16_t kind, int64_t position):
    cdef uint8_t key[PLACE_KEY_BYTES]
    key[0] = TAG_PLACE
    put_u16(key + 1, kind)
    put_u64(key + 3, <uint64_t> position)
    return <bytes> key[:PLACE_KEY_BYTES]
