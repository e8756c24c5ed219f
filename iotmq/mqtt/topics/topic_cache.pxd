from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef struct TopicSlot:
    uint64_t hash
    uint8_t* topic          # owned copy; NULL marks a free slot
    uint32_t topic_size
    void* value             # the caller's


cdef class TopicCache:
    cdef TopicSlot* slots
    cdef uint32_t mask
    cdef uint64_t seed
    cdef uint64_t multiplier
    cdef readonly uint32_t count
    cdef readonly uint32_t count_max
    cdef public uint64_t size_bytes     # of topics and values
    cdef readonly uint64_t bytes_max

    cdef void* find(self, const uint8_t* topic, Py_ssize_t size) noexcept nogil
    cdef int insert(self, const uint8_t* topic, Py_ssize_t size, void* value, uint64_t value_bytes) except -1
    cdef bint has_room(self, uint64_t entry_bytes) noexcept nogil
    cdef bint may_take(self, uint64_t entry_bytes) noexcept nogil
    cdef void clear_topics(self) noexcept nogil
