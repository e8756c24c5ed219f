# What is read and written of records that are handed out. All raise StoreCorruptError for what is no record.

from libc.stdint cimport uint8_t, uint64_t

# The hash of the key whose messages are in order; 0 for none.
cdef uint64_t key_of(const uint8_t* record, Py_ssize_t size) except? 0

# Where a record has its number of retries.
cdef Py_ssize_t retries_at(const uint8_t* record, Py_ssize_t size) except -1
