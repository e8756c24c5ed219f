"""Light queues: for each filter with durable subscribers, the places of the records that match it.

Operations: for every record of the log find the durable filters of its MQTT topic and add one entry to each
of their queues; once in a while hand out what came together, grouped by filter; read a stretch of one queue.
Goals: a body is stored once and a message costs one 20-byte entry per filter, however many sessions subscribe
it; a filter that nothing matches costs memory for its text and 40 bytes; nothing per record while nobody
subscribes durably. Plan: FilterIndex numbers the filters, an array by that number keeps where each queue
stands, pending entries are one array in the order of the log, chained per queue. A queue's entries go to the
database in one value per queue and write.

An entry is one of a ConsumeQueue (position 8 | size 4 | tags code 8); its number in the queue is its sequence,
from 0. Entries are found by position, because that is what a session can say of its progress in a way that
holds when the queue is made again from a log that has lost its beginning.

Keys and values, big-endian, in the column family of `session_store.projection`:
0x01 filter id 4                  -> next sequence 8 | first position 8 | subscribers 4 | filter
0x02 filter id 4 last position 8  -> sequence of the first 8 | entries, the last of them at `last position`
0x09 filter id 4                  -> scan from 8 | scan until 8

Where a filter is wide its queue counts matches and gets no entries (wide_filters); what is written of such a
stretch then has a `last position` and a first sequence all the same, so that it is known how many came later.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp

from iotmq.broker.delivery.push_channel cimport PushChannel, PushChannels
from iotmq.broker.light_queues.wide_filters cimport ScanRange, WideFilters
from iotmq.message.records.device_topic cimport device_topic
from iotmq.message.records.layout cimport QUEUE_ENTRY_SIZE, get_u32, put_u32, put_u64
from iotmq.message.records.fields cimport RecordParts
from iotmq.message.records.record cimport parse_record, tags_code
from iotmq.message.records.record_walk cimport RecordWalk, begin_walk, check_walk, end_walk, next_record
from iotmq.mqtt.topics.filters cimport FilterIndex, Matches

from iotmq.errors import StoreCorruptError

cdef enum:
    TAG_FILTER = 1              # first bytes of the keys
    TAG_ENTRIES = 2
    TAG_SCAN = 9
    FILTER_HEAD_BYTES = 20
    PUSH_BYTES = 8              # place 4 | filter id 4

cdef struct LightQueue:
    int64_t next_sequence
    int64_t first_position      # records before are not needed any more
    uint32_t subscribers        # sessions; 0 = not a queue
    int32_t head                # of its pending entries, -1 without any
    int32_t tail
    int32_t pending
    bint is_touched             # to be written
    bint is_attached            # some channel wants its records pushed
    bint is_trimmed             # `first_position` has moved since the last write
    bint is_new                 # the database may have entries of another queue that had the number
    bint has_scan               # the database has a range to scan, of this queue or another with the number

cdef struct Pending:
    int64_t position
    int64_t tags
    int32_t size
    int32_t following           # next pending entry of the same queue, -1


cdef class LightChannel(PushChannel):
    """One front end. `receiver(records, pushes)` takes what was matched: `pushes` is a run of place of a
    record in `records` 4 | filter id 4, big-endian."""

    cdef dict attached          # filter id -> how often
    cdef bint is_open           # until `LightQueues.close_channel`

    def __init__(self, receiver not None):
        super().__init__(receiver)
        self.attached = {}
        self.is_open = True

    @property
    def filter_ids(self):
        """The queues this front end is told of."""
        return sorted(self.attached)

    cdef int add(self, uint32_t place, uint32_t filter_id) except -1:
        cdef uint8_t* target = self.take_room(PUSH_BYTES)
        put_u32(target, place)
        put_u32(target + 4, filter_id)
        return 0


cdef class LightQueues:
    """All queues of a broker, as a collector (store.kv_projection). Lives on the store's thread.

    `on_own_record(body, position, store_timestamp_ms)` gets the records of `own_topic`, in their order among
    the others: what subscribes from one record on gets the next.
    """

    cdef readonly FilterIndex filters
    cdef readonly WideFilters wide
    cdef int wide_percent, wide_window_records
    cdef bytes own_topic
    cdef object on_own_record
    cdef LightQueue* queues
    cdef uint32_t queues_size
    cdef Pending* entries
    cdef int32_t entry_count, entry_room
    cdef uint32_t* touched
    cdef uint32_t touched_count, touched_room
    cdef dict attached          # filter id -> list of channels
    cdef PushChannels channels
    cdef readonly uint64_t matched_total
    cdef readonly uint64_t generation  # goes up with each `forget_all`, after which filters may have other ids

    def __init__(
        self, str own_topic not None, on_own_record not None, *, int wide_percent=0, int wide_window_records=65536
    ):
        """A filter is wide that matches `wide_percent` of so many records of the log; 0 for none."""
        self.own_topic = own_topic.encode()
        self.on_own_record = on_own_record
        self.wide_percent = wide_percent
        self.wide_window_records = wide_window_records
        self.filters = FilterIndex()
        self.wide = WideFilters(percent=wide_percent, window_records=wide_window_records)
        self.attached = {}
        self.channels = PushChannels()

    def __dealloc__(self):
        free(self.queues)
        free(self.entries)
        free(self.touched)

    # As a collector.

    @property
    def count(self):
        """Entries and queues that are not written."""
        return self.entry_count + self.touched_count

    def collect(self, view):
        """Take in the whole records of `view`; StoreCorruptError when it holds something else."""
        cdef RecordWalk walk
        self.channels.begin()
        begin_walk(&walk, view)
        try:
            self.collect_records(&walk)
        finally:
            end_walk(&walk)
        self.channels.push(view)
        check_walk(&walk)

    def items(self):
        """(keys, values, keys to remove, ranges to remove) of everything since the last `clear`."""
        cdef list keys = [], values = [], removed = [], ranges = []
        cdef uint32_t number, filter_id
        cdef LightQueue* queue
        cdef bytes key
        for number in range(self.touched_count):
            filter_id = self.touched[number]
            queue = &self.queues[filter_id]
            key = _key(TAG_FILTER, filter_id, 0, 5)
            # What was before, of a queue of this number that is gone, or of this one that nobody needs.
            if self.wide.range_of(filter_id) != NULL:
                keys.append(_key(TAG_SCAN, filter_id, 0, 5))
                values.append(self.scan_range_of(filter_id))
            elif queue.has_scan:
                removed.append(_key(TAG_SCAN, filter_id, 0, 5))
            is_fresh = queue.is_new or not queue.subscribers
            if is_fresh or queue.is_trimmed:
                ranges.append((
                    _key(TAG_ENTRIES, filter_id, 0, 13),
                    _key(TAG_ENTRIES, filter_id, -1 if is_fresh else queue.first_position, 13),
                ))
            if not queue.subscribers:
                removed.append(key)
                continue
            keys.append(key)
            values.append(self.head_of(filter_id))
            if queue.pending or self.unsaved_of(filter_id):
                keys.append(_key(TAG_ENTRIES, filter_id, self.last_position_of(filter_id), 13))
                values.append(self.entries_of(filter_id))
        return keys, values, removed, ranges

    def clear(self):
        """Forget what is not written; the queues stay where they are."""
        cdef uint32_t number
        cdef LightQueue* queue
        cdef ScanRange* scan_range
        for number in range(self.touched_count):
            queue = &self.queues[self.touched[number]]
            scan_range = self.wide.range_of(self.touched[number])
            queue.has_scan = scan_range != NULL
            if scan_range != NULL:
                scan_range.unsaved = 0
            queue.is_touched = queue.is_new = queue.is_trimmed = False
            queue.head = queue.tail = -1
            queue.pending = 0
        self.touched_count = 0
        self.entry_count = 0
        if self.entry_room > 65536:
            free(self.entries)
            self.entries = NULL
            self.entry_room = 0

    # Filters and their subscribers.

    def __len__(self):
        return len(self.filters)

    @property
    def ids_end(self):
        """Return the number that all queue ids are below."""
        return self.queues_size

    @property
    def memory_bytes(self):
        """Return the bytes that the filters and the places of their queues take."""
        return self.filters.memory_bytes + self.wide.memory_bytes + self.queues_size * sizeof(LightQueue)

    def forget_all(self):
        """Forget all subscriptions; channels stay, attached to nothing."""
        cdef LightChannel channel
        self.generation += 1
        self.clear()
        self.filters = FilterIndex()
        self.wide = WideFilters(percent=self.wide_percent, window_records=self.wide_window_records)
        free(self.queues)
        self.queues = NULL
        self.queues_size = 0
        self.attached = {}
        for channel in self.channels:
            channel.attached = {}

    def restore(self, bytes key not None, bytes value not None):
        """A queue as `items` has written it, in the order of the keys; StoreCorruptError for anything else."""
        cdef uint32_t filter_id
        cdef const uint8_t* data = value
        if len(key) != 5 or key[0] != TAG_FILTER or len(value) <= FILTER_HEAD_BYTES:
            raise StoreCorruptError("a light queue's key or value has an impossible size")
        filter_id = int.from_bytes(key[1:], "big")
        try:
            self.filters.restore(filter_id, value[FILTER_HEAD_BYTES:].decode())
        except ValueError as error:
            raise StoreCorruptError(f"light queue {filter_id}: {error}") from error
        self.reset_queue(filter_id)
        self.queues[filter_id].next_sequence = int.from_bytes(value[:8], "big")
        self.queues[filter_id].first_position = int.from_bytes(value[8:16], "big")
        self.queues[filter_id].subscribers = get_u32(data + 16)

    def restore_scan(self, bytes key not None, bytes value not None):
        """Return the range of a queue that has no entries, as `items` has written it, behind the queues' own keys."""
        cdef uint32_t filter_id
        if len(key) != 5 or key[0] != TAG_SCAN or len(value) != 16:
            raise StoreCorruptError("a light queue's range of the log has an impossible size")
        filter_id = int.from_bytes(key[1:], "big")
        try:
            self.queue_of(filter_id).has_scan = True
            self.wide.restore(filter_id, int.from_bytes(value[:8], "big"), int.from_bytes(value[8:], "big"))
        except (KeyError, ValueError) as error:
            raise StoreCorruptError(f"light queue {filter_id}: {error}") from error

    def subscribe(self, str topic_filter not None):
        """Count one more session that subscribes; return the id of the queue."""
        cdef bint is_new = topic_filter not in self.filters
        cdef uint32_t filter_id = self.filters.add(topic_filter)
        if is_new:
            self.reset_queue(filter_id)
            self.queues[filter_id].is_new = True
        self.queues[filter_id].subscribers += 1
        self.touch(filter_id)
        return filter_id

    def unsubscribe(self, uint32_t filter_id):
        """Count one session less; the queue goes with the last."""
        cdef LightQueue* queue = self.queue_of(filter_id)
        self.touch(filter_id)
        queue.subscribers -= 1
        if queue.subscribers == 0:
            self.filters.remove(self.filters.filter_of(filter_id))
            queue.pending = 0
            queue.head = queue.tail = -1
            queue.is_attached = False
            self.wide.forget(filter_id)
            for channel in self.attached.pop(filter_id, ()):
                del (<LightChannel>channel).attached[filter_id]

    def id_of(self, str topic_filter not None):
        """Return the id of the filter's queue, or None."""
        return self.filters.id_of(topic_filter)

    def filter_of(self, uint32_t filter_id):
        """Return the filter of a queue, or None when there is no such queue."""
        return self.filters.filter_of(filter_id)

    def subscriber_count(self, uint32_t filter_id):
        """Return how many sessions subscribe the filter. KeyError without such a queue."""
        return self.queue_of(filter_id).subscribers

    def next_sequence(self, uint32_t filter_id):
        """Return how many records the queue has had. KeyError without such a queue."""
        return self.queue_of(filter_id).next_sequence

    def first_position(self, uint32_t filter_id):
        """Drop the records before it. KeyError without such a queue."""
        return self.queue_of(filter_id).first_position

    def advance(self, uint32_t filter_id, int64_t position):
        """Drop the records before `position`. KeyError without such a queue."""
        cdef LightQueue* queue = self.queue_of(filter_id)
        if queue.first_position < position:
            queue.first_position = position
            queue.is_trimmed = True
            self.wide.pass_over(filter_id, position)
            self.touch(filter_id)

    def rewind(self, uint32_t filter_id, int64_t next_sequence):
        """End the queue before what was its entry `next_sequence`. Nothing may be pending."""
        cdef LightQueue* queue = self.queue_of(filter_id)
        queue.next_sequence = next_sequence
        self.touch(filter_id)

    def cut_scan(self, uint32_t filter_id, int64_t position):
        """Go back to `position`, where the log ends now: another record comes there. KeyError without such a queue."""
        self.queue_of(filter_id)
        if self.wide.range_of(filter_id) != NULL:
            self.wide.cut(filter_id, position)
            self.touch(filter_id)

    def pending(self, uint32_t filter_id):
        """(last position, value): what is not written of a queue, as the database would have it.

        The position is -1 when there is nothing. KeyError without such a queue.
        """
        self.queue_of(filter_id)
        return self.last_position_of(filter_id), self.entries_of(filter_id)

    # Front ends.

    def open_channel(self, receiver not None):
        """A channel for a front end, attached to nothing yet."""
        channel = LightChannel(receiver)
        self.channels.add(channel)
        return channel

    def close_channel(self, LightChannel channel not None):
        """Forget a front end."""
        for filter_id in list(channel.attached):
            channel.attached[filter_id] = 1
            self.detach(channel, filter_id)
        channel.is_open = False
        self.channels.remove(channel)

    def attach(self, LightChannel channel not None, uint32_t filter_id):
        """Push the records of a queue from now on, until `detach` was called as often.

        ValueError for a closed channel: what it is to have would never leave.
        """
        cdef LightQueue* queue = self.queue_of(filter_id)
        if not channel.is_open:
            raise ValueError("a closed channel cannot be attached")
        channel.attached[filter_id] = channel.attached.get(filter_id, 0) + 1
        if channel.attached[filter_id] == 1:
            self.attached.setdefault(filter_id, []).append(channel)
            queue.is_attached = True

    def detach(self, LightChannel channel not None, uint32_t filter_id):
        """Stop pushing; what is not attached is ignored."""
        count = channel.attached.get(filter_id, 0)
        if count > 1:
            channel.attached[filter_id] = count - 1
        elif count == 1:
            del channel.attached[filter_id]
            others = self.attached[filter_id]
            others.remove(channel)
            if not others:
                del self.attached[filter_id]
                self.queues[filter_id].is_attached = False

    @property
    def channel_count(self):
        """Front ends with an open channel."""
        return len(self.channels)

    def check_invariants(self):
        """Raise AssertionError when attachments, pending entries and what is touched do not agree."""
        cdef LightChannel channel
        cdef uint32_t filter_id, number
        cdef int32_t at, pending = 0, chained
        pairs = set()
        for channel in self.channels:
            assert channel.is_open
            pairs.update((filter_id, id(channel)) for filter_id in channel.attached)
            assert all(count > 0 for count in channel.attached.values())
        told = [(filter_id, id(channel)) for filter_id, found in self.attached.items() for channel in found]
        assert len(told) == len(pairs) and set(told) == pairs
        touched = {self.touched[number] for number in range(self.touched_count)}
        assert len(touched) == self.touched_count
        for filter_id in range(self.queues_size):
            queue = &self.queues[filter_id]
            assert bool(queue.subscribers) == (self.filters.filter_of(filter_id) is not None)
            assert queue.is_attached == (filter_id in self.attached)
            assert queue.is_touched == (filter_id in touched)
            assert queue.is_touched or not (queue.pending or queue.is_new or queue.is_trimmed)
            at, chained = queue.head, 0
            while at >= 0:
                assert at < self.entry_count
                chained += 1
                if self.entries[at].following < 0:
                    assert at == queue.tail
                at = self.entries[at].following
            assert chained == queue.pending
            pending += chained
        assert pending <= self.entry_count

    cdef int collect_records(self, RecordWalk* walk) except -1:
        cdef Py_ssize_t topic_size
        cdef RecordParts parts, record
        cdef const uint8_t* topic
        cdef const uint8_t* own_topic = self.own_topic
        cdef Py_ssize_t own_topic_size = len(self.own_topic)
        cdef const Matches* matches
        cdef uint32_t index
        cdef const uint8_t* start = walk.at
        while next_record(walk, &parts):
            self.wide.note_record(parts.position)
            if parts.topic_size == own_topic_size and memcmp(parts.topic, own_topic, own_topic_size) == 0:
                self.on_own_record(parts.body[:parts.body_size], parts.position, parts.store_timestamp_ms)
            elif self.filters.filter_count:
                parse_record(walk.at - parts.size, walk.at, &record)
                topic_size = device_topic(&record, &topic)
                if topic_size > 0:
                    matches = self.filters.find(topic, topic_size)
                    self.matched_total += matches.count
                    for index in range(matches.count):
                        self.add(matches.ids[index], &record, walk.at - record.size - start)
        return 0

    cdef int add(self, uint32_t filter_id, const RecordParts* parts, Py_ssize_t place) except -1:
        cdef LightQueue* queue = &self.queues[filter_id]
        cdef LightChannel channel
        self.touch(filter_id)
        if not self.wide.takes(filter_id, parts.position):
            self.add_entry(queue, parts)
        if queue.is_attached:
            for channel in <list>self.attached[filter_id]:
                channel.add(<uint32_t>place, filter_id)
        queue.next_sequence += 1
        return 0

    cdef int add_entry(self, LightQueue* queue, const RecordParts* parts) except -1:
        cdef Pending* grown
        cdef int32_t room
        if self.entry_count == self.entry_room:
            room = max(1024, 2 * self.entry_room)
            grown = <Pending*>realloc(self.entries, room * sizeof(Pending))
            if grown == NULL:
                raise MemoryError
            self.entries = grown
            self.entry_room = room
        self.entries[self.entry_count] = Pending(
            parts.position, tags_code(parts.properties, parts.properties_size), parts.size, -1
        )
        if queue.tail >= 0:
            self.entries[queue.tail].following = self.entry_count
        else:
            queue.head = self.entry_count
        queue.tail = self.entry_count
        self.entry_count += 1
        queue.pending += 1
        return 0

    cdef LightQueue* queue_of(self, uint32_t filter_id) except NULL:
        if filter_id >= self.queues_size or not self.queues[filter_id].subscribers:
            raise KeyError(filter_id)
        return &self.queues[filter_id]

    cdef int reset_queue(self, uint32_t filter_id) except -1:
        cdef uint32_t size, number
        cdef LightQueue* grown
        cdef bint is_touched, has_scan
        if filter_id >= self.queues_size:
            size = max(64, max(filter_id + 1, 2 * self.queues_size))
            grown = <LightQueue*>realloc(self.queues, size * sizeof(LightQueue))
            if grown == NULL:
                raise MemoryError
            self.queues = grown
            for number in range(self.queues_size, size):
                self.queues[number] = LightQueue(0, 0, 0, -1, -1, 0, False, False, False, False, False)
            self.queues_size = size
            self.wide.reserve(size)
        is_touched = self.queues[filter_id].is_touched
        has_scan = self.queues[filter_id].has_scan
        self.queues[filter_id] = LightQueue(0, 0, 0, -1, -1, 0, is_touched, False, False, False, has_scan)
        return 0

    cdef int touch(self, uint32_t filter_id) except -1:
        cdef uint32_t room
        cdef uint32_t* grown
        if self.queues[filter_id].is_touched:
            return 0
        if self.touched_count == self.touched_room:
            room = max(256, 2 * self.touched_room)
            grown = <uint32_t*>realloc(self.touched, room * sizeof(uint32_t))
            if grown == NULL:
                raise MemoryError
            self.touched = grown
            self.touched_room = room
        self.touched[self.touched_count] = filter_id
        self.touched_count += 1
        self.queues[filter_id].is_touched = True
        return 0

    cdef bytes entries_of(self, uint32_t filter_id):
        """Return the pending changes as a value."""
        cdef LightQueue* queue = &self.queues[filter_id]
        cdef bytes value = PyBytes_FromStringAndSize(NULL, 8 + queue.pending * QUEUE_ENTRY_SIZE)
        cdef uint8_t* target = <uint8_t*>PyBytes_AS_STRING(value)
        cdef int32_t at = queue.head
        put_u64(target, <uint64_t>(queue.next_sequence - queue.pending - self.unsaved_of(filter_id)))
        target += 8
        while at >= 0:
            put_u64(target, <uint64_t>self.entries[at].position)
            put_u32(target + 8, <uint32_t>self.entries[at].size)
            put_u64(target + 12, <uint64_t>self.entries[at].tags)
            target += QUEUE_ENTRY_SIZE
            at = self.entries[at].following
        return value

    cdef int64_t unsaved_of(self, uint32_t filter_id) noexcept:
        """Matches without an entry since the last write."""
        cdef ScanRange* scan_range = self.wide.range_of(filter_id)
        return 0 if scan_range == NULL else scan_range.unsaved

    cdef int64_t last_position_of(self, uint32_t filter_id) noexcept:
        """Return where the last match since the last write is, -1 without any."""
        cdef LightQueue* queue = &self.queues[filter_id]
        cdef int64_t position = self.entries[queue.tail].position if queue.pending else -1
        if self.unsaved_of(filter_id):
            position = max(position, self.wide.range_of(filter_id).last_position)
        return position

    cdef bytes scan_range_of(self, uint32_t filter_id):
        cdef uint8_t value[16]
        put_u64(value, <uint64_t>self.wide.range_of(filter_id).scan_from)
        put_u64(value + 8, <uint64_t>self.wide.range_of(filter_id).scan_until)
        return value[:16]

    cdef bytes head_of(self, uint32_t filter_id):
        cdef LightQueue* queue = &self.queues[filter_id]
        cdef uint8_t head[FILTER_HEAD_BYTES]
        put_u64(head, <uint64_t>queue.next_sequence)
        put_u64(head + 8, <uint64_t>queue.first_position)
        put_u32(head + 16, queue.subscribers)
        return head[:FILTER_HEAD_BYTES] + self.filters.filter_of(filter_id).encode()


cdef bytes _key(int tag, uint32_t filter_id, int64_t position, int size):
    """tag 1 | filter id 4 | position 8, the first `size` bytes of it."""
    cdef uint8_t key[13]
    key[0] = tag
    put_u32(key + 1, filter_id)
    put_u64(key + 5, <uint64_t>position)
    return key[:size]
