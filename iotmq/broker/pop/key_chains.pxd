# The undone offsets of each key of a queue, in order; see key_chains.pyx.

from libc.stdint cimport int64_t, uint64_t

from iotmq.broker.pop.blocks cimport Block, KeyLink
from iotmq.broker.pop.key_tails cimport KeyTails


cdef class KeyChains:
    cdef dict blocks               # of the queue
    cdef KeyTails tails            # key -> the last undone offset that has it

    cdef int enter(self, Block block, int index, uint64_t key) except -1
    cdef int64_t leave(self, Block block, int index) except -2
    cdef int clear(self) except -1
    cdef KeyLink* link_of(self, int64_t offset) except NULL
