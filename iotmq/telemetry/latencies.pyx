"""Count latencies in a histogram that costs some nanoseconds per entry.

A bucket is an eighth of a power of two of microseconds wide, so a percentile is right to 12.5 %.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef enum:
    # Eight buckets for 0..7 us, then eight for each power of two up to 2^40 us (12 days).
    BUCKETS = 8 * 38
    LAST_POWER = 40

BUCKET_COUNT = BUCKETS

cdef extern from *:
    int __builtin_clzll(unsigned long long value) noexcept nogil


cpdef int64_t now_us():
    """Microseconds of a clock that only goes forward; for differences."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t> now.tv_sec * 1000000 + now.tv_nsec // 1000


cdef class Latencies:
    """Counts how long each of many things took."""

    cdef uint64_t counts[BUCKETS]
    # All of them together, in microseconds.
    cdef readonly uint64_t sum_us
    # The longest ever, in microseconds.
    cdef readonly uint64_t max_us

    def __cinit__(self):
        memset(self.counts, 0, sizeof(self.counts))

    cpdef int64_t end(self, int64_t begun_us, uint64_t times=1):
        """End `times` measurements that began at `begun_us` (of `now_us`); returns the microseconds they took."""
        cdef int64_t took_us = now_us() - begun_us
        self.add(took_us, times)
        return took_us

    cpdef add(self, int64_t took_us, uint64_t times=1):
        """Count something that took so long."""
        cdef uint64_t value = took_us if took_us > 0 else 0
        cdef int power
        cdef int bucket
        if value > self.max_us:
            self.max_us = value
        if value < 8:
            bucket = value
        else:
            power = 63 - __builtin_clzll(value)
            if power >= LAST_POWER:
                bucket = BUCKETS - 1
            else:
                bucket = (power - 2) * 8 + <int> ((value >> (power - 3)) & 7)
        self.counts[bucket] += times
        self.sum_us += value * times

    def counted(self):
        """Return the counts of all buckets; they only grow."""
        return [self.counts[bucket] for bucket in range(BUCKETS)]


def bucket_end_us(bucket):
    """Return the smallest number of microseconds that is past a bucket."""
    if bucket < 8:
        return bucket + 1
    return (8 + bucket % 8 + 1) << (bucket // 8 - 1)
