from libc.stdint cimport int64_t, uint32_t, uint64_t

# Where a queue is read from the log: [scan_from, scan_until).
cdef struct ScanRange:
    int64_t scan_from
    int64_t scan_until         # NEVER while the filter is wide
    int64_t last_position      # of the last match that got no entry
    int64_t unsaved            # matches without an entry since the last write

cdef struct FilterRate:
    uint32_t window            # in which `matches` were counted
    uint32_t matches
    ScanRange* range           # NULL when the queue has an entry for every record


cdef class WideFilters:
    cdef FilterRate* rates     # by filter id
    cdef uint32_t rates_size
    cdef uint32_t window
    cdef int64_t records       # of the window
    cdef readonly int64_t window_records
    cdef readonly int64_t matches_max
    cdef readonly int64_t matches_min
    cdef set wide              # ids of the filters that are wide now
    cdef readonly uint64_t switches_total

    cdef int reserve(self, uint32_t size) except -1
    cdef void forget(self, uint32_t filter_id) noexcept
    # To be called for every record of the log, before its matches.
    cdef int note_record(self, int64_t position) except -1
    # Count a match; True when the filter is wide, and the record needs no entry.
    cdef bint takes(self, uint32_t filter_id, int64_t position) except -1
    cdef int widen(self, uint32_t filter_id, int64_t position) except -1
    cdef ScanRange* range_of(self, uint32_t filter_id) noexcept
