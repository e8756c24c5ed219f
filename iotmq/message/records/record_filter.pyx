"""Define what a scan of records asks of a filter; filters derive from RecordFilter.

It stands below the store, which scans, and the broker, which knows what subscriptions want.
"""

from libc.stdint cimport uint8_t


cdef class RecordFilter:
    """The base of all filters over whole records; by itself it lets everything pass."""

    cdef bint accepts(self, const uint8_t* record, Py_ssize_t size) noexcept:
        return True
