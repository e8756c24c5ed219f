"""The last undone offset of each key of a queue, by the key's hash: a table without a Python object for a key.

Operations: find, put and remove one key. Goals: some nanoseconds each; memory for the keys there are. Plan: open
addressing with linear probing at a load of at most one half, by a product with an odd number that nobody outside
knows; what is removed is filled from behind, so there are no marks of former keys.
"""

import random

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint64_t

cdef enum:
    BITS_MIN = 4


cdef class KeyTails:
    def __cinit__(self):
        self.multiplier = <uint64_t> random.getrandbits(64) | 1
        self.slots = NULL
        self.bits = 0
        self.count = 0

    def __dealloc__(self):
        PyMem_Free(self.slots)

    cpdef int64_t find(self, uint64_t key) noexcept:
        """Return the offset of a key, -1 when there is none."""
        cdef Py_ssize_t slot
        if self.slots == NULL:
            return -1
        slot = self.slot_of(key)
        return self.slots[slot].offset if self.slots[slot].key else -1

    cpdef int put(self, uint64_t key, int64_t offset) except -1:
        """Set the offset of a key, which is not 0."""
        cdef Py_ssize_t slot
        assert key
        if self.slots == NULL:
            self.resize(BITS_MIN)
        slot = self.slot_of(key)
        if not self.slots[slot].key:
            if (self.count + 1) * 2 > (<Py_ssize_t> 1) << self.bits:
                self.resize(self.bits + 1)
                slot = self.slot_of(key)
            self.slots[slot].key = key
            self.count += 1
        self.slots[slot].offset = offset
        return 0

    cpdef int remove(self, uint64_t key) except -1:
        """Forget a key that is there."""
        cdef Py_ssize_t mask = ((<Py_ssize_t> 1) << self.bits) - 1
        cdef Py_ssize_t hole = self.slot_of(key)
        cdef Py_ssize_t slot = hole
        cdef Py_ssize_t home
        assert self.slots[hole].key == key
        while True:
            slot = (slot + 1) & mask
            if not self.slots[slot].key:
                break
            home = <Py_ssize_t> (self.slots[slot].key * self.multiplier >> (64 - self.bits))
            # What would not be found any more with a hole between its home and itself.
            if ((slot - home) & mask) >= ((slot - hole) & mask):
                self.slots[hole] = self.slots[slot]
                hole = slot
        self.slots[hole].key = 0
        self.count -= 1
        if self.bits > BITS_MIN and self.count * 8 < (<Py_ssize_t> 1) << self.bits:
            self.resize(self.bits - 1)
        return 0

    cdef int clear(self) except -1:
        PyMem_Free(self.slots)
        self.slots = NULL
        self.bits = 0
        self.count = 0
        return 0

    cdef Py_ssize_t slot_of(self, uint64_t key) noexcept:
        """Return the slot of a key, or the free one where it would be."""
        cdef Py_ssize_t mask = ((<Py_ssize_t> 1) << self.bits) - 1
        cdef Py_ssize_t slot = <Py_ssize_t> (key * self.multiplier >> (64 - self.bits))
        while self.slots[slot].key and self.slots[slot].key != key:
            slot = (slot + 1) & mask
        return slot

    cdef int resize(self, int bits) except -1:
        cdef KeyTail* former = self.slots
        cdef Py_ssize_t former_size = (<Py_ssize_t> 1) << self.bits if former != NULL else 0
        cdef KeyTail* slots = <KeyTail*> PyMem_Calloc((<Py_ssize_t> 1) << bits, sizeof(KeyTail))
        cdef Py_ssize_t at
        if slots == NULL:
            raise MemoryError
        self.slots = slots
        self.bits = bits
        for at in range(former_size):
            if former[at].key:
                self.slots[self.slot_of(former[at].key)] = former[at]
        PyMem_Free(former)
        return 0
