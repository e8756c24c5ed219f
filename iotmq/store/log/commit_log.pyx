"""The CommitLog: every record of every queue, one after another in fixed-size segments.

A record never spans two segments (log_segments.pyx): when it does not fit together with the 8 bytes that every
segment keeps free at its end, a blank (size = bytes left, blank magic) ends the segment there.

What the hot path does, per batch: one pass over the elements that checks every length and has disk
blocks ready for all of them, so that nothing is written of a batch that cannot be written whole; one
pass that writes the records into the mapping. The size of the batch's first record is stored last:
a process killed in between leaves nothing of the batch for the next start to see.
"""

import logging

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from iotmq.message.records.fields cimport element_fields
from iotmq.message.records.layout cimport (
    AT_MAGIC, AT_SIZE, BLANK_BYTES, BLANK_MAGIC, HOST_V6_EXTRA_BYTES, SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6, SYS_FLAG_TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, get_u32, put_u32,
)
from iotmq.message.records.fields cimport (
    FORMAT_OK, Element, PROPERTIES_TOO_LONG, RECORD_TOO_LONG, TOPIC_TOO_LONG, RecordParts,
)
from iotmq.message.records.record cimport (
    RecordShared, RecordTemplate, body_crc, element_record_size, make_template, parse_record, write_like,
)
from iotmq.store.log.log_segments cimport LogSegments
from iotmq.store.log.marker cimport is_marker
from iotmq.store.log.queue cimport Queue
from iotmq.store.log.segment cimport Segment

from iotmq.errors import RecordTooLargeError, StoreCorruptError
from iotmq.limits import BATCH_RECORDS_MAX
from iotmq.message.errors import MessageFormatError
from iotmq.message.records.record import problem_text
from iotmq.store import fail_points

cdef extern from * nogil:
    """
    /* The compiler may not move stores across it; a killed process needs no more than program order. */
    #define iotmq_store_barrier() __atomic_signal_fence(__ATOMIC_SEQ_CST)
    """
    void store_barrier "iotmq_store_barrier"()

cdef enum:
    # A first record up to this size is built on the stack, so that its size field can be stored last.
    STACK_BYTES = 4096
    # Behind the end of the log: pages that hardly ever have been to the disk and back meanwhile.
    TRUSTED_BYTES = 268435456
    # Records that cannot be read and are remembered one by one.
    UNREADABLE_MAX = 10000

cdef int32_t BATCH_COUNT_MAX = BATCH_RECORDS_MAX
cdef bint HAS_FAIL_POINTS = fail_points.IS_ON

logger = logging.getLogger("iotmq.store")


cdef class Appended:
    """The position of a batch in the log. It is confirmed with `end_position`."""

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


cdef class CommitLog(LogSegments):
    """The records in the segments. One thread appends."""

    def __init__(self, str directory, *, int64_t segment_bytes, int64_t allocation_step_bytes,
                 int64_t record_bytes_max, bytes store_host):
        """Open the segments as LogSegments does; records carry `store_host` (8 or 20 bytes)."""
        if record_bytes_max + BLANK_BYTES > segment_bytes:
            raise ValueError(f"a segment of {segment_bytes} bytes cannot take a record of {record_bytes_max}")
        if PyBytes_GET_SIZE(store_host) not in (8, 8 + HOST_V6_EXTRA_BYTES):
            raise ValueError(f"a host has 8 or 20 bytes, not {len(store_host)}")
        self.record_bytes_max = record_bytes_max
        self.store_host = store_host
        self.unreadable = set()
        super().__init__(directory, segment_bytes=segment_bytes, allocation_step_bytes=allocation_step_bytes)

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
        """Fill in the fields of all records of a batch that follow from queue and hosts; its times are left to the caller.

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
        # Whoever takes the bytes takes them from one mapping.
        limit_position = min(limit_position, segment.end_position)
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

    def first_store_timestamp_ms(self, Segment segment not None):
        """Store time of a segment's first record if it proves itself by magic and position, else 0."""
        cdef RecordParts parts
        if parse_record(segment.data, segment.data + segment.allocated_bytes, &parts) != FORMAT_OK:
            return 0
        return parts.store_timestamp_ms if parts.position == segment.start_position else 0

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
        """Return whether a queue's record has not been found damaged yet; after very many nobody looks again."""
        return len(self.unreadable) < UNREADABLE_MAX and (topic, queue_id, offset, position) not in self.unreadable

    def unreadable_records(self):
        """(topic, queue id, offset, position) of records that were to be read and do not prove themselves."""
        return sorted(self.unreadable)

    cdef int64_t trusted_position(self) noexcept:
        """Note that a record's body was checked or written just now: reads need not check it."""
        return max(self.checked_position, self.appended_position - TRUSTED_BYTES)

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
                self.make_ready(index, position + BLANK_BYTES)
                index += 1
                position = end_position
                self.make_ready(index, position + size + BLANK_BYTES)
                end_position = (<Segment> self.segments[index]).end_position
            position += size
            at += element.size
            count += 1
        if count == 0:
            raise MessageFormatError("batch without elements")
        self.make_ready(index, position + BLANK_BYTES)
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
        for number in range(1, count):  # no-cython-lint
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
        if position + self.allocation_step_bytes > segment.start_position + segment.allocated_bytes and (
            segment.allocated_bytes < segment.size_bytes or index + 1 == len(self.segments)
        ):
            self.is_room_low = True
        return first_position


cdef void put_blank(Segment segment, int64_t position) noexcept:
    cdef uint8_t* target = segment.data + (position - segment.start_position)
    put_u32(target + AT_MAGIC, <uint32_t> BLANK_MAGIC)
    put_u32(target + AT_SIZE, <uint32_t> (segment.end_position - position))
