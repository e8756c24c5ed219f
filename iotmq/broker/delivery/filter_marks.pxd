from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    SHARDS = 256


cdef packed struct Mark:    # there are millions
    uint64_t key            # 48 bits of the hash of the topic, then the channel; 0 = nobody
    uint32_t filter_id      # the channel's


cdef struct Shard:
    Mark* marks
    uint32_t capacity
    uint32_t count


cdef class FilterMarks:
    cdef Shard shards[SHARDS]
    cdef uint64_t seed
    cdef uint64_t multiplier
    cdef readonly uint64_t count
    cdef Mark* found                # by the last `find`
    cdef uint32_t found_capacity

    # How many there are, in `found`.
    cdef uint32_t find(self, const uint8_t* topic, Py_ssize_t size) except? 0xFFFFFFFF
    cdef uint64_t key_of(self, bytes topic, uint16_t channel) except? 0
    cdef int resize(self, Shard* shard, uint64_t capacity, uint16_t without) except -1
    cdef int add_found(self, uint32_t place, const Mark* mark) except -1


cdef inline uint16_t channel_of(const Mark* mark) noexcept nogil:
    return <uint16_t>mark.key
