# The messages of one queue that a group has popped and is not done with; see pop_queue.pyx.

from libc.stdint cimport int64_t, uint64_t

from iotmq.broker.pop.blocks cimport Block
from iotmq.broker.pop.key_chains cimport KeyChains


cdef class PopQueue:
    cdef readonly int64_t next_offset      # before it everything is done or undone
    cdef readonly uint64_t version         # of the last change that was taken
    cdef readonly int64_t undone_count
    cdef readonly int64_t ready_count
    cdef readonly int64_t waiting_count
    cdef readonly int64_t dead_count
    cdef readonly int64_t unknown_count    # undone ones whose key is not known
    cdef readonly int64_t pop_floor_ms     # a pop has to be later, so that no receipt is good twice
    cdef public int64_t committed_offset   # what the group's offset was set to for this queue; -1: nothing yet
    cdef dict blocks                       # number -> Block with something undone
    cdef Py_ssize_t keyed_count            # of these: with keys
    cdef KeyChains chains
    cdef list due_heap                     # (next_due_ms, number), also of what is not so any more
    cdef list low_heap                     # numbers, also of blocks that are gone
    cdef list ready_heap                   # numbers, also of blocks with nothing ready any more
    cdef set changed                       # numbers of blocks
    cdef bint is_head_changed
    cdef bint is_all_changed

    cdef Block block_of(self, int64_t offset)
    cdef int finish_between(self, int64_t start_offset, int64_t end_offset) except -1
    cdef int finish(self, Block block, uint64_t bits) except -1
    cdef int set_due(self, Block block, int64_t due_ms) except -1
    cdef int look_for_due(self, Block block) except -1
    cdef int make_ready(self, Block block, uint64_t bits) except -1
    cdef int take_back(self, Block block, uint64_t bit) except -1
    cdef bint admit(self, int64_t offset, uint64_t key) except -1
    cdef int hold(self, int64_t offset, int64_t pop_ms, int64_t due_ms) except -1
    cdef int enter(self, Block block, int index, uint64_t key) except -1
    cdef int first_of_key(self, int64_t offset) except -1
    cdef int postpone(self, Block block, uint64_t bit) except -1
    cdef int finish_ready(self, int64_t start_offset, int64_t end_offset) except -1
    cdef bytes encode_change(self, numbers, bint is_whole)
