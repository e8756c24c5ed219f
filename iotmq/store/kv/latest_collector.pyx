"""The last record of each MQTT topic in a stretch of the log.

Operations: for every record find its MQTT topic and remember where it stands, in place of the one before;
once in a while hand out everything and start over; sometimes look one topic up. What the hot path does per
record: parse, find the property, hash, one probe. No Python object before `items`.

A slot table (open addressing, a power of two, at most half full) of numbers of entries; the entries and
the bytes of their topics are two arrays that grow by doubling and keep their memory when cleared, as long
as it is little.
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from iotmq.message.records.device_topic cimport device_topic
from iotmq.message.records.layout cimport put_u64
from iotmq.message.records.fields cimport RecordParts
from iotmq.message.records.record_walk cimport RecordWalk, begin_walk, check_walk, end_walk, next_record
from iotmq.message.records.text cimport mixed_hash

# Topics are the devices' choice: nobody outside may know which of them fall on the same slot.
cdef uint64_t hash_seed = int.from_bytes(os.urandom(8), "big")

cdef enum:
    SLOTS_MIN = 1024
    # After more than this the table is made small again by `clear`.
    SLOTS_KEPT = 65536
    VALUE_BYTES = 24
    # First byte of every key; the projection's own marker has another.
    KEY_TAG = 1
    NO_ENTRY = 0xFFFFFFFF

cdef struct Entry:
    int64_t position
    int64_t queue_offset
    int64_t store_timestamp_ms
    uint64_t hash
    size_t topic_at
    Py_ssize_t topic_size


cdef class LatestCollector:
    """Keys are 0x01 and the topic's bytes; values position 8 | queue offset 8 | store timestamp (ms) 8."""

    cdef uint32_t* slots
    cdef Entry* entries
    cdef uint8_t* topics
    cdef Py_ssize_t slot_count, entry_count, entry_room
    cdef size_t topics_size, topics_room

    def __cinit__(self):
        self.slots = NULL
        self.entries = NULL
        self.topics = NULL

    def __dealloc__(self):
        PyMem_Free(self.slots)
        PyMem_Free(self.entries)
        PyMem_Free(self.topics)

    @property
    def count(self):
        """Return how many topics there are."""
        return self.entry_count

    def collect(self, view):
        """Take in the whole records of `view`; StoreCorruptError when it holds something else.

        Passed over: records without a MQTT topic, halves and rollbacks of transactions, and copies that
        wait in a topic of the brokers' own (retries, dead letters, delays).
        """
        cdef RecordWalk walk
        begin_walk(&walk, view)
        try:
            self.collect_records(&walk)
        finally:
            end_walk(&walk)
        check_walk(&walk)

    def find(self, bytes topic not None):
        """Return the value of a topic, None when there is none."""
        cdef const uint8_t* text = <const uint8_t*> PyBytes_AS_STRING(topic)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(topic)
        cdef uint32_t number
        if self.entry_count == 0:
            return None
        number = self.slots[self.slot_of(text, size, mixed_hash(hash_seed, text, size))]
        return None if number == NO_ENTRY else value_of(&self.entries[number])

    def items(self):
        """Return all keys, and their values in the same order."""
        cdef list keys = []
        cdef list values = []
        cdef Entry* entry
        cdef Py_ssize_t number
        cdef bytes key
        for number in range(self.entry_count):
            entry = &self.entries[number]
            key = PyBytes_FromStringAndSize(NULL, entry.topic_size + 1)
            (<uint8_t*> PyBytes_AS_STRING(key))[0] = KEY_TAG
            memcpy(<uint8_t*> PyBytes_AS_STRING(key) + 1, self.topics + entry.topic_at, entry.topic_size)
            keys.append(key)
            values.append(value_of(entry))
        return keys, values

    def clear(self):
        """Forget everything."""
        if self.slot_count > SLOTS_KEPT:
            PyMem_Free(self.slots)
            PyMem_Free(self.entries)
            PyMem_Free(self.topics)
            self.slots = NULL
            self.entries = NULL
            self.topics = NULL
            self.slot_count = self.entry_room = 0
            self.topics_room = 0
        elif self.entry_count:
            memset(self.slots, 0xFF, self.slot_count * sizeof(uint32_t))
        self.entry_count = 0
        self.topics_size = 0

    cdef int collect_records(self, RecordWalk* walk) except -1:
        cdef RecordParts parts
        cdef const uint8_t* topic
        cdef Py_ssize_t size, slot
        cdef uint64_t hash
        cdef Entry* entry
        while next_record(walk, &parts):
            size = device_topic(&parts, &topic)
            if size < 0:
                continue
            hash = mixed_hash(hash_seed, topic, size)
            if self.entry_count * 2 >= self.slot_count:
                self.grow_slots()
            slot = self.slot_of(topic, size, hash)
            if self.slots[slot] == <uint32_t> NO_ENTRY:
                entry = self.add(topic, size, hash)
                self.slots[slot] = <uint32_t> (self.entry_count - 1)
            else:
                entry = &self.entries[self.slots[slot]]
            entry.position = parts.position
            entry.queue_offset = parts.queue_offset
            entry.store_timestamp_ms = parts.store_timestamp_ms
        return 0

    cdef Py_ssize_t slot_of(self, const uint8_t* topic, Py_ssize_t size, uint64_t hash) noexcept nogil:
        """Return where the topic is, or would be put."""
        cdef Py_ssize_t slot = <Py_ssize_t> (hash & <uint64_t> (self.slot_count - 1))
        cdef Entry* entry
        while self.slots[slot] != <uint32_t> NO_ENTRY:
            entry = &self.entries[self.slots[slot]]
            if (
                entry.hash == hash
                and entry.topic_size == size
                and memcmp(self.topics + entry.topic_at, topic, size) == 0
            ):
                break
            slot = (slot + 1) & (self.slot_count - 1)
        return slot

    cdef Entry* add(self, const uint8_t* topic, Py_ssize_t size, uint64_t hash) except NULL:
        cdef Entry* entry
        cdef void* grown
        cdef size_t room = self.topics_room
        while self.topics_size + size > room:
            room = max(<size_t> 32768, room * 2)
        if room != self.topics_room:
            grown = PyMem_Realloc(self.topics, room)
            if grown == NULL:
                raise MemoryError
            self.topics = <uint8_t*> grown
            self.topics_room = room
        if self.entry_count == self.entry_room:
            grown = PyMem_Realloc(self.entries, max(512, self.entry_room * 2) * sizeof(Entry))
            if grown == NULL:
                raise MemoryError
            self.entries = <Entry*> grown
            self.entry_room = max(512, self.entry_room * 2)
        entry = &self.entries[self.entry_count]
        self.entry_count += 1
        entry.hash = hash
        entry.topic_at = self.topics_size
        entry.topic_size = size
        memcpy(self.topics + self.topics_size, topic, size)
        self.topics_size += size
        return entry

    cdef int grow_slots(self) except -1:
        cdef Py_ssize_t count = max(<Py_ssize_t> SLOTS_MIN, self.slot_count * 2)
        cdef uint32_t* slots = <uint32_t*> PyMem_Calloc(count, sizeof(uint32_t))
        cdef Py_ssize_t number, slot
        if slots == NULL:
            raise MemoryError
        memset(slots, 0xFF, count * sizeof(uint32_t))
        for number in range(self.entry_count):
            slot = <Py_ssize_t> (self.entries[number].hash & <uint64_t> (count - 1))
            while slots[slot] != <uint32_t> NO_ENTRY:
                slot = (slot + 1) & (count - 1)
            slots[slot] = <uint32_t> number
        PyMem_Free(self.slots)
        self.slots = slots
        self.slot_count = count
        return 0


cdef bytes value_of(const Entry* entry):
    cdef uint8_t value[VALUE_BYTES]
    put_u64(value, <uint64_t> entry.position)
    put_u64(value + 8, <uint64_t> entry.queue_offset)
    put_u64(value + 16, <uint64_t> entry.store_timestamp_ms)
    return value[:VALUE_BYTES]
