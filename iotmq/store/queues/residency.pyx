"""Plan cold reads: which pages of the store's files are in memory, and how to have or release them.

The owner's thread must not touch a page that is on the disk: it would stand still for as long as the
disk takes, and everybody with it. `plan_read` says beforehand what a read would touch that is not in
memory; `page_in` fetches it, without the GIL, in whatever thread calls it.

Distance first, because it costs nothing: what was appended last is in memory. Farther back the kernel is
asked (mincore), about a microsecond for what one pull reads. Pages are fetched and dropped in windows,
aligned pieces of a file, so that a scan of one queue among many reads the log once and not in splinters.
"""

import os

from libc.errno cimport EINVAL, errno
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport strerror

from iotmq.message.records.layout cimport QUEUE_ENTRY_SIZE, get_u32, get_u64
from iotmq.message.records.record_filter cimport RecordFilter
from iotmq.store.log.commit_log cimport CommitLog
from iotmq.store.log.queue cimport Queue
from iotmq.store.log.queue_entry cimport FILLER_SIZE, is_filler
from iotmq.store.log.segment cimport Segment

from iotmq.limits import PULL_SCAN_ENTRIES_MIN

cdef extern from "<sys/mman.h>" nogil:
    int mincore(void* address, size_t size, unsigned char* vector)
    int madvise(void* address, size_t size, int advice)
    int MADV_DONTNEED
    int MADV_WILLNEED

cdef extern from "<fcntl.h>" nogil:
    int posix_fadvise(int descriptor, int64_t offset, int64_t size, int advice)
    int POSIX_FADV_DONTNEED

cdef extern from * nogil:
    """
    #ifndef MADV_POPULATE_READ
    #define MADV_POPULATE_READ 22
    #endif
    """
    int MADV_POPULATE_READ

cdef enum:
    PAGE_BYTES = 4096
    # What is fetched and dropped together: at a disk's usual rate about as long as one seek.
    WINDOW_BYTES_ = 262144
    # Records no farther apart are asked for together.
    GAP_BYTES_MAX = 65536
    RUN_BYTES_MAX = 4194304
    PLAN_WINDOWS_MAX = 64
    # Entries no farther from the end of their queue were written lately.
    HOT_ENTRIES = 16384
    PAGES_ASKED = 1024

WINDOW_BYTES = WINDOW_BYTES_

cdef int64_t SCAN_ENTRIES_MIN = PULL_SCAN_ENTRIES_MIN


cdef class Window:
    """An aligned piece of a file: [start_bytes, end_bytes) of `segment`, which it keeps mapped."""

    cdef readonly Segment segment
    cdef readonly int64_t start_bytes
    cdef readonly int64_t end_bytes

    def __init__(self, Segment segment not None, int64_t start_bytes, int64_t end_bytes):
        if not 0 <= start_bytes < end_bytes <= segment.size_bytes or start_bytes % PAGE_BYTES:
            raise ValueError(f"no window {start_bytes}..{end_bytes} in {segment!r}")
        self.segment = segment
        self.start_bytes = start_bytes
        self.end_bytes = end_bytes

    def __repr__(self):
        return f"<Window {self.start_bytes}..{self.end_bytes} of {self.segment.path}>"

    @property
    def key(self):
        """Return a key that is the same for the same piece of the same file."""
        return self.segment.path, self.start_bytes

    @property
    def size_bytes(self):
        return self.end_bytes - self.start_bytes

    def absent_pages(self):
        """Return how many of its pages are not in memory."""
        return absent_pages(self.segment, self.start_bytes, self.end_bytes, NULL)

    def neighbour(self, int64_t step):
        """Return the window so many windows on (or back, when negative) in the same file, None past its data."""
        cdef int64_t start_bytes = self.start_bytes - self.start_bytes % WINDOW_BYTES_ + step * WINDOW_BYTES_
        cdef int64_t end_bytes = min(start_bytes + WINDOW_BYTES_, self.segment.allocated_bytes)
        if start_bytes < 0 or start_bytes >= end_bytes:
            return None
        return Window(self.segment, start_bytes, end_bytes)

    def advise(self):
        """Have its pages read from the disk, without waiting for it."""
        with nogil:
            madvise(self.segment.data + self.start_bytes, <size_t> (self.end_bytes - self.start_bytes), MADV_WILLNEED)

    def page_in(self):
        """Have its pages in memory and mapped by the return; OSError when the disk does not give them."""
        cdef int result
        cdef int descriptor
        with nogil:
            result = madvise(
                self.segment.data + self.start_bytes,
                <size_t> (self.end_bytes - self.start_bytes),
                MADV_POPULATE_READ,
            )
        if result == 0:
            return
        if errno != EINVAL:
            raise OSError(errno, strerror(errno).decode(), self.segment.path)
        # A kernel before 5.14: read them, and throw away what was read.
        descriptor = os.open(self.segment.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.pread(descriptor, self.end_bytes - self.start_bytes, self.start_bytes)
        finally:
            os.close(descriptor)

    def drop(self):
        """Give its pages back to the kernel. Ones with changes that are not on the disk yet stay."""
        cdef int descriptor
        try:
            descriptor = os.open(self.segment.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        with nogil:
            # Only pages that nobody has mapped are let go.
            madvise(
                self.segment.data + self.start_bytes, <size_t> (self.end_bytes - self.start_bytes), MADV_DONTNEED
            )
            posix_fadvise(descriptor, self.start_bytes, self.end_bytes - self.start_bytes, POSIX_FADV_DONTNEED)
        os.close(descriptor)


cdef class ColdRead:
    """Report a read whose pages are not all in memory: load `windows`, then it may take `records_max` records.

    `records_max` 0: the windows are those of queue entries, and what they point to is not known yet. For a
    read with a RecordFilter it is the number of entries the read may look at (its `entries_max`).
    `hot_position`: from there on the log needs no fetching.
    """

    cdef readonly list windows
    cdef readonly int64_t records_max
    cdef readonly int64_t hot_position
    cdef bint is_needed                      # some page is absent

    def __repr__(self):
        return f"<ColdRead {len(self.windows)} windows for {self.records_max} records>"


def plan_read(CommitLog log not None, Queue queue, int64_t offset, *, int64_t records_max, int64_t bytes_max,
              tags=None, int64_t hot_position, int64_t entries_max=0):
    """Return None when `read_queue` with the same arguments touches only pages in memory, else a ColdRead.

    What stands in the log from `hot_position` on counts as in memory.
    """
    cdef bint looks_at_records = isinstance(tags, RecordFilter)
    cdef ColdRead plan
    cdef const uint8_t* entry
    cdef int64_t scan_end, position
    if queue is None or not queue.min_offset <= offset < queue.max_offset:
        return None
    scan_end = max(SCAN_ENTRIES_MIN if tags is not None else 1, records_max, 1) if entries_max <= 0 else entries_max
    scan_end = min(queue.max_offset, offset + scan_end)
    if looks_at_records:
        # Such a read touches every record on its way, whichever it gives back.
        records_max, bytes_max, tags = scan_end - offset, INT64_MAX, None
    plan = ColdRead.__new__(ColdRead)
    plan.windows = []
    plan.hot_position = hot_position
    if queue.max_offset - offset > HOT_ENTRIES:
        add_entry_windows(plan, queue, offset, scan_end)
        if plan.is_needed:
            return plan
        plan.windows.clear()
    entry = queue.entry_at(offset)
    if entry == NULL:
        return None
    position = <int64_t> get_u64(entry)
    if position >= hot_position and not is_filler(entry):
        return None
    walk(plan, log, queue, offset, scan_end, max(<int64_t> 1, records_max), bytes_max, tags)
    return plan if plan.is_needed else None


def plan_records(CommitLog log not None, places, *, int64_t hot_position):
    """Return None when the records at `places`, (position, size) each, are in memory, else a ColdRead of their pages.

    For records that lie far apart: fetches single pages. Positions that are not stored are passed over.
    """
    cdef ColdRead plan = ColdRead.__new__(ColdRead)
    cdef Segment segment
    cdef int64_t min_position = (<Segment> log.segments[0]).start_position
    cdef int64_t position, size, at, end
    cdef int64_t size_max = record_bytes_max(log)
    plan.windows = []
    plan.hot_position = hot_position
    for position, size in places:
        if position >= hot_position or position < min_position or size > size_max:
            continue
        segment = log.segment_at(position)
        if segment is None:
            continue
        at = position - segment.start_position
        end = min(at + size, segment.allocated_bytes)
        if at >= end or absent_pages(segment, at, end, NULL) == 0:
            continue
        plan.is_needed = True
        plan.windows.append(
            Window(segment, at - at % PAGE_BYTES, min(end + PAGE_BYTES - 1 - (end - 1) % PAGE_BYTES,
                    segment.allocated_bytes))
        )
    plan.records_max = len(plan.windows)
    return plan if plan.is_needed else None


def plan_entry(Queue queue not None, int64_t offset):
    """Return None when the queue's entry of `offset` is in memory (or not there), else a ColdRead of its page."""
    cdef ColdRead plan
    cdef Segment file
    cdef int64_t at, end
    if queue.max_offset - offset <= HOT_ENTRIES:
        return None
    file = queue.file_of(offset)
    if file is None:
        return None
    at = offset * QUEUE_ENTRY_SIZE - file.start_position
    end = min(at + QUEUE_ENTRY_SIZE, file.allocated_bytes)
    if at >= end or absent_pages(file, at, end, NULL) == 0:
        return None
    plan = ColdRead.__new__(ColdRead)
    plan.is_needed = True
    plan.windows = [
        Window(file, at - at % PAGE_BYTES, min(end + PAGE_BYTES - 1 - (end - 1) % PAGE_BYTES, file.allocated_bytes))
    ]
    return plan


def plan_bytes(Segment segment not None, int64_t start_bytes, int64_t end_bytes, *, int64_t hot_position=0):
    """Return None when [start_bytes, end_bytes) of a file is in memory, else a ColdRead of the windows around it.

    `hot_position`, for files of the log: what is asked for ahead of a scan ends there.
    """
    cdef ColdRead plan = ColdRead.__new__(ColdRead)
    plan.windows = []
    plan.hot_position = hot_position
    add_windows(
        plan, segment, segment.start_position + start_bytes, segment.start_position + min(end_bytes, segment.size_bytes)
    )
    return plan if plan.is_needed else None


cdef int64_t record_bytes_max(CommitLog log) noexcept:
    """Whatever claims to be longer is no record, and must not have a whole file loaded.

    Some may be there from before the setting was lowered.
    """
    return max(log.record_bytes_max, <int64_t> RUN_BYTES_MAX)


cdef int walk(ColdRead plan, CommitLog log, Queue queue, int64_t offset, int64_t scan_end, int64_t records_max,
              int64_t bytes_max, tags) except -1:
    """Add the windows of the records that a read from `offset` on would return."""
    cdef int64_t min_position = (<Segment> log.segments[0]).start_position
    cdef int64_t position, run_start = 0, run_end = 0
    cdef int64_t records = 0
    cdef int64_t size_max = record_bytes_max(log)
    cdef int64_t read_bytes = 0
    cdef int32_t size
    cdef const uint8_t* entry
    cdef Segment segment
    cdef Segment run_segment = None
    while offset < scan_end and records < records_max:
        entry = queue.entry_at(offset)
        offset += 1
        if entry == NULL:
            break
        position = <int64_t> get_u64(entry)
        size = <int32_t> get_u32(entry + 8)
        if size == FILLER_SIZE or not 0 < size <= size_max or position < min_position:
            continue
        if tags is not None and <int32_t> <int64_t> get_u64(entry + 12) not in tags:
            continue
        if position >= plan.hot_position or (records and read_bytes + size > bytes_max):
            break
        if (
            run_segment is None
            or not run_start <= position <= run_end + GAP_BYTES_MAX
            or position + size - run_start > RUN_BYTES_MAX
            or position >= run_segment.end_position
        ):
            if run_segment is not None:
                add_windows(plan, run_segment, run_start, run_end)
                if len(plan.windows) >= PLAN_WINDOWS_MAX and plan.is_needed:
                    plan.records_max = records
                    return 0
            segment = log.segment_at(position)
            if segment is None:
                continue
            run_segment = segment
            run_start = run_end = position
        run_end = max(run_end, position + size)
        records += 1
        read_bytes += size
    if run_segment is not None:
        add_windows(plan, run_segment, run_start, run_end)
    plan.records_max = records_max
    return 0


cdef int add_entry_windows(ColdRead plan, Queue queue, int64_t offset, int64_t end_offset) except -1:
    cdef Segment file
    while offset < end_offset and len(plan.windows) < PLAN_WINDOWS_MAX:
        file = queue.file_of(offset)
        if file is None:
            return 0
        add_windows(
            plan, file, offset * QUEUE_ENTRY_SIZE, min(end_offset * QUEUE_ENTRY_SIZE, file.end_position)
        )
        offset = file.end_position // QUEUE_ENTRY_SIZE
    return 0


cdef int add_windows(ColdRead plan, Segment segment, int64_t start_position, int64_t end_position) except -1:
    """Add the windows of [start_position, end_position), and note when a page of it is absent.

    Windows that are in memory are among them, so that they count as used together with the absent ones.
    """
    cdef int64_t at = start_position - segment.start_position
    cdef int64_t end = min(end_position - segment.start_position, segment.allocated_bytes)
    cdef int64_t first_absent
    cdef Window last
    if at < end and not plan.is_needed:
        plan.is_needed = absent_pages(segment, at, end, &first_absent) > 0
    at -= at % WINDOW_BYTES_
    while at < end:
        last = <Window> plan.windows[len(plan.windows) - 1] if plan.windows else None
        if last is None or last.segment is not segment or last.start_bytes != at:
            plan.windows.append(Window(segment, at, min(at + WINDOW_BYTES_, segment.allocated_bytes)))
        at += WINDOW_BYTES_
    return 0


cdef int64_t absent_pages(Segment segment, int64_t start_bytes, int64_t end_bytes, int64_t* first_absent) except -1:
    """Pages of [start_bytes, end_bytes) that are not in memory; with `first_absent` stops at the first.

    A kernel that does not say counts as one where everything is in memory.
    """
    cdef unsigned char vector[PAGES_ASKED]
    cdef int64_t at = start_bytes - start_bytes % PAGE_BYTES
    cdef int64_t pages, page
    cdef int64_t count = 0
    with nogil:
        while at < end_bytes:
            pages = min((end_bytes - at + PAGE_BYTES - 1) // PAGE_BYTES, <int64_t> PAGES_ASKED)
            if mincore(segment.data + at, <size_t> (pages * PAGE_BYTES), vector) != 0:
                break
            for page in range(pages):
                if not vector[page] & 1:
                    count += 1
                    if first_absent != NULL:
                        first_absent[0] = at + page * PAGE_BYTES
                        break
            if count and first_absent != NULL:
                break
            at += pages * PAGE_BYTES
    return count
