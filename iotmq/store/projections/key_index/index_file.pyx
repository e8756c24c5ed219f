"""One file of the key index: a hash table from keys to positions of records, big-endian.

A file is `index/<yyyyMMddHHmmssSSS>` (UTC, of its first record):
  0 store time (ms) of the first record 8 | 8 of the last 8 | 16 position of the first 8 | 24 of the last 8
  32 slots in use 4 | 36 index of the next entry 4 | 40 slots, 4 bytes each | entries, 20 bytes each
A slot holds the index of the newest entry of its chain, 0 for none; entries count from 1. An entry:
  0 hash 4 | 4 position 8 | 12 seconds since the file's first record 4 | 16 index of the chain's next older 4
The hash is |Java's String.hashCode| of `topic#key` (0 where that has no absolute value), the slot the
hash modulo the number of slots.

The slots, where writes are random, get their disk blocks when the file is made (512 KiB by default); entries
are written in order, and get theirs in steps. Nothing here has a checksum: see `KeyIndex` for what is relied
on after a crash.
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from iotmq.message.records.layout cimport get_u32, get_u64, put_u32, put_u64
from iotmq.message.records.text cimport java_hash
from iotmq.store.log.segment cimport Segment, whole_steps

from iotmq.errors import StoreCorruptError
from iotmq.files import sync_path

cdef enum:
    # Blocks for entries are taken in steps of this many bytes.
    ALLOCATION_STEP_BYTES = 1048576
    # And pages in steps of this many.
    READY_STEP_BYTES = 131072
    PAGE_BYTES = 4096

NAME_DIGITS = 17


def key_hash(str text):
    """Return the hash entries hold for `text`, which is `topic#key`."""
    cdef bytes data = text.encode("utf-8", "replace")
    return without_sign(java_hash(0, <const uint8_t*> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)))


def index_file_bytes(int64_t slots, int64_t entries):
    """Size of a file with so many slots and entries."""
    return INDEX_HEADER_BYTES + slots * INDEX_SLOT_BYTES + entries * INDEX_ENTRY_BYTES


cdef class IndexFile:
    """One hash file, mapped whole. Times and positions are those of its first and last record."""

    def __init__(self, str path, int32_t slots, int32_t entries):
        """Map the file at `path`, made when missing with its slots' blocks; raises OSError."""
        cdef int64_t size_bytes = index_file_bytes(slots, entries)
        self.path = path
        self.number = int(os.path.basename(path))
        self.slots = slots
        self.entries = entries
        self.segment = Segment(path, 0, size_bytes)
        if self.segment.allocated_bytes == 0:
            # Slots are written here and there; those of a file with a past would rather be read in runs.
            self.segment.page_singly(0)
        self.segment.allocate(INDEX_HEADER_BYTES + <int64_t> slots * INDEX_SLOT_BYTES)
        self.slots_at = self.segment.data + INDEX_HEADER_BYTES
        self.entries_at = self.slots_at + <int64_t> slots * INDEX_SLOT_BYTES
        self.count_writable()
        self.begin_timestamp_ms = <int64_t> get_u64(self.segment.data)
        self.end_timestamp_ms = <int64_t> get_u64(self.segment.data + 8)
        self.begin_position = <int64_t> get_u64(self.segment.data + 16)
        self.end_position = <int64_t> get_u64(self.segment.data + 24)
        self.used_slots = <int32_t> get_u32(self.segment.data + 32)
        # Nothing beyond the blocks may be touched, whatever a damaged header says; `problem` tells.
        self.count = min(max(<int32_t> get_u32(self.segment.data + 36), 1), max(self.writable_count, 1))

    def __repr__(self):
        return f"<IndexFile {self.path} {self.count - 1} entries {self.begin_position}..{self.end_position}>"

    def view(self):
        """Read-only view of the file as far as it has disk blocks."""
        return self.segment.view(0, self.segment.allocated_bytes)

    def problem(self):
        """Return the problem of the header, None when it agrees with the entries."""
        if <int32_t> get_u32(self.segment.data + 36) != self.count:
            return f"its header counts {<int32_t> get_u32(self.segment.data + 36)} entries"
        if self.count == 1:
            return None
        if self.position_of(1) != self.begin_position or self.position_of(self.count - 1) != self.end_position:
            return "its first or last entry is not the one its header names"
        if self.end_position < self.begin_position or not 0 < self.used_slots <= min(self.slots, self.count - 1):
            return "its header cannot be right"
        return None

    def position_of(self, int32_t index):
        """Position in the entry at `index`, 1..count - 1."""
        if not 0 < index < self.count:
            raise IndexError(f"entry {index} of {self!r}")
        return <int64_t> get_u64(self.entries_at + <int64_t> index * INDEX_ENTRY_BYTES + 4)

    def start_behind(self, IndexFile previous):
        """Begin an empty file: it starts where `previous` ends (or at nothing)."""
        if previous is not None:
            self.begin_timestamp_ms = self.end_timestamp_ms = previous.end_timestamp_ms
            self.begin_position = self.end_position = previous.end_position
        self.count = 1
        self.used_slots = 0
        self.is_new = True
        self.write_header()

    def cut(self, int32_t count, timestamp_at=None):
        """Keep the entries below `count` (at least one), zero the others, and make the slots from them.

        Entries are relied on, slots and links are not. `timestamp_at` gives the store time of the record at
        a position, 0 when there is none. Raises StoreCorruptError for an entry that none of ours can be.
        """
        cdef uint8_t* entry
        cdef uint8_t* slot
        cdef int32_t index, hash
        cdef int64_t kept_bytes = self.entries_at - self.segment.data + <int64_t> count * INDEX_ENTRY_BYTES
        cdef int64_t position
        if not 1 < count <= self.writable_count:
            raise StoreCorruptError(f"{self.path} has no {count - 1} entries")
        memset(self.slots_at, 0, <size_t> self.slots * INDEX_SLOT_BYTES)
        self.used_slots = 0
        position = -1
        for index in range(1, count):
            entry = self.entries_at + <int64_t> index * INDEX_ENTRY_BYTES
            hash = <int32_t> get_u32(entry)
            if hash < 0 or <int64_t> get_u64(entry + 4) < position:
                raise StoreCorruptError(f"{self.path}: entry {index} is damaged")
            position = <int64_t> get_u64(entry + 4)
            slot = self.slots_at + <int64_t> (hash % self.slots) * INDEX_SLOT_BYTES
            self.used_slots += get_u32(slot) == 0
            memcpy(entry + 16, slot, INDEX_SLOT_BYTES)
            put_u32(slot, <uint32_t> index)
        self.end_timestamp_ms = 0 if timestamp_at is None else timestamp_at(position)
        if self.end_timestamp_ms == 0:
            # The entry says it to the second.
            self.end_timestamp_ms = self.begin_timestamp_ms + <int64_t> <int32_t> get_u32(entry + 12) * 1000 + 999
        self.begin_position = <int64_t> get_u64(self.entries_at + INDEX_ENTRY_BYTES + 4)
        self.end_position = position
        self.count = count
        if kept_bytes < self.segment.allocated_bytes:
            self.segment.truncate(kept_bytes)
        self.ready_count = 0
        self.count_writable()
        self.write_header()

    def sync(self, sync_file):
        """Call `sync_file` on the file, and make the name of a new one durable. Any thread."""
        try:
            self.segment.sync(sync_file)
        except FileNotFoundError:
            if not self.is_deleted:
                raise
            return
        if self.is_new:
            self.is_new = False
            sync_path(os.path.dirname(self.path))

    def delete(self):
        """Remove the file if it is there; raises OSError. Look-ups under way still have its mapping."""
        self.is_deleted = True
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass

    def count_writable(self):
        self.writable_count = <int32_t> (
            (self.segment.data + self.segment.allocated_bytes - self.entries_at) // INDEX_ENTRY_BYTES
        )

    cdef int put(self, int32_t hash, int64_t position, int64_t timestamp_ms) except -1:
        """Add an entry. The caller has seen that the file is not full."""
        cdef uint8_t* slot
        cdef uint8_t* entry
        cdef int64_t seconds = 0
        if self.count >= self.ready_count:
            self.make_ready()
        if self.count == 1:
            self.begin_timestamp_ms = timestamp_ms
            self.begin_position = position
        elif self.begin_timestamp_ms > 0 and timestamp_ms > self.begin_timestamp_ms:
            seconds = min((timestamp_ms - self.begin_timestamp_ms) // 1000, <int64_t> INT32_MAX)
        slot = self.slots_at + <int64_t> (hash % self.slots) * INDEX_SLOT_BYTES
        entry = self.entries_at + <int64_t> self.count * INDEX_ENTRY_BYTES
        put_u32(entry, <uint32_t> hash)
        put_u64(entry + 4, <uint64_t> position)
        put_u32(entry + 12, <uint32_t> seconds)
        if get_u32(slot) == 0:
            self.used_slots += 1
        memcpy(entry + 16, slot, INDEX_SLOT_BYTES)
        put_u32(slot, <uint32_t> self.count)
        self.count += 1
        self.end_timestamp_ms = timestamp_ms
        self.end_position = position
        return 0

    cdef int make_ready(self) except -1:
        """Have disk blocks for one entry more, and in a file that began empty pages for some."""
        cdef int64_t entries_bytes = self.entries_at - self.segment.data
        cdef int64_t start_bytes = entries_bytes + <int64_t> self.count * INDEX_ENTRY_BYTES
        cdef int64_t end_bytes = whole_steps(start_bytes + INDEX_ENTRY_BYTES, READY_STEP_BYTES)
        if self.count >= self.writable_count:
            self.reserve()
        self.ready_count = self.writable_count
        if self.segment.is_paged_singly:
            self.segment.write_zeros(start_bytes, end_bytes)
            self.ready_count = min(self.ready_count, <int32_t> ((end_bytes - entries_bytes) // INDEX_ENTRY_BYTES))
        return 0

    cdef int reserve(self) except -1:
        """Have disk blocks for one entry more, a whole step where there is room."""
        cdef int64_t needed_bytes = (
            self.entries_at - self.segment.data + (<int64_t> self.count + 1) * INDEX_ENTRY_BYTES
        )
        try:
            self.segment.allocate(min(whole_steps(needed_bytes, ALLOCATION_STEP_BYTES), self.segment.size_bytes))
        except OSError:
            # The last bit of a nearly full disk.
            self.segment.allocate(min(whole_steps(needed_bytes, PAGE_BYTES), self.segment.size_bytes))
        self.count_writable()
        assert self.count < self.writable_count
        return 0

    cdef void write_header(self) noexcept:
        cdef uint8_t* header = self.segment.data
        put_u64(header, <uint64_t> self.begin_timestamp_ms)
        put_u64(header + 8, <uint64_t> self.end_timestamp_ms)
        put_u64(header + 16, <uint64_t> self.begin_position)
        put_u64(header + 24, <uint64_t> self.end_position)
        put_u32(header + 32, <uint32_t> self.used_slots)
        put_u32(header + 36, <uint32_t> self.count)

    cdef int64_t entries_below(self, int64_t position) noexcept:
        """Index of the first entry of a record at or past `position`; entries are in the log's order."""
        cdef int64_t low = 1
        cdef int64_t high = self.count
        cdef int64_t middle
        while low < high:
            middle = (low + high) // 2
            if <int64_t> get_u64(self.entries_at + middle * INDEX_ENTRY_BYTES + 4) < position:
                low = middle + 1
            else:
                high = middle
        return low
