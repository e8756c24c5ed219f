# The messages of one queue that a group has popped and is not done with; see pop_queue.pyx.

from libc.stdint cimport int64_t, uint16_t, uint64_t

cdef enum:
    BLOCK_BITS = 6
    BLOCK_SIZE = 64


# 64 offsets in a row, from number * 64 on. What stands at an offset counts while its bit is in `undone`.
cdef class Block:
    cdef int64_t number
    cdef uint64_t undone               # popped, and not acknowledged
    cdef uint64_t ready                # of these: to be handed out again
    cdef uint64_t dead                 # of these: on the way to the dead letters
    cdef int64_t next_due_ms           # of those that are neither: the first; NEVER when there is none
    cdef int64_t due_ms[BLOCK_SIZE]
    cdef int64_t popped_ms[BLOCK_SIZE]
    cdef uint16_t attempts[BLOCK_SIZE]

    cdef bytes encode(self)


cdef class PopQueue:
    cdef readonly int64_t next_offset      # before it everything is done or undone
    cdef readonly uint64_t version         # of the last change that was taken
    cdef readonly int64_t undone_count
    cdef readonly int64_t ready_count
    cdef readonly int64_t dead_count
    cdef readonly int64_t pop_floor_ms     # a pop has to be later, so that no receipt is good twice
    cdef public int64_t committed_offset   # what the group's offset was set to for this queue; -1: nothing yet
    cdef dict blocks                       # number -> Block with something undone
    cdef list due_heap                     # (next_due_ms, number), also of what is not so any more
    cdef list low_heap                     # numbers, also of blocks that are gone
    cdef list ready_heap                   # numbers, also of blocks with nothing ready any more
    cdef set changed                       # numbers of blocks
    cdef bint is_head_changed
    cdef bint is_all_changed

    cdef Block block_of(self, int64_t offset)
    cdef int finish(self, Block block, uint64_t bits) except -1
    cdef int set_due(self, Block block, int64_t due_ms) except -1
    cdef int look_for_due(self, Block block) except -1
    cdef int make_ready(self, Block block, uint64_t bits) except -1
    cdef int hold(self, int64_t offset, int64_t pop_ms, int64_t due_ms) except -1
    cdef int finish_ready(self, int64_t start_offset, int64_t end_offset) except -1
    cdef bytes encode_change(self, numbers, bint is_whole)
