# Times in buckets: exact below 128 ns, and 1/64 of their size wide above, so at most 1.6 % too long.

from libc.stdint cimport int64_t, uint64_t

from loadtest.swarm.sockets cimport top_bit

cdef enum:
    HISTOGRAM_BUCKETS = 128 + 57 * 64

cdef struct Buckets:
    uint64_t[HISTOGRAM_BUCKETS] counts
    uint64_t count
    uint64_t largest
    double total


# Counts one value, 0 for a negative one.
cdef inline void record(Buckets* buckets, int64_t value) noexcept nogil:
    cdef uint64_t v = <uint64_t>value if value > 0 else 0
    cdef int shift
    if v < 128:
        buckets.counts[v] += 1
    else:
        shift = top_bit(v) - 6
        buckets.counts[128 + (shift - 1) * 64 + (<int>(v >> shift) - 64)] += 1
    buckets.count += 1
    buckets.total += v
    if v > buckets.largest:
        buckets.largest = v


cdef class Histogram:
    cdef Buckets buckets
