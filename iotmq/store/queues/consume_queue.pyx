"""ConsumeQueue: for every queue of every topic, where its records stand in the log.

What the hot path does: per batch one call to `apply`; per record parse, compare with the last queue, one
look at the properties, store 20 bytes (log/queue_entry.pxd). The files are those of `Queue`.
"""

import logging
import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport errno
from libc.stdint cimport INT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, strerror

from iotmq.message.records.fields cimport FORMAT_OK, RecordParts, parse_fields
from iotmq.message.records.layout cimport (
    AT_MAGIC, BLANK_BYTES, BLANK_MAGIC, QUEUE_ENTRY_SIZE, RECORD_FIXED_BYTES, SYS_FLAG_TRANSACTION_MASK,
    TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, get_u32, get_u64, put_u32, put_u64,
)
from iotmq.message.records.record cimport parse_record
from iotmq.message.records.short_bytes cimport find_byte
from iotmq.store.log.marker cimport is_marker
from iotmq.store.log.queue cimport Queue
from iotmq.store.log.queue_entry cimport is_filler, put_entry
from iotmq.store.log.queue_table cimport QueueTable, is_topic
from iotmq.store.log.segment cimport Segment
from iotmq.store.log.timer_record cimport TIMER_NAME_BYTES, entry_tags_code

from iotmq.errors import StoreCorruptError, StoreError
from iotmq.files import sync_path
from iotmq.limits import QUEUE_OFFSET_MAX, QUEUES_PER_TOPIC_MAX, TOPIC_BYTES_MAX
from iotmq.message.records.record import problem_text
from iotmq.store import fail_points
from iotmq.store.files.state_record import encode_state, read_state, write_state
from iotmq.store.log.segment import open_segments

cdef extern from "<unistd.h>" nogil:
    int syncfs(int descriptor)

cdef enum:
    SYNCED_ONE_BY_ONE_MAX = 32
    # Gaps remembered between two calls of take_gaps.
    GAPS_MAX = 10000
    QUEUE_ID_DIGITS_MAX = 10

cdef int64_t OFFSET_MAX = QUEUE_OFFSET_MAX

# `consumequeue/.applied`: what the files were known to hold at the last checkpoint. No topic starts
# with a dot. A state_record: applied position, queues, sum of max offsets.
_STATE_MAGIC = b"iotmqCQ1"
# The same, and some queue has had records with a time to live.
_STATE_MAGIC_EXPIRING = b"iotmqCQX"
_STATE_NAME = ".applied"

logger = logging.getLogger("iotmq.store")


cdef class ConsumeQueue:
    """The projection that gives every record its place in its queue, from the log's bytes alone.

    Records of prepared and rolled back transactions have no place in a queue and are passed over.
    """

    def __init__(self, str directory, *, int64_t entries_per_file):
        """Map the queues found in `directory` (made when missing). Call `rewind` before anything else."""
        self.name = "consumequeue"
        self.directory = directory
        self.entries_per_file = entries_per_file
        self.table = QueueTable()
        self.dispatched = []
        self.dirty = []
        self.gaps = []
        os.makedirs(directory, exist_ok=True)
        self._load()

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
        """Return the handle of a queue, made on first use; its files come with its first record.

        Raises StoreError for a topic that is not printable ASCII, has a slash, starts with a dot or is
        longer than 127 bytes, and for a queue id outside 0..1023.
        """
        cdef bytes topic_bytes = topic.encode("utf-8", "surrogateescape")
        cdef Queue queue = self.table.find(
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
        """Return the handle of a queue if it was made before, else None."""
        cdef bytes topic_bytes = topic.encode("utf-8", "surrogateescape")
        return self.table.find(
            <const uint8_t*> PyBytes_AS_STRING(topic_bytes), PyBytes_GET_SIZE(topic_bytes), queue_id
        )

    def queues(self):
        """Return every handle, in the order they were made."""
        return list(self.table.queues)

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
                if (<Queue> queue).has_entries():
                    count -= 1
                    offsets -= (<Queue> queue).max_offset
            self.write_state((applied_position, max(0, count), max(0, offsets)))
        self.table.keep([queue for queue in self.table.queues if queue not in removed])
        self.dispatched = [queue for queue in self.dispatched if queue not in removed]
        if self.last in removed:
            self.last = None
        for queue in queues:
            if not (<Queue> queue).is_dirty:
                (<Queue> queue).is_dirty = True
                # So that there is a checkpoint, with the lower count.
                self.dirty.append(queue)
            (<Queue> queue).delete_files()

    def check_invariants(self):
        """AssertionError when the table, the lists of queues and the queues disagree."""
        cdef Queue queue
        queues = self.queues()
        for queue in queues:
            queue.check_invariants()
            assert self.find_queue(queue.topic, queue.queue_id) is queue, f"{queue!r} is not found"
        for listed, flagged in (
            (self.dispatched, {queue for queue in queues if (<Queue> queue).is_dispatched}),
            (self.dirty, {queue for queue in queues if (<Queue> queue).is_dirty}),
        ):
            assert len(listed) == len(set(listed)), "a queue is listed twice"
            assert flagged <= set(listed), "a queue is not listed and does not know it"
        # Also those that were removed: they wait for the checkpoint that leaves them out.
        assert all((<Queue> queue).is_dirty for queue in self.dirty), "a queue is listed and does not know it"
        assert all((<Queue> queue).is_dispatched for queue in self.dispatched), "a queue is listed and does not know it"

    def take_dispatched(self):
        """Return the watched queues that got entries since the last call."""
        cdef list taken
        if not self.dispatched:
            return []
        taken = self.dispatched
        self.dispatched = []
        for queue in taken:
            (<Queue> queue).is_dispatched = False
        return taken

    def take_dirty(self):
        """Return the queues with entries since the last call, for the thread that syncs them."""
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
        """Return the state for `write_state` once every entry dispatched so far is on the disk.

        (applied position, queues with entries, sum of their max offsets)
        """
        cdef int64_t offsets = 0
        cdef int64_t count = 0
        for queue in self.table.queues:
            if (<Queue> queue).has_entries():
                offsets += (<Queue> queue).max_offset
                count += 1
        return self.applied_position, count, offsets

    def write_state(self, state):
        """Remember `state`; raises OSError."""
        record = encode_state(_STATE_MAGIC_EXPIRING if self.may_expire else _STATE_MAGIC, *state)
        write_state(os.path.join(self.directory, _STATE_NAME), record, fail_point="queue-state-written")

    def forget_pages(self):
        """Take out of this process what a start looked at: of each of very many queues its last entry."""
        for queue in self.table.queues:
            for file in (<Queue> queue).files:
                (<Segment> file).forget_pages()

    def _read_state_record(self):
        """Return the state's file, None when there is none that proves itself."""
        return read_state(os.path.join(self.directory, _STATE_NAME), _STATE_MAGIC, _STATE_MAGIC_EXPIRING, count=3)

    def read_state(self):
        """Return the remembered (applied position, queues, sum of max offsets), or None when there is none."""
        state = self._read_state_record()
        if state is None:
            return None
        if state.magic == _STATE_MAGIC_EXPIRING:
            # Which queues it was is not remembered.
            self.may_expire = True
            for queue in self.table.queues:
                (<Queue> queue).may_expire = True
        return state.numbers

    def rewind(self, int64_t position, int64_t min_position):
        """Forget all records at or past `position`; `apply` goes on from there."""
        for queue in self.table.queues:
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
            sync_path(self.directory)
        self.rewind(-1, position)
        self.applied_position = position
        self.was_cleared = True
        for queue in self.take_dirty():
            (<Queue> queue).is_new = False
        self.may_expire = False
        for queue in self.table.queues:
            (<Queue> queue).may_expire = False
        for name in os.listdir(self.directory):
            path = os.path.join(self.directory, name)
            if os.path.isdir(path):
                _remove(path)
            else:
                os.unlink(path)
            fail_points.reach("queues-half-cleared")

    def trim(self, int64_t min_position):
        """Move every queue's `min_offset` behind a log that now starts at `min_position`."""
        for queue in self.table.queues:
            (<Queue> queue).trim(min_position)

    def begins(self):
        """(topic, queue id, min offset) of the queues that do not begin at 0."""
        cdef list begins = []
        for queue in self.table.queues:
            if (<Queue> queue).min_offset:
                begins.append(((<Queue> queue).topic, (<Queue> queue).queue_id, (<Queue> queue).min_offset))
        return begins

    def begin_at(self, begins):
        """Let queues that have lost their files go on at the offsets of `begins`; raises OSError.

        Once everything was applied, before anything is appended. Queues whose files were found in order are left
        alone: they know better.
        """
        cdef bytes topic_bytes
        cdef Queue queue
        for topic, queue_id, offset in begins:
            topic_bytes = topic.encode("utf-8", "surrogateescape")
            queue = self.queue_of(
                <const uint8_t*> PyBytes_AS_STRING(topic_bytes), PyBytes_GET_SIZE(topic_bytes), queue_id
            )
            if queue is None or not queue.max_offset < offset <= OFFSET_MAX:
                continue
            if queue.has_entries() and not self.was_cleared:
                continue
            queue.begin_at(offset)
            self.mark(queue)

    def take_passed_files(self):
        """Return `take_passed_files` of every queue; none while nothing says what is on the disk."""
        cdef list paths = []
        try:
            state = self._read_state_record()
        except OSError:
            state = None
        if state is None:
            return paths
        for queue in self.table.queues:
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
        """Return the queue a record names, made when it is new; None when there can be none of that name."""
        cdef Queue queue = self.table.find(topic, topic_size, queue_id)
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
            if not 0 <= parts.queue_offset <= OFFSET_MAX:
                self.ignored_count += 1
                return 0
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
            if before != NULL and not is_filler(before) and <int64_t> get_u64(before) < parts.position:
                # The queue's first record had a damaged offset: start over.
                queue.rewind(-1, 0)
                return self.enter(queue, parts)
        if at == NULL or (not is_filler(at) and <int64_t> get_u64(at) == parts.position):
            self.ignored_count += 1
            return 0
        if not is_filler(at):
            # Entries follow the log. One that stands before its predecessor's record took the place of another.
            before = queue.entry_at(parts.queue_offset - 1) if parts.queue_offset > queue.min_offset else NULL
            if before == NULL or is_filler(before) or not (
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
        if queue is None or not 0 <= parts.queue_offset < parts.prepared_position <= OFFSET_MAX:
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
        """Return whether the records between a queue's last one and this have room between the two in the log.

        None is smaller than RECORD_FIXED_BYTES and a letter of topic. What has no room is a damaged offset,
        and believing it would cost the queue every record that follows.
        """
        cdef const uint8_t* at
        cdef int64_t last = queue.max_offset - 1
        if not queue.files:
            # All of its records, those deleted since too, stood before this one.
            return offset <= position // (RECORD_FIXED_BYTES + 1)
        at = queue.entry_at(last) if last >= queue.min_offset else NULL
        if at == NULL or is_filler(at):
            return True
        return offset - queue.max_offset <= (position - <int64_t> get_u64(at)) // (RECORD_FIXED_BYTES + 1)

    cdef bint is_confirmed(self, Queue queue, const RecordParts* parts) except -1:
        """Return whether a record with an offset that is not plausible follows another one like it; takes that in then.

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
        if at != NULL and not is_filler(at):
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

    cdef Queue insert(self, bytes topic_bytes, int queue_id):
        cdef str topic = topic_bytes.decode("utf-8", "surrogateescape")
        cdef Queue queue = Queue(
            topic, queue_id, os.path.join(self.directory, topic, str(queue_id)), self.entries_per_file
        )
        self.table.add(queue)
        return queue

    def _load(self):
        cdef Queue queue
        for topic in sorted(os.listdir(self.directory)):
            topic_directory = os.path.join(self.directory, topic)
            if not os.path.isdir(topic_directory):
                continue
            for queue_id in os.listdir(topic_directory):
                directory = os.path.join(topic_directory, queue_id)
                if is_queue_id(queue_id) and os.path.isdir(directory):
                    files = open_files(directory, self.entries_per_file * QUEUE_ENTRY_SIZE)
                    if files:
                        queue = self.insert(topic.encode("utf-8", "surrogateescape"), int(queue_id))
                        queue.files = files


def is_queue_id(str name):
    """Return whether a directory is one of a queue; there may be others."""
    return len(name) <= QUEUE_ID_DIGITS_MAX and name.isascii() and name.isdecimal() and str(int(name)) == name and (
        int(name) <= INT32_MAX
    )


def open_files(str directory, int64_t file_bytes):
    """A queue's files; none, and they are deleted, when they cannot be ours: the log has what they had.

    Raises OSError.
    """
    cdef list files
    try:
        files = open_segments(directory, file_bytes, is_small=True)
        for file in files:
            if (
                (<Segment> file).start_position % QUEUE_ENTRY_SIZE
                or (<Segment> file).size_bytes % QUEUE_ENTRY_SIZE
                or (<Segment> file).start_position // QUEUE_ENTRY_SIZE > OFFSET_MAX
            ):
                raise StoreCorruptError(f"{(<Segment> file).path} has no whole entries, or begins past all offsets")
    except StoreCorruptError as error:
        logger.warning("the queue's files are deleted, and filled again from the log: %s", error)
        _remove(directory)
        sync_path(os.path.dirname(directory))
        return []
    return files


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


cdef bint may_have_time_to_live(const uint8_t* properties, Py_ssize_t size) noexcept nogil:
    """Return whether MSG_TTL_MS is among the properties (or a name that ends like it). Rarely more than one pass."""
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


def _remove(directory):
    """Remove a directory with all that is in it."""
    import shutil  # with the compression it knows, half a megabyte that hardly a process needs

    shutil.rmtree(directory)
