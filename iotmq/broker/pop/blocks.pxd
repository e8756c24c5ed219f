# What a group has popped of 64 offsets in a row; see blocks.pyx.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t

cdef extern from *:
    """
    #define iotmq_lowest(bits) __builtin_ctzll(bits)
    #define iotmq_count(bits) __builtin_popcountll(bits)
    """
    int lowest "iotmq_lowest"(uint64_t bits) noexcept nogil
    int count_of "iotmq_count"(uint64_t bits) noexcept nogil

cdef enum:
    BLOCK_BITS = 6
    BLOCK_SIZE = 64

# Where an offset stands among the undone ones of its key: the offsets before and behind it, -1 for none.
cdef struct KeyLink:
    uint64_t key                   # a hash; 0: it has no key
    int64_t before
    int64_t behind


# 64 offsets in a row, from number * 64 on. What stands at an offset counts while its bit is in `undone`.
cdef class Block:
    cdef int64_t number
    cdef uint64_t undone               # popped, and not acknowledged
    cdef uint64_t ready                # of these: to be handed out again
    cdef uint64_t waiting              # of these: to be handed out when what is before it of its key is done
    cdef uint64_t dead                 # of these: on the way to the dead letters
    cdef uint64_t known                # of these: those whose key is in `links`
    cdef KeyLink* links                # NULL until a key is known
    cdef int64_t next_due_ms           # of those that are held: the first; NEVER when there is none
    cdef int64_t due_ms[BLOCK_SIZE]
    cdef int64_t popped_ms[BLOCK_SIZE]
    cdef uint16_t attempts[BLOCK_SIZE]

    cdef uint64_t held(self) noexcept
    cdef uint64_t undone_between(self, int64_t start_offset, int64_t end_offset) noexcept
    cdef int64_t first_due_ms(self) noexcept
    cdef bytes encode(self)
    # Take in times and attempts of the value of a block without any, and return where its keys are, NULL for none.
    cdef const uint8_t* restore(self, bytes value) except? NULL
    cdef int add_links(self) except -1
