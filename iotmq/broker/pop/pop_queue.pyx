"""The messages of one queue that a group has popped and is not done with: a state machine without I/O.

Operations: hand out records that were read, new ones or again; end, move or give back the time of one; find those
whose time is over; say what has changed since it was last asked, as bytes that `restore` understands. Goals: no
Python object for a message; a pop of 32 costs what a few dictionary entries cost; memory and changes are bounded by
what is undone, however far it lies apart. Plan: blocks of 64 offsets with a bit for each and the times in arrays;
heaps of blocks, a block once in each unless something of it became earlier, where what is out of date is passed over.

An offset before `next_offset` is done, or *undone*: held by whoever has the receipt of its last pop until `due_ms`,
*ready* to be handed out again after that, or *dead*: it was handed out as often as it may be. A receipt is the time
of the pop; it is never the same for two pops of one offset.

In the order of keys only the first undone offset of a key is handed out. One that was read behind it is *waiting*,
and ready when the last one before it is done; so the others behind it can be had. The undone offsets of a key are a
chain. What was handed out in another order has no known key; until it is done, nothing new is handed out.

A change: version 8 | next offset 8 | 1 when what is not in it is gone 1 | for each block: number 8, size 2, value.
All numbers are big-endian. The values of blocks are in blocks.pyx.
"""

import heapq

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t

from iotmq.broker.pop.blocks cimport BLOCK_BITS, BLOCK_SIZE, Block, count_of, lowest
from iotmq.broker.pop.key_chains cimport KeyChains
from iotmq.broker.pop.popped_records cimport key_of, retries_at
from iotmq.message.records.layout cimport (
    AT_QUEUE_OFFSET, AT_SIZE, RECORD_FIXED_BYTES, get_u32, get_u64, put_u16, put_u32, put_u64,
)

from iotmq.errors import StoreCorruptError

cdef enum:
    HEAD_BYTES = 17
    BLOCK_HEAD_BYTES = 10
    ATTEMPTS_MAX = 65535
    # What a block with keys takes, in blocks without.
    KEYED_BLOCK_WEIGHT = 4

cdef int MANY = 1 << 30
cdef int64_t NEVER = (<int64_t> 1) << 62
# When what its holder wants dead is due.
cdef int64_t CONDEMNED = 1
cdef uint64_t ONE = 1

# What became of an acknowledgement, or of another wish of who holds a message.
DONE = 1
DONE_BEFORE = 0
NOT_HELD = -1
NOT_POPPED = -2

# In which order messages are handed out.
NO_ORDER = 0
BY_QUEUE = 1
BY_KEY = 2


cdef class PopQueue:
    """The state of one group and queue; see the module. Not thread-safe."""

    def __init__(self, int64_t next_offset, *, uint64_t version=0):
        self.next_offset = next_offset
        self.version = version
        self.committed_offset = -1
        self.blocks = {}
        self.chains = KeyChains(self.blocks)
        self.due_heap = []
        self.low_heap = []
        self.ready_heap = []
        self.changed = set()

    # What outlives the process

    def restore_block(self, int64_t number, bytes value not None):
        """Take in the value of a block that is not there yet. StoreCorruptError when it is none."""
        cdef const uint8_t* keys
        cdef Block block
        cdef uint64_t left
        cdef int count
        if number < 0 or number >= (<int64_t> 1) << 57:
            raise StoreCorruptError(f"a block of popped messages has the number {number}")
        block = self.block_of(number << BLOCK_BITS)
        keys = block.restore(value)
        count = count_of(block.undone)
        self.undone_count += count
        self.unknown_count += count
        if keys != NULL:
            left = get_u64(keys)
            while left:
                keys += 8
                self.enter(block, lowest(left), get_u64(keys))
                left &= left - 1
        if not block.undone:
            del self.blocks[number]
            return
        self.look_for_due(block)

    @property
    def is_changed(self):
        """Return whether `take_change` has something."""
        return self.is_all_changed or self.is_head_changed or bool(self.changed)

    def take_change(self):
        """Return what has changed since the last call, None when nothing has."""
        cdef bytes change
        if not self.is_changed:
            return None
        change = self.encode_change(sorted(self.blocks if self.is_all_changed else self.changed), self.is_all_changed)
        self.changed.clear()
        self.is_all_changed = self.is_head_changed = False
        return change

    def mark_changed(self):
        """Have everything in the next change: one that was taken is not stored."""
        self.is_all_changed = True

    cdef bytes encode_change(self, numbers, bint is_whole):
        cdef uint8_t head[HEAD_BYTES]
        cdef list pieces = []
        cdef Block block
        cdef bytes value
        self.version += 1
        put_u64(head, self.version)
        put_u64(head + 8, <uint64_t> self.next_offset)
        head[16] = is_whole
        pieces.append((<char*> head)[:HEAD_BYTES])
        for number in numbers:
            block = self.blocks.get(number)
            value = b"" if block is None else block.encode()
            put_u64(head, <uint64_t> <int64_t> number)
            put_u16(head + 8, <uint16_t> len(value))
            pieces.append((<char*> head)[:BLOCK_HEAD_BYTES])
            pieces.append(value)
        return b"".join(pieces)

    # Handing out

    @property
    def block_count(self):
        """Return how many blocks have something undone, more for those with keys: what memory depends on."""
        return len(self.blocks) + self.keyed_count * (KEYED_BLOCK_WEIGHT - 1)

    @property
    def low_offset(self):
        """Return the first offset that is undone; `next_offset` when none is."""
        cdef Block block
        while self.low_heap:
            block = self.blocks.get(self.low_heap[0])
            if block is not None:
                return (block.number << BLOCK_BITS) + lowest(block.undone)
            heapq.heappop(self.low_heap)
        return self.next_offset

    @property
    def is_held(self):
        """Return whether somebody has something, or it is dead: in order, nothing else is handed out."""
        return self.undone_count > self.ready_count + self.waiting_count

    def may_give(self, int order):
        """Return whether anything of the queue may be handed out in an order now."""
        return not self.is_held or not (order == BY_QUEUE or (order == BY_KEY and self.unknown_count))

    def may_give_new(self, int order):
        """Return whether more than what is ready may be handed out in an order."""
        if order == BY_KEY:
            return not self.unknown_count
        return not (order == BY_QUEUE and self.waiting_count)

    @property
    def next_due_ms(self):
        """Return when `expire` has something to do; None for never."""
        cdef Block block
        while self.due_heap:
            due_ms, number = self.due_heap[0]
            block = self.blocks.get(number)
            if block is not None and block.next_due_ms == due_ms:
                return due_ms
            heapq.heappop(self.due_heap)
        return None

    def expire(self, int64_t now_ms, *, int64_t attempts_max):
        """Make what is due ready, or dead when it was handed out `attempts_max` times."""
        cdef Block block
        cdef uint64_t left, over
        cdef int index
        while (due_ms := self.next_due_ms) is not None and due_ms <= now_ms:
            block = self.blocks[self.due_heap[0][1]]
            heapq.heappop(self.due_heap)
            left = block.held()
            over = 0
            while left:
                index = lowest(left)
                left &= left - 1
                if block.due_ms[index] > now_ms:
                    continue
                if block.attempts[index] >= attempts_max or block.due_ms[index] == CONDEMNED:
                    block.dead |= ONE << index
                    self.dead_count += 1
                else:
                    over |= ONE << index
                if block.popped_ms[index] >= self.pop_floor_ms:
                    self.pop_floor_ms = block.popped_ms[index] + 1
            self.make_ready(block, over)
            self.look_for_due(block)

    @property
    def newest_pop_ms(self):
        """Return when the last of what is held was popped; 0 for nothing."""
        cdef Block block
        cdef uint64_t left
        cdef int64_t newest_ms = 0
        for block in self.blocks.values():
            left = block.held()
            while left:
                newest_ms = max(newest_ms, block.popped_ms[lowest(left)])
                left &= left - 1
        return newest_ms

    def ready_run(self):
        """Return the first offsets in a row that are ready, as (first, end); None when none is."""
        cdef Block block
        cdef uint64_t bits
        cdef int first, end
        while self.ready_heap:
            block = self.blocks.get(self.ready_heap[0])
            if block is not None and block.ready:
                bits = block.ready
                first = end = lowest(bits)
                while end < BLOCK_SIZE and bits >> end & 1:
                    end += 1
                return (block.number << BLOCK_BITS) + first, (block.number << BLOCK_BITS) + end
            heapq.heappop(self.ready_heap)
        return None

    def hand_out(
        self, list views not None, int64_t start_offset, int64_t end_offset, *, int64_t pop_ms, int64_t due_ms,
        int order=NO_ORDER, int count_max=MANY
    ):
        """Hold the whole records of `views`, which a read of [start_offset, end_offset) has given, at most so many.

        Ready offsets of that range without a record are done: nobody can have them any more. Returns (views,
        offsets, count): records that were handed out before are copies there with the number of times; the offsets
        are text, with commas between them. In the order of keys, what waits is left out.
        """
        cdef const uint8_t[::1] data
        cdef uint8_t[::1] copied
        cdef Py_ssize_t at, size, times_at, slice_at
        cdef int64_t offset
        cdef list given = []
        cdef list offsets = []
        cdef list slices
        cdef int attempts
        cdef int count = 0
        cdef bytearray copy
        cdef bint is_full = False
        assert pop_ms >= self.pop_floor_ms and start_offset <= end_offset
        for view in views:
            if is_full:
                break
            data = view
            copy = None
            slices = []
            at = slice_at = 0
            while at < data.shape[0]:
                if data.shape[0] - at < RECORD_FIXED_BYTES:
                    raise StoreCorruptError("records end in the middle of one")
                size = get_u32(&data[at] + AT_SIZE)
                if size < RECORD_FIXED_BYTES or size > data.shape[0] - at:
                    raise StoreCorruptError(f"a record says that it has {size} bytes")
                offset = <int64_t> get_u64(&data[at] + AT_QUEUE_OFFSET)
                if not start_offset <= offset < end_offset:
                    raise StoreCorruptError(f"a record of offset {offset} is among {start_offset} to {end_offset}")
                if count >= count_max:
                    is_full = True
                    end_offset = offset
                    break
                if order == BY_KEY and not self.admit(offset, key_of(&data[at], size)):
                    if slice_at < at:
                        slices.append((slice_at, at))
                    at += size
                    slice_at = at
                    continue
                attempts = self.hold(offset, pop_ms, due_ms)
                offsets.append(b"%d" % offset)
                count += 1
                if attempts > 1:
                    if copy is None:
                        copy = bytearray(view)
                        copied = copy
                    times_at = at + retries_at(&data[at], size)
                    put_u32(&copied[times_at], get_u32(&data[times_at]) + <unsigned int> (attempts - 1))
                at += size
            if slice_at < at:
                slices.append((slice_at, at))
            whole = view if copy is None else memoryview(copy)
            for first, end in slices:
                given.append(whole if end - first == data.shape[0] else whole[first:end])
        if start_offset < self.next_offset:
            self.finish_ready(start_offset, min(end_offset, self.next_offset))
        if end_offset > self.next_offset:
            self.next_offset = end_offset
            self.is_head_changed = True
        return given, b",".join(offsets), count

    cdef bint admit(self, int64_t offset, uint64_t key) except -1:
        """Note the key of an offset that was read; return whether it may be handed out in the order of keys."""
        cdef Block block = self.block_of(offset)
        cdef int index = offset & (BLOCK_SIZE - 1)
        cdef uint64_t bit = ONE << index
        if not block.undone & bit:
            assert offset >= self.next_offset
            block.undone |= bit
            block.ready |= bit
            block.attempts[index] = 0
            block.popped_ms[index] = block.due_ms[index] = 0
            self.undone_count += 1
            self.ready_count += 1
            self.unknown_count += 1
            self.changed.add(block.number)
        if not block.known & bit:
            self.enter(block, index, key)
        return block.waiting & bit == 0

    cdef int hold(self, int64_t offset, int64_t pop_ms, int64_t due_ms) except -1:
        """Note that an offset is handed out; return for how many times now."""
        cdef Block block = self.block_of(offset)
        cdef int index = offset & (BLOCK_SIZE - 1)
        cdef uint64_t bit = ONE << index
        if block.undone & bit:
            assert block.ready & bit
            block.ready &= ~bit
            self.ready_count -= 1
        else:
            assert offset >= self.next_offset
            block.undone |= bit
            block.attempts[index] = 0
            self.undone_count += 1
            self.unknown_count += 1
        if block.attempts[index] < ATTEMPTS_MAX:
            block.attempts[index] += 1
        block.popped_ms[index] = pop_ms
        block.due_ms[index] = due_ms
        self.set_due(block, due_ms)
        self.changed.add(block.number)
        return block.attempts[index]

    cdef int finish_ready(self, int64_t start_offset, int64_t end_offset) except -1:
        cdef Block block
        cdef int64_t offset
        gone = []
        for offset in range(start_offset, end_offset):
            block = self.blocks.get(offset >> BLOCK_BITS)
            if block is not None and block.ready >> (offset & (BLOCK_SIZE - 1)) & 1:
                gone.append(offset)
        # One that is done may make another one ready, which may be here.
        for offset in gone:
            self.discard(offset)
        return 0

    # What holders want

    def acknowledge(self, int64_t offset, int64_t popped_ms):
        """End a message. Returns DONE, or why not."""
        cdef int found = self.find(offset, popped_ms)
        if found == DONE:
            self.discard(offset)
        return found

    def acknowledge_many(self, int64_t start_offset, const uint8_t[::1] bits not None, int64_t popped_ms):
        """End the messages whose bits are set, the lowest bit first; returns how many were not held."""
        cdef Py_ssize_t at
        cdef int index
        cdef int refused = 0
        for at in range(bits.shape[0]):
            for index in range(8):
                if bits[at] >> index & 1:
                    refused += self.acknowledge(start_offset + at * 8 + index, popped_ms) < 0
        return refused

    def change_due(self, int64_t offset, int64_t popped_ms, *, int64_t now_ms, int64_t due_ms):
        """Have a message due at another time. Returns (DONE, the time of its new receipt), or (why not, 0)."""
        cdef int index = offset & (BLOCK_SIZE - 1)
        cdef uint64_t bit = ONE << index
        cdef Block block
        cdef int found = self.find(offset, popped_ms)
        if found != DONE:
            return found, 0
        block = self.blocks[offset >> BLOCK_BITS]
        self.take_back(block, bit)
        block.popped_ms[index] = max(now_ms, popped_ms + 1)
        block.due_ms[index] = due_ms
        self.set_due(block, due_ms)
        self.changed.add(block.number)
        return DONE, block.popped_ms[index]

    def condemn(self, int64_t offset, int64_t popped_ms):
        """Have a message dead when `expire` is called next, however often it was handed out. Returns DONE, or why not."""
        cdef Block block
        cdef int index = offset & (BLOCK_SIZE - 1)
        cdef int found = self.find(offset, popped_ms)
        if found == DONE:
            block = self.blocks[offset >> BLOCK_BITS]
            self.take_back(block, ONE << index)
            block.due_ms[index] = CONDEMNED
            self.set_due(block, CONDEMNED)
            self.changed.add(block.number)
        return found

    def give_back(self, bytes offsets not None, int64_t pop_ms):
        """Have the offsets that a pop held ready again, as if it had not been handed out: its answer cannot be given.

        `offsets` is text as `hand_out` returns it: other pops may have the same time.
        """
        cdef Block block
        cdef int64_t offset
        cdef int index
        for text in offsets.split(b","):
            offset = int(text)
            block = self.blocks.get(offset >> BLOCK_BITS)
            index = offset & (BLOCK_SIZE - 1)
            if (
                block is None or block.popped_ms[index] != pop_ms
                or not block.held() >> index & 1
            ):
                continue
            block.attempts[index] -= 1
            block.due_ms[index] = 0
            self.make_ready(block, ONE << index)
            self.look_for_due(block)
            self.changed.add(block.number)
        self.pop_floor_ms = max(self.pop_floor_ms, pop_ms + 1)

    def find(self, int64_t offset, int64_t popped_ms):
        """Return DONE when this receipt holds the offset, and else what has become of it."""
        cdef Block block
        cdef int index = offset & (BLOCK_SIZE - 1)
        if not 0 <= offset < self.next_offset:
            return NOT_POPPED
        block = self.blocks.get(offset >> BLOCK_BITS)
        if block is None or not block.undone >> index & 1:
            return DONE_BEFORE
        if not block.attempts[index]:
            return NOT_POPPED
        # Whose time is over, and nobody else has it: it is his as long as that is so.
        return DONE if block.popped_ms[index] == popped_ms and not block.dead >> index & 1 else NOT_HELD

    # Dead letters

    def dead_offsets(self):
        """Return the offsets that are dead, and have to be buried."""
        cdef Block block
        cdef uint64_t left
        offsets = []
        if self.dead_count:
            for block in self.blocks.values():
                left = block.dead
                while left:
                    offsets.append((block.number << BLOCK_BITS) + lowest(left))
                    left &= left - 1
        return sorted(offsets)

    def is_dead(self, int64_t offset):
        """Return whether an offset is dead, and has to be buried."""
        cdef Block block = self.blocks.get(offset >> BLOCK_BITS)
        return block is not None and block.dead >> (offset & (BLOCK_SIZE - 1)) & 1 == 1

    def attempts(self, int64_t offset):
        """Return how often an undone offset was handed out."""
        cdef Block block = self.blocks[offset >> BLOCK_BITS]
        return block.attempts[offset & (BLOCK_SIZE - 1)]

    def bury(self, int64_t offset):
        """End a dead offset; returns the change of that alone. Everything else has to be stored before."""
        cdef Block block = self.blocks[offset >> BLOCK_BITS]
        assert block.dead >> (offset & (BLOCK_SIZE - 1)) & 1 and not self.is_changed
        self.finish(block, ONE << (offset & (BLOCK_SIZE - 1)))
        self.changed.clear()
        return self.encode_change((block.number,), False)

    def discard(self, int64_t offset):
        """End an undone offset, as one whose record is gone."""
        self.finish(self.blocks[offset >> BLOCK_BITS], ONE << (offset & (BLOCK_SIZE - 1)))

    def dig_out(self, int64_t offset, int attempts):
        """Have a dead offset back whose burial is not stored."""
        cdef Block block = self.block_of(offset)
        cdef int index = offset & (BLOCK_SIZE - 1)
        assert not block.undone >> index & 1
        block.undone |= ONE << index
        block.dead |= ONE << index
        block.attempts[index] = <uint16_t> attempts
        block.popped_ms[index] = block.due_ms[index] = 0
        self.undone_count += 1
        self.unknown_count += 1
        self.dead_count += 1
        self.is_all_changed = True

    # Starting over

    def start_over(self, int64_t next_offset):
        """Forget everything, and go on at another offset."""
        cdef Block block
        cdef uint64_t left
        for block in self.blocks.values():
            left = block.undone
            while left:
                self.pop_floor_ms = max(self.pop_floor_ms, block.popped_ms[lowest(left)] + 1)
                left &= left - 1
        self.blocks.clear()
        self.chains.clear()
        self.due_heap.clear()
        self.low_heap.clear()
        self.ready_heap.clear()
        self.changed.clear()
        self.undone_count = self.ready_count = self.waiting_count = self.dead_count = self.unknown_count = 0
        self.keyed_count = 0
        self.next_offset = next_offset
        self.is_all_changed = True

    def advance(self, int64_t offset):
        """End everything before an offset, and go on there or behind it."""
        self.finish_between(0, offset)
        if offset > self.next_offset:
            self.next_offset = offset
            self.is_head_changed = True

    def cut(self, int64_t end_offset):
        """Forget what the queue does not have: it ends at `end_offset`, because the log has lost its end."""
        if self.next_offset > end_offset:
            self.finish_between(end_offset, self.next_offset)
            self.next_offset = end_offset
            self.is_all_changed = True

    cdef int finish_between(self, int64_t start_offset, int64_t end_offset) except -1:
        cdef Block block
        cdef uint64_t bits
        for block in list(self.blocks.values()):
            bits = block.undone_between(start_offset, end_offset)
            if bits:
                self.finish(block, bits)
        return 0

    # Blocks

    cdef Block block_of(self, int64_t offset):
        """Return the block of an offset, made where there is none."""
        cdef int64_t number = offset >> BLOCK_BITS
        cdef Block block = self.blocks.get(number)
        if block is None:
            block = self.blocks[number] = Block.__new__(Block, number)
            heapq.heappush(self.low_heap, number)
            # Out of date ones are dropped where they come to the top, and here when they are too many.
            if len(self.low_heap) > 2 * len(self.blocks) + BLOCK_SIZE:
                self.low_heap = sorted(self.blocks)
        return block

    cdef int finish(self, Block block, uint64_t bits) except -1:
        """End undone offsets of a block."""
        cdef uint64_t left
        cdef int64_t first
        assert bits and bits & ~block.undone == 0
        self.undone_count -= count_of(bits)
        self.ready_count -= count_of(bits & block.ready)
        self.waiting_count -= count_of(bits & block.waiting)
        self.dead_count -= count_of(bits & block.dead)
        self.unknown_count -= count_of(bits & ~block.known)
        block.undone &= ~bits
        block.ready &= ~bits
        block.waiting &= ~bits
        block.dead &= ~bits
        left = bits & block.known
        while left:
            first = self.chains.leave(block, lowest(left))
            left &= left - 1
            if first >= 0:
                self.first_of_key(first)
        block.known &= ~bits
        if not block.undone:
            del self.blocks[block.number]
            self.keyed_count -= block.links != NULL
        self.changed.add(block.number)
        return 0

    cdef int set_due(self, Block block, int64_t due_ms) except -1:
        """Have the block looked at when something of it is due."""
        if due_ms < block.next_due_ms:
            block.next_due_ms = due_ms
            heapq.heappush(self.due_heap, (due_ms, block.number))
            if len(self.due_heap) > 2 * len(self.blocks) + BLOCK_SIZE:
                self.due_heap = sorted(
                    [((<Block> each).next_due_ms, number) for number, each in self.blocks.items()
                     if (<Block> each).next_due_ms != NEVER]
                )
        return 0

    cdef int look_for_due(self, Block block) except -1:
        cdef int64_t due_ms = block.first_due_ms()
        block.next_due_ms = NEVER
        if due_ms != NEVER:
            self.set_due(block, due_ms)
        return 0

    cdef int make_ready(self, Block block, uint64_t bits) except -1:
        """Have offsets handed out again that are not held any more: in its turn what is behind others of its key."""
        cdef uint64_t left = bits & block.known
        while left:
            if block.links[lowest(left)].before >= 0:
                bits &= ~(left & -left)
                block.waiting |= left & -left
                self.waiting_count += 1
            left &= left - 1
        if bits:
            if not block.ready:
                heapq.heappush(self.ready_heap, block.number)
                if len(self.ready_heap) > 2 * len(self.blocks) + BLOCK_SIZE:
                    self.ready_heap = sorted(
                        [number for number, each in self.blocks.items() if (<Block> each).ready or each is block]
                    )
            block.ready |= bits
            self.ready_count += count_of(bits)
        return 0

    cdef int take_back(self, Block block, uint64_t bit) except -1:
        """Have an offset held whose time was over."""
        if block.ready & bit:
            block.ready &= ~bit
            self.ready_count -= 1
        if block.waiting & bit:
            block.waiting &= ~bit
            self.waiting_count -= 1
        return 0

    # Order of keys

    cdef int enter(self, Block block, int index, uint64_t key) except -1:
        """Note the key of an undone offset, 0 for none: what is ready behind another one of its key waits."""
        cdef int64_t behind
        if block.links == NULL:
            block.add_links()
            self.keyed_count += 1
        block.known |= ONE << index
        self.unknown_count -= 1
        self.chains.enter(block, index, key)
        behind = block.links[index].behind
        if block.links[index].before >= 0:
            self.postpone(block, ONE << index)
        if behind >= 0:
            self.postpone(self.blocks[behind >> BLOCK_BITS], ONE << (behind & (BLOCK_SIZE - 1)))
        return 0

    cdef int first_of_key(self, int64_t offset) except -1:
        """Have an offset ready whose key has nothing undone before it any more, when it waits for that."""
        cdef Block block = self.blocks[offset >> BLOCK_BITS]
        cdef uint64_t bit = ONE << (offset & (BLOCK_SIZE - 1))
        if block.waiting & bit:
            block.waiting &= ~bit
            self.waiting_count -= 1
            self.make_ready(block, bit)
        return 0

    cdef int postpone(self, Block block, uint64_t bit) except -1:
        """Have what is ready wait for those before it."""
        if block.ready & bit:
            block.ready &= ~bit
            block.waiting |= bit
            self.ready_count -= 1
            self.waiting_count += 1
        return 0

    def check_invariants(self):
        """Assert what must always be true; for tests."""
        cdef Block block
        undone = ready = waiting = dead = unknown = keyed = 0
        for number, each in self.blocks.items():
            block = each
            assert block.number == number and block.undone
            assert block.ready & ~block.undone == 0 and block.dead & ~block.undone == 0
            assert block.waiting & ~block.undone == 0 and block.known & ~block.undone == 0
            assert block.ready & block.dead == block.ready & block.waiting == block.dead & block.waiting == 0
            assert (number << BLOCK_BITS) < self.next_offset
            assert number in self.low_heap
            assert not block.ready or number in self.ready_heap
            assert block.next_due_ms == NEVER or (block.next_due_ms, number) in self.due_heap
            left = block.held()
            due = [block.due_ms[index] for index in range(BLOCK_SIZE) if left >> index & 1]
            assert not due or block.next_due_ms <= min(due)
            undone += count_of(block.undone)
            ready += count_of(block.ready)
            waiting += count_of(block.waiting)
            dead += count_of(block.dead)
            unknown += count_of(block.undone & ~block.known)
            keyed += block.links != NULL
            assert block.waiting & ~block.known == 0 and (block.links != NULL or not block.known)
        assert keyed == self.keyed_count
        self.chains.check_invariants()
        assert (undone, ready, dead) == (self.undone_count, self.ready_count, self.dead_count)
        assert (waiting, unknown) == (self.waiting_count, self.unknown_count)
        assert self.low_offset <= self.next_offset
