"""One queue of a topic, in files: entry n is at byte 20 n, layout in queue_entry.pxd.

Files are `consumequeue/TOPIC/QUEUE/<20 digits>`, named by the byte offset of their first entry. All of it is
derived from the log and can be deleted.

Disk blocks are reserved before a record goes to the log (`reserve`), so that a full disk never leaves a
record without room for its entry. Files start with one page and double their blocks: a thousand quiet queues
cost 4 MiB.
"""

import os

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t

cimport iotmq.store.log.queue_entry as entry_layout
from iotmq.message.records.layout cimport QUEUE_ENTRY_SIZE, get_u32, get_u64
from iotmq.store.log.queue_entry cimport is_filler, put_filler
from iotmq.store.log.segment cimport Segment, is_zero, whole_steps

from iotmq.files import sync_path
from iotmq.store import fail_points
from iotmq.store.log.segment import segment_name

cdef enum:
    # Blocks of a queue file: the first page, then doubled up to this step.
    ALLOCATION_FIRST_BYTES = 4096
    ALLOCATION_STEP_BYTES_MAX = 262144
    # Pages of files that have more than this are made so many at a time.
    READY_STEP_BYTES = 65536
    SECTOR_BYTES = 512

# Record size in an entry that stands for an offset without a record.
FILLER_SIZE = entry_layout.FILLER_SIZE


cdef class Queue:
    """One queue of a topic: its offsets, and the files with its entries.

    `min_offset` is the first offset that can be read, `max_offset` the one after the last; `next_offset`
    the one the next append takes (ahead of `max_offset` while a sync flush is under way). Set `watched`
    to find the queue in `Store.take_dispatched()` after it got entries.
    """

    def __init__(self, str topic, int queue_id, str directory, int64_t entries_per_file):
        self.topic = topic
        self.queue_id = queue_id
        self.topic_bytes = topic.encode("utf-8", "surrogateescape")
        self.directory = directory
        self.file_bytes = entries_per_file * QUEUE_ENTRY_SIZE
        self.files = []

    def __repr__(self):
        return f"<Queue {self.topic!r} {self.queue_id} {self.min_offset}..{self.max_offset}>"

    def entry(self, int64_t offset):
        """(position, record size, tags code) of an offset, or None where a file is missing."""
        cdef const uint8_t* at
        if not self.min_offset <= offset < self.max_offset:
            raise IndexError(f"offset {offset} is not in {self!r}")
        at = self.entry_at(offset)
        if at == NULL:
            return None
        return <int64_t> get_u64(at), <int32_t> get_u32(at + 8), <int64_t> get_u64(at + 12)

    def check_invariants(self):
        """AssertionError when offsets and files disagree."""
        cdef Segment file
        cdef int64_t end_bytes = 0
        assert 0 <= self.min_offset <= self.max_offset, f"{self!r} ends before it begins"
        assert self.max_offset <= self.reserved_offset or not self.files, f"{self!r} has entries without blocks"
        for file in self.files:
            assert end_bytes <= file.start_position < file.end_position, f"{file.path} is not behind the one before"
            assert file.start_position % QUEUE_ENTRY_SIZE == 0 and file.allocated_bytes <= file.size_bytes
            end_bytes = file.end_position
        assert not self.files or self.reserved_offset * QUEUE_ENTRY_SIZE <= end_bytes, "blocks behind the last file"
        assert self.reading is None or self.reading in self.files, "a file is read that is gone"
        assert self.write_at <= self.write_stop

    cdef bint has_entries(self) noexcept:
        """Return whether the files say where the queue ends."""
        return bool(self.files) and self.max_offset * QUEUE_ENTRY_SIZE > (<Segment> self.files[0]).start_position

    cdef int reserve(self, int64_t end_offset) except -1:
        """Have disk blocks for the entries below `end_offset`; raises OSError and changes nothing visible."""
        cdef Segment file
        cdef int64_t end_bytes, wanted_bytes, first_bytes
        while self.reserved_offset < end_offset:
            first_bytes = self.reserved_offset * QUEUE_ENTRY_SIZE
            file = <Segment> self.files[len(self.files) - 1] if self.files else None
            if file is None or first_bytes >= file.end_position:
                os.makedirs(self.directory, exist_ok=True)
                first_bytes -= first_bytes % self.file_bytes
                if file is not None:
                    # That may be longer, from before the setting was changed.
                    first_bytes = max(first_bytes, file.end_position)
                path = os.path.join(self.directory, segment_name(first_bytes))
                file = Segment(path, first_bytes, self.file_bytes, is_small=True)
                fail_points.reach("queue-file-created")
                self.is_new = True
                self.files.append(file)
            end_bytes = min(end_offset * QUEUE_ENTRY_SIZE, file.end_position) - file.start_position
            if end_bytes > file.allocated_bytes:
                wanted_bytes = file.allocated_bytes + min(
                    max(file.allocated_bytes, <int64_t> ALLOCATION_FIRST_BYTES), <int64_t> ALLOCATION_STEP_BYTES_MAX
                )
                wanted_bytes = whole_steps(max(end_bytes, wanted_bytes), ALLOCATION_FIRST_BYTES)
                file.allocate(min(wanted_bytes, file.size_bytes))
            if self.unfilled_offset:
                self._fill_front(file)
            self.reserved_offset = (file.start_position + file.allocated_bytes) // QUEUE_ENTRY_SIZE
        return 0

    def _fill_front(self, Segment file not None):
        """Fillers in the first file of a queue that goes on behind offsets without files."""
        cdef int64_t at_bytes = 0
        cdef int64_t end_bytes = self.unfilled_offset * QUEUE_ENTRY_SIZE - file.start_position
        while at_bytes < end_bytes:
            put_filler(file.data + at_bytes)
            at_bytes += QUEUE_ENTRY_SIZE
        self.unfilled_offset = 0

    cdef int aim(self) except -1:
        """Point write_at at the entry of `max_offset`, which gets its disk block here if it has none."""
        cdef Segment file
        cdef int64_t at_bytes, end_bytes
        self.reserve(self.max_offset + 1)
        file = self.file_of(self.max_offset)
        at_bytes = self.max_offset * QUEUE_ENTRY_SIZE - file.start_position
        end_bytes = min(file.size_bytes, self.reserved_offset * QUEUE_ENTRY_SIZE - file.start_position)
        if file.allocated_bytes > READY_STEP_BYTES:
            # Much is written to it, and single page faults would cost more than the entries.
            end_bytes = min(end_bytes, whole_steps(at_bytes + QUEUE_ENTRY_SIZE, READY_STEP_BYTES))
            file.write_zeros(at_bytes, end_bytes)
        self.write_at = file.data + at_bytes
        self.write_stop = file.data + end_bytes
        return 0

    cdef int skip_to(self, int64_t offset) except -1:
        """Make `offset` the next entry, with fillers for the offsets between.

        A gap that leaves the file is not filled further than the file's end and the next one's start:
        an offset is read from bytes that may be damaged, and must not cost a disk of fillers.
        """
        cdef int64_t file_entries = self.file_bytes // QUEUE_ENTRY_SIZE
        cdef int64_t resumed_offset = offset - offset % file_entries
        cdef Segment file
        if self.max_offset == 0 and not self.files:
            self.min_offset = offset
        if self.files:
            file = <Segment> self.files[len(self.files) - 1]
            if offset * QUEUE_ENTRY_SIZE < file.end_position:
                resumed_offset = self.max_offset
            else:
                self._fill_to(file.end_position // QUEUE_ENTRY_SIZE)
                resumed_offset = max(resumed_offset, file.end_position // QUEUE_ENTRY_SIZE)
        self.max_offset = max(self.max_offset, resumed_offset)
        self.reserved_offset = max(self.reserved_offset, self.max_offset)
        self._fill_to(offset)
        return 0

    def _fill_to(self, int64_t offset):
        self.write_at = self.write_stop = NULL
        while self.max_offset < offset:
            if self.write_stop - self.write_at < QUEUE_ENTRY_SIZE:
                self.aim()
            put_filler(self.write_at)
            self.write_at += QUEUE_ENTRY_SIZE
            self.max_offset += 1
        self.write_at = self.write_stop = NULL

    cdef Segment file_of(self, int64_t offset):
        cdef int64_t at_bytes = offset * QUEUE_ENTRY_SIZE
        cdef Segment file = self.reading
        cdef Py_ssize_t low, high, middle
        if file is not None and file.start_position <= at_bytes < file.end_position:
            return file
        low = 0
        high = len(self.files)
        while low < high:
            middle = (low + high) // 2
            if (<Segment> self.files[middle]).end_position <= at_bytes:
                low = middle + 1
            else:
                high = middle
        if low == len(self.files) or (<Segment> self.files[low]).start_position > at_bytes:
            return None
        self.reading = <Segment> self.files[low]
        return self.reading

    cdef const uint8_t* entry_at(self, int64_t offset) except? NULL:
        """Return the entry of an offset below max_offset; NULL (no error) where its file is missing."""
        cdef Segment file = self.file_of(offset)
        cdef int64_t at_bytes
        if file is None:
            return NULL
        at_bytes = offset * QUEUE_ENTRY_SIZE - file.start_position
        if at_bytes + QUEUE_ENTRY_SIZE > file.allocated_bytes:
            return NULL
        return file.data + at_bytes

    def is_entry_split(self, int64_t offset):
        """Return whether an entry's position and size stand in two disk sectors, of which a power cut may lose one."""
        cdef Segment file = self.file_of(offset)
        if file is None:
            return False
        return (offset * QUEUE_ENTRY_SIZE - file.start_position) % SECTOR_BYTES + 12 > SECTOR_BYTES

    def next_file_offset(self, int64_t offset):
        """First offset of the first file that starts after `offset`; `max_offset` when there is none."""
        for file in self.files:
            if (<Segment> file).start_position > offset * QUEUE_ENTRY_SIZE:
                return (<Segment> file).start_position // QUEUE_ENTRY_SIZE
        return self.max_offset

    cpdef int64_t last_offset_before(self, int64_t offset):
        """Return the last offset before `offset` with an entry in a file; -1 for none (files may be missing)."""
        cdef Segment file = self.file_of(offset - 1)
        cdef int64_t first_offset, end_offset
        if file is not None and (offset - 1) * QUEUE_ENTRY_SIZE - file.start_position < file.allocated_bytes:
            return offset - 1
        for file in reversed(self.files):
            first_offset = file.start_position // QUEUE_ENTRY_SIZE
            end_offset = min(offset, first_offset + file.allocated_bytes // QUEUE_ENTRY_SIZE)
            if first_offset < end_offset:
                return end_offset - 1
        return -1

    def rewind(self, int64_t position, int64_t min_position):
        """Forget every entry of a record at or past `position`, on disk too, and what stands behind it.

        Entries are in the order of the log, so the ones to keep are the front of the files; the first
        that is empty, or points too far, ends them. Then `min_offset` follows from `min_position`. Returns
        whether anything on the disk changed: it must not come back, so `sync` before a state is written.
        """
        cdef Segment file = None
        cdef bint has_changed = False
        cdef int64_t kept = 0
        cdef int64_t start_bytes
        while self.files:
            file = <Segment> self.files[len(self.files) - 1]
            kept = kept_entries(file, position)
            if kept and (
                len(self.files) == 1 or has_record(file, kept)
                or self.is_kept_whole(len(self.files) - 2, position)
            ):
                break
            self.files.pop()
            os.unlink(file.path)
            self.is_new = has_changed = True
        self.reading = None
        self.synced_bytes = 0
        self.doubted_size = 0
        self.unfilled_offset = 0
        self.write_at = self.write_stop = NULL
        if not self.files:
            self.min_offset = self.max_offset = self.next_offset = self.reserved_offset = 0
            return has_changed
        start_bytes = kept * QUEUE_ENTRY_SIZE
        if not is_zero(file.data + start_bytes, file.allocated_bytes - start_bytes):
            file.truncate(file.start_position + start_bytes)
            has_changed = True
        self.max_offset = self.next_offset = self.reserved_offset = (
            file.start_position // QUEUE_ENTRY_SIZE + kept
        )
        self.trim(min_position)
        return has_changed

    cdef bint is_kept_whole(self, Py_ssize_t index, int64_t position) noexcept:
        """Return whether no entry of the file at `index` or before it points to `position` or past it."""
        cdef Segment file
        while index >= 0:
            file = <Segment> self.files[index]
            if kept_entries(file, position) < file.size_bytes // QUEUE_ENTRY_SIZE:
                return False
            if has_record(file, file.size_bytes // QUEUE_ENTRY_SIZE):
                return True
            index -= 1
        return True

    def found_between(self, int64_t start_position, int64_t end_position):
        """(first, end) offset of the entries on the disk whose records are in [start_position, end_position).

        Equal when there are none. May be asked before `rewind`.
        """
        cdef int64_t first = -1
        cdef int64_t end = -1
        cdef int64_t low, high, base
        for file in self.files:
            base = (<Segment> file).start_position // QUEUE_ENTRY_SIZE
            low = kept_entries(<Segment> file, start_position)
            high = kept_entries(<Segment> file, end_position)
            # Fillers in front of a range were lost to another one.
            while low < high and is_filler((<Segment> file).data + low * QUEUE_ENTRY_SIZE):
                low += 1
            while low < high and is_filler((<Segment> file).data + (high - 1) * QUEUE_ENTRY_SIZE):
                high -= 1
            if low < high:
                first = base + low if first < 0 else first
                end = base + high
        return first, end

    def begin_at(self, int64_t offset):
        """Go on at `offset`, past the end, as if all between had been there and were deleted; raises OSError.

        A queue without entries takes no file for it before its next record.
        """
        if self.has_entries():
            self.skip_to(offset)
        else:
            self.min_offset = self.max_offset = self.reserved_offset = self.unfilled_offset = offset
        self.next_offset = offset

    def trim(self, int64_t min_position):
        """Move `min_offset` to the first entry of a record at or past `min_position`; to the end without one."""
        self.log_position = min_position
        self.advance_to(min_position)

    def hide(self, int64_t position):
        """Let the queue begin at `position` for its readers; the entries before stay as long as the log has them.

        Offsets go on where they were: an offset never means two records of one log.
        """
        self.advance_to(position)
        if position > self.log_position:
            self.first_offset = self.min_offset

    cdef int advance_to(self, int64_t min_position) except -1:
        self.min_offset = self.first_from(min_position)
        return 0

    cpdef int64_t first_from(self, int64_t position) except -1:
        """Return the first readable offset of a record at or past `position`; `max_offset` without one."""
        cdef Segment file
        cdef int64_t first, low, high, middle
        for file in self.files:
            first = low = max(file.start_position // QUEUE_ENTRY_SIZE, self.min_offset)
            high = min(file.end_position // QUEUE_ENTRY_SIZE, self.max_offset)
            if low >= high or self.position_up_to(high - 1, first) < position:
                continue
            while low < high:
                middle = (low + high) // 2
                if self.position_up_to(middle, first) < position:
                    low = middle + 1
                else:
                    high = middle
            return low
        return self.max_offset

    def is_whole(self):
        """Return whether all files before the last one with entries are full, as they were left.

        Behind it there may be room for entries that a crash kept from coming.
        """
        cdef Segment file
        cdef int64_t last_bytes
        cdef Py_ssize_t count = len(self.files)
        while count > 1:
            file = <Segment> self.files[count - 1]
            if file.allocated_bytes >= QUEUE_ENTRY_SIZE and get_u32(file.data + 8) != 0:
                break
            count -= 1
        for file in self.files[:count - 1]:
            last_bytes = file.size_bytes - QUEUE_ENTRY_SIZE
            if file.allocated_bytes < file.size_bytes or get_u32(file.data + last_bytes + 8) == 0:
                return False
        return True

    def take_passed_files(self, int64_t durable_position):
        """Let go of the files with nothing from `min_offset` on; returns their paths, to be deleted.

        The last file with an entry of a record before `durable_position`, which are on the disk, always
        stays: it says where the queue goes on. So do files with entries of records that are hidden: whoever
        fills the queues from the log makes them again.
        """
        cdef Py_ssize_t count = 0
        cdef Segment file
        cdef list paths = []
        while count < len(self.files) - 1:
            file = <Segment> self.files[count]
            if file.end_position > self.min_offset * QUEUE_ENTRY_SIZE:
                break
            if self.min_offset <= self.first_offset and self.last_position_of(file) >= self.log_position:
                break
            if kept_entries(<Segment> self.files[count + 1], durable_position) == 0:
                break
            paths.append(file.path)
            count += 1
        if count:
            if self.reading is not None and self.reading.end_position <= self.min_offset * QUEUE_ENTRY_SIZE:
                self.reading = None
            del self.files[:count]
        return paths

    cdef int64_t position_up_to(self, int64_t offset, int64_t first) except? -2:
        """Position of the nearest record of [first, offset], -1 when there are only fillers."""
        cdef const uint8_t* at
        while offset >= first:
            at = self.entry_at(offset)
            if at != NULL and not is_filler(at):
                # Positions have no sign; a flipped bit must not make a queue begin behind its records.
                return <int64_t> (get_u64(at) & <uint64_t> INT64_MAX)
            offset = self.last_offset_before(offset)
        return -1

    cdef int64_t last_position_of(self, Segment file) except? -2:
        return self.position_up_to(
            file.end_position // QUEUE_ENTRY_SIZE - 1, file.start_position // QUEUE_ENTRY_SIZE
        )

    def is_behind(self, int64_t min_position):
        """Return whether the log has none of the queue's records from `min_position` on, nor any on their way in."""
        cdef int64_t first
        if self.next_offset != self.max_offset or not self.files:
            return self.next_offset == self.max_offset
        first = (<Segment> self.files[0]).start_position // QUEUE_ENTRY_SIZE
        return self.position_up_to(self.max_offset - 1, first) < min_position

    def delete_files(self):
        """Delete what the queue has on the disk; raises OSError. Its handle must not be used again."""
        files, self.files = self.files, []
        self.reading = None
        self.write_at = self.write_stop = NULL
        self.is_new = False
        for file in files:
            try:
                os.unlink((<Segment> file).path)
            except FileNotFoundError:
                pass
        for directory in (self.directory, os.path.dirname(self.directory)):
            try:
                os.rmdir(directory)
            except OSError:
                # The topic has more queues.
                break

    def sync(self, sync_file):
        """Call `sync_file` on every file written since the last call, and make new files' names durable."""
        cdef list files = [
            file for file in list(self.files) if (<Segment> file).end_position > self.synced_bytes
        ]
        # Read before the syncs. Files are made when records are appended, entered into when confirmed.
        cdef int64_t entered_bytes = self.max_offset * QUEUE_ENTRY_SIZE
        for file in files:
            try:
                (<Segment> file).sync(sync_file)
            except FileNotFoundError:
                if file in self.files:
                    raise
                # Passed by the start of the log meanwhile, and deleted.
        # The ones that are full are written to no more.
        for file in files:
            if (<Segment> file).end_position <= entered_bytes:
                self.synced_bytes = (<Segment> file).end_position
        if self.is_new:
            self.is_new = False
            sync_path(self.directory)
            sync_path(os.path.dirname(self.directory))
            sync_path(os.path.dirname(os.path.dirname(self.directory)))


cdef int64_t kept_entries(Segment file, int64_t position) noexcept nogil:
    """Return how many entries at the front of a file stand before the first that is empty or not below `position`.

    A filler says nothing about positions: the entries behind it decide, and fillers in front of the first
    entry that is not kept stay.
    """
    cdef int64_t low = 0
    cdef int64_t high = file.allocated_bytes // QUEUE_ENTRY_SIZE
    cdef int64_t kept = high
    cdef int64_t middle, probed
    cdef const uint8_t* at
    while low < high:
        middle = probed = (low + high) // 2
        while probed < high and is_filler(file.data + probed * QUEUE_ENTRY_SIZE):
            probed += 1
        at = file.data + probed * QUEUE_ENTRY_SIZE
        if probed == high:
            high = middle
        elif <int32_t> get_u32(at + 8) > 0 and 0 <= <int64_t> get_u64(at) < position:
            low = probed + 1
        else:
            kept = probed
            high = middle
    return kept


cdef bint has_record(Segment file, int64_t count) noexcept nogil:
    """Return whether any of the first `count` entries is that of a record."""
    while count > 0:
        count -= 1
        if not is_filler(file.data + count * QUEUE_ENTRY_SIZE):
            return True
    return False
