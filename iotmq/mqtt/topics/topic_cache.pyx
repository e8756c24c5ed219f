"""A bounded hash table from topic bytes to a C pointer.

Operations: find per message (10 ns, no Python object), insert per new topic, clear when full. Plan: open
addressing with linear probing at a load of at most one half, by a keyed hash, because devices choose the topics.
Values belong to the caller, who frees them before `clear_topics`; there is no single removal, because caches
are dropped whole when they fill or age. They are full by count or by bytes: whoever publishes chooses both.
"""

import os

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from iotmq.mqtt.topics.keyed_hash cimport keyed_hash

cdef enum:
    ENTRIES_MIN = 256   # that a full cache has at least


cdef class TopicCache:
    """Maps at most `count_max` topics to pointers, with values of `bytes_max` together; a full cache raises."""

    def __cinit__(self, uint32_t count_max, uint64_t bytes_max):
        cdef uint64_t capacity = 16
        if not 1 <= count_max <= 1 << 24:
            raise ValueError("count_max must be between 1 and 16,777,216")
        while capacity < <uint64_t>count_max * 2:
            capacity *= 2
        self.slots = <TopicSlot*>calloc(capacity, sizeof(TopicSlot))
        if self.slots == NULL:
            raise MemoryError
        self.mask = <uint32_t>(capacity - 1)
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.seed = int.from_bytes(os.urandom(8), "little")
        self.multiplier = int.from_bytes(os.urandom(8), "little") | 1

    def __dealloc__(self):
        if self.slots != NULL:
            self.clear_topics()
            free(self.slots)

    cdef void* find(self, const uint8_t* topic, Py_ssize_t size) noexcept nogil:
        cdef uint64_t hash = keyed_hash(self.seed, self.multiplier, topic, size)
        cdef uint32_t at = <uint32_t>hash & self.mask
        cdef TopicSlot* slot
        while True:
            slot = &self.slots[at]
            if slot.topic == NULL:
                return NULL
            if slot.hash == hash and slot.topic_size == size and memcmp(slot.topic, topic, size) == 0:
                return slot.value
            at = (at + 1) & self.mask

    cdef bint has_room(self, uint64_t entry_bytes) noexcept nogil:
        """Return whether a topic and its value, of so many bytes, can be added now."""
        return self.count < self.count_max and self.size_bytes + entry_bytes <= self.bytes_max

    cdef bint may_take(self, uint64_t entry_bytes) noexcept nogil:
        """Return whether it is worth to add them: a few large ones would push everything else out, again and again."""
        return entry_bytes <= self.bytes_max // ENTRIES_MIN

    cdef int insert(self, const uint8_t* topic, Py_ssize_t size, void* value, uint64_t value_bytes) except -1:
        """Add a topic that `find` does not know; `value` is not NULL, and takes `value_bytes`."""
        if not self.has_room(size + value_bytes):
            raise OverflowError("topic cache is full")
        cdef uint64_t hash = keyed_hash(self.seed, self.multiplier, topic, size)
        cdef uint32_t at = <uint32_t>hash & self.mask
        while self.slots[at].topic != NULL:
            at = (at + 1) & self.mask
        cdef uint8_t* copy = <uint8_t*>malloc(size if size else 1)
        if copy == NULL:
            raise MemoryError
        memcpy(copy, topic, size)
        self.slots[at].hash = hash
        self.slots[at].topic = copy
        self.slots[at].topic_size = <uint32_t>size
        self.slots[at].value = value
        self.count += 1
        self.size_bytes += size + value_bytes
        return 0

    cdef void clear_topics(self) noexcept nogil:
        cdef uint32_t at
        for at in range(self.mask + 1):
            if self.slots[at].topic != NULL:
                free(self.slots[at].topic)
        memset(self.slots, 0, (<size_t>self.mask + 1) * sizeof(TopicSlot))
        self.count = 0
        self.size_bytes = 0

    def check_invariants(self):
        """AssertionError when topics are not counted, or more than half of the slots is taken."""
        cdef uint32_t at, counted = 0
        cdef uint64_t topics_bytes = 0
        for at in range(self.mask + 1):
            if self.slots[at].topic != NULL:
                counted += 1
                topics_bytes += self.slots[at].topic_size
        if (
            counted != self.count
            or not topics_bytes <= self.size_bytes <= self.bytes_max
            or <uint64_t>self.count * 2 > <uint64_t>self.mask + 1
        ):
            raise AssertionError(f"{counted} topics of {topics_bytes} bytes; {self.count}, {self.size_bytes} counted")

    # For tests: the same operations with bytes and small integers.

    def _find(self, bytes topic not None):
        cdef const uint8_t* data = topic
        cdef void* value = self.find(data, len(topic))
        return None if value == NULL else <size_t>value

    def _insert(self, bytes topic not None, size_t value, uint64_t value_bytes=0):
        cdef const uint8_t* data = topic
        self.insert(data, len(topic), <void*>value, value_bytes)

    def _may_take(self, uint64_t entry_bytes):
        return self.may_take(entry_bytes)

    def _hash(self, bytes topic not None):
        cdef const uint8_t* data = topic
        return keyed_hash(self.seed, self.multiplier, data, len(topic))

    def _clear(self):
        self.clear_topics()
