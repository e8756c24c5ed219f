from libc.stdint cimport uint32_t, uint64_t


cdef class ClientTraffic:
    cdef readonly str prefix
    cdef public uint32_t connected          # connections that count here
    cdef public uint64_t connections        # since the start, as all below
    cdef readonly uint64_t published
    cdef readonly uint64_t published_bytes
    cdef readonly uint64_t delivered
    cdef readonly uint64_t delivered_bytes

    cdef inline void count_published(self, uint64_t size) noexcept:
        self.published += 1
        self.published_bytes += size

    cdef inline void count_delivered(self, uint64_t size) noexcept:
        self.delivered += 1
        self.delivered_bytes += size
