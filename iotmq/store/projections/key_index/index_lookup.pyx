"""Finding a key in the files of the key index: file by file from the newest, along one chain in each."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from iotmq.message.records.layout cimport get_u32, get_u64
from iotmq.store.projections.key_index.index_file cimport INDEX_ENTRY_BYTES, INDEX_SLOT_BYTES, IndexFile

from iotmq.limits import INDEX_LOOKUP_ENTRIES_MAX
from iotmq.store.projections.key_index.index_file import key_hash
from iotmq.store.queues.residency import plan_bytes

cdef enum:
    # Entries a patient look-up looks at before it lets others go first: about 2 ms.
    PATIENT_ENTRIES_MAX = 4096

cdef int64_t LOOKUP_ENTRIES_MAX = INDEX_LOOKUP_ENTRIES_MAX


cdef class Lookup:
    """The positions a key may be at, newest first; one at a time, because most callers want few.

    Other keys can have the same hash: whoever asks has to look at the record.
    """

    def __init__(self, list files not None, str key not None, *, int64_t begin_ms, int64_t end_ms, bint is_patient):
        """Look through `files`, oldest first, for `key` (`topic#key`) with a store time in [begin_ms, end_ms]."""
        self.files = files
        self.hash = key_hash(key)
        # Kept away from the ends of int64, for the sums.
        self.begin_ms = min(max(begin_ms, <int64_t> 0), <int64_t> 1 << 62)
        self.end_ms = min(max(end_ms, <int64_t> -1), <int64_t> 1 << 62)
        self.steps_left = LOOKUP_ENTRIES_MAX
        self.is_patient = is_patient

    def next_position(self):
        """Return the next older one, -1 when there are no more (or the look-up has cost enough).

        With `is_patient` -2 where it would have to wait for the disk: have `absent` in memory and ask again;
        when that is None, it has only taken a while.
        """
        cdef IndexFile file
        cdef const uint8_t* entry
        cdef int32_t older
        cdef int64_t position, time_ms
        cdef int32_t pause_left = PATIENT_ENTRIES_MAX
        while True:
            if self.index == 0 and not self.is_at_slot and not self.next_file():
                return -1
            file = self.file
            if self.is_at_slot:
                entry = file.slots_at + <int64_t> (self.hash % file.slots) * INDEX_SLOT_BYTES
                if self.is_patient and self.is_absent(entry, INDEX_SLOT_BYTES):
                    return -2
                self.is_at_slot = False
                self.index = <int32_t> get_u32(entry)
                if not 0 < self.index < file.count:
                    self.index = 0
            while self.index:
                if self.steps_left == 0:
                    self.files = []
                    self.index = 0
                    return -1
                entry = file.entries_at + <int64_t> self.index * INDEX_ENTRY_BYTES
                if self.is_patient:
                    if pause_left == 0:
                        self.absent = None
                        return -2
                    pause_left -= 1
                    if self.is_absent(entry, INDEX_ENTRY_BYTES):
                        return -2
                self.steps_left -= 1
                # To the second, rounded down: an entry may be up to 999 ms newer than that.
                time_ms = file.begin_timestamp_ms + <int64_t> <int32_t> get_u32(entry + 12) * 1000
                older = <int32_t> get_u32(entry + 16)
                # A link that does not lead to an older entry ends the chain, and so does an entry
                # from before the time asked for.
                self.index = 0 if time_ms + 999 < self.begin_ms or not 0 < older < self.index else older
                if (
                    <int32_t> get_u32(entry) == self.hash
                    and <int32_t> get_u32(entry + 12) >= 0
                    and time_ms <= self.end_ms
                    and time_ms + 999 >= self.begin_ms
                ):
                    position = <int64_t> get_u64(entry + 4)
                    return position

    def next_file(self):
        """Go to the next older file whose time overlaps the one asked for; whether there is one."""
        cdef IndexFile file = self.file
        while self.files and (file is None or file.begin_timestamp_ms >= self.begin_ms):
            file = <IndexFile> self.files.pop()
            self.file = file
            if file.count > 1 and file.begin_timestamp_ms <= self.end_ms and file.end_timestamp_ms >= self.begin_ms:
                self.is_at_slot = True
                return True
        return False

    cdef bint is_absent(self, const uint8_t* at, int64_t size_bytes) except -1:
        """Return whether so many bytes of the file are on the disk; then `absent` says what to load."""
        cdef int64_t start_bytes = at - self.file.segment.data
        self.absent = plan_bytes(self.file.segment, start_bytes, start_bytes + size_bytes)
        return self.absent is not None
