"""Add up the counts of blocks of statistics.

Operations: add a block to the sums of its file (an hour has 60 of them, a question about a day of minutes 1,440,
each with a row for every name), find the row of one name, find the largest number of a name. Goals: some
nanoseconds per number, with the interpreter left to the event loop meanwhile, and no numpy for it, which takes
15 MB and a quarter of a broker's start.

Numbers stand in blocks big-endian: rows x 4 bytes with the number of each row's name, rows x columns x 8 bytes
with the counts. A sum that has no room in 64 bits stays at the largest.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cdef extern from *:
    uint32_t __builtin_bswap32(uint32_t number) noexcept nogil
    uint64_t __builtin_bswap64(uint64_t number) noexcept nogil

cdef enum:
    NAME_BYTES = 4
    COUNT_BYTES = 8

cdef uint64_t COUNT_MAX = 0xFFFF_FFFF_FFFF_FFFF


cdef class BlockSums:
    """Hold `columns` sums for each of `names` names, which blocks call by their numbers from 0 on."""

    cdef readonly Py_ssize_t names
    cdef readonly int columns
    cdef uint64_t* sums

    def __cinit__(self, Py_ssize_t names, int columns):
        if names < 1 or columns < 1:
            raise ValueError("names or columns out of range")
        self.names = names
        self.columns = columns
        self.sums = <uint64_t*>calloc(names, columns * sizeof(uint64_t))
        if self.sums == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.sums)

    def add(self, const unsigned char[::1] ids, const unsigned char[::1] counts):
        """Add a block. ValueError when it has other columns, or names that there are not."""
        cdef Py_ssize_t rows = len(ids) // NAME_BYTES
        if len(counts) != rows * self.columns * COUNT_BYTES:
            raise ValueError("the block has other columns")
        if largest_id(ids) >= self.names:
            raise ValueError("the block has names that there are not")
        if rows:
            with nogil:
                self._add(&ids[0], &counts[0], rows)

    cdef void _add(self, const unsigned char* ids, const unsigned char* counts, Py_ssize_t rows) noexcept nogil:
        # All ids were looked at.
        cdef Py_ssize_t row
        cdef int column
        cdef uint64_t* sums
        cdef uint64_t count
        for row in range(rows):
            sums = self.sums + <Py_ssize_t>_id(ids, row) * self.columns
            for column in range(self.columns):
                memcpy(&count, counts, COUNT_BYTES)
                counts += COUNT_BYTES
                count = __builtin_bswap64(count)
                sums[column] = sums[column] + count if count <= COUNT_MAX - sums[column] else COUNT_MAX

    def rows(self):
        """Return (number, sums) of each name that has any."""
        cdef list found = []
        cdef Py_ssize_t number
        cdef int column
        for number in range(self.names):
            for column in range(self.columns):
                if self.sums[number * self.columns + column]:
                    row = tuple([self.sums[number * self.columns + each] for each in range(self.columns)])
                    found.append((number, row))
                    break
        return found


def largest_id(const unsigned char[::1] ids):
    """Return the largest number of a name in a block; -1 without rows."""
    cdef Py_ssize_t largest = -1
    cdef Py_ssize_t row
    for row in range(len(ids) // NAME_BYTES):
        largest = max(largest, <Py_ssize_t>_id(&ids[0], row))
    return largest


def row_of(const unsigned char[::1] ids, uint32_t number):
    """Return which row of a block a name has; -1 without one."""
    cdef Py_ssize_t row
    for row in range(len(ids) // NAME_BYTES):
        if _id(&ids[0], row) == number:
            return row
    return -1


cdef inline uint32_t _id(const unsigned char* ids, Py_ssize_t row) noexcept nogil:
    cdef uint32_t number
    memcpy(&number, ids + row * NAME_BYTES, NAME_BYTES)
    return __builtin_bswap32(number)
