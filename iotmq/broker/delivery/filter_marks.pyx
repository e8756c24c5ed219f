"""Remember filters without wildcards by a hash of their topic: whose they are, and not what they say.

Operations: add and remove a mark (thousands a second), find the marks of a topic (millions a second), drop those
of a channel. Goals: some 17 bytes a mark, because every broker but one has a mark of each such filter; no step
takes a loop's turn, though there are tens of millions. Plan: open addressing in 256 shards, each of which grows
alone, by a quarter; a mark has 48 bits of the hash, from which its place is made. A mark that is found may be one
of another topic (once in 2^48 comparisons): who gets a message compares topics.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

from iotmq.mqtt.topics.keyed_hash cimport keyed_hash

import os

cdef enum:
    CAPACITY_MIN = 8
    HOME_BITS = 40          # of the 48, those that the shard was not chosen by
    CHANNEL_BITS = 16


cdef inline uint32_t _shard_of(uint64_t key) noexcept nogil:
    return <uint32_t>(key >> (HOME_BITS + CHANNEL_BITS))


cdef inline uint32_t _home_of(uint64_t key, uint32_t capacity) noexcept nogil:
    return <uint32_t>((((key >> CHANNEL_BITS) & ((<uint64_t>1 << HOME_BITS) - 1)) * capacity) >> HOME_BITS)


cdef inline uint32_t _behind(uint32_t at, uint32_t capacity) noexcept nogil:
    return at + 1 if at + 1 < capacity else 0


cdef inline uint32_t _steps(uint32_t start, uint32_t end, uint32_t capacity) noexcept nogil:
    return end - start if start <= end else end + capacity - start


cdef inline uint64_t _room_for(uint64_t count) noexcept nogil:
    return max(<uint64_t>CAPACITY_MIN, count + count // 2)


cdef class FilterMarks:
    """Finds (channel, id of the channel) by topic. Channels are numbers from 1 to 65,535."""

    def __cinit__(self):
        self.seed = int.from_bytes(os.urandom(8), "little")
        self.multiplier = int.from_bytes(os.urandom(8), "little") | 1

    def __dealloc__(self):
        cdef int index
        for index in range(SHARDS):
            free(self.shards[index].marks)
        free(self.found)

    @property
    def memory_bytes(self):
        """Return the bytes of the tables."""
        cdef int index
        cdef uint64_t total = 0
        for index in range(SHARDS):
            total += self.shards[index].capacity * sizeof(Mark)
        return total

    def add(self, bytes topic not None, uint16_t channel, uint32_t filter_id):
        """Add a mark; whether it is new."""
        cdef uint64_t key = self.key_of(topic, channel)
        cdef Shard* shard = &self.shards[_shard_of(key)]
        cdef uint32_t at
        if (<uint64_t>shard.count + 1) * 5 > <uint64_t>shard.capacity * 4:
            self.resize(shard, max(<uint64_t>CAPACITY_MIN, shard.capacity + (<uint64_t>shard.capacity + 3) // 4), 0)
        at = _home_of(key, shard.capacity)
        while shard.marks[at].key:
            if shard.marks[at].key == key and shard.marks[at].filter_id == filter_id:
                return False
            at = _behind(at, shard.capacity)
        shard.marks[at] = Mark(key, filter_id)
        shard.count += 1
        self.count += 1
        return True

    def remove(self, bytes topic not None, uint16_t channel, uint32_t filter_id):
        """Remove a mark; whether there was one. The gap is closed at once."""
        cdef uint64_t key = self.key_of(topic, channel)
        cdef Shard* shard = &self.shards[_shard_of(key)]
        cdef uint32_t gap, at, home
        if not shard.count:
            return False
        gap = _home_of(key, shard.capacity)
        while shard.marks[gap].key != key or shard.marks[gap].filter_id != filter_id:
            if not shard.marks[gap].key:
                return False
            gap = _behind(gap, shard.capacity)
        at = _behind(gap, shard.capacity)
        while shard.marks[at].key:
            home = _home_of(shard.marks[at].key, shard.capacity)
            if _steps(home, at, shard.capacity) >= _steps(gap, at, shard.capacity):
                shard.marks[gap] = shard.marks[at]
                gap = at
            at = _behind(at, shard.capacity)
        shard.marks[gap].key = 0
        shard.count -= 1
        self.count -= 1
        if shard.capacity > CAPACITY_MIN and <uint64_t>shard.count * 5 < <uint64_t>shard.capacity * 2:
            self.resize(shard, _room_for(shard.count), 0)
        return True

    def drop(self, uint16_t channel, int shard):
        """Drop a channel's marks in one of `SHARDS` shards."""
        if not 0 <= shard < SHARDS:
            raise IndexError(shard)
        cdef Shard* chosen = &self.shards[shard]
        cdef uint32_t index, left = 0
        for index in range(chosen.capacity):
            left += chosen.marks[index].key != 0 and channel_of(&chosen.marks[index]) != channel
        if left != chosen.count:
            self.resize(chosen, _room_for(left), channel)

    def of_topic(self, bytes topic not None):
        """Return the (channel, id) of a topic's marks, in no order."""
        cdef const uint8_t* data = topic
        cdef uint32_t index, count = self.find(data, len(topic))
        return [(channel_of(&self.found[index]), self.found[index].filter_id) for index in range(count)]

    def check_invariants(self):
        """AssertionError when a mark cannot be found, or the numbers are wrong."""
        cdef uint64_t total = 0
        cdef uint32_t at, place, count
        cdef Shard* shard
        for index in range(SHARDS):
            shard = &self.shards[index]
            count = 0
            for place in range(shard.capacity):
                if not shard.marks[place].key:
                    continue
                count += 1
                assert _shard_of(shard.marks[place].key) == index and channel_of(&shard.marks[place])
                at = _home_of(shard.marks[place].key, shard.capacity)
                while at != place:
                    assert shard.marks[at].key, f"a gap before the mark at {place} of shard {index}"
                    at = _behind(at, shard.capacity)
            assert count == shard.count and (not shard.capacity or count < shard.capacity)
            total += count
        assert total == self.count

    cdef uint64_t key_of(self, bytes topic, uint16_t channel) except? 0:
        if not channel:
            raise ValueError("channels begin with 1")
        cdef const uint8_t* data = topic
        return keyed_hash(self.seed, self.multiplier, data, len(topic)) >> CHANNEL_BITS << CHANNEL_BITS | channel

    cdef uint32_t find(self, const uint8_t* topic, Py_ssize_t size) except? 0xFFFFFFFF:
        cdef uint64_t key = keyed_hash(self.seed, self.multiplier, topic, size) >> CHANNEL_BITS
        cdef Shard* shard = &self.shards[key >> HOME_BITS]
        cdef uint32_t at, count = 0
        if not shard.count:
            return 0
        at = _home_of(key << CHANNEL_BITS, shard.capacity)
        while shard.marks[at].key:
            if shard.marks[at].key >> CHANNEL_BITS == key:
                self.add_found(count, &shard.marks[at])
                count += 1
            at = _behind(at, shard.capacity)
        return count

    cdef int add_found(self, uint32_t place, const Mark* mark) except -1:
        cdef Mark* grown
        cdef uint32_t capacity
        if place == self.found_capacity:
            capacity = max(<uint32_t>16, self.found_capacity * 2)
            grown = <Mark*>realloc(self.found, capacity * sizeof(Mark))
            if grown == NULL:
                raise MemoryError
            self.found = grown
            self.found_capacity = capacity
        self.found[place] = mark[0]
        return 0

    cdef int resize(self, Shard* shard, uint64_t capacity, uint16_t without) except -1:
        """Make the table anew, perhaps without one channel's marks (0: nobody's)."""
        if capacity >= <uint64_t>1 << 24:
            raise MemoryError("too many marks")     # the product in `_home_of` has 64 bits
        cdef Mark* made = <Mark*>calloc(capacity, sizeof(Mark))
        cdef uint32_t index, at, count = 0
        if made == NULL:
            raise MemoryError
        for index in range(shard.capacity):
            if not shard.marks[index].key or (without and channel_of(&shard.marks[index]) == without):
                continue
            at = _home_of(shard.marks[index].key, <uint32_t>capacity)
            while made[at].key:
                at = _behind(at, <uint32_t>capacity)
            made[at] = shard.marks[index]
            count += 1
        self.count -= shard.count - count
        free(shard.marks)
        shard.marks = made
        shard.capacity = <uint32_t>capacity
        shard.count = count
        return 0
