"""The undone offsets of each key of a queue, in order: chains of links that lie in the blocks.

Operations: enter an offset, mostly behind all others of its key; take one out, mostly the first, and say which is
the first then. Goals: both cost the same however long the chain is.
"""

from libc.stdint cimport int64_t, uint64_t

from iotmq.broker.pop.blocks cimport BLOCK_BITS, BLOCK_SIZE, Block, KeyLink
from iotmq.broker.pop.key_tails cimport KeyTails


cdef class KeyChains:
    def __cinit__(self, dict blocks not None):
        self.blocks = blocks
        self.tails = KeyTails()

    cdef int enter(self, Block block, int index, uint64_t key) except -1:
        """Take in an offset of a block with links; key 0 is in no chain."""
        cdef int64_t offset = (block.number << BLOCK_BITS) + index
        cdef int64_t before = self.tails.find(key) if key else -1
        cdef int64_t behind = -1
        while before > offset:
            behind = before
            before = self.link_of(before).before
        block.links[index].key = key
        block.links[index].before = before
        block.links[index].behind = behind
        if before >= 0:
            self.link_of(before).behind = offset
        if behind >= 0:
            self.link_of(behind).before = offset
        elif key:
            self.tails.put(key, offset)
        return 0

    cdef int64_t leave(self, Block block, int index) except -2:
        """Take an offset out; returns the one that is the first of its key instead, -1 when none is."""
        cdef KeyLink link = block.links[index]
        if link.before >= 0:
            self.link_of(link.before).behind = link.behind
        if link.behind >= 0:
            self.link_of(link.behind).before = link.before
            return link.behind if link.before < 0 else -1
        if link.before >= 0:
            self.tails.put(link.key, link.before)
        elif link.key:
            self.tails.remove(link.key)
        return -1

    cdef int clear(self) except -1:
        return self.tails.clear()

    cdef KeyLink* link_of(self, int64_t offset) except NULL:
        return &(<Block> self.blocks[offset >> BLOCK_BITS]).links[offset & (BLOCK_SIZE - 1)]

    def check_invariants(self):
        """Assert what must always be true; for tests."""
        cdef Block block
        chains = {}
        for number, each in self.blocks.items():
            block = each
            for index in range(BLOCK_SIZE):
                if block.known >> index & 1 and block.links[index].key:
                    chains.setdefault(block.links[index].key, []).append((number << BLOCK_BITS) + index)
        assert len(chains) == self.tails.count
        for key, offsets in chains.items():
            offsets.sort()
            assert self.tails.find(key) == offsets[-1]
            for before, offset, behind in zip([-1, *offsets], offsets, [*offsets[1:], -1]):
                block = self.blocks[offset >> BLOCK_BITS]
                index = offset & (BLOCK_SIZE - 1)
                assert (block.links[index].before, block.links[index].behind) == (before, behind)
                assert not (block.ready if before >= 0 else block.waiting) >> index & 1
