"""Keep what a group has popped of 64 offsets in a row: bits and times, and the bytes that outlive the process.

The value of a block: for each group of offsets with the same times: bits 8 | due 8 | popped 8 | attempts 2; where
keys are known, 0 8 | bits of the offsets 8 | the hash of each, 0 for none 8. A block that is done has no value. All
numbers are big-endian, times in milliseconds since 1970. What waits for the first time is due at 0.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint8_t, uint64_t

from iotmq.message.records.layout cimport get_u16, get_u64, put_u16, put_u64

from iotmq.errors import StoreCorruptError

cdef enum:
    RUN_BYTES = 26
    # What stands before the keys.
    KEYS_HEAD_BYTES = 16

cdef int64_t NEVER = (<int64_t> 1) << 62
cdef uint64_t ONE = 1


cdef class Block:
    def __cinit__(self, int64_t number):
        self.number = number
        self.next_due_ms = NEVER
        self.links = NULL

    def __dealloc__(self):
        PyMem_Free(self.links)

    cdef uint64_t held(self) noexcept:
        return self.undone & ~(self.ready | self.waiting | self.dead)

    cdef uint64_t undone_between(self, int64_t start_offset, int64_t end_offset) noexcept:
        cdef int64_t first = self.number << BLOCK_BITS
        cdef uint64_t bits = self.undone
        if first + BLOCK_SIZE <= start_offset or first >= end_offset:
            return 0
        if start_offset > first:
            bits &= ~((ONE << (start_offset - first)) - 1)
        if end_offset < first + BLOCK_SIZE:
            bits &= (ONE << (end_offset - first)) - 1
        return bits

    cdef int64_t first_due_ms(self) noexcept:
        """Return when the first of those that are held is due; NEVER when none is."""
        cdef uint64_t left = self.held()
        cdef int64_t due_ms = NEVER
        while left:
            due_ms = min(due_ms, self.due_ms[lowest(left)])
            left &= left - 1
        return due_ms

    cdef bytes encode(self):
        cdef uint8_t data[BLOCK_SIZE * RUN_BYTES + KEYS_HEAD_BYTES + BLOCK_SIZE * 8]
        cdef uint8_t* at = data
        cdef uint8_t* run
        cdef uint64_t left = self.undone
        cdef int index
        while left:
            index = lowest(left)
            left &= left - 1
            run = data
            while run < at and not (
                <int64_t> get_u64(run + 8) == self.due_ms[index]
                and <int64_t> get_u64(run + 16) == self.popped_ms[index]
                and get_u16(run + 24) == self.attempts[index]
            ):
                run += RUN_BYTES
            if run == at:
                put_u64(run, 0)
                put_u64(run + 8, <uint64_t> self.due_ms[index])
                put_u64(run + 16, <uint64_t> self.popped_ms[index])
                put_u16(run + 24, self.attempts[index])
                at += RUN_BYTES
            put_u64(run, get_u64(run) | ONE << index)
        if self.known:
            put_u64(at, 0)
            put_u64(at + 8, self.known)
            at += KEYS_HEAD_BYTES
            left = self.known
            while left:
                put_u64(at, self.links[lowest(left)].key)
                left &= left - 1
                at += 8
        return (<char*> data)[:at - data]

    cdef const uint8_t* restore(self, bytes value) except? NULL:
        cdef const uint8_t* run = <const uint8_t*> <char*> value
        cdef const uint8_t* end = run + len(value)
        cdef uint64_t left
        cdef int index
        while end - run >= RUN_BYTES and get_u64(run):
            left = get_u64(run)
            if left & self.undone:
                raise StoreCorruptError("a popped message is in its block twice")
            self.undone |= left
            while left:
                index = lowest(left)
                left &= left - 1
                self.due_ms[index] = <int64_t> get_u64(run + 8)
                self.popped_ms[index] = <int64_t> get_u64(run + 16)
                self.attempts[index] = get_u16(run + 24)
            run += RUN_BYTES
        if run == end:
            return NULL
        if end - run < KEYS_HEAD_BYTES or get_u64(run):
            raise StoreCorruptError(f"a block of popped messages has {len(value)} bytes")
        left = get_u64(run + 8)
        if left & ~self.undone or end - run != KEYS_HEAD_BYTES + count_of(left) * 8:
            raise StoreCorruptError("a block of popped messages has keys of others")
        return run + 8

    cdef int add_links(self) except -1:
        self.links = <KeyLink*> PyMem_Calloc(BLOCK_SIZE, sizeof(KeyLink))
        if self.links == NULL:
            raise MemoryError
        return 0
