"""Count records and bytes per topic, queue and group, under a bounded number of keys.

Operations: add to a key's totals (once per batch stored and once per pull answered), find the totals of one
key, copy all of them (every ten seconds). Goals: an add costs well under 100 ns, a copy of 16,384 keys well
under a millisecond, and peers who invent topics and groups cannot take more memory than so many keys.

A key has a slot in one array of numbers. Totals only grow: a slot that is given to another key goes on
from where it is, and remembers where that was, so that copies made before stay valid for other slots.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

cdef enum:
    COLUMNS_MAX = 6
    FIRST_CAPACITY = 64
    CANDIDATES = 64


cdef class CounterTable:
    """Keep up to `columns` totals under each key; past `keys_max` keys unused for long are dropped."""

    cdef readonly int columns
    cdef readonly Py_ssize_t keys_max
    # Keys dropped for want of room.
    cdef readonly uint64_t dropped_count
    cdef object monotonic_s
    cdef dict slots
    cdef list free_slots
    # The key of each slot, None for a free one.
    cdef list key_list
    # Where to look next for a key to drop.
    cdef Py_ssize_t hand
    cdef Py_ssize_t used_slots
    cdef Py_ssize_t capacity
    cdef uint64_t* numbers
    # The totals a slot had when its key came.
    cdef uint64_t* origins
    cdef double* created
    # The period a key was last added to.
    cdef uint64_t* last_used
    cdef uint64_t period

    def __cinit__(self, int columns, *, Py_ssize_t keys_max, monotonic_s):
        if not 1 <= columns <= COLUMNS_MAX or keys_max < 1:
            raise ValueError("columns or keys_max out of range")
        self.columns = columns
        self.keys_max = keys_max
        self.monotonic_s = monotonic_s
        self.slots = {}
        self.free_slots = []
        self.key_list = []
        self._grow(FIRST_CAPACITY)

    def __dealloc__(self):
        free(self.numbers)
        free(self.origins)
        free(self.created)
        free(self.last_used)

    def __len__(self):
        return len(self.slots)

    cpdef add(
        self,
        object key,
        uint64_t first,
        uint64_t second=0,
        uint64_t third=0,
        uint64_t fourth=0,
        uint64_t fifth=0,
        uint64_t sixth=0,
    ):
        """Add to the totals of a key, which is made when it is not there."""
        cdef object found = self.slots.get(key)
        cdef Py_ssize_t slot = self._open(key) if found is None else <Py_ssize_t> found
        cdef uint64_t* row = self.numbers + slot * COLUMNS_MAX
        row[0] += first
        row[1] += second
        row[2] += third
        row[3] += fourth
        row[4] += fifth
        row[5] += sixth
        self.last_used[slot] = self.period

    def all_keys(self):
        """Return all keys, oldest first."""
        return list(self.slots)

    def totals(self, key):
        """(slot, totals now, totals when the key came, when that was in monotonic seconds), or None."""
        found = self.slots.get(key)
        if found is None:
            return None
        cdef Py_ssize_t slot = found
        return slot, self._row(self.numbers, slot), self._row(self.origins, slot), self.created[slot]

    def copy(self):
        """Return all totals as they are, `columns` numbers of 64 bits for each slot; begins a new period."""
        cdef bytearray out = bytearray(self.used_slots * self.columns * sizeof(uint64_t))
        cdef char* at = out
        cdef Py_ssize_t slot
        cdef size_t row_bytes = self.columns * sizeof(uint64_t)
        for slot in range(self.used_slots):
            memcpy(at, self.numbers + slot * COLUMNS_MAX, row_bytes)
            at += row_bytes
        self.period += 1
        return bytes(out)

    def growth(self, bytes copy not None):
        """Return (key, by how much each total grew) of the keys that grew since a copy of all was taken.

        What a key counted that was dropped since then is not in it.
        """
        cdef const uint64_t* before = <const uint64_t*><const char*>copy
        cdef Py_ssize_t copied = len(copy) // (self.columns * sizeof(uint64_t))
        cdef list grown = []
        cdef uint64_t[COLUMNS_MAX] steps
        cdef uint64_t base
        cdef bint has_grown
        cdef int column
        cdef Py_ssize_t slot
        for slot in range(self.used_slots):
            if self.key_list[slot] is None:
                continue
            has_grown = False
            for column in range(self.columns):
                # Totals of a slot only grow: the greater one is the later.
                base = self.origins[slot * COLUMNS_MAX + column]
                if slot < copied:
                    base = max(base, before[slot * self.columns + column])
                steps[column] = self.numbers[slot * COLUMNS_MAX + column] - base
                has_grown |= steps[column] != 0
            if has_grown:
                grown.append((self.key_list[slot], tuple([steps[column] for column in range(self.columns)])))
        return grown

    def drop(self, key):
        """Forget a key; True when there was one."""
        found = self.slots.pop(key, None)
        if found is None:
            return False
        self.key_list[found] = None
        self.free_slots.append(found)
        return True

    cdef tuple _row(self, uint64_t* numbers, Py_ssize_t slot):
        cdef int column
        return tuple([numbers[slot * COLUMNS_MAX + column] for column in range(self.columns)])

    cdef Py_ssize_t _open(self, object key) except -1:
        cdef double now_s = self.monotonic_s()
        cdef Py_ssize_t slot
        if len(self.slots) >= self.keys_max:
            self._make_room()
        if self.free_slots:
            slot = self.free_slots.pop()
        else:
            if self.used_slots == self.capacity:
                self._grow(min(2 * self.capacity, max(self.keys_max, FIRST_CAPACITY)))
            slot = self.used_slots
            self.used_slots += 1
            self.key_list.append(None)
        memcpy(
            self.origins + slot * COLUMNS_MAX,
            self.numbers + slot * COLUMNS_MAX,
            COLUMNS_MAX * sizeof(uint64_t),
        )
        self.created[slot] = now_s
        self.slots[key] = slot
        self.key_list[slot] = key
        return slot

    cdef int _make_room(self) except -1:
        """Drop the key that was unused for longest among the next ones in turn.

        Among all of them would cost a look at each for every new key, when more keys are in use than there
        is room for.
        """
        cdef Py_ssize_t oldest = -1
        cdef Py_ssize_t looked_at = 0
        cdef Py_ssize_t slot
        for _ in range(self.used_slots):
            slot = self.hand
            self.hand = (slot + 1) % self.used_slots
            if self.key_list[slot] is None:
                continue
            if oldest < 0 or self.last_used[slot] < self.last_used[oldest]:
                oldest = slot
            looked_at += 1
            if looked_at == CANDIDATES:
                break
        self.drop(self.key_list[oldest])
        self.dropped_count += 1
        return 0

    cdef int _grow(self, Py_ssize_t capacity) except -1:
        cdef size_t row_bytes = COLUMNS_MAX * sizeof(uint64_t)
        self.numbers = <uint64_t*> _resized(self.numbers, capacity * row_bytes)
        self.origins = <uint64_t*> _resized(self.origins, capacity * row_bytes)
        self.created = <double*> _resized(self.created, capacity * sizeof(double))
        self.last_used = <uint64_t*> _resized(self.last_used, capacity * sizeof(uint64_t))
        memset(self.numbers + self.capacity * COLUMNS_MAX, 0, (capacity - self.capacity) * row_bytes)
        self.capacity = capacity
        return 0


cdef void* _resized(void* memory, size_t size) except NULL:
    cdef void* resized = realloc(memory, size)
    if resized == NULL:
        raise MemoryError
    return resized


cdef class TrafficCounters:
    """All tables of a broker; columns and keys are named where they are."""

    # topic -> times, records, bytes
    cdef readonly CounterTable topic_puts
    # (topic, queue id) -> times, records, bytes
    cdef readonly CounterTable queue_puts
    # (topic, group) -> times, records, bytes, microseconds, records from the disk, bytes from the disk
    cdef readonly CounterTable group_gets
    # (topic, queue id, group) -> the same
    cdef readonly CounterTable queue_gets
    # (topic, group) -> times
    cdef readonly CounterTable send_backs
    # prefix of client ids -> published messages and bytes, delivered messages and bytes, connections
    cdef readonly CounterTable clients
    # "put", "get" and "clients" -> the columns of their tables
    cdef readonly CounterTable broker

    def __init__(self, *, keys_max, monotonic_s):
        self.topic_puts = CounterTable(3, keys_max=keys_max, monotonic_s=monotonic_s)
        self.queue_puts = CounterTable(3, keys_max=keys_max, monotonic_s=monotonic_s)
        self.group_gets = CounterTable(6, keys_max=keys_max, monotonic_s=monotonic_s)
        self.queue_gets = CounterTable(6, keys_max=keys_max, monotonic_s=monotonic_s)
        self.send_backs = CounterTable(1, keys_max=keys_max, monotonic_s=monotonic_s)
        self.clients = CounterTable(5, keys_max=keys_max, monotonic_s=monotonic_s)
        self.broker = CounterTable(6, keys_max=3, monotonic_s=monotonic_s)

    def count_put(self, str topic, Py_ssize_t queue_id, uint64_t records, uint64_t size_bytes, uint64_t batches=1):
        """A batch, or so many of them, was stored."""
        self.topic_puts.add(topic, batches, records, size_bytes)
        self.queue_puts.add((topic, queue_id), batches, records, size_bytes)
        self.broker.add("put", batches, records, size_bytes)

    def count_get(
        self,
        str topic,
        Py_ssize_t queue_id,
        str group,
        uint64_t records,
        uint64_t size_bytes,
        uint64_t took_us,
        bint is_from_disk,
    ):
        """A pull was answered with records."""
        cdef uint64_t disk_records = records if is_from_disk else 0
        cdef uint64_t disk_bytes = size_bytes if is_from_disk else 0
        self.group_gets.add((topic, group), 1, records, size_bytes, took_us, disk_records, disk_bytes)
        self.queue_gets.add((topic, queue_id, group), 1, records, size_bytes, took_us, disk_records, disk_bytes)
        self.broker.add("get", 1, records, size_bytes, took_us, disk_records, disk_bytes)

    def count_send_back(self, str topic, str group):
        """A consumer gave a message back."""
        self.send_backs.add((topic, group), 1)

    def count_clients(
        self,
        str prefix,
        uint64_t published,
        uint64_t published_bytes,
        uint64_t delivered,
        uint64_t delivered_bytes,
        uint64_t connections,
    ):
        """A front end says by how much the counts of a prefix grew."""
        if prefix:
            self.clients.add(prefix, published, published_bytes, delivered, delivered_bytes, connections)
        self.broker.add("clients", published, published_bytes, delivered, delivered_bytes, connections)
