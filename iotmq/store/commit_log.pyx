"""The CommitLog: every record of every queue, one after another in fixed-size segments.

Segments are `commitlog/<20 digits>`, named by the position of their first byte. A record never spans
two: when it does not fit together with the 8 bytes that every segment keeps free at its end, a blank
(size = bytes left, blank magic) ends the segment there.

What the hot path does, per batch: one pass over the elements that checks every length and has disk
blocks ready for all of them, so that nothing is written of a batch that cannot be written whole; one
pass that writes the records into the mapping. The size of the batch's first record is stored last:
a process killed in between leaves nothing of the batch for the next start to see.
"""

import logging
import os
import threading

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport ENOSPC
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from iotmq.message.fields cimport element_fields
from iotmq.message.layout cimport (
    AT_MAGIC, AT_SIZE, BLANK_BYTES, BLANK_MAGIC, HOST_V6_EXTRA_BYTES, SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6, SYS_FLAG_TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, get_u32, put_u32,
)
from iotmq.message.record cimport (
    FORMAT_OK, Element, PROPERTIES_TOO_LONG, RECORD_TOO_LONG, TOPIC_TOO_LONG, RecordParts, RecordShared,
    RecordTemplate, body_crc, element_record_size, make_template, parse_record, write_like,
)
from iotmq.store.marker cimport is_marker
from iotmq.store.queue cimport Queue
from iotmq.store.segment cimport Segment, is_zero, whole_steps

from iotmq.errors import RecordTooLargeError, StoreCorruptError
from iotmq.limits import BATCH_RECORDS_MAX
from iotmq.message.errors import MessageFormatError
from iotmq.message.record import problem_text
from iotmq.store import fail_points
from iotmq.store.segment import open_segments, segment_name, sync_directory

cdef extern from * nogil:
    """
    /* The compiler may not move stores across it; a killed process needs no more than program order. */
    #define iotmq_store_barrier() __atomic_signal_fence(__ATOMIC_SEQ_CST)
    """
    void store_barrier "iotmq_store_barrier"()

cdef enum:
    # A first record up to this size is built on the stack, so that its size field can be stored last.
    STACK_BYTES = 4096
    PAGE_BYTES = 4096
    # Behind the end of the log: pages that hardly ever have been to the disk and back meanwhile.
    TRUSTED_BYTES = 268435456
    # Records that cannot be read and are remembered one by one.
    UNREADABLE_MAX = 10000
    # Missing files that are replaced by empty ones.
    MISSING_SEGMENTS_MAX = 1024
    # So much of its disk the log leaves to what has to be written before it can shrink.
    LEFT_PERCENT = 2
    LEFT_BYTES_MAX = 67108864
    # Pages are mapped so far ahead of the writer: what it writes while a thread waits for the GIL.
    TOUCHED_BYTES_AHEAD = 4194304
    TOUCHED_BYTES_LOW = 2097152

cdef int32_t BATCH_COUNT_MAX = BATCH_RECORDS_MAX
cdef bint HAS_FAIL_POINTS = fail_points.IS_ON

logger = logging.getLogger("iotmq.store")


cdef class Appended:
    """Where a batch went. `end_position` is what the confirmed position must reach."""

    def positions(self):
        """Position of every record of the batch; read from the log, so ask soon after the append."""
        cdef list positions = []
        cdef int64_t position = self.start_position
        while position < self.end_position:
            positions.append(position)
            position = self.log.position_after(position)
        return positions

    def __repr__(self):
        return (
            f"<Appended {self.count} from offset {self.first_offset} at {self.start_position}..{self.end_position}>"
        )


cdef class CommitLog:
    """The segments of a directory. One thread appends; `make_room_ahead` may run in another one.

    Positions: `min_position` <= any readable position < `appended_position`.
    """

    def __init__(self, str directory, *, int64_t segment_bytes, int64_t allocation_step_bytes,
                 int64_t record_bytes_max, bytes store_host):
        """Map the segments of `directory` (made when missing). Call `end_at` before anything else.

        For a file missing between two others an empty one is made: `scan` finds it damaged. Raises
        StoreCorruptError when there are thousands of them, which no accident explains.
        """
        if record_bytes_max + BLANK_BYTES > segment_bytes:
            raise ValueError(f"a segment of {segment_bytes} bytes cannot take a record of {record_bytes_max}")
        if PyBytes_GET_SIZE(store_host) not in (8, 8 + HOST_V6_EXTRA_BYTES):
            raise ValueError(f"a host has 8 or 20 bytes, not {len(store_host)}")
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.allocation_step_bytes = allocation_step_bytes
        self.record_bytes_max = record_bytes_max
        self.store_host = store_host
        self.lock = threading.Lock()
        self.ahead_lock = threading.Lock()
        self.unreadable = set()
        # Measured with new pages at 10 us each (a hypervisor's) it halves the writer's time; with warm ones
        # it gains nothing, and on a single core it costs a tenth.
        self.is_touching = len(os.sched_getaffinity(0)) > 1
        os.makedirs(directory, exist_ok=True)
        self.segments = open_segments(directory, segment_bytes, keep_descriptor=True)
        self._fill_gaps()
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

    def append(self, Queue queue not None, elements, *, int64_t store_timestamp_ms, int64_t born_timestamp_ms,
               bytes born_host not None, int sys_flag=0, int reconsume_times=0, int64_t prepared_position=0,
               bytes batch_properties=b""):
        """Write one record per element of a batch body and return an Appended; all of them or none.

        The host bits of `sys_flag` follow from the hosts. Raises MessageFormatError, RecordTooLargeError,
        and OSError when the log or the queue's file cannot grow.
        """
        cdef Py_buffer buffer
        cdef RecordShared shared
        cdef Place place
        cdef Appended appended
        self.share(&shared, queue, born_host, batch_properties, sys_flag)
        shared.born_timestamp_ms = born_timestamp_ms
        shared.store_timestamp_ms = store_timestamp_ms
        shared.prepared_position = prepared_position
        shared.reconsume_times = reconsume_times
        PyObject_GetBuffer(elements, &buffer, PyBUF_SIMPLE)
        try:
            self.store_batch(
                queue, <const uint8_t*> buffer.buf, <const uint8_t*> buffer.buf + buffer.len, &shared, &place
            )
        finally:
            PyBuffer_Release(&buffer)
        appended = Appended.__new__(Appended)
        appended.log = self
        appended.count = place.count
        appended.first_offset = place.first_offset
        appended.store_timestamp_ms = store_timestamp_ms
        appended.start_position = place.start_position
        appended.end_position = place.end_position
        return appended

    cdef int share(self, RecordShared* shared, Queue queue, bytes born_host, bytes properties,
                   int sys_flag) except -1:
        """What follows from queue and hosts for all records of a batch; its times are left to the caller.

        Points into the objects given: keep them as long as `shared` is used.
        """
        sys_flag &= ~(SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6)
        if PyBytes_GET_SIZE(born_host) != 8:
            if PyBytes_GET_SIZE(born_host) != 8 + HOST_V6_EXTRA_BYTES:
                raise ValueError(f"a host has 8 or 20 bytes, not {len(born_host)}")
            sys_flag |= SYS_FLAG_BORN_HOST_V6
        if PyBytes_GET_SIZE(self.store_host) != 8:
            sys_flag |= SYS_FLAG_STORE_HOST_V6
        shared.topic = <const uint8_t*> PyBytes_AS_STRING(queue.topic_bytes)
        shared.topic_size = PyBytes_GET_SIZE(queue.topic_bytes)
        shared.properties = <const uint8_t*> PyBytes_AS_STRING(properties)
        shared.properties_size = PyBytes_GET_SIZE(properties)
        shared.born_host = <const uint8_t*> PyBytes_AS_STRING(born_host)
        shared.store_host = <const uint8_t*> PyBytes_AS_STRING(self.store_host)
        shared.queue_id = queue.queue_id
        shared.sys_flag = sys_flag
        return 0

    cdef int store_batch(self, Queue queue, const uint8_t* start, const uint8_t* end,
                         const RecordShared* shared, Place* place) except -1:
        """`append` for compiled callers; `place` says where the batch went."""
        cdef int transaction = shared.sys_flag & SYS_FLAG_TRANSACTION_MASK
        cdef bint is_queued = transaction != TRANSACTION_PREPARED and transaction != TRANSACTION_ROLLBACK
        cdef int32_t count = self.place(start, end, shared)
        if is_queued and queue.next_offset + count > queue.reserved_offset:
            queue.reserve(queue.next_offset + count)
        place.count = count
        place.first_offset = queue.next_offset if is_queued else 0
        place.start_position = self.write(start, end, count, shared, place.first_offset, 1 if is_queued else 0)
        place.end_position = self.appended_position
        if is_queued:
            queue.next_offset += count
        self.appended_records += count
        self.last_store_timestamp_ms = shared.store_timestamp_ms
        return 0

    def view(self, int64_t start_position, int64_t end_position):
        """Read-only view of bytes inside one segment; ValueError when they are not stored."""
        cdef Segment segment = self.segment_at(start_position)
        if segment is None or end_position > self.appended_position:
            raise ValueError(f"positions {start_position}..{end_position} are not stored")
        return segment.view(start_position, end_position)

    def records(self, int64_t start_position, int64_t limit_position, int64_t bytes_max):
        """(start, end) of the whole records from `start_position` on that stand without a gap.

        They end at `limit_position`, at the end of the segment's records, or once they are `bytes_max`
        long; at least one is given. A blank at `start_position` is stepped over. Both positions must
        be starts of records (or the end). Raises StoreCorruptError.
        """
        cdef int64_t start, end
        self.find_records(start_position, limit_position, bytes_max, &start, &end)
        return start, end

    cdef int find_records(self, int64_t start_position, int64_t limit_position, int64_t bytes_max,
                          int64_t* found_start, int64_t* found_end) except -1:
        cdef Segment segment = self.segment_at(start_position)
        cdef int64_t position
        cdef Py_ssize_t room
        cdef const uint8_t* at
        cdef uint32_t size
        if segment is None or not start_position < limit_position <= self.appended_position:
            raise ValueError(f"positions {start_position}..{limit_position} are not stored")
        position = start_position
        at = self.record_at(position, limit_position, &room)
        if room >= BLANK_BYTES and get_u32(at + AT_MAGIC) == <uint32_t> BLANK_MAGIC:
            start_position = segment.end_position
            if start_position >= limit_position:
                found_start[0] = found_end[0] = limit_position
                return 0
            position = start_position
            segment = self.segment_at(position)
        if limit_position < segment.end_position and limit_position - start_position <= bytes_max:
            found_start[0] = start_position
            found_end[0] = limit_position
            return 0
        while position < limit_position:
            at = self.record_at(position, limit_position, &room)
            if room < BLANK_BYTES:
                break
            size = get_u32(at + AT_SIZE)
            if get_u32(at + AT_MAGIC) == <uint32_t> BLANK_MAGIC:
                break
            if size < BLANK_BYTES or size > room:
                raise StoreCorruptError(f"no record at position {position}")
            if position + size - start_position > bytes_max and position > start_position:
                break
            position += size
        if position == start_position:
            raise StoreCorruptError(f"no record at position {position}")
        found_start[0] = start_position
        found_end[0] = position
        return 0

    def after(self, int64_t position):
        """Position of the record behind the one at `position`; `appended_position` behind the last."""
        return self.position_after(position)

    cdef int64_t position_after(self, int64_t position) except -1:
        cdef Py_ssize_t room
        cdef const uint8_t* at = self.record_at(position, self.appended_position, &room)
        cdef Segment segment
        if room < BLANK_BYTES:
            raise ValueError(f"no record at position {position}")
        position += get_u32(at + AT_SIZE)
        at = self.record_at(position, self.appended_position, &room)
        if room >= BLANK_BYTES and get_u32(at + AT_MAGIC) == <uint32_t> BLANK_MAGIC:
            segment = self.segment_at(position)
            position = segment.end_position
        return position

    def read_record(self, int64_t position, int64_t end_position):
        """View of the record at `position` if it proves itself and ends by `end_position`, else None.

        Proof: lengths that add up, magic, body CRC, and the record's own position. Markers are none.
        """
        cdef RecordParts parts
        cdef Py_ssize_t room
        cdef const uint8_t* at
        at = self.record_at(position, min(end_position, self.appended_position), &room)
        if at == NULL or parse_record(at, at + room, &parts) != FORMAT_OK:
            return None
        if parts.position != position or body_crc(parts.body, parts.body_size) != parts.body_crc:
            return None
        if is_marker(&parts):
            return None
        return self.segment_at(position).view(position, position + parts.size)

    def store_timestamp_ms(self, int64_t position):
        """Store time of the record at `position`, 0 when there is none."""
        cdef RecordParts parts
        cdef Py_ssize_t room
        cdef const uint8_t* at = self.record_at(position, self.appended_position, &room)
        if at == NULL or parse_record(at, at + room, &parts) != FORMAT_OK or parts.position != position:
            return 0
        return parts.store_timestamp_ms

    def segments_between(self, int64_t start_position, int64_t end_position):
        """The segments that hold bytes of [start_position, end_position)."""
        return [
            segment
            for segment in list(self.segments)
            if segment.start_position < end_position and segment.end_position > start_position
        ]

    def segment_list(self):
        """All segments, an empty one made ahead included."""
        return list(self.segments)

    def first_store_timestamp_ms(self, Segment segment not None):
        """Store time of a segment's first record if it proves itself by magic and position, else 0."""
        cdef RecordParts parts
        if parse_record(segment.data, segment.data + segment.allocated_bytes, &parts) != FORMAT_OK:
            return 0
        return parts.store_timestamp_ms if parts.position == segment.start_position else 0

    def end_at(self, int64_t position):
        """Make `position`, which `scan` has found, the end of the log; delete the segments behind it."""
        if position == (<Segment> self.segments[len(self.segments) - 1]).end_position:
            with self.lock:
                self.segment_number(len(self.segments))
        self._settle(position)

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

    def bytes_between(self, int64_t start_position, int64_t end_position):
        """View of what the files hold of a range inside one segment, a record or not; shorter where they end."""
        cdef Segment segment = self.segment_at(start_position)
        cdef int64_t allocated_position = segment.start_position + segment.allocated_bytes
        return segment.view(
            min(start_position, allocated_position), min(end_position, allocated_position, segment.end_position)
        )

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
        self.appended_position = position

    def _remove_file(self, Segment segment):
        """Delete the last segment's file, on the disk too: with one before it gone first there would be a hole."""
        os.unlink(segment.path)
        sync_directory(self.directory)

    def note_unreadable(self, str topic, int queue_id, int64_t offset, int64_t position):
        """Remember, and log once, that a queue's record was passed over because it does not prove itself."""
        cdef tuple record = (topic, queue_id, offset, position)
        if record in self.unreadable or len(self.unreadable) >= UNREADABLE_MAX:
            return
        self.unreadable_count += 1
        self.unreadable.add(record)
        logger.error(
            "damaged record: topic=%s queue=%d offset=%d position=%d; readers are given the next one",
            topic, queue_id, offset, position,
        )

    cdef bint is_readable(self, str topic, int queue_id, int64_t offset, int64_t position) except -1:
        """Whether a queue's record has not been found damaged yet; after very many nobody looks again."""
        return len(self.unreadable) < UNREADABLE_MAX and (topic, queue_id, offset, position) not in self.unreadable

    def unreadable_records(self):
        """(topic, queue id, offset, position) of records that were to be read and do not prove themselves."""
        return sorted(self.unreadable)

    def cut(self):
        """Zero whatever stands behind the end of the log. After `end_at`, before the first append."""
        cdef int64_t used_bytes = self.appended_position - self.active.start_position
        if used_bytes < self.active.allocated_bytes and not is_zero(
            self.active.data + used_bytes, self.active.allocated_bytes - used_bytes
        ):
            self.active.truncate(self.appended_position)

    def make_room_ahead(self):
        """Allocate the next step, or make the next segment, if the writer comes close; map what it writes next.

        In another thread than the writer's, but only in one. Raises OSError.
        """
        with self.ahead_lock:
            self._make_room_ahead()

    def _make_room_ahead(self):
        cdef Segment segment = self.active
        cdef int64_t position = self.appended_position
        cdef int64_t touched_position
        cdef int64_t wanted_position = position + self.allocation_step_bytes
        cdef Py_ssize_t index = self.active_index
        if wanted_position > segment.end_position:
            self.make_room(index, segment.end_position)
            self.make_room(index + 1, segment.end_position + 1)
        else:
            self.make_room(index, wanted_position)
        touched_position = max(position, self.touched_position)
        self.touched_position = position + TOUCHED_BYTES_AHEAD
        while self.is_touching and index < len(self.segments):
            segment = <Segment> self.segments[index]
            if segment.start_position >= self.touched_position:
                break
            segment.touch(
                max(<int64_t> 0, touched_position - segment.start_position),
                min(segment.size_bytes, self.touched_position - segment.start_position),
            )
            index += 1
        self.is_room_low = False

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

    cdef int64_t trusted_position(self) noexcept:
        """From here on a read need not check a record's body: it was checked, or written, not long ago."""
        return max(self.checked_position, self.appended_position - TRUSTED_BYTES)

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
        """The segment at `index`, made when it is the one after the last. Hold the lock."""
        cdef Segment segment
        cdef int64_t start_position
        if index < len(self.segments):
            return <Segment> self.segments[index]
        start_position = (<Segment> self.segments[index - 1]).end_position if index else 0
        path = os.path.join(self.directory, segment_name(start_position))
        segment = Segment(path, start_position, self.segment_bytes, keep_descriptor=True)
        fail_points.reach("segment-created")
        sync_directory(self.directory)
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

    cdef int place(self, const uint8_t* elements, const uint8_t* end, const RecordShared* shared) except -1:
        """Check every element and have room for its record; returns how many there are."""
        cdef const uint8_t* at = elements
        cdef Element element
        cdef int32_t count = 0
        cdef int problem
        cdef Py_ssize_t size
        cdef Py_ssize_t index = self.active_index
        cdef Segment segment = self.active
        cdef int64_t position = self.appended_position
        cdef int64_t end_position = segment.end_position
        while at < end:
            problem = element_fields(at, end, &element)
            if problem != FORMAT_OK:
                raise MessageFormatError(
                    f"batch element {count} at byte {at - elements}: {problem_text(problem)}", at - elements
                )
            size = element_record_size(&element, shared)
            if size < 0:
                if size in (PROPERTIES_TOO_LONG, RECORD_TOO_LONG, TOPIC_TOO_LONG):
                    raise RecordTooLargeError(f"batch element {count}: {problem_text(size)}")
                raise MessageFormatError(f"batch element {count}: {problem_text(size)}", at - elements)
            if size > self.record_bytes_max:
                raise RecordTooLargeError(
                    f"batch element {count}: a record of {size} bytes; store.record_bytes_max is {self.record_bytes_max}"
                )
            if count == BATCH_COUNT_MAX:
                raise MessageFormatError(f"batch of more than {BATCH_COUNT_MAX} elements", at - elements)
            if position + size + BLANK_BYTES > end_position:
                self.make_room(index, position + BLANK_BYTES)
                index += 1
                position = end_position
                self.make_room(index, position + size + BLANK_BYTES)
                end_position = (<Segment> self.segments[index]).end_position
            position += size
            at += element.size
            count += 1
        if count == 0:
            raise MessageFormatError("batch without elements")
        self.make_room(index, position + BLANK_BYTES)
        return count

    cdef int64_t write(self, const uint8_t* at, const uint8_t* end, int32_t count, const RecordShared* shared,
                       int64_t first_offset, int64_t offset_step) except -1:
        """Write the placed records and move the end of the log; returns the first one's position."""
        cdef Element first, element
        cdef RecordTemplate template
        cdef uint8_t* target
        cdef uint8_t* first_target
        cdef uint8_t stack[STACK_BYTES]
        cdef uint8_t* aside = stack
        cdef Py_ssize_t size, first_size
        cdef Py_ssize_t index = self.active_index
        cdef Segment segment = self.active
        cdef int64_t position = self.appended_position
        cdef int64_t offset = first_offset
        cdef int64_t first_position
        cdef int32_t number
        # Every length was checked by `place`.
        make_template(&template, shared)
        element_fields(at, end, &first)
        at += first.size
        first_size = element_record_size(&first, shared)
        if first_size > STACK_BYTES:
            aside = <uint8_t*> PyMem_Malloc(first_size)
            if aside == NULL:
                raise MemoryError
        if position + first_size + BLANK_BYTES > segment.end_position:
            put_blank(segment, position)
            index += 1
            segment = <Segment> self.segments[index]
            position = segment.start_position
        first_position = position
        first_target = segment.data + (position - segment.start_position)
        position += first_size
        target = first_target + first_size
        for number in range(1, count):
            element_fields(at, end, &element)
            at += element.size
            offset += offset_step
            size = write_like(
                target, segment.end_position - BLANK_BYTES - position, &element, shared, &template, offset, position
            )
            if size < 0:
                put_blank(segment, position)
                index += 1
                segment = <Segment> self.segments[index]
                position = segment.start_position
                target = segment.data
                size = write_like(
                    target, segment.size_bytes - BLANK_BYTES, &element, shared, &template, offset, position
                )
            position += size
            target += size
        if HAS_FAIL_POINTS:
            fail_points.reach("batch-between-records")
        write_like(aside, first_size, &first, shared, &template, first_offset, first_position)
        memcpy(first_target + 4, aside + 4, first_size - 4)
        if HAS_FAIL_POINTS:
            fail_points.reach("batch-before-size")
        store_barrier()
        memcpy(first_target, aside, 4)
        if aside != stack:
            PyMem_Free(aside)
        self.active_index = index
        self.active = segment
        self.appended_position = position
        if self.is_touching and position + TOUCHED_BYTES_LOW > self.touched_position or (
            position + self.allocation_step_bytes > segment.start_position + segment.allocated_bytes
            and (segment.allocated_bytes < segment.size_bytes or index + 1 == len(self.segments))
        ):
            self.is_room_low = True
        return first_position


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


cdef void put_blank(Segment segment, int64_t position) noexcept:
    cdef uint8_t* target = segment.data + (position - segment.start_position)
    put_u32(target + AT_MAGIC, <uint32_t> BLANK_MAGIC)
    put_u32(target + AT_SIZE, <uint32_t> (segment.end_position - position))
