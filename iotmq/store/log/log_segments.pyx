"""The files of the log: fixed-size segments, one behind the other, and disk blocks ahead of the writer.

Segments are `commitlog/<20 digits>`, named by the position of their first byte. The next one is made before the
writer comes to it, blocks are allocated in steps, and pages are made a little ahead of what is written.
"""

import os
import threading

from libc.errno cimport ENOSPC
from libc.stdint cimport int64_t, uint8_t

from iotmq.message.records.layout cimport BLANK_BYTES
from iotmq.store.log.segment cimport Segment, is_zero, whole_steps

from iotmq.errors import StoreCorruptError
from iotmq.files import sync_path
from iotmq.store import fail_points
from iotmq.store.log.segment import open_segments, segment_name

cdef enum:
    PAGE_BYTES = 4096
    # Missing files that are replaced by empty ones.
    MISSING_SEGMENTS_MAX = 1024
    # So much of its disk the log leaves to what has to be written before it can shrink.
    LEFT_PERCENT = 2
    LEFT_BYTES_MAX = 67108864
    # Pages are made in pieces of this size: 9 us with warm memory, 80 where a hypervisor gives it anew. The kernel
    # writes them whole, at each sync that finds one changed.
    READY_STEP_BYTES = 32768
    # For a batch larger than that: a page costs a third less.
    READY_LARGE_STEP_BYTES = 131072


cdef class LogSegments:
    """The segments of a directory. One thread writes; `make_room_ahead` may run in another one.

    Positions: `min_position` <= any readable position < `appended_position`.
    """

    def __init__(self, str directory, *, int64_t segment_bytes, int64_t allocation_step_bytes):
        """Map the segments of `directory` (made when missing). Call `end_at` before anything else.

        For a file missing between two others an empty one is made: `scan` finds it damaged. Raises
        StoreCorruptError when there are thousands of them, which no accident explains.
        """
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.allocation_step_bytes = allocation_step_bytes
        self.lock = threading.Lock()
        self.ahead_lock = threading.Lock()
        os.makedirs(directory, exist_ok=True)
        self.segments = open_segments(directory, segment_bytes, keep_descriptor=True)
        self._fill_gaps()
        for segment in self.segments:
            if segment.size_bytes <= BLANK_BYTES:
                raise StoreCorruptError(f"{segment.path} has no room for a record before the next file begins")
        self.is_new = not self.segments
        if self.is_new:
            self.segment_number(0)
        self.active_index = 0
        self.active = <Segment> self.segments[0]
        self.appended_position = self.active.start_position

    @property
    def min_position(self):
        """Position of the first byte that is still stored."""
        return (<Segment> self.segments[0]).start_position

    def view(self, int64_t start_position, int64_t end_position):
        """Read-only view of bytes inside one segment; ValueError when they are not stored."""
        cdef Segment segment = self.segment_at(start_position)
        if segment is None or end_position > self.appended_position:
            raise ValueError(f"positions {start_position}..{end_position} are not stored")
        return segment.view(start_position, end_position)

    def bytes_between(self, int64_t start_position, int64_t end_position):
        """View of what the files hold of a range inside one segment, a record or not; shorter where they end."""
        cdef Segment segment = self.segment_at(start_position)
        cdef int64_t allocated_position = segment.start_position + segment.allocated_bytes
        return segment.view(
            min(start_position, allocated_position), min(end_position, allocated_position, segment.end_position)
        )

    def segments_between(self, int64_t start_position, int64_t end_position):
        """Return the segments that hold bytes of [start_position, end_position)."""
        return [
            segment
            for segment in list(self.segments)
            if segment.start_position < end_position and segment.end_position > start_position
        ]

    def segment_list(self):
        """Return all segments, an empty one made ahead included."""
        return list(self.segments)

    def end_at(self, int64_t position):
        """Make `position`, which `scan` has found, the end of the log; delete the segments behind it."""
        if position == (<Segment> self.segments[len(self.segments) - 1]).end_position:
            with self.lock:
                self.segment_number(len(self.segments))
        if self.before_blank(position) != position:
            raise StoreCorruptError(f"{self.directory}: the log cannot end at {position}, where no blank has room")
        self._settle(position)

    def before_blank(self, int64_t position):
        """`position`, or the end of its segment when it is nearer to that than a blank is long.

        Nothing of the log begins there; what says so is damaged.
        """
        cdef Segment segment = self.segment_at(position)
        return position if segment is None or segment.end_position - position >= BLANK_BYTES else segment.end_position

    def extend(self, int64_t position):
        """Have segments up to `position`, for a log whose last files are missing; returns the ranges of the new bytes.

        Raises StoreCorruptError when there would be thousands of them.
        """
        cdef Segment segment = <Segment> self.segments[len(self.segments) - 1]
        cdef list ranges = []
        if (position - segment.end_position) // self.segment_bytes > MISSING_SEGMENTS_MAX:
            raise StoreCorruptError(f"{self.directory}: the log ends at {segment.end_position}, not {position}")
        while segment.end_position < position:
            with self.lock:
                segment = self.segment_number(len(self.segments))
            ranges.append((segment.start_position, min(segment.end_position, position)))
        return ranges

    def cut(self):
        """Zero whatever stands behind the end of the log. After `end_at`, before the first append."""
        cdef int64_t used_bytes = self.appended_position - self.active.start_position
        if used_bytes < self.active.allocated_bytes and not is_zero(
            self.active.data + used_bytes, self.active.allocated_bytes - used_bytes
        ):
            self.active.truncate(self.appended_position)

    def make_room_ahead(self):
        """Allocate the next step, or make the next segment, if the writer comes close.

        In another thread than the writer's, but only in one. Raises OSError.
        """
        with self.ahead_lock:
            self._make_room_ahead()

    def _make_room_ahead(self):
        cdef Segment segment = self.active
        cdef int64_t position = self.appended_position
        cdef int64_t wanted_position = position + self.allocation_step_bytes
        cdef Py_ssize_t index = self.active_index
        if wanted_position > segment.end_position:
            self.make_room(index, segment.end_position)
            self.make_room(index + 1, segment.end_position + 1)
        else:
            self.make_room(index, wanted_position)
        self.is_room_low = False
        # The writer is done with those.
        for index in range(self.active_index - 1, -1, -1):
            segment = <Segment> self.segments[index]
            if not segment.is_paged_singly:
                break
            segment.page_in_runs()

    def trim(self, int64_t position):
        """Let go of the segments that end by `position`, but never of the active one; returns them, lowest first.

        Nothing in them is stored any more from here on; views handed out stay valid. Deleting the files is
        the caller's. On the writer's thread; empty, too, while room is being made ahead: try again later.
        """
        cdef Py_ssize_t count = 0
        cdef list removed
        while count < self.active_index and (<Segment> self.segments[count]).end_position <= position:
            count += 1
        if count == 0 or not self.ahead_lock.acquire(blocking=False):
            return []
        try:
            removed = self.segments[:count]
            del self.segments[:count]
            self.active_index -= count
        finally:
            self.ahead_lock.release()
        return removed

    def release_descriptor(self, Segment segment not None):
        """Close a segment's file once it is full and synced. For the thread that syncs."""
        # Under the lock, because an allocation may have the descriptor in hand in another thread.
        with self.lock:
            segment.release_descriptor()

    def remove_segments_ahead(self):
        """Delete segments that were made ahead and hold nothing."""
        with self.lock:
            while len(self.segments) > self.active_index + 1:
                self._remove_file(<Segment> self.segments.pop())

    def _fill_gaps(self):
        """Make files for what is missing between two others."""
        cdef int64_t position
        for index in range(len(self.segments) - 1, 0, -1):
            after = <Segment> self.segments[index]
            position = (<Segment> self.segments[index - 1]).end_position
            if (after.start_position - position) // self.segment_bytes > MISSING_SEGMENTS_MAX:
                raise StoreCorruptError(
                    f"{self.directory}: no file holds the positions {position}..{after.start_position}"
                )
            made = []
            while position < after.start_position:
                size = min(self.segment_bytes, after.start_position - position)
                made.append(
                    Segment(os.path.join(self.directory, segment_name(position)), position, size, keep_descriptor=True)
                )
                position += size
            self.segments[index:index] = made

    def _settle(self, int64_t position):
        """Make `position` the end of the log."""
        cdef Segment segment
        while len(self.segments) > 1 and (<Segment> self.segments[len(self.segments) - 1]).start_position > position:
            segment = <Segment> self.segments.pop()
            self._remove_file(segment)
        self.active_index = len(self.segments) - 1
        self.active = <Segment> self.segments[self.active_index]
        self.active.page_singly(position - self.active.start_position)
        self.appended_position = self.ready_position = position

    def _remove_file(self, Segment segment):
        """Delete the last segment's file, on the disk too: with one before it gone first there would be a hole."""
        os.unlink(segment.path)
        sync_path(self.directory)

    cdef Segment segment_at(self, int64_t position):
        cdef Py_ssize_t low, high, middle
        cdef Segment segment = self.active
        if segment.start_position <= position < segment.end_position:
            return segment
        low = 0
        high = len(self.segments)
        while low < high:
            middle = (low + high) // 2
            if (<Segment> self.segments[middle]).end_position <= position:
                low = middle + 1
            else:
                high = middle
        if low == len(self.segments) or (<Segment> self.segments[low]).start_position > position:
            return None
        return <Segment> self.segments[low]

    cdef const uint8_t* record_at(self, int64_t position, int64_t end_position, Py_ssize_t* room):
        """Address of a stored byte, and how many may be touched from there; NULL and 0 when none is."""
        cdef Segment segment = self.segment_at(position)
        room[0] = 0
        if segment is None or position >= end_position:
            return NULL
        room[0] = min(segment.start_position + segment.allocated_bytes, end_position) - position
        if room[0] <= 0:
            room[0] = 0
            return NULL
        return segment.data + (position - segment.start_position)

    cdef Segment segment_number(self, Py_ssize_t index):
        """Return the segment at `index`, made when it is the one after the last. Hold the lock."""
        cdef Segment segment
        cdef int64_t start_position
        if index < len(self.segments):
            return <Segment> self.segments[index]
        start_position = (<Segment> self.segments[index - 1]).end_position if index else 0
        path = os.path.join(self.directory, segment_name(start_position))
        segment = Segment(path, start_position, self.segment_bytes, keep_descriptor=True)
        segment.page_singly(0)
        fail_points.reach("segment-created")
        sync_path(self.directory)
        self.segments.append(segment)
        return segment

    cdef int make_room(self, Py_ssize_t index, int64_t position) except -1:
        """Have disk blocks up to `position` (as far as the segment goes), a whole step where there is room."""
        cdef Segment segment
        cdef int64_t needed_bytes, wanted_bytes
        if index < len(self.segments):
            segment = <Segment> self.segments[index]
            if min(position, segment.end_position) <= segment.start_position + segment.allocated_bytes:
                return 0
        with self.lock:
            segment = self.segment_number(index)
            needed_bytes = min(position, segment.end_position) - segment.start_position
            if needed_bytes <= segment.allocated_bytes:
                return 0
            leave_room(segment.path, needed_bytes - segment.allocated_bytes)
            wanted_bytes = whole_steps(needed_bytes, self.allocation_step_bytes)
            try:
                segment.allocate(min(wanted_bytes, segment.size_bytes))
            except OSError:
                # The last bit of a nearly full disk.
                segment.allocate(min(whole_steps(needed_bytes, PAGE_BYTES), segment.size_bytes))
            assert needed_bytes <= segment.allocated_bytes
        fail_points.reach("segment-allocated")
        return 0

    cdef int make_ready(self, Py_ssize_t index, int64_t position) except -1:
        """`make_room` for the writer, who finds the pages in memory, too."""
        cdef Segment segment
        cdef int64_t start_bytes, end_bytes
        cdef bint is_large = position - self.appended_position > READY_STEP_BYTES
        self.make_room(index, position)
        if position <= self.ready_position:
            return 0
        segment = <Segment> self.segments[index]
        start_bytes = max(self.ready_position, self.appended_position, segment.start_position) - segment.start_position
        end_bytes = whole_steps(
            position - segment.start_position, READY_LARGE_STEP_BYTES if is_large else READY_STEP_BYTES
        )
        end_bytes = min(end_bytes, segment.allocated_bytes)
        if self.lock.locked():      # an allocation has the file in hand, and may take its time
            segment.bring_in(start_bytes, end_bytes)
        else:
            segment.write_zeros(start_bytes, end_bytes)
        self.ready_position = segment.start_position + end_bytes
        return 0


cdef int leave_room(str path, int64_t size_bytes) except -1:
    """OSError (ENOSPC) when so much more of the log would take the last bit of its disk.

    Before files of the log may go, what the key-value database has of them has to be on the disk: on one
    that the log itself had filled to the last block nothing could make room again.
    """
    disk = os.statvfs(os.path.dirname(path))
    cdef int64_t total_bytes = disk.f_blocks * disk.f_frsize
    cdef int64_t left_bytes = disk.f_bavail * disk.f_frsize - size_bytes
    if left_bytes < min(total_bytes * LEFT_PERCENT // 100, <int64_t> LEFT_BYTES_MAX):
        raise OSError(ENOSPC, os.strerror(ENOSPC), path)
    return 0
