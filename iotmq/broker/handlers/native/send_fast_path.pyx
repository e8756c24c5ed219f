"""The fast path of plain sends: from a run of received frames into the log, and their answers, in one pass.

Operations: store as many sends of a run as are plain, from a number on; answer them, at once or when the
disk has them. Goal: per send no Python object and no Python call. Plan: what the general path
(`send.py`) finds out about a topic is kept until the topic changes; sends are laid out as batches
of one and go through the log's own checks; the wish for a flush and the write of the answers come once
per run, statistics and dispatch once per turn of the loop.

Plain is: to a topic that is there and takes messages, to a queue of it that is named, with nothing in
flags and properties, its own or those of a batch's elements, that asks for more than storing. The first
send that is not plain, or that the log refuses, ends the pass with nothing done for it; the general path
then takes it from the start, so every refusal, remark and count of one is the general path's.
`tests/property/test_send_path.py` compares both.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcmp, memcpy

from iotmq.broker.writing.send_properties cimport has_text, next_wish, put_properties
from iotmq.message.records.layout cimport (
    ELEMENT_FIXED_BYTES, PROPERTY_END, SYS_FLAG_COMPRESSED, SYS_FLAG_TRANSACTION_MASK, put_u16, put_u32,
)
from iotmq.message.records.record cimport RecordShared
from iotmq.remoting.frames.answer_bytes cimport put_bytes, put_decimal
from iotmq.remoting.frames.send_frames cimport SendFrame, SendRun
from iotmq.store.log.commit_log cimport CommitLog, Place
from iotmq.store.log.queue cimport Queue

from iotmq.limits import PROPERTIES_BYTES_MAX
from iotmq.remoting.frames.answer_template import binary_pieces, json_pieces

cdef enum:
    IS_ONEWAY = 2
    # Counted together: queues stored to.
    TALLIES = 64
    # Texts of one answer besides its message ids and what its template holds: three numbers and a size each.
    NUMBERS_BYTES = 80

cdef Py_ssize_t PROPERTIES_MAX = PROPERTIES_BYTES_MAX
# Where numbers go in an answer that is taken apart to be a template.
_WORDS = "<id>", "<queue>", "<offset>"


# A send that is in the log and waits to be answered.
cdef struct Stored:
    int64_t position
    int64_t end_position
    int64_t first_offset
    int32_t count
    int32_t queue_id
    int32_t opaque
    bint is_binary


# What of one queue was stored since it was counted last.
cdef struct Tally:
    void* queue
    int64_t batches
    int64_t records
    int64_t size_bytes


cdef class OpenTopic:
    """A topic that plain sends may go to. Good until the topic changes."""

    cdef str topic
    cdef bytes topic_bytes
    # The writer's own list: a handle for each queue, None where none was needed yet.
    cdef list queues


cdef class Template:
    """The bytes of an answer with one status, in the pieces that stand between its numbers."""

    cdef tuple json
    cdef tuple binary
    cdef Py_ssize_t size

    def __init__(self, status, region, trace_on):
        ext = dict(zip(("msgId", "queueId", "queueOffset"), _WORDS), MSG_REGION=region, TRACE_ON=trace_on)
        self.json = json_pieces(status, ext, _WORDS)
        self.binary = binary_pieces(status, ext, _WORDS)
        self.size = 8 + max(sum(map(len, self.json)), sum(map(len, self.binary)))


cdef class SendPath:
    """Stores plain sends for one broker."""

    cdef object writer
    cdef object store
    cdef object open_topic
    cdef object count_put
    cdef CommitLog log
    cdef bytes batch_properties
    cdef tuple general_properties
    cdef Py_ssize_t batch_bytes_max
    cdef Py_ssize_t answered_bytes_max
    cdef bytes id_prefix
    cdef str region
    cdef str trace_on
    cdef dict templates
    cdef dict topics
    # What statistics do not have yet, and the queues it is about.
    cdef Tally tallies[TALLIES]
    cdef list tallied
    # The topic of the last send: most runs are one producer's.
    cdef OpenTopic last
    # Where an element or the shared properties of a batch are laid out.
    cdef uint8_t* room
    cdef Py_ssize_t room_bytes

    def __init__(self, parts, open_topic, *, bytes batch_properties not None, tuple general_properties not None):
        """`open_topic` gives the queues of a topic that plain sends may go to, None for any other.

        `batch_properties` are added to every record; a send whose properties have one of
        `general_properties` anywhere in them is not plain.
        """
        writer, settings = parts.writer, parts.settings
        self.writer = writer
        self.open_topic = open_topic
        self.count_put = writer.count_put
        self.store = writer.store
        self.log = writer.store.log
        self.batch_properties = batch_properties
        self.general_properties = general_properties
        # A body past it is not plain.
        self.batch_bytes_max = parts.store.settings.record_bytes_max
        self.id_prefix = parts.host.hex().upper().encode()
        # Ids of more records than `message_ids` joins might not fit the header of an answer.
        self.answered_bytes_max = parts.message_ids.joined_max * ELEMENT_FIXED_BYTES
        self.region = settings.region
        self.trace_on = settings.trace_on
        self.templates = {}
        self.topics = {}
        self.tallied = []
        writer.add_written_listener(self.count_all)

    def __dealloc__(self):
        PyMem_Free(self.room)

    def forget(self, str topic not None):
        """Forget a topic that has changed, or is gone."""
        # Before statistics forget it, too.
        self.count_all()
        self.last = None
        self.topics.pop(topic.encode(), None)

    def forget_all(self):
        """Forget the findings of all topics: a rule for all of them changed."""
        self.last = None
        self.topics.clear()

    def change_trace_on(self, str trace_on not None):
        """Answers say something else from now on."""
        self.trace_on = trace_on
        self.templates.clear()

    def serve(self, connection, bytes born_host not None, SendRun run not None, int at):
        """Store sends from number `at` on, and see to their answers; the number of the first not taken."""
        cdef Answers now, later
        cdef int first = at
        cdef int end = run.count if run.allowed < 0 else min(run.count, run.allowed)
        cdef int64_t now_ms = self.writer.begin_run()
        cdef const SendFrame* frame
        cdef OpenTopic found
        cdef Queue queue
        cdef Place place
        cdef Stored* stored
        cdef bint is_sync = self.writer.answers_later
        cdef bint is_waiting
        # Sends that wait for the disk or a slave, those nobody waits for an answer to among them.
        cdef int waiting = 0
        cdef int64_t records = 0
        cdef int64_t size_bytes = 0
        if now_ms < 0:
            return at
        now = Answers.__new__(Answers, self, connection)
        later = Answers.__new__(Answers, self, connection) if is_sync else now
        while at < end:
            frame = &run.frames[at]
            found = self.topic_of(frame)
            if found is None or not self.is_plain(run, frame) or not 0 <= frame.queue_id < len(found.queues):
                break
            try:
                queue = found.queues[frame.queue_id]
                if queue is None:
                    queue = self.store.queue(found.topic, frame.queue_id)
                    found.queues[frame.queue_id] = queue
                self.put(run, frame, queue, born_host, now_ms, &place)
            except Exception:
                # The general path meets the same, and knows what to say.
                break
            self.tally(queue, &place)
            records += place.count
            size_bytes += place.end_position - place.start_position
            at += 1
            is_waiting = is_sync and self.waits(run, frame)
            waiting += is_waiting
            if frame.flag & IS_ONEWAY:
                continue
            stored = (later if is_waiting else now).slot()
            stored.position = place.start_position
            stored.end_position = place.end_position
            stored.first_offset = place.first_offset
            stored.count = place.count
            # Another one stands in for a queue that takes no more.
            stored.queue_id = queue.queue_id
            stored.opaque = frame.opaque
            stored.is_binary = frame.is_binary
        if at > first:
            if is_sync:
                self.count_all()
            self.writer.end_run(
                at - first,
                records=records,
                size_bytes=size_bytes,
                waiting=waiting,
                done=later,
            )
            if now.count:
                connection.send_encoded(now.encode(0))
            if is_sync and later.count:
                connection.hold(later.count)
        return at

    cdef OpenTopic topic_of(self, const SendFrame* frame):
        """Find the prepared topic of a send; None when it needs the general path."""
        cdef OpenTopic found = self.last
        cdef bytes topic
        if found is not None and is_same(found.topic_bytes, frame.topic, frame.topic_size):
            return found
        topic = frame.topic[:frame.topic_size]
        found = self.topics.get(topic)
        if found is None:
            name = topic.decode("ascii")
            queues = self.open_topic(name)
            if queues is None:
                return None
            found = OpenTopic.__new__(OpenTopic)
            found.topic = name
            found.topic_bytes = topic
            found.queues = queues
            self.topics[topic] = found
        self.last = found
        return found

    cdef bint is_plain(self, SendRun run, const SendFrame* frame) except -1:
        cdef const uint8_t* properties = run.properties_of(frame)
        if frame.sys_flag & SYS_FLAG_TRANSACTION_MASK or frame.body_size > self.batch_bytes_max:
            return False
        if frame.is_batch and (frame.sys_flag & SYS_FLAG_COMPRESSED or frame.body_size > self.answered_bytes_max):
            return False
        if frame.properties_size > PROPERTIES_MAX:
            return False
        for name in self.general_properties:
            if has_text(properties, frame.properties_size, PyBytes_AS_STRING(<bytes> name), PyBytes_GET_SIZE(<bytes> name)):
                return False
        return not frame.is_batch or next_wish(frame.body, frame.body + frame.body_size) == NULL

    cdef bint waits(self, SendRun run, const SendFrame* frame) except -1:
        return not has_text(run.properties_of(frame), frame.properties_size, b"WAIT\x01false", 10)

    cdef int put(self, SendRun run, const SendFrame* frame, Queue queue, bytes born_host, int64_t now_ms,
                 Place* place) except -1:
        cdef RecordShared shared
        cdef const uint8_t* properties = run.properties_of(frame)
        cdef Py_ssize_t properties_size = frame.properties_size
        cdef Py_ssize_t own_size = PyBytes_GET_SIZE(self.batch_properties)
        cdef Py_ssize_t size
        cdef uint8_t* room
        cdef bint has_wait
        self.log.share(&shared, queue, born_host, self.batch_properties, frame.sys_flag)
        shared.born_timestamp_ms = frame.born_timestamp_ms
        shared.store_timestamp_ms = now_ms
        shared.prepared_position = 0
        shared.reconsume_times = frame.reconsume_times
        if frame.is_batch:
            if properties_size:
                # What the header says of a batch is said of each record, before what the broker says.
                room = self.room_for(properties_size + 1 + own_size)
                memcpy(room, properties, properties_size)
                if room[properties_size - 1] != PROPERTY_END:
                    room[properties_size] = PROPERTY_END
                    properties_size += 1
                memcpy(room + properties_size, shared.properties, own_size)
                shared.properties = room
                shared.properties_size = properties_size + own_size
            self.log.store_batch(queue, frame.body, frame.body + frame.body_size, &shared, place)
            return 0
        has_wait = has_text(properties, properties_size, b"WAIT\x01", 5)
        size = ELEMENT_FIXED_BYTES + <Py_ssize_t> frame.body_size + properties_size
        room = self.room_for(size)
        properties_size = put_properties(room + 22 + frame.body_size, properties, properties_size, has_wait)
        size = ELEMENT_FIXED_BYTES + <Py_ssize_t> frame.body_size + properties_size
        put_u32(room, <uint32_t> size)
        put_u32(room + 4, 0)
        put_u32(room + 8, 0)
        put_u32(room + 12, <uint32_t> frame.message_flag)
        put_u32(room + 16, <uint32_t> frame.body_size)
        memcpy(room + 20, frame.body, frame.body_size)
        put_u16(room + 20 + frame.body_size, <uint16_t> properties_size)
        self.log.store_batch(queue, room, room + size, &shared, place)
        return 0

    cdef uint8_t* room_for(self, Py_ssize_t size) except NULL:
        cdef uint8_t* room
        if size > self.room_bytes:
            size = max(4096, 2 * size)
            room = <uint8_t*> PyMem_Realloc(self.room, size)
            if room == NULL:
                raise MemoryError
            self.room = room
            self.room_bytes = size
        return self.room

    cdef int tally(self, Queue queue, const Place* place) except -1:
        """Remember what was stored."""
        cdef Tally* tally = self.tallies
        cdef Tally* end = tally + len(self.tallied)
        while tally < end and tally.queue != <void*> queue:
            tally += 1
        if tally == end:
            if len(self.tallied) == TALLIES:
                self.count_all()
                tally = self.tallies
            self.tallied.append(queue)
            tally.queue = <void*> queue
            tally.batches = tally.records = tally.size_bytes = 0
        tally.batches += 1
        tally.records += place.count
        tally.size_bytes += place.end_position - place.start_position
        return 0

    def count_all(self):
        """Let statistics have what was stored."""
        cdef Tally* tally = self.tallies
        cdef Queue queue
        cdef list tallied = self.tallied
        if not tallied:
            return
        self.tallied = []
        for queue in tallied:
            self.count_put(queue.topic, queue.queue_id, tally.records, tally.size_bytes, tally.batches)
            tally += 1

    cdef Template template(self, int status):
        cdef Template template = self.templates.get(status)
        if template is None:
            template = self.templates[status] = Template(status, self.region, self.trace_on)
        return template


cdef class Answers:
    """The answers of one pass: what was stored, and for whom. Called with its status when it is confirmed."""

    cdef SendPath path
    cdef object connection
    cdef readonly int count
    cdef Stored* stored
    cdef int capacity

    def __cinit__(self, SendPath path, connection):
        self.path = path
        self.connection = connection

    def __dealloc__(self):
        PyMem_Free(self.stored)

    def __call__(self, run):
        """The disk has it, or took too long."""
        if self.count:
            self.connection.reply_encoded(self.encode(run.status), self.count)

    cdef Stored* slot(self) except NULL:
        cdef Stored* stored
        cdef int capacity
        if self.count == self.capacity:
            capacity = max(16, 2 * self.capacity)
            stored = <Stored*> PyMem_Realloc(self.stored, capacity * sizeof(Stored))
            if stored == NULL:
                raise MemoryError
            self.stored = stored
            self.capacity = capacity
        self.count += 1
        return &self.stored[self.count - 1]

    cdef bytes encode(self, int status):
        """Return the frames of the answers."""
        cdef Template template = self.path.template(status)
        cdef Py_ssize_t id_size = PyBytes_GET_SIZE(self.path.id_prefix) + 17
        cdef Py_ssize_t size = 0
        cdef int number
        cdef bytes answers
        cdef uint8_t* start
        cdef uint8_t* at
        for number in range(self.count):
            size += template.size + NUMBERS_BYTES + self.stored[number].count * id_size
        answers = PyBytes_FromStringAndSize(NULL, size)
        start = at = <uint8_t*> PyBytes_AS_STRING(answers)
        for number in range(self.count):
            if self.stored[number].is_binary:
                at = self.put_binary(at, &self.stored[number], template.binary)
            else:
                at = self.put_json(at, &self.stored[number], template.json)
        assert at - start <= size
        return answers[:at - start]

    cdef uint8_t* put_json(self, uint8_t* at, const Stored* stored, tuple pieces) except NULL:
        cdef uint8_t* start = at
        at = put_bytes(at + 8, <bytes> pieces[0])
        at = self.put_ids(at, stored)
        at = put_bytes(at, <bytes> pieces[1])
        at = put_decimal(at, stored.queue_id)
        at = put_bytes(at, <bytes> pieces[2])
        at = put_decimal(at, stored.first_offset)
        at = put_bytes(at, <bytes> pieces[3])
        at = put_decimal(at, stored.opaque)
        at = put_bytes(at, <bytes> pieces[4])
        put_u32(start, <uint32_t> (at - start - 4))
        put_u32(start + 4, <uint32_t> (at - start - 8))
        return at

    cdef uint8_t* put_binary(self, uint8_t* at, const Stored* stored, tuple pieces) except NULL:
        cdef uint8_t* start = at
        cdef uint8_t* fields
        cdef uint8_t* value
        at = put_bytes(at + 8, <bytes> pieces[0])
        put_u32(at, <uint32_t> stored.opaque)
        at = put_bytes(at + 4, <bytes> pieces[1])
        fields = at
        at = put_bytes(at + 4, <bytes> pieces[2])
        value = at
        at = self.put_ids(at + 4, stored)
        put_u32(value, <uint32_t> (at - value - 4))
        at = put_bytes(at, <bytes> pieces[3])
        value = at
        at = put_decimal(at + 4, stored.queue_id)
        put_u32(value, <uint32_t> (at - value - 4))
        at = put_bytes(at, <bytes> pieces[4])
        value = at
        at = put_decimal(at + 4, stored.first_offset)
        put_u32(value, <uint32_t> (at - value - 4))
        at = put_bytes(at, <bytes> pieces[5])
        put_u32(fields, <uint32_t> (at - fields - 4))
        put_u32(start, <uint32_t> (at - start - 4))
        put_u32(start + 4, <uint32_t> 1 << 24 | <uint32_t> (at - start - 8))
        return at

    cdef uint8_t* put_ids(self, uint8_t* at, const Stored* stored) except NULL:
        """Return the ids of its records, with commas between."""
        cdef int64_t position = stored.position
        cdef CommitLog log = self.path.log
        while True:
            at = put_bytes(at, self.path.id_prefix)
            at = put_hex(at, position)
            if stored.count == 1:
                return at
            position = log.position_after(position)
            if position >= stored.end_position:
                return at
            at[0] = c","
            at += 1


cdef inline bint is_same(bytes text, const uint8_t* at, Py_ssize_t size):
    return PyBytes_GET_SIZE(text) == size and not memcmp(PyBytes_AS_STRING(text), at, size)


cdef uint8_t* put_hex(uint8_t* at, int64_t number) noexcept:
    """Sixteen capital digits."""
    cdef int digit
    for digit in range(16):
        at[15 - digit] = <uint8_t> b"0123456789ABCDEF"[number & 15]
        number >>= 4
    return at + 16
