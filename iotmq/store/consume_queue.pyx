"""ConsumeQueue: for every queue of every topic, where its records stand in the log.

An entry has 20 bytes: position 8, record size 4, tags code 8; entry n of a queue is at byte 20 n.
Files are `consumequeue/TOPIC/QUEUE/<20 digits>`, named by the byte offset of their first entry. A
filler entry (position 0, size 0x7FFFFFFF, tags code 0) stands for an offset without a record. All of it
is derived from the log and can be deleted.

What the hot path does: per batch one call to `apply`; per record parse, compare with the last queue, one
look at the properties, store 20 bytes. Disk blocks are reserved before the record goes to the log (`Queue.reserve`), so that a
full disk never leaves a record without room for its entry. Files start with one page and double their
blocks: a thousand quiet queues cost 4 MiB.
"""

import os
import shutil

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.errno cimport errno
from libc.string cimport memcmp, memcpy, strerror

from iotmq.message.fields cimport parse_fields
from iotmq.message.layout cimport (
    AT_MAGIC, BLANK_BYTES, BLANK_MAGIC, QUEUE_ENTRY_SIZE, RECORD_FIXED_BYTES, SYS_FLAG_TRANSACTION_MASK, get_u32,
    get_u64, put_u32, put_u64,
)
from iotmq.message.record cimport FORMAT_OK, RecordParts, parse_record
from iotmq.message.short_bytes cimport find_byte
from iotmq.store.marker cimport is_marker
from iotmq.store.segment cimport Segment, is_zero, whole_steps
from iotmq.store.timer_record cimport TIMER_NAME_BYTES, entry_tags_code

from iotmq.errors import StoreCorruptError, StoreError
from iotmq.limits import QUEUES_PER_TOPIC_MAX, TOPIC_BYTES_MAX
from iotmq.message.record import problem_text
from iotmq.store import fail_points
from iotmq.store.segment import open_segments, segment_name, sync_directory
from iotmq.store.state_record import encode_state, read_state, write_state

cdef extern from "<unistd.h>" nogil:
    int syncfs(int descriptor)

cdef enum:
    # Blocks of a queue file: the first page, then doubled up to this step.
    ALLOCATION_FIRST_BYTES = 4096
    ALLOCATION_STEP_BYTES_MAX = 262144
    TABLE_SIZE_MIN = 64
    SECTOR_BYTES = 512
    SYNCED_ONE_BY_ONE_MAX = 32
    # Gaps remembered between two calls of take_gaps.
    GAPS_MAX = 10000
    # A 5.x broker writes longer topics than we take; a directory name ends at 255 bytes.
    STORED_TOPIC_BYTES_MAX = 255

# `consumequeue/.applied`: what the files were known to hold at the last checkpoint. No topic starts
# with a dot. A state_record: applied position, queues, sum of max offsets.
_STATE_MAGIC = b"iotmqCQ1"
# The same, and some queue has had records with a time to live.
_STATE_MAGIC_EXPIRING = b"iotmqCQX"
_STATE_NAME = ".applied"


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
        self.hash = hash_key(<const uint8_t*> PyBytes_AS_STRING(self.topic_bytes),
                             PyBytes_GET_SIZE(self.topic_bytes), queue_id)
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

    cdef int reserve(self, int64_t end_offset) except -1:
        """Have disk blocks for the entries below `end_offset`; raises OSError and changes nothing visible."""
        cdef Segment file
        cdef int64_t end_bytes, wanted_bytes, first_bytes
        while self.reserved_offset < end_offset:
            first_bytes = self.reserved_offset * QUEUE_ENTRY_SIZE
            file = <Segment> self.files[len(self.files) - 1] if self.files else None
            if file is None or first_bytes >= file.end_position:
                os.makedirs(self.directory, exist_ok=True)
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
            self.reserved_offset = (file.start_position + file.allocated_bytes) // QUEUE_ENTRY_SIZE
        return 0

    cdef int aim(self) except -1:
        """Point write_at at the entry of `max_offset`, which gets its disk block here if it has none."""
        cdef Segment file
        self.reserve(self.max_offset + 1)
        file = self.file_of(self.max_offset)
        self.write_at = file.data + (self.max_offset * QUEUE_ENTRY_SIZE - file.start_position)
        self.write_stop = file.data + min(
            file.size_bytes, self.reserved_offset * QUEUE_ENTRY_SIZE - file.start_position
        )
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
        while self.max_offset < offset:
            self.aim()
            put_filler(self.write_at)
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
        """The entry of an offset below max_offset; NULL (no error) where its file is missing."""
        cdef Segment file = self.file_of(offset)
        cdef int64_t at_bytes
        if file is None:
            return NULL
        at_bytes = offset * QUEUE_ENTRY_SIZE - file.start_position
        if at_bytes + QUEUE_ENTRY_SIZE > file.allocated_bytes:
            return NULL
        return file.data + at_bytes

    def is_entry_split(self, int64_t offset):
        """Whether an entry's position and size stand in two disk sectors, of which a power cut may lose one."""
        cdef int64_t at_bytes = offset * QUEUE_ENTRY_SIZE % self.file_bytes % SECTOR_BYTES
        return at_bytes + 12 > SECTOR_BYTES

    def next_file_offset(self, int64_t offset):
        """First offset of the first file that starts after `offset`; `max_offset` when there is none."""
        for file in self.files:
            if (<Segment> file).start_position > offset * QUEUE_ENTRY_SIZE:
                return (<Segment> file).start_position // QUEUE_ENTRY_SIZE
        return self.max_offset

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
            if kept and (len(self.files) == 1 or has_record(file, kept) or self.is_kept_whole(len(self.files) - 2, position)):
                break
            self.files.pop()
            os.unlink(file.path)
            self.is_new = has_changed = True
        self.reading = None
        self.synced_bytes = 0
        self.doubted_size = 0
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
        """Whether no entry of the file at `index` or before it points to `position` or past it."""
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
            while low < high and get_u32((<Segment> file).data + low * QUEUE_ENTRY_SIZE + 8) == FILLER_SIZE:
                low += 1
            while low < high and get_u32((<Segment> file).data + (high - 1) * QUEUE_ENTRY_SIZE + 8) == FILLER_SIZE:
                high -= 1
            if low < high:
                first = base + low if first < 0 else first
                end = base + high
        return first, end

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
        cdef Segment file
        cdef int64_t first, low, high, middle
        for file in self.files:
            first = low = max(file.start_position // QUEUE_ENTRY_SIZE, self.min_offset)
            high = min(file.end_position // QUEUE_ENTRY_SIZE, self.max_offset)
            if low >= high or self.position_up_to(high - 1, first) < min_position:
                continue
            while low < high:
                middle = (low + high) // 2
                if self.position_up_to(middle, first) < min_position:
                    low = middle + 1
                else:
                    high = middle
            self.min_offset = low
            return 0
        self.min_offset = self.max_offset
        return 0

    def is_whole(self):
        """Whether all files before the last one with entries are full, as they were left.

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
            if at != NULL and get_u32(at + 8) != FILLER_SIZE:
                # Positions have no sign; a flipped bit must not make a queue begin behind its records.
                return <int64_t> (get_u64(at) & <uint64_t> INT64_MAX)
            offset -= 1
        return -1

    cdef int64_t last_position_of(self, Segment file) except? -2:
        return self.position_up_to(
            file.end_position // QUEUE_ENTRY_SIZE - 1, file.start_position // QUEUE_ENTRY_SIZE
        )

    def is_behind(self, int64_t min_position):
        """Whether the log has none of the queue's records from `min_position` on, nor any on their way in."""
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
            sync_directory(self.directory)
            sync_directory(os.path.dirname(self.directory))
            sync_directory(os.path.dirname(os.path.dirname(self.directory)))


cdef class ConsumeQueue:
    """The projection that gives every record its place in its queue, from the log's bytes alone.

    Records of prepared and rolled back transactions have no place in a queue and are passed over.
    """

    def __cinit__(self):
        self.table = NULL

    def __init__(self, str directory, *, int64_t entries_per_file):
        """Map the queues found in `directory` (made when missing). Call `rewind` before anything else."""
        self.name = "consumequeue"
        self.directory = directory
        self.entries_per_file = entries_per_file
        self.queue_list = []
        self.dispatched = []
        self.dirty = []
        self.gaps = []
        self.grow_table()
        os.makedirs(directory, exist_ok=True)
        self._load()

    def __dealloc__(self):
        PyMem_Free(self.table)

    def apply(self, view, int64_t start_position, int64_t end_position):
        """Enter the records of `view`, the log's bytes of [start_position, end_position).

        Entries that are there already (a batch applied twice) are left alone. Raises StoreCorruptError
        when the bytes are not whole records, OSError when a queue file cannot grow.
        """
        cdef Py_buffer buffer
        PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
        try:
            if buffer.len < end_position - start_position:
                raise ValueError(f"{buffer.len} bytes for {start_position}..{end_position}")
            self.apply_bytes(<const uint8_t*> buffer.buf, <const uint8_t*> buffer.buf + (end_position - start_position))
            self.applied_position = end_position
        finally:
            PyBuffer_Release(&buffer)

    def queue(self, str topic, int queue_id):
        """The handle of a queue, made on first use; its files come with its first record.

        Raises StoreError for a topic that is not printable ASCII, has a slash, starts with a dot or is
        longer than 127 bytes, and for a queue id outside 0..1023.
        """
        cdef bytes topic_bytes = topic.encode("utf-8", "surrogateescape")
        cdef Queue queue = self.lookup(
            <const uint8_t*> PyBytes_AS_STRING(topic_bytes), PyBytes_GET_SIZE(topic_bytes), queue_id
        )
        if queue is not None:
            return queue
        if not 0 < PyBytes_GET_SIZE(topic_bytes) <= TOPIC_BYTES_MAX:
            raise StoreError(f"a topic has 1 to {TOPIC_BYTES_MAX} bytes, not {PyBytes_GET_SIZE(topic_bytes)}")
        if not is_topic(<const uint8_t*> PyBytes_AS_STRING(topic_bytes), PyBytes_GET_SIZE(topic_bytes)):
            raise StoreError(f"topic {topic!r} is not printable ASCII without slash and leading dot")
        if not 0 <= queue_id < QUEUES_PER_TOPIC_MAX:
            raise StoreError(f"queue id {queue_id} is not in 0..{QUEUES_PER_TOPIC_MAX - 1}")
        return self.insert(topic_bytes, queue_id)

    def find_queue(self, str topic, int queue_id):
        """The handle of a queue if it was made before, else None."""
        cdef bytes topic_bytes = topic.encode("utf-8", "surrogateescape")
        return self.lookup(
            <const uint8_t*> PyBytes_AS_STRING(topic_bytes), PyBytes_GET_SIZE(topic_bytes), queue_id
        )

    def queues(self):
        """Every handle, in the order they were made."""
        return list(self.queue_list)

    def remove(self, list queues not None):
        """Forget queues and delete their files; raises OSError. Nobody may have a handle in use.

        First what is known to be on the disk is written down without them: a start that misses queue files
        takes all entries from the log again, and a quiet queue would begin at offset 0. Only a checkpoint that is
        under way may put them back in there, and the next one takes them out.
        """
        cdef set removed = set(queues)
        if not removed:
            return
        state = self._read_state_record()
        if state is not None:
            applied_position, count, offsets = state.numbers
            for queue in removed:
                if (<Queue> queue).max_offset:
                    count -= 1
                    offsets -= (<Queue> queue).max_offset
            self.write_state((applied_position, max(0, count), max(0, offsets)))
        self.queue_list = [queue for queue in self.queue_list if queue not in removed]
        self.dispatched = [queue for queue in self.dispatched if queue not in removed]
        if self.last in removed:
            self.last = None
        self.fill_table(self.table_size)
        for queue in queues:
            if not (<Queue> queue).is_dirty:
                (<Queue> queue).is_dirty = True
                # So that there is a checkpoint, with the lower count.
                self.dirty.append(queue)
            (<Queue> queue).delete_files()

    def take_dispatched(self):
        """The watched queues that got entries since the last call."""
        cdef list taken
        if not self.dispatched:
            return []
        taken = self.dispatched
        self.dispatched = []
        for queue in taken:
            (<Queue> queue).is_dispatched = False
        return taken

    def take_dirty(self):
        """The queues with entries since the last call, for the thread that syncs them."""
        cdef list taken = self.dirty
        self.dirty = []
        for queue in taken:
            (<Queue> queue).is_dirty = False
        return taken

    def sync(self, list queues not None, sync_file):
        """Bring the entries of `queues` to the disk; raises OSError. Any thread.

        Few queues are synced file by file. Each such call waits for the file system's journal, so past a
        number one sync of the whole file system is faster by far.
        """
        if len(queues) <= SYNCED_ONE_BY_ONE_MAX:
            for queue in queues:
                (<Queue> queue).sync(sync_file)
            return
        # Before the sync: files made while it runs may or may not be covered.
        for queue in queues:
            (<Queue> queue).is_new = False
        sync_file_system(self.directory)

    def state(self):
        """What `write_state` is to write once every entry dispatched so far is on the disk.

        (applied position, queues with entries, sum of their max offsets)
        """
        cdef int64_t offsets = 0
        cdef int64_t count = 0
        for queue in self.queue_list:
            if (<Queue> queue).max_offset:
                offsets += (<Queue> queue).max_offset
                count += 1
        return self.applied_position, count, offsets

    def write_state(self, state):
        """Remember `state`; raises OSError."""
        record = encode_state(_STATE_MAGIC_EXPIRING if self.may_expire else _STATE_MAGIC, *state)
        write_state(os.path.join(self.directory, _STATE_NAME), record, fail_point="queue-state-written")

    def forget_pages(self):
        """Take out of this process what a start looked at: of each of very many queues its last entry."""
        for queue in self.queue_list:
            for file in (<Queue> queue).files:
                (<Segment> file).forget_pages()

    def _read_state_record(self):
        """The state's file, None when there is none that proves itself."""
        return read_state(os.path.join(self.directory, _STATE_NAME), _STATE_MAGIC, _STATE_MAGIC_EXPIRING, count=3)

    def read_state(self):
        """The remembered (applied position, queues, sum of max offsets), or None when there is none."""
        state = self._read_state_record()
        if state is None:
            return None
        if state.magic == _STATE_MAGIC_EXPIRING:
            # Which queues it was is not remembered.
            self.may_expire = True
            for queue in self.queue_list:
                (<Queue> queue).may_expire = True
        return state.numbers

    def rewind(self, int64_t position, int64_t min_position):
        """Forget all records at or past `position`; `apply` goes on from there."""
        for queue in self.queue_list:
            if (<Queue> queue).rewind(position, min_position) and not (<Queue> queue).is_dirty:
                (<Queue> queue).is_dirty = True
                self.dirty.append(queue)
        self.applied_position = position
        self.min_position = min_position

    def clear(self, int64_t position):
        """Delete every entry; `apply` starts over from `position`, the first of the log."""
        if os.path.exists(os.path.join(self.directory, _STATE_NAME)):
            # First, and for good: what it says is not true from here on.
            os.unlink(os.path.join(self.directory, _STATE_NAME))
            sync_directory(self.directory)
        self.rewind(-1, position)
        self.applied_position = position
        for queue in self.take_dirty():
            (<Queue> queue).is_new = False
        self.may_expire = False
        for queue in self.queue_list:
            (<Queue> queue).may_expire = False
        for name in os.listdir(self.directory):
            path = os.path.join(self.directory, name)
            if os.path.isdir(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
            fail_points.reach("queues-half-cleared")

    def trim(self, int64_t min_position):
        """Move every queue's `min_offset` behind a log that now starts at `min_position`."""
        for queue in self.queue_list:
            (<Queue> queue).trim(min_position)

    def take_passed_files(self):
        """Every queue's `take_passed_files`; none while nothing says what is on the disk."""
        cdef list paths = []
        try:
            state = self._read_state_record()
        except OSError:
            state = None
        if state is None:
            return paths
        for queue in self.queue_list:
            if len((<Queue> queue).files) > 1:
                paths += (<Queue> queue).take_passed_files(state.numbers[0])
        return paths

    cdef int apply_bytes(self, const uint8_t* at, const uint8_t* end) except -1:
        cdef RecordParts parts, all_parts
        cdef const uint8_t* properties_end
        cdef const uint8_t* topic = NULL
        cdef Py_ssize_t topic_size = -1
        cdef int queue_id = 0
        cdef Queue queue = self.last
        cdef int problem, transaction
        if queue is not None:
            topic = <const uint8_t*> PyBytes_AS_STRING(queue.topic_bytes)
            topic_size = PyBytes_GET_SIZE(queue.topic_bytes)
            queue_id = queue.queue_id
        while at < end:
            # `parts` is never passed on, so what is not used of it is not kept.
            problem = parse_fields(at, end, &parts)
            if problem != FORMAT_OK:
                if end - at >= BLANK_BYTES and get_u32(at + AT_MAGIC) == <uint32_t> BLANK_MAGIC:
                    return 0
                raise StoreCorruptError(f"not a record where the log has one: {problem_text(problem)}")
            transaction = parts.sys_flag & SYS_FLAG_TRANSACTION_MASK
            if transaction == TRANSACTION_PREPARED or transaction == TRANSACTION_ROLLBACK:
                parse_record(at, end, &all_parts)
                if is_marker(&all_parts) and all_parts.prepared_position > all_parts.queue_offset:
                    self.enter_loss(&all_parts)
                at += parts.size
                continue
            if (
                queue_id != parts.queue_id
                or topic_size != parts.topic_size
                or memcmp(topic, parts.topic, parts.topic_size) != 0
            ):
                topic_size = -1
                queue = self.queue_of(parts.topic, parts.topic_size, parts.queue_id)
                if queue is None:
                    self.ignored_count += 1
                    at += parts.size
                    continue
                self.last = queue
                topic = <const uint8_t*> PyBytes_AS_STRING(queue.topic_bytes)
                topic_size = PyBytes_GET_SIZE(queue.topic_bytes)
                queue_id = queue.queue_id
            properties_end = parts.properties + parts.properties_size
            if (
                parts.queue_offset == queue.max_offset
                and queue.write_stop - queue.write_at >= QUEUE_ENTRY_SIZE
                and find_byte(parts.properties, parts.properties, properties_end, c"G") == properties_end
                and parts.topic_size != TIMER_NAME_BYTES
            ):
                # Most records of devices: the next of their queue, with neither TAGS nor MSG_TTL_MS, as one
                # look for their G says, and not in a topic of records that wait for a time.
                put_u64(queue.write_at, <uint64_t> parts.position)
                put_u32(queue.write_at + 8, <uint32_t> parts.size)
                put_u64(queue.write_at + 12, 0)
                self.count_entry(queue)
            else:
                parse_record(at, end, &all_parts)
                self.enter(queue, &all_parts)
            at += parts.size
        return 0

    cdef Queue queue_of(self, const uint8_t* topic, Py_ssize_t topic_size, int queue_id):
        """The queue a record names, made when it is new; None when there can be none of that name."""
        cdef Queue queue = self.lookup(topic, topic_size, queue_id)
        if queue is None and is_topic(topic, topic_size) and queue_id >= 0:
            return self.insert(topic[:topic_size], queue_id)
        return queue

    cdef int count_entry(self, Queue queue) except -1:
        """The entry at `write_at` was written."""
        queue.write_at += QUEUE_ENTRY_SIZE
        queue.max_offset += 1
        if queue.next_offset < queue.max_offset:
            queue.next_offset = queue.max_offset
        if not queue.is_dirty:
            self.mark(queue)
        if queue.watched and not queue.is_dispatched:
            queue.is_dispatched = True
            self.dispatched.append(queue)
        return 0

    cdef int enter(self, Queue queue, const RecordParts* parts) except -1:
        if parts.queue_offset != queue.max_offset:
            if parts.queue_offset < queue.max_offset:
                return self.enter_late(queue, parts)
            if not self.is_plausible(queue, parts.queue_offset, parts.position) and not self.is_confirmed(queue, parts):
                self.ignored_count += 1
                return 0
            if parts.queue_offset > queue.max_offset:
                self.note_gap(queue, parts.queue_offset, parts.position)
                queue.skip_to(parts.queue_offset)
        if queue.write_stop - queue.write_at < QUEUE_ENTRY_SIZE:
            queue.aim()
        put_entry(queue.write_at, parts)
        if not queue.may_expire and may_have_time_to_live(parts.properties, parts.properties_size):
            queue.may_expire = self.may_expire = True
        return self.count_entry(queue)

    cdef int enter_late(self, Queue queue, const RecordParts* parts) except -1:
        """A record with an offset that is taken: it is there already, or one of the two has a damaged offset."""
        cdef uint8_t* at = <uint8_t*> queue.entry_at(parts.queue_offset) if parts.queue_offset >= queue.min_offset else NULL
        cdef const uint8_t* before
        if parts.queue_offset < queue.min_offset and queue.max_offset - queue.min_offset == 1:
            before = queue.entry_at(queue.min_offset)
            if before != NULL and get_u32(before + 8) != FILLER_SIZE and <int64_t> get_u64(before) < parts.position:
                # The queue's first record had a damaged offset: start over.
                queue.rewind(-1, 0)
                return self.enter(queue, parts)
        if at == NULL or (get_u32(at + 8) != FILLER_SIZE and <int64_t> get_u64(at) == parts.position):
            self.ignored_count += 1
            return 0
        if get_u32(at + 8) != FILLER_SIZE:
            # Entries follow the log. One that stands before its predecessor's record took the place of another.
            before = queue.entry_at(parts.queue_offset - 1) if parts.queue_offset > queue.min_offset else NULL
            if before == NULL or get_u32(before + 8) == FILLER_SIZE or not (
                <int64_t> get_u64(at) < <int64_t> get_u64(before) < parts.position
            ):
                self.ignored_count += 1
                return 0
        put_entry(at, parts)
        self.mark(queue)
        return 0

    cdef int enter_loss(self, const RecordParts* parts) except -1:
        """Pass over the offsets a marker names, so that they are not given out once more."""
        cdef Queue queue = self.queue_of(parts.topic, parts.topic_size, parts.queue_id)
        if queue is None:
            return 0
        if parts.prepared_position > queue.max_offset:
            if parts.queue_offset > queue.max_offset:
                self.note_gap(queue, parts.queue_offset, parts.position + parts.size)
            if queue.max_offset == 0 and not queue.files:
                queue.skip_to(parts.queue_offset)
            queue.skip_to(parts.prepared_position)
            queue.marker_position = parts.position
            if queue.next_offset < queue.max_offset:
                queue.next_offset = queue.max_offset
            self.mark(queue)
        return 0

    cdef bint is_plausible(self, Queue queue, int64_t offset, int64_t position) except -1:
        """Whether the records between a queue's last one and this have room between the two in the log.

        None is smaller than RECORD_FIXED_BYTES and a letter of topic. What has no room is a damaged offset,
        and believing it would cost the queue every record that follows.
        """
        cdef const uint8_t* at
        cdef int64_t last = queue.max_offset - 1
        if not queue.files:
            # A log that is whole has the queue's first record, which has offset 0.
            return self.min_position > 0 or offset <= position // (RECORD_FIXED_BYTES + 1)
        at = queue.entry_at(last) if last >= queue.min_offset else NULL
        if at == NULL or get_u32(at + 8) == FILLER_SIZE:
            return True
        return offset - queue.max_offset <= (position - <int64_t> get_u64(at)) // (RECORD_FIXED_BYTES + 1)

    cdef bint is_confirmed(self, Queue queue, const RecordParts* parts) except -1:
        """Whether a record with an offset that is not plausible follows another one like it; takes that in then.

        One such record is damaged, but two in a row say that the numbering went on there.
        """
        cdef bint is_next = queue.doubted_size > 0 and queue.doubted_offset + 1 == parts.queue_offset
        if is_next:
            self.note_gap(queue, queue.doubted_offset, queue.doubted_position)
            queue.skip_to(queue.doubted_offset)
            queue.aim()
            put_u64(queue.write_at, <uint64_t> queue.doubted_position)
            put_u32(queue.write_at + 8, <uint32_t> queue.doubted_size)
            put_u64(queue.write_at + 12, <uint64_t> queue.doubted_tags)
            queue.write_at += QUEUE_ENTRY_SIZE
            queue.max_offset += 1
        queue.doubted_offset = parts.queue_offset
        queue.doubted_position = parts.position
        queue.doubted_size = 0 if is_next else parts.size
        queue.doubted_tags = entry_tags_code(parts)
        return is_next

    cdef int note_gap(self, Queue queue, int64_t offset, int64_t position) except -1:
        """Remember that offsets are missing in front of the one of a record."""
        cdef const uint8_t* at
        cdef int64_t start_position = queue.marker_position
        if len(self.gaps) >= GAPS_MAX or (not queue.files and self.min_position):
            # What stood in front of a queue's first record was in files that were deleted as too old.
            return 0
        at = queue.entry_at(queue.max_offset - 1) if queue.max_offset > queue.min_offset else NULL
        if at != NULL and get_u32(at + 8) != FILLER_SIZE:
            start_position = <int64_t> get_u64(at) + get_u32(at + 8)
        self.gaps.append((queue.topic, queue.queue_id, queue.max_offset, offset, start_position, position))
        return 0

    def take_gaps(self):
        """(topic, queue id, first offset, end offset, start, end) of offsets found to have no record.

        The records must have stood between the positions `start` and `end`. Since the last call.
        """
        cdef list taken = self.gaps
        self.gaps = []
        return taken

    cdef int mark(self, Queue queue) except -1:
        """Have the queue's files synced."""
        if not queue.is_dirty:
            queue.is_dirty = True
            self.dirty.append(queue)
        return 0

    cdef Queue lookup(self, const uint8_t* topic, Py_ssize_t topic_size, int queue_id):
        cdef uint64_t hash = hash_key(topic, topic_size, queue_id)
        cdef Py_ssize_t slot = <Py_ssize_t> (hash & <uint64_t> (self.table_size - 1))
        cdef Queue queue
        while self.table[slot] != NULL:
            queue = <Queue> self.table[slot]
            if (
                queue.hash == hash
                and queue.queue_id == queue_id
                and PyBytes_GET_SIZE(queue.topic_bytes) == topic_size
                and memcmp(PyBytes_AS_STRING(queue.topic_bytes), topic, topic_size) == 0
            ):
                return queue
            slot = (slot + 1) & (self.table_size - 1)
        return None

    cdef Queue insert(self, bytes topic_bytes, int queue_id):
        cdef str topic = topic_bytes.decode("utf-8", "surrogateescape")
        cdef Queue queue = Queue(
            topic, queue_id, os.path.join(self.directory, topic, str(queue_id)), self.entries_per_file
        )
        self.queue_list.append(queue)
        if len(self.queue_list) * 2 > self.table_size:
            self.grow_table()
        else:
            place(self.table, self.table_size, queue)
        return queue

    cdef int grow_table(self) except -1:
        return self.fill_table(max(<Py_ssize_t> TABLE_SIZE_MIN, self.table_size * 2))

    cdef int fill_table(self, Py_ssize_t size) except -1:
        cdef PyObject** table = <PyObject**> PyMem_Calloc(size, sizeof(PyObject*))
        if table == NULL:
            raise MemoryError
        for queue in self.queue_list:
            place(table, size, <Queue> queue)
        PyMem_Free(self.table)
        self.table = table
        self.table_size = size
        return 0

    def _load(self):
        cdef Queue queue
        for topic in sorted(os.listdir(self.directory)):
            topic_directory = os.path.join(self.directory, topic)
            if not os.path.isdir(topic_directory):
                continue
            for queue_id in os.listdir(topic_directory):
                directory = os.path.join(topic_directory, queue_id)
                if queue_id.isdecimal() and os.path.isdir(directory):
                    files = open_segments(directory, self.entries_per_file * QUEUE_ENTRY_SIZE, is_small=True)
                    if files:
                        queue = self.insert(topic.encode("utf-8", "surrogateescape"), int(queue_id))
                        queue.files = files


def sync_file_system(str directory):
    """Bring everything in the file system of `directory` to the disk; raises OSError."""
    cdef int result
    cdef int descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with nogil:
            result = syncfs(descriptor)
        if result < 0:
            raise OSError(errno, strerror(errno).decode(), directory)
    finally:
        os.close(descriptor)


cdef uint64_t hash_key(const uint8_t* topic, Py_ssize_t topic_size, int queue_id) noexcept nogil:
    """Eight bytes a step; topics come from peers, but only as many as the broker lets them make."""
    cdef uint64_t hash = <uint64_t> (queue_id + 1) * <uint64_t> 0x9E3779B97F4A7C15
    cdef uint64_t part
    while topic_size >= 8:
        memcpy(&part, topic, 8)
        hash = (hash ^ part) * <uint64_t> 0xFF51AFD7ED558CCD
        hash ^= hash >> 32
        topic += 8
        topic_size -= 8
    part = <uint64_t> topic_size
    while topic_size:
        part = (part << 8) | topic[0]
        topic += 1
        topic_size -= 1
    hash = (hash ^ part) * <uint64_t> 0xFF51AFD7ED558CCD
    return hash ^ (hash >> 29)


cdef void place(PyObject** table, Py_ssize_t size, Queue queue) noexcept:
    cdef Py_ssize_t slot = <Py_ssize_t> (queue.hash & <uint64_t> (size - 1))
    while table[slot] != NULL:
        slot = (slot + 1) & (size - 1)
    table[slot] = <PyObject*> queue


cdef void put_entry(uint8_t* at, const RecordParts* parts) noexcept nogil:
    put_u64(at, <uint64_t> parts.position)
    put_u32(at + 8, <uint32_t> parts.size)
    put_u64(at + 12, <uint64_t> entry_tags_code(parts))


cdef bint is_topic(const uint8_t* topic, Py_ssize_t size) noexcept nogil:
    """Printable ASCII without space and slash, no leading dot. Brokers of this format take even less."""
    cdef Py_ssize_t at
    if size <= 0 or size > STORED_TOPIC_BYTES_MAX or topic[0] == c".":
        return False
    for at in range(size):
        if topic[at] <= 0x20 or topic[at] >= 0x7F or topic[at] == c"/":
            return False
    return True


cdef bint may_have_time_to_live(const uint8_t* properties, Py_ssize_t size) noexcept nogil:
    """Whether MSG_TTL_MS is among the properties (or a name that ends like it). Rarely more than one pass."""
    cdef const uint8_t* end = properties + size
    cdef const uint8_t* at = properties + 2
    while end - at > 8:
        at = find_byte(properties, at, end - 8, c"G")
        if at == end - 8:
            return False
        if memcmp(at - 2, "MSG_TTL_MS\x01", 11) == 0:
            return True
        at += 1
    return False


cdef int64_t kept_entries(Segment file, int64_t position) noexcept nogil:
    """How many entries at the front of a file stand before the first that is empty or not below `position`.

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
        while probed < high and get_u32(file.data + probed * QUEUE_ENTRY_SIZE + 8) == FILLER_SIZE:
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
    """Whether any of the first `count` entries is that of a record."""
    while count > 0:
        count -= 1
        if get_u32(file.data + count * QUEUE_ENTRY_SIZE + 8) != FILLER_SIZE:
            return True
    return False


cdef void put_filler(uint8_t* at) noexcept nogil:
    put_u64(at, 0)
    put_u32(at + 8, FILLER_SIZE)
    put_u64(at + 12, 0)
