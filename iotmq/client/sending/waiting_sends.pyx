"""Messages that wait for the request they will share: taken in, kept in lanes, and told their results.

Everything that happens once per message is here, in compiled code. What happens once per request is in
`send_lanes`.

A message has a future, an encoded element, and a `WaitingSend` that keeps the two together.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.string cimport memcpy

from iotmq.client.sending.message_elements cimport (
    UNIQUE_KEY_BYTES, batch_element, check_message, key_of, topic_of, unique_key_text,
)
from iotmq.client.sending.send_room cimport SendRoom

from iotmq.client.sending.message_elements import split_element
from iotmq.client.sending.queue_choice import check_queue
from iotmq.client.sending.send_numbers import check_room_for_mark
from iotmq.client.transport.message import SendResult, check_topic
from iotmq.client.transport.routes import queue_of_key
from iotmq.limits import RECORD_BYTES_MAX

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident() noexcept

cdef extern from "zlib.h" nogil:
    unsigned long crc32(unsigned long crc, const unsigned char* data, unsigned int size) noexcept

cdef enum:
    # Of the number at the end of a unique key.
    NUMBER_DIGITS = 4
    # Unique keys that are made ahead, at most.
    KEYS_AHEAD_MAX = 1024

# Topics past this number are forgotten while nothing of them is under way.
_IDLE_TOPICS_MAX = 1_024

cdef const char* HEXADECIMAL = "0123456789ABCDEF"


@cython.final
@cython.freelist(4096)
cdef class WaitingSend:
    """The element of a message that waits, those of several from one caller, or a request that goes alone."""

    cdef readonly bytes element
    """None of a request that goes alone."""
    cdef readonly Py_ssize_t count
    """Messages in it."""
    cdef readonly object alone
    """The request (`PendingSend`) of one that goes alone, or None."""
    cdef readonly object future
    cdef readonly str key
    cdef readonly object choice
    """The queue that was asked for, or None."""
    cdef readonly double since_s
    """Since when it waits, in loop time."""
    cdef char _unique_key[UNIQUE_KEY_BYTES]

    @property
    def unique_key(self):
        """Return the unique key of a message that does not go alone; empty where its caller has made it."""
        return unique_key_text(self._unique_key) if self._unique_key[0] else ""


@cython.final
cdef class Lane:
    """Messages that wait for one queue, or for any queue of a topic."""

    cdef readonly object queue
    """The queue (`MessageQueue`), or None for any."""
    cdef readonly object numbers
    """Numbers its requests (`SendNumbers`), or None."""
    cdef readonly list waiting
    cdef readonly Py_ssize_t size
    """Bytes of the elements in `waiting`."""
    cdef Py_ssize_t _alone_count
    """Requests in `waiting` that go alone."""
    cdef Py_ssize_t _more_count
    """Messages in `waiting` beyond one each."""
    cdef Py_ssize_t _singly_count
    """Those at the front of `waiting` whose shared request was refused: they go one by one."""
    cdef public Py_ssize_t in_flight
    """Requests under way."""
    cdef public bint is_due
    """Those that wait have lingered long enough; until all of it is under way."""

    def __init__(self, queue, numbers=None):
        self.queue = queue
        self.numbers = numbers
        self.waiting = []

    cdef put(self, WaitingSend send):
        """Add a message at the end."""
        self.waiting.append(send)
        if send.alone is not None:
            self._alone_count += 1
        else:
            self.size += PyBytes_GET_SIZE(send.element)
            self._more_count += send.count - 1

    def put_back(self, list taken not None):
        """Put messages of one request in front again, to go one by one."""
        cdef WaitingSend send
        for send in taken:
            self.size += PyBytes_GET_SIZE(send.element)
            self._more_count += send.count - 1
        self.waiting = taken + self.waiting
        self._singly_count += len(taken)
        self.is_due = True

    def take_all(self):
        """Take everything that waits, to be sorted anew."""
        cdef list waiting = self.waiting
        self.waiting = []
        self.size = self._alone_count = self._singly_count = self._more_count = 0
        return waiting

    def take(self, *, Py_ssize_t count_max, Py_ssize_t bytes_max):
        """Take what the next request has: some messages from the front, or one that goes alone."""
        cdef list waiting = self.waiting
        cdef WaitingSend send
        cdef Py_ssize_t taken = 0, count = 0, size = 0, size_of_one
        if self._singly_count:
            self._singly_count -= 1
            count_max = 1
        elif (
            not self._alone_count and self.size <= bytes_max
            and len(waiting) + self._more_count <= count_max
        ):
            self.waiting = []
            self.size = self._more_count = 0
            return waiting
        for send in waiting:
            if send.alone is not None:
                if not taken:
                    self._alone_count -= 1
                    taken = 1
                break
            size_of_one = PyBytes_GET_SIZE(send.element)
            if taken and (size + size_of_one > bytes_max or count + send.count > count_max):
                break
            taken += 1
            count += send.count
            size += size_of_one
            self._more_count -= send.count - 1
        self.size -= size
        self.waiting = waiting[taken:]
        return waiting[:taken]


@cython.final
cdef class TopicLanes:
    """All lanes of one topic."""

    cdef readonly str topic
    cdef readonly Lane any_queue
    cdef readonly dict by_queue
    """Queue -> its lane."""
    cdef readonly list unsorted
    """Messages for a queue of their own that have no lane yet."""
    cdef readonly Py_ssize_t count
    """Messages since the last flush, `size` their bytes."""
    cdef readonly Py_ssize_t size
    cdef public bint is_fresh
    """Something came since the last flush."""
    cdef public bint is_finding_route

    def __init__(self, str topic not None):
        self.topic = topic
        self.any_queue = Lane(None)
        self.by_queue = {}
        self.unsorted = []

    @property
    def is_idle(self):
        """Return whether nothing waits and nothing is under way."""
        if self.is_fresh or self.unsorted:
            return False
        return not any(lane.waiting or lane.in_flight for lane in (self.any_queue, *self.by_queue.values()))

    def begin_flush(self):
        """Count from zero again."""
        self.count = self.size = 0

    def put_back(self, list taken not None):
        """Put messages in front that have lost their lane."""
        self.unsorted = taken + self.unsorted

    def take_unsorted(self):
        """Take the messages that have no lane yet."""
        cdef list unsorted = self.unsorted
        self.unsorted = []
        return unsorted

    def sort(self, Py_ssize_t queue_count, lane_of_number, lane_of_choice):
        """Put messages into the lanes of their queues, and return those lanes.

        `lane_of_number` returns the lane of one of the queues. `lane_of_choice` is given a message with a queue
        that was asked for, or with neither that nor a key: the others of these share the lane of the first. It
        returns None where it has given the message up.
        """
        cdef WaitingSend send
        cdef Lane lane
        cdef Lane by_turn = None
        cdef list by_number = [None] * queue_count
        # In this order they are pumped.
        cdef dict filled = {}
        cdef Py_ssize_t number
        for send in self.take_unsorted():
            if send.choice is None and send.key:
                number = _queue_of_key(send.key, queue_count)
                lane = by_number[number]
                if lane is None:
                    lane = by_number[number] = lane_of_number(number)
            elif send.choice is None:
                if by_turn is None:
                    by_turn = lane_of_choice(send)
                lane = by_turn
            else:
                lane = lane_of_choice(send)
                if lane is None:
                    continue
            if send.alone is not None and not (send.choice is None and send.key):
                send.alone.fixed_queue = lane.queue
            lane.put(send)
            filled[lane.queue] = lane
        return list(filled.values())


@cython.final
cdef class SendIntake:
    """Takes messages in from callers: each waits in the lanes of its topic from then on.

    `alone` gets the calls for messages that go alone, and those from elsewhere than the running loop. `fresh` gets
    the lanes of a topic that nothing has come to since its last flush, `full` those that have enough for a request.
    """

    cdef SendRoom _room
    cdef object _unique_keys
    cdef object _alone
    cdef object _fresh
    cdef object _full
    cdef readonly dict topics
    """Name -> the lanes of a topic."""
    cdef Py_ssize_t _count_max
    cdef Py_ssize_t _bytes_max
    cdef Py_ssize_t _body_bytes_max
    """A larger body goes alone: it is compressed, or refused."""
    cdef bint _is_lingering
    cdef bint _is_numbered

    cdef unsigned long _thread
    """The thread of the event loop while the producer runs. To ask for the running loop takes longer than all
    else that is done for a message."""
    cdef object _create_future
    cdef object _time
    cdef public double now_s
    """Loop time, read once between two flushes."""

    cdef char _unique_key[UNIQUE_KEY_BYTES]
    """The unique key of the next message, but for its number."""
    cdef unsigned int _next_number
    cdef unsigned int _end_number
    cdef Py_ssize_t _keys_ahead
    """Unique keys that were made the last time since the last flush."""

    def __init__(self, room, unique_keys, settings, *, alone, fresh, full):
        self._room = room
        self._unique_keys = unique_keys
        self._alone = alone
        self._fresh = fresh
        self._full = full
        self.topics = {}
        self._count_max = settings.batch_records_max
        self._bytes_max = min(settings.batch_bytes_max, settings.body_bytes_max)
        self._body_bytes_max = min(
            settings.body_bytes_max, (settings.compress_bytes_min or RECORD_BYTES_MAX) - 1
        )
        self._is_lingering = settings.linger_ms > 0
        self._is_numbered = settings.idempotent

    def start(self, loop):
        """Take messages from the thread of the running loop, which this is."""
        self._create_future = loop.create_future
        self._time = loop.time
        self._thread = PyThread_get_thread_ident()

    def stop(self):
        """Leave all messages to `alone`."""
        self._thread = 0

    def send(self, message not None, choice, timeout_ms):
        """Let a message wait, and return its future.

        MessageRefusedError for what cannot be sent.
        """
        cdef TopicLanes lanes
        cdef bytes element
        cdef str topic, key
        cdef WaitingSend send
        if timeout_ms is not None or PyThread_get_thread_ident() != self._thread:
            return self._alone(message, choice, timeout_ms)
        check_message(message)
        if self._next_number == self._end_number:
            self._make_keys()
        _put_number(self._unique_key + UNIQUE_KEY_BYTES - NUMBER_DIGITS, self._next_number)
        element = batch_element(message, self._unique_key, self._body_bytes_max)
        if element is None:
            return self._alone(message, choice, timeout_ms)
        if self._is_numbered:
            check_room_for_mark(len(split_element(element)[1]))
        topic = topic_of(message)
        key = key_of(message)
        if choice is not None:
            check_queue(choice, topic)
        lanes = self._lanes(topic)
        send = WaitingSend.__new__(WaitingSend)
        send.element = element
        send.count = 1
        send.future = self._create_future()
        send.key = key
        send.choice = choice
        send.since_s = self._time() if self._is_lingering else self.now_s
        memcpy(send._unique_key, self._unique_key, UNIQUE_KEY_BYTES)
        self._next_number += 1
        if key or choice is not None or self._is_numbered:
            lanes.unsorted.append(send)
        else:
            lanes.any_queue.put(send)
        lanes.count += 1
        lanes.size += PyBytes_GET_SIZE(element)
        self._room.add(PyBytes_GET_SIZE(element))
        if lanes.count >= self._count_max or lanes.size >= self._bytes_max:
            self._full(lanes)
        return send.future

    def send_elements(self, queue not None, bytes elements not None, Py_ssize_t count):
        """Let messages in batch encoding wait for a request to a queue, and return the future of all of them."""
        cdef TopicLanes lanes = self._lanes(queue.topic)
        cdef WaitingSend send = WaitingSend.__new__(WaitingSend)
        send.element = elements
        send.count = count
        send.future = self._create_future()
        send.key = ""
        send.choice = queue
        send.since_s = self._time() if self._is_lingering else self.now_s
        lanes.unsorted.append(send)
        lanes.count += count
        lanes.size += PyBytes_GET_SIZE(elements)
        self._room.add(PyBytes_GET_SIZE(elements))
        if lanes.count >= self._count_max or lanes.size >= self._bytes_max:
            self._full(lanes)
        return send.future

    def add_alone(self, request):
        """Let a message that goes alone wait for its turn at its queue, by its key or as it was asked for."""
        cdef TopicLanes lanes = self._lanes(request.topic)
        cdef WaitingSend send = WaitingSend.__new__(WaitingSend)
        send.alone = request
        send.count = request.count
        send.future = request.future
        send.key = request.key
        send.choice = request.fixed_queue
        send.since_s = self.now_s
        lanes.unsorted.append(send)

    def forget_keys(self):
        """Make no use of unique keys from before a flush: one tells roughly when its message was sent."""
        self._next_number = self._end_number = 0
        self._keys_ahead = 0

    cdef TopicLanes _lanes(self, str topic):
        cdef TopicLanes lanes = self.topics.get(topic)
        if lanes is None:
            check_topic(topic)
            if len(self.topics) >= _IDLE_TOPICS_MAX:
                self.topics = {name: each for name, each in self.topics.items() if not each.is_idle}
            lanes = self.topics[topic] = TopicLanes(topic)
        if not lanes.is_fresh:
            lanes.is_fresh = True
            self._fresh(lanes)
        return lanes

    cdef _make_keys(self):
        """Make unique keys for the next messages, more each time until a flush."""
        self._keys_ahead = min(2 * self._keys_ahead or 1, KEYS_AHEAD_MAX)
        prefix, self._next_number, self._end_number = self._unique_keys.next_numbers(self._keys_ahead)
        cdef bytes encoded = prefix.encode("ascii")
        assert PyBytes_GET_SIZE(encoded) == UNIQUE_KEY_BYTES - NUMBER_DIGITS
        memcpy(self._unique_key, PyBytes_AS_STRING(encoded), UNIQUE_KEY_BYTES - NUMBER_DIGITS)


def living(list taken not None):
    """Return those that still want a result, and those that were given up meanwhile."""
    cdef WaitingSend send
    cdef list given_up = [send for send in taken if send.future.done()]
    if not given_up:
        return taken, given_up
    return [send for send in taken if not send.future.done()], given_up


def joined_elements(list waiting not None):
    """Return the elements of messages as the body of one request."""
    cdef WaitingSend send
    cdef Py_ssize_t size = 0
    for send in waiting:
        size += PyBytes_GET_SIZE(send.element)
    cdef bytes body = PyBytes_FromStringAndSize(NULL, size)
    cdef char* at = PyBytes_AS_STRING(body)
    for send in waiting:
        size = PyBytes_GET_SIZE(send.element)
        memcpy(at, PyBytes_AS_STRING(send.element), size)
        at += size
    return body


def tell_stored(list waiting not None, batch not None):
    """End the futures of the messages of a request with their parts of its result.

    Where the request joins the messages of several callers, those of one are not told their ids of the log.
    """
    cdef WaitingSend send
    cdef Py_ssize_t number = 0
    cdef list ids = batch.offset_message_ids if batch.count == len(waiting) else []
    cdef bint has_ids = len(ids) == len(waiting)
    cdef long long offset = batch.queue_offset
    cdef long long step = 0 if offset < 0 else 1
    cdef object status = batch.status
    cdef object queue = batch.queue
    for send in waiting:
        if not send.future.done():
            send.future.set_result(
                SendResult(
                    status, queue, offset, send.count, send.unique_key, ids[number] if has_ids else ""
                )
            )
        number += 1
        offset += step * send.count


def tell_failed(list waiting not None, error not None):
    """End the futures of messages with an error."""
    cdef WaitingSend send
    for send in waiting:
        if not send.future.done():
            send.future.set_exception(error)


cdef void _put_number(char* at, unsigned int number) noexcept:
    """Write the number of a unique key."""
    at[0] = HEXADECIMAL[(number >> 12) & 15]
    at[1] = HEXADECIMAL[(number >> 8) & 15]
    at[2] = HEXADECIMAL[(number >> 4) & 15]
    at[3] = HEXADECIMAL[number & 15]


cdef Py_ssize_t _queue_of_key(str key, Py_ssize_t queue_count) except -1:
    """As `queue_of_key` of the routes has it."""
    cdef Py_ssize_t size
    cdef const char* at
    if not key.isascii():
        return queue_of_key(key, queue_count)
    at = PyUnicode_AsUTF8AndSize(key, &size)
    return <Py_ssize_t> (crc32(0, <const unsigned char*> at, <unsigned int> size) % <unsigned long> queue_count)
