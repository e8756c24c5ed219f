"""Histograms of times in nanoseconds, that several processes fill and one adds up."""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset


cdef uint64_t upper_edge(int bucket) noexcept nogil:
    """The largest value that a bucket counts."""
    cdef int shift
    if bucket < 128:
        return bucket
    shift = (bucket - 128) // 64 + 1
    return ((<uint64_t>(64 + (bucket - 128) % 64 + 1)) << shift) - 1


cdef class Histogram:
    """Counts times, so that a percentile is at most 1.6 % too long and never too short."""

    def record(self, int64_t value_ns):
        """Counts one time; a negative one as 0."""
        record(&self.buckets, value_ns)

    def clear(self):
        """Forgets everything."""
        memset(&self.buckets, 0, sizeof(Buckets))

    @property
    def count(self):
        """How many times were counted."""
        return self.buckets.count

    def percentile(self, double fraction):
        """The upper edge of the bucket that has the value at this fraction; never more than the largest value."""
        cdef uint64_t seen = 0, edge
        cdef uint64_t rank = <uint64_t>(fraction * self.buckets.count)
        cdef int i
        if rank >= self.buckets.count:
            return self.buckets.largest
        for i in range(HISTOGRAM_BUCKETS):
            seen += self.buckets.counts[i]
            if seen > rank:
                edge = upper_edge(i)
                return edge if edge < self.buckets.largest else self.buckets.largest
        return self.buckets.largest

    @property
    def total_ns(self):
        """The sum of all times."""
        return self.buckets.total

    def count_until(self, uint64_t value_ns):
        """How many times were no longer than this, as far as buckets tell: those around it may be left out."""
        cdef uint64_t count = 0
        cdef int i
        for i in range(HISTOGRAM_BUCKETS):
            if upper_edge(i) > value_ns:
                return count
            count += self.buckets.counts[i]
        return count

    def summary(self):
        """The percentiles that reports show, by name; every value is 0 when nothing was counted."""
        cdef uint64_t count = self.buckets.count
        return {
            "count": count,
            "mean_ns": self.buckets.total / count if count else 0.0,
            "p50_ns": self.percentile(0.50),
            "p90_ns": self.percentile(0.90),
            "p99_ns": self.percentile(0.99),
            "p999_ns": self.percentile(0.999),
            "max_ns": self.buckets.largest,
        }

    def counts(self):
        """The counts by the largest value of each bucket that is not empty, with the sum and the largest of all."""
        cdef int i
        return {
            "total_ns": self.buckets.total,
            "max_ns": self.buckets.largest,
            "counts": {upper_edge(i): self.buckets.counts[i] for i in range(HISTOGRAM_BUCKETS) if self.buckets.counts[i]},
        }

    def dump(self):
        """Everything that was counted, as values JSON has: of `load`, in this process or another."""
        cdef int i
        return {
            "total_ns": self.buckets.total,
            "max_ns": self.buckets.largest,
            "buckets": [[i, self.buckets.counts[i]] for i in range(HISTOGRAM_BUCKETS) if self.buckets.counts[i]],
        }

    def load(self, dict dumped):
        """Adds what `dump` gave. ValueError when no histogram gave it."""
        cdef int64_t bucket, times
        for bucket, times in dumped["buckets"]:
            if not 0 <= bucket < HISTOGRAM_BUCKETS or times < 0:
                raise ValueError(f"a histogram has no bucket {bucket} with {times} values")
            self.buckets.counts[bucket] += <uint64_t>times
            self.buckets.count += <uint64_t>times
        self.buckets.total += dumped["total_ns"]
        self.buckets.largest = max(self.buckets.largest, <uint64_t>dumped["max_ns"])
