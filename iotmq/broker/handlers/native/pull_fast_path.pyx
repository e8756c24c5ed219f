"""The fast path of plain pulls: from the received frame to the answer's bytes in compiled code.

Operations: answer a pull that finds records in memory, park one that asks for what comes next. Goal: a fifth
of the general path's work. Plan: what the
general path (`pull.py`) finds out about group, topic, queue and subscription is kept until topics or
groups change; a subscription that came with a heartbeat is compared each time. Whatever does not find
records at once, asks for more than tags, or is refused, is left to the general path with nothing done for it.
`tests/property/test_pull_path.py` compares both.
"""

from collections import namedtuple

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from iotmq.message.records.layout cimport put_u32
from iotmq.remoting.frames.answer_bytes cimport put_bytes, put_decimal
from iotmq.remoting.frames.pull_frames cimport EXPRESSION_TYPE, GROUP, SUBSCRIPTION, TOPIC, PullFrame
from iotmq.store.log.commit_log cimport CommitLog
from iotmq.store.log.queue cimport Queue

from iotmq.telemetry.latencies import now_us
from iotmq.errors import RequestError
from iotmq.limits import PULL_BYTES_DEFAULT_MAX, PULL_BYTES_MAX, PULL_RECORDS_DEFAULT_MAX, PULL_RECORDS_MAX
from iotmq.remoting.frames.answer_template import binary_pieces, json_pieces
from iotmq.store.queues.reads import ReadStatus, read_queue
from iotmq.store.queues.residency import plan_read

cdef enum:
    IS_ONEWAY = 2
    COMMITS = 1
    HAS_SUBSCRIPTION = 4
    PARKED = -1
    MAY_WAIT = 2
    # Of group, topic and subscription together; longer ones are not plain.
    KEY_BYTES_MAX = 1024
    # Remembered at most: a consumer of many queues has one for each.
    KNOWN_MAX = 65536
    # Four numbers and their sizes.
    NUMBERS_BYTES = 112
    # Room for the header of an answer; nothing in it but numbers changes.
    HEADER_BYTES = 1024
    # Bodies up to this size are copied behind their header, which costs less than a write of several pieces.
    JOINED_BYTES_MAX = 16384

cdef int64_t RECORDS_MAX = PULL_RECORDS_MAX
cdef int64_t RECORDS_DEFAULT_MAX = PULL_RECORDS_DEFAULT_MAX
cdef int64_t BYTES_MAX = PULL_BYTES_MAX
cdef int64_t BYTES_DEFAULT_MAX = PULL_BYTES_DEFAULT_MAX
_WORDS = "<next>", "<min>", "<max>"

PlainPull = namedtuple("PlainPull", "queue tags consumers subscription")


cdef class KnownPull:
    """Hold the general path's findings for pulls that differ in offsets alone."""

    cdef str group
    cdef str topic
    cdef Queue queue
    cdef object tags
    # Of the group's heartbeat; None when the pull brought its subscription along.
    cdef object consumers
    cdef object subscription
    cdef bint was_broadcasting


cdef class PullPath:
    """Answers plain pulls for one broker."""

    cdef object store
    cdef object look_up
    cdef object park
    cdef object commit
    cdef object find_consumers
    cdef object end_latency
    cdef object count_get
    cdef CommitLog log
    cdef int64_t hot_bytes
    cdef dict known
    cdef tuple json
    cdef tuple binary

    def __init__(self, store, look_up, park, *, offsets, groups, statistics):
        """`look_up` is asked for topic, group, queue id and the subscription's text, None for the heartbeat's.

        It gives a PlainPull, or None for what needs the general path. `park` keeps a pull that waits, and says
        whether it does.
        """
        ext = dict(zip(("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"), ("0", *_WORDS)))
        self.store = store
        self.look_up = look_up
        self.park = park
        self.commit = offsets.commit
        self.find_consumers = groups.consumer_group
        self.end_latency = statistics.get_latencies.end
        self.count_get = statistics.counters.count_get
        self.log = store.log
        self.hot_bytes = store.settings.hot_bytes
        self.known = {}
        self.json = json_pieces(0, ext, _WORDS, remark=ReadStatus.FOUND.name)
        self.binary = binary_pieces(0, ext, _WORDS, remark=ReadStatus.FOUND.name)
        if 8 + max(sum(map(len, self.json)), sum(map(len, self.binary))) + NUMBERS_BYTES > HEADER_BYTES:
            raise ValueError("the header of an answer has outgrown its place")

    def forget_all(self, str name=""):
        """A topic, a group or a setting changed."""
        self.known.clear()

    def serve(self, connection, PullFrame frame not None):
        """Answer the pull and return how many records it got; 0 when the general path is to answer it.

        PARKED (-1) when it waits for what comes next.
        """
        cdef int64_t records_max = min(frame.records_max, RECORDS_DEFAULT_MAX)
        cdef int64_t bytes_max = BYTES_DEFAULT_MAX
        cdef int64_t begun_us = now_us()
        cdef KnownPull known
        cdef Queue queue
        if frame.flag & IS_ONEWAY:
            return 0
        known = self.known_of(frame)
        if known is None or known.subscription is not None and not self.is_subscribed(known, frame):
            return 0
        queue = known.queue
        if frame.bytes_max:
            records_max = min(frame.records_max, RECORDS_MAX)
            bytes_max = min(frame.bytes_max, BYTES_MAX)
        if frame.offset == queue.max_offset and frame.sys_flag & MAY_WAIT and frame.suspend_ms > 0:
            if not self.keep_offset(known, frame) or not self.park(
                connection, frame.opaque, frame.flag, frame.is_binary, queue, known.group, known.tags, frame.offset,
                records_max, bytes_max, frame.suspend_ms,
            ):
                return 0
            connection.hold(1)
            return PARKED
        if queue.may_expire or not queue.min_offset <= frame.offset < queue.max_offset:
            return 0
        if plan_read(
            self.log, queue, frame.offset, records_max=records_max, bytes_max=bytes_max, tags=known.tags,
            hot_position=self.store.confirmed_position - self.hot_bytes,
        ) is not None:
            return 0
        read = read_queue(
            self.log, queue, frame.offset, records_max=records_max, bytes_max=bytes_max, tags=known.tags
        )
        count = read.count
        if not count:
            return 0
        if not self.keep_offset(known, frame):
            return 0
        size = read.size_bytes
        self.count_get(
            known.topic, queue.queue_id, known.group, count, size, self.end_latency(begun_us), False
        )
        self.answer(connection, frame.opaque, frame.is_binary, 0, read)
        return count

    def answer_parked(self, connection, int32_t opaque, bint is_binary, read):
        """Answer a pull that was parked from here, with records."""
        self.answer(connection, opaque, is_binary, 1, read)

    cdef bint keep_offset(self, KnownPull known, PullFrame frame) except -1:
        """Keep the offset that came along; False when the general path has to say that it cannot be kept."""
        if frame.sys_flag & COMMITS and frame.commit_offset >= 0:
            try:
                self.commit(
                    known.group, known.topic, known.queue.queue_id, min(frame.commit_offset, known.queue.max_offset)
                )
            except RequestError:
                return False
        return True

    cdef KnownPull known_of(self, PullFrame frame):
        cdef uint8_t text[KEY_BYTES_MAX]
        cdef uint8_t* at = text
        cdef bint has_subscription = frame.sys_flag & HAS_SUBSCRIPTION != 0
        cdef Py_ssize_t size = frame.text_size[GROUP] + frame.text_size[TOPIC]
        cdef bytes key
        cdef KnownPull known
        if has_subscription:
            size += frame.text_size[SUBSCRIPTION]
            if frame.text_size[EXPRESSION_TYPE] and not is_tag(frame):
                return None
        if size + 8 > KEY_BYTES_MAX:
            return None
        memcpy(at, &frame.queue_id, 4)
        at = put_text(at + 4, frame, GROUP)
        at = put_text(at, frame, TOPIC)
        if has_subscription:
            at = put_text(at, frame, SUBSCRIPTION)
        key = text[:at - text]
        known = self.known.get(key)
        if known is None:
            known = self.look_anew(frame, has_subscription)
            if known is None:
                return None
            if len(self.known) >= KNOWN_MAX:
                self.known.clear()
            self.known[key] = known
        return known

    cdef KnownPull look_anew(self, PullFrame frame, bint has_subscription):
        cdef KnownPull known = KnownPull.__new__(KnownPull)
        subscription = None
        known.group = text_of(frame, GROUP)
        known.topic = text_of(frame, TOPIC)
        if has_subscription:
            subscription = text_of(frame, SUBSCRIPTION) if frame.fields & 1 << SUBSCRIPTION else ""
        found = self.look_up(known.topic, known.group, frame.queue_id, subscription)
        if found is None:
            return None
        known.queue, known.tags, known.consumers, known.subscription = found
        if known.consumers is not None:
            known.was_broadcasting = known.consumers.is_broadcasting
        return known

    cdef bint is_subscribed(self, KnownPull known, PullFrame frame) except -1:
        """Return whether the group's heartbeats still say what they said, and nothing older than the pull wants."""
        consumers = self.find_consumers(known.group)
        if (
            consumers is known.consumers
            and consumers.subscriptions.get(known.topic) is known.subscription
            and consumers.is_broadcasting == known.was_broadcasting
        ):
            return known.subscription.sub_version >= frame.subscription_version
        self.known.clear()
        return False

    cdef int answer(self, connection, int32_t opaque, bint is_binary, int held, read) except -1:
        cdef uint8_t header[HEADER_BYTES]
        cdef Py_ssize_t size = read.size_bytes
        cdef Py_ssize_t header_size
        cdef Py_buffer piece
        cdef bytes answer
        cdef uint8_t* at
        cdef uint8_t* end
        if is_binary:
            at = self.put_binary(header, opaque, read.next_offset, read.min_offset, read.max_offset)
        else:
            at = self.put_json(header, opaque, read.next_offset, read.min_offset, read.max_offset)
        header_size = at - header
        assert header_size <= HEADER_BYTES
        put_u32(header, <uint32_t> (header_size - 4 + size))
        put_u32(header + 4, <uint32_t> is_binary << 24 | <uint32_t> (header_size - 8))
        if size > JOINED_BYTES_MAX:
            connection.send_views(header[:header_size], read.views, header_size + size, held=held)
            return 0
        answer = PyBytes_FromStringAndSize(NULL, header_size + size)
        at = <uint8_t*> PyBytes_AS_STRING(answer)
        end = at + header_size + size
        memcpy(at, header, header_size)
        at += header_size
        for view in read.views:
            PyObject_GetBuffer(view, &piece, PyBUF_SIMPLE)
            try:
                if piece.len > end - at:
                    raise ValueError("views are larger than the read says")
                memcpy(at, piece.buf, piece.len)
                at += piece.len
            finally:
                PyBuffer_Release(&piece)
        assert at == end
        connection.reply_encoded(answer, held)
        return 0

    cdef uint8_t* put_json(self, uint8_t* at, int32_t opaque, int64_t next_offset, int64_t min_offset,
                           int64_t max_offset) except NULL:
        at = put_bytes(at + 8, <bytes> self.json[0])
        at = put_bytes(put_decimal(at, next_offset), <bytes> self.json[1])
        at = put_bytes(put_decimal(at, min_offset), <bytes> self.json[2])
        at = put_bytes(put_decimal(at, max_offset), <bytes> self.json[3])
        return put_bytes(put_decimal(at, opaque), <bytes> self.json[4])

    cdef uint8_t* put_binary(self, uint8_t* at, int32_t opaque, int64_t next_offset, int64_t min_offset,
                             int64_t max_offset) except NULL:
        cdef uint8_t* fields
        at = put_bytes(at + 8, <bytes> self.binary[0])
        put_u32(at, <uint32_t> opaque)
        at = put_bytes(at + 4, <bytes> self.binary[1])
        fields = at
        at = put_value(put_bytes(at + 4, <bytes> self.binary[2]), next_offset)
        at = put_value(put_bytes(at, <bytes> self.binary[3]), min_offset)
        at = put_value(put_bytes(at, <bytes> self.binary[4]), max_offset)
        at = put_bytes(at, <bytes> self.binary[5])
        put_u32(fields, <uint32_t> (at - fields - 4))
        return at


cdef inline uint8_t* put_value(uint8_t* at, int64_t number) noexcept:
    """A number as a field's value, behind its size."""
    cdef uint8_t* end = put_decimal(at + 4, number)
    put_u32(at, <uint32_t> (end - at - 4))
    return end


cdef inline uint8_t* put_text(uint8_t* at, PullFrame frame, int number):
    memcpy(at, frame.text[number], frame.text_size[number])
    at += frame.text_size[number]
    at[0] = 0
    return at + 1


cdef inline str text_of(PullFrame frame, int number):
    return frame.text[number][:frame.text_size[number]].decode("ascii")


cdef inline bint is_tag(PullFrame frame):
    return text_of(frame, EXPRESSION_TYPE) == "TAG"
