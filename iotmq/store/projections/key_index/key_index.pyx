"""The key index: from a topic and a key to the records that carry it, in hash files (index_file.pyx).

Every record has its UNIQ_KEY entered first, then each word of its KEYS.

What the hot path does: per batch one call to `apply`; per record parse, one pass over the properties,
and per key a hash, a load and 24 bytes of stores. A file's header goes into it once a batch.

The files have no checksums, so nothing in them is relied on that was not on the disk: `index.applied`
beside the directory says up to which position of the log, and which entry of the last file, everything
was. After a crash the last file is cut there and its slots are made anew from its entries; what came
later is taken from the log again.
"""

import logging
import os
import threading
from datetime import UTC, datetime
from functools import partial

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from iotmq.message.records.fields cimport FORMAT_OK, RecordParts, parse_fields
from iotmq.message.records.layout cimport (
    AT_MAGIC, BLANK_BYTES, BLANK_MAGIC, PROPERTY_END, SYS_FLAG_TRANSACTION_MASK, TRANSACTION_ROLLBACK, get_u32,
)
from iotmq.message.records.short_bytes cimport byte_mask, find_byte, lowest_bit
from iotmq.message.records.text cimport java_hash
from iotmq.store.projections.key_index.index_file cimport IndexFile, without_sign

from iotmq.errors import StoreCorruptError
from iotmq.message.records.record import problem_text
from iotmq.store import fail_points
from iotmq.store.files.state_record import encode_state, read_state, write_state
from iotmq.store.projections.key_index.index_file import NAME_DIGITS, index_file_bytes
from iotmq.store.projections.key_index.index_lookup import Lookup
from iotmq.store.projections.projection import Leaving

cdef enum:
    # As many bytes of properties are looked at together as a mask has bits.
    PIECE_BYTES = 64
    BEFORE_BYTES = 16

cdef bint HAS_FAIL_POINTS = fail_points.IS_ON

# `index.applied`, a state_record: applied position, files, name of the last one as a number, index of its
# next entry.
_STATE_MAGIC = b"iotmqKI1"
# The last millisecond of the year 9999: names have four digits for the year.
_NAMED_MS_MAX = 253_402_300_799_999

logger = logging.getLogger("iotmq.store")


cdef class KeyIndex:
    """The projection that makes and reads the index files. Call `recover` before anything else.

    One thread applies and looks up; `take_dirty`, `sync`, `state` and `write_state` may be called in another.
    """

    def __init__(self, str directory, str state_path, *, int32_t slots, int32_t entries):
        """Files of `directory` (made when missing) with so many slots, and room for `entries - 1` entries."""
        if slots < 1 or entries < 2:
            raise ValueError(f"an index file with {slots} slots and {entries} entries")
        self.name = "index"
        self.directory = directory
        self.state_path = state_path
        self.slots = slots
        self.entries = entries
        self.files = []
        self.dirty = []
        self.lock = threading.Lock()
        os.makedirs(directory, exist_ok=True)

    def recover(self, int64_t min_position, int64_t end_position, *, bint was_clean, int64_t timestamp_ms,
                timestamp_at):
        """Take the files back to what can be relied on, for a log of [min_position, end_position).

        Afterwards `applied_position` says where to go on. Files of another broker, known by the missing
        `index.applied`, count up to their last entry, and after a crash only the ones that end before
        `timestamp_ms` (the checkpoint's). `timestamp_at` gives the store time of the record that starts at a
        position of the log, 0 when none does.
        Anything that does not fit together is deleted, to be made again from the log. Raises OSError.
        """
        self.timestamp_at = timestamp_at
        try:
            self._load()
            if not os.path.exists(self.state_path):
                self._adopt(min_position, end_position, was_clean, timestamp_ms)
            else:
                self._restore(min_position, end_position, was_clean)
        except StoreCorruptError as error:
            logger.warning("the key index is made again from the log: %s", error)
            self.clear(min_position)

    def _load(self):
        """Map every file there is."""
        cdef int64_t size_bytes = index_file_bytes(self.slots, self.entries)
        names = sorted(name for name in os.listdir(self.directory) if len(name) == NAME_DIGITS and name.isdecimal())
        paths = [os.path.join(self.directory, name) for name in names]
        for path in paths:
            if os.stat(path).st_size != size_bytes:
                raise StoreCorruptError(
                    f"{path} is not of the size of {self.slots} slots and {self.entries} entries"
                )
        self.files = [IndexFile(path, self.slots, self.entries) for path in paths]

    def _adopt(self, int64_t min_position, int64_t end_position, bint was_clean, int64_t timestamp_ms):
        """Rely on the headers: files of a broker that does not write our state, or none."""
        cdef IndexFile file
        for number, file in enumerate(self.files):
            if not was_clean and file.end_timestamp_ms >= timestamp_ms:
                self._delete_from(number)
                break
        while self.files and (<IndexFile> self.files[len(self.files) - 1]).count == 1:
            self._delete_from(len(self.files) - 1)
        if not self.files:
            self.rewind(min_position, min_position)
            try:
                # By now, so that a stop on a full disk can be a clean one.
                self.write_state(self.state())
            except OSError as error:
                logger.warning("cannot write %s: %s", self.state_path, error)
            return
        self._check_headers(self.files)
        file = <IndexFile> self.files[len(self.files) - 1]
        if file.end_position < end_position and min_position <= file.end_position:
            if not self.timestamp_at(file.end_position):
                raise StoreCorruptError(f"{file.path}: there is no record at {file.end_position}")
        if not was_clean:
            file.cut(file.count, self.timestamp_at)
        self.rewind(
            min(file.end_position, end_position), min_position, keep_at=file.end_position < end_position
        )

    def _restore(self, int64_t min_position, int64_t end_position, bint was_clean):
        """Rely on our state."""
        cdef IndexFile file
        cdef int64_t applied_position, file_count, last_number, last_count, position
        state = self.read_state()
        if state is None:
            raise StoreCorruptError(f"{self.state_path} is damaged")
        applied_position, file_count, last_number, last_count = state
        kept = [file for file in self.files if (<IndexFile> file).number <= last_number] if file_count else []
        has_more = len(kept) < len(self.files)
        self._delete_from(len(kept))
        if len(kept) < file_count or (kept and (<IndexFile> kept[len(kept) - 1]).number != last_number):
            raise StoreCorruptError(f"{self.directory}: files are missing")
        self._check_headers(kept[:-1])
        position = min(applied_position, end_position)
        if kept:
            file = <IndexFile> kept[len(kept) - 1]
            if not was_clean or has_more or file.count != last_count or file.problem() is not None:
                if not 1 < last_count <= self.entries:
                    raise StoreCorruptError(f"{self.state_path} is damaged")
                file.cut(<int32_t> last_count, self.timestamp_at)
        self.written = state
        self.rewind(position, min_position)
        if position < applied_position:
            # It would become a false statement as soon as the log grows past it with other records.
            self.write_state(self.state())

    def _check_headers(self, files):
        for file in files:
            problem = (<IndexFile> file).problem()
            if problem is not None:
                raise StoreCorruptError(f"{(<IndexFile> file).path}: {problem}")

    def apply(self, view, int64_t start_position, int64_t end_position):
        """Enter the keys of the records of `view`, the log's bytes of [start_position, end_position).

        Records that were done before are passed over, and so are rolled back ones. Raises
        StoreCorruptError when the bytes are not whole records, OSError when a file cannot grow.
        """
        cdef Py_buffer buffer
        PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
        try:
            if buffer.len < end_position - start_position:
                raise ValueError(f"{buffer.len} bytes for {start_position}..{end_position}")
            self.apply_range(<const uint8_t*> buffer.buf, start_position, end_position)
        finally:
            PyBuffer_Release(&buffer)

    cdef int apply_range(self, const uint8_t* at, int64_t start_position, int64_t end_position) except -1:
        try:
            self.apply_bytes(at, at + (end_position - start_position), start_position)
            self.next_position = max(self.next_position, end_position)
            self.applied_position = end_position
        finally:
            if self.active is not None:
                self.active.write_header()
        return 0

    def look_up(self, str topic, str key, *, int64_t begin_ms=0, int64_t end_ms=(1 << 62), bint is_patient=False):
        """A Lookup of the records of `topic` with `key` and a store time in [begin_ms, end_ms].

        Files are looked at newest to oldest while their times overlap. With `is_patient` no page is touched
        that is on the disk.
        """
        return Lookup(list(self.files), f"{topic}#{key}", begin_ms=begin_ms, end_ms=end_ms, is_patient=is_patient)

    def file_list(self):
        """Return all files, oldest first."""
        return list(self.files)

    @property
    def stored_entries(self):
        """Entries in all files."""
        return sum([(<IndexFile> file).count - 1 for file in self.files])

    @property
    def end_timestamp_ms(self):
        """Store time of the newest record with an entry, 0 without one."""
        return 0 if self.active is None else self.active.end_timestamp_ms

    def rewind(self, int64_t position, int64_t min_position, *, bint keep_at=False):
        """Forget all records at or past `position`; `apply` goes on from there.

        `keep_at` keeps the entries of the record at `position`, and passes it over.
        """
        cdef IndexFile file
        cdef int64_t cut_position = position + keep_at
        cdef int32_t kept_count
        while self.files:
            file = <IndexFile> self.files[len(self.files) - 1]
            if file.count > 1 and file.begin_position < cut_position:
                kept_count = <int32_t> file.entries_below(cut_position)
                if kept_count < file.count:
                    file.cut(kept_count, self.timestamp_at)
                    self.mark_dirty(file)
                break
            self._delete_from(len(self.files) - 1)
        self.active = <IndexFile> self.files[len(self.files) - 1] if self.files else None
        self.applied_position = max(position, min_position)
        self.next_position = max(cut_position, min_position)
        self.keys_done = 0
        leaving = self.trim(min_position)
        if leaving is not None:
            # Nobody waits yet.
            leaving.prepare()
            for path in leaving.paths:
                os.unlink(path)

    def clear(self, int64_t position):
        """Delete every file; `apply` starts over from `position`, the first of the log."""
        # First, so that no crash can leave new files under an old statement.
        self.written = (position, 0, 0, 0)
        self._write_state(self.written)
        self.files = []
        self.dirty = []
        self.active = None
        self.keys_done = 0
        self.applied_position = self.next_position = position
        for name in os.listdir(self.directory):
            if len(name) == NAME_DIGITS and name.isdecimal():
                os.unlink(os.path.join(self.directory, name))

    def trim(self, int64_t min_position):
        """Let go of the files all of whose records lie before `min_position`; the newest file stays.

        Returns them as a Leaving, to be deleted in a thread, None when there are none.
        """
        cdef Py_ssize_t count = 0
        while count < len(self.files) - 1 and (<IndexFile> self.files[count]).end_position < min_position:
            count += 1
        if count == 0:
            return None
        leaving = self.files[:count]
        self.files = self.files[count:]
        self.removed_files += count
        for file in leaving:
            (<IndexFile> file).is_deleted = True
        return Leaving([(<IndexFile> file).path for file in leaving], partial(self._forget, leaving))

    def _forget(self, list leaving):
        """State that there are fewer files, before the ones in `leaving` are deleted. Any thread."""
        with self.lock:
            if self.written is not None:
                self._write_state(self.written)
        fail_points.reach("index-files-let-go")
        # Their mappings end here and not on the owner's thread, unless a look-up has them.
        leaving.clear()

    def take_dirty(self):
        """Return the files with entries since the last call, for the thread that syncs them."""
        cdef list taken = self.dirty
        self.dirty = []
        for file in taken:
            (<IndexFile> file).is_dirty = False
        return taken

    def sync(self, list files not None, sync_file):
        """Bring `files` to the disk; raises OSError. Any thread."""
        for file in files:
            (<IndexFile> file).sync(sync_file)

    def state(self):
        """Return the state for `write_state` once every entry made so far is on the disk.

        (applied position, files ever, name of the last one as a number, index of its next entry)
        """
        cdef IndexFile active = self.active
        if active is None:
            return self.next_position, self.removed_files, 0, 0
        return self.next_position, self.removed_files + len(self.files), active.number, active.count

    def write_state(self, state):
        """Remember `state`; raises OSError. Any thread."""
        with self.lock:
            self.written = state
            self._write_state(state)

    def read_state(self):
        """Return the remembered (applied position, files, name of the last, its next entry), None when damaged."""
        state = read_state(self.state_path, _STATE_MAGIC, count=4)
        return None if state is None else state.numbers

    def _write_state(self, state):
        """Files that were let go of do not count any more."""
        applied_position, files_ever, last_number, last_count = state
        file_count = max(0, files_ever - self.removed_files)
        record = encode_state(_STATE_MAGIC, applied_position, file_count, last_number, last_count)
        write_state(self.state_path, record, fail_point="index-state-written")

    def _delete_from(self, Py_ssize_t number):
        while len(self.files) > number:
            (<IndexFile> self.files.pop()).delete()

    def mark_dirty(self, IndexFile file not None):
        if not file.is_dirty:
            file.is_dirty = True
            self.dirty.append(file)

    cdef int apply_bytes(self, const uint8_t* at, const uint8_t* end, int64_t position) except -1:
        cdef RecordParts parts
        cdef const uint8_t* piece
        cdef const uint8_t* piece_end
        cdef const uint8_t* property
        cdef const uint8_t* property_end
        cdef const uint8_t* properties_end
        cdef const uint8_t* unique_key
        cdef const uint8_t* keys
        cdef Py_ssize_t unique_key_size, keys_size
        cdef uint64_t ends
        cdef int problem
        while at < end:
            problem = parse_fields(at, end, &parts)
            if problem != FORMAT_OK:
                if end - at >= BLANK_BYTES and get_u32(at + AT_MAGIC) == <uint32_t> BLANK_MAGIC:
                    return 0
                raise StoreCorruptError(f"not a record where the log has one: {problem_text(problem)}")
            at += parts.size
            if position < self.next_position:
                position += parts.size
                continue
            if parts.sys_flag & SYS_FLAG_TRANSACTION_MASK != TRANSACTION_ROLLBACK:
                unique_key_size = keys_size = 0
                unique_key = keys = NULL
                property = piece = parts.properties
                properties_end = property + parts.properties_size
                # The ends of all properties in 64 bytes at once. The last of several with one name wins.
                while piece < properties_end:
                    piece_end = piece + min(properties_end - piece, <Py_ssize_t> PIECE_BYTES)
                    ends = byte_mask(parts.properties, piece, piece_end - piece, PROPERTY_END)
                    while True:
                        if ends:
                            property_end = piece + lowest_bit(ends)
                            ends &= ends - 1
                        elif piece_end == properties_end and property < properties_end:
                            property_end = properties_end
                        else:
                            break
                        if property[0] == c"K":
                            if property_end - property > 4 and memcmp(property, "KEYS\x01", 5) == 0:
                                keys = property + 5
                                keys_size = property_end - keys
                        elif property[0] == c"U":
                            if property_end - property > 8 and memcmp(property, "UNIQ_KEY\x01", 9) == 0:
                                unique_key = property + 9
                                unique_key_size = property_end - unique_key
                        property = property_end + 1
                    piece = piece_end
                if unique_key_size or keys_size:
                    if (
                        self.topic_size != parts.topic_size
                        or memcmp(self.topic, parts.topic, parts.topic_size) != 0
                    ):
                        self.set_topic(parts.topic, parts.topic_size)
                    self.enter(
                        position, parts.store_timestamp_ms, unique_key, unique_key_size, keys, keys_size
                    )
            position += parts.size
            self.next_position = position
            self.keys_done = 0
        return 0

    cdef void set_topic(self, const uint8_t* topic, Py_ssize_t size) noexcept:
        """Have the hash of `topic#` ready, for this record and most that follow."""
        # Topics with a length field of two bytes can be too long to be kept.
        self.topic_size = size if size <= INDEX_TOPIC_BYTES_MAX else -1
        memcpy(self.topic, topic, max(self.topic_size, <Py_ssize_t> 0))
        self.topic_hash = java_hash(0, topic, size) * 31 + <uint32_t> c"#"

    cdef int enter(self, int64_t position, int64_t timestamp_ms, const uint8_t* unique_key,
                   Py_ssize_t unique_key_size, const uint8_t* keys, Py_ssize_t keys_size) except -1:
        """Put the keys of a record, but not the first `keys_done`, which counts them from here on."""
        cdef const uint8_t* start = keys
        cdef const uint8_t* end = keys + keys_size
        cdef const uint8_t* word_end
        cdef int32_t number = 0
        if unique_key_size:
            if self.keys_done == 0:
                self.put(without_sign(java_hash(self.topic_hash, unique_key, unique_key_size)), position, timestamp_ms)
                self.keys_done = 1
            number = 1
        while keys < end:
            # In front of them stands at least a record's fixed part.
            word_end = find_byte(start - BEFORE_BYTES, keys, end, c" ")
            if word_end > keys:
                if number == self.keys_done:
                    self.put(without_sign(java_hash(self.topic_hash, keys, word_end - keys)), position, timestamp_ms)
                    self.keys_done += 1
                number += 1
            keys = word_end + 1
        return 0

    cdef int put(self, int32_t hash, int64_t position, int64_t timestamp_ms) except -1:
        if self.active is None or self.active.count >= self.entries:
            self.roll(timestamp_ms)
        self.active.put(hash, position, timestamp_ms)
        if HAS_FAIL_POINTS:
            fail_points.reach("index-between-keys")
        self.added_entries += 1
        if not self.active.is_dirty:
            self.mark_dirty(self.active)
        return 0

    cdef int roll(self, int64_t timestamp_ms) except -1:
        """Begin the next file."""
        cdef IndexFile file
        cdef int64_t number
        time = datetime.fromtimestamp(min(max(timestamp_ms, <int64_t> 0), <int64_t> _NAMED_MS_MAX) // 1000, UTC)
        number = int(f"{time:%Y%m%d%H%M%S}") * 1000 + max(timestamp_ms, <int64_t> 0) % 1000
        if self.active is not None:
            self.active.write_header()
            # Names must sort like the files; two can be made in one millisecond.
            number = max(number, self.active.number + 1)
        path = os.path.join(self.directory, f"{number:0{NAME_DIGITS}d}")
        try:
            file = IndexFile(path, self.slots, self.entries)
            fail_points.reach("index-file-created")
            file.start_behind(self.active)
            file.reserve()
        except OSError:
            if os.path.exists(path):
                os.unlink(path)
            raise
        self.files.append(file)
        self.active = file
        return 0
