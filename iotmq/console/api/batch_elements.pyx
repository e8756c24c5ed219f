"""Encode what is published to MQTT topics as batch elements, and tell each message its place, in compiled code.

Operations, once for each message of a request: a look-up of its topic, an element, a text of its outcome. Goal: less
than half a microsecond for these. Plan: what messages of a topic have in common is made once (`Lane`).
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from iotmq.message.records.layout cimport ELEMENT_FIXED_BYTES, put_u16, put_u32

import msgspec

from iotmq.client.transport.routes import queue_of_key

cdef extern from "stdio.h" nogil:
    int snprintf(char* at, size_t size, const char* form, ...) noexcept

cdef enum:
    UNIQUE_KEY_BYTES = 32
    NUMBER_DIGITS = 4
    # Of an element, in front of its body.
    HEAD_BYTES = 20
    # A number of 64 bits, its sign and the end of the text.
    NUMBER_BYTES_MAX = 21
    # Well below what a broker takes in one request.
    BATCH_BYTES = 1024 * 1024

ALONE_BYTES = 256 * 1024
cdef Py_ssize_t _alone_bytes = ALONE_BYTES

cdef bytes _BEGIN = b'{"stored":{"message_id":"'
cdef object UNSET = msgspec.UNSET


@cython.final
cdef class Lane:
    """The topic, key and properties that all messages of an MQTT topic have, and the queue of the key."""

    cdef readonly str topic
    cdef list _heads
    cdef str _key
    cdef Py_ssize_t _count
    cdef Py_ssize_t _index

    def __init__(self, str topic not None, str key not None, heads not None):
        """`heads` are their properties up to the unique key, which comes last; at 2 * QoS + retain flag."""
        self.topic = topic
        self._heads = list(heads)
        self._key = key

    def queue_of(self, queues not None):
        """Return the queue of the key."""
        cdef Py_ssize_t count = len(queues)
        if count != self._count:
            self._count = count
            self._index = queue_of_key(self._key, count)
        return queues[self._index]

    def element(self, bytes payload not None, Py_ssize_t qos, bint is_retained, bytes unique_key not None):
        """Encode a message with a unique key of 32 characters."""
        if PyBytes_GET_SIZE(unique_key) != UNIQUE_KEY_BYTES:
            raise ValueError("a unique key has 32 characters")
        return self.encode(
            PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), 2 * qos + is_retained,
            PyBytes_AS_STRING(unique_key), b"",
        )

    cdef bytes encode(
        self, const char* body, Py_ssize_t body_size, Py_ssize_t flags, const char* unique_key, bytes tail
    ):
        cdef bytes head = self._heads[flags]
        cdef Py_ssize_t head_size = PyBytes_GET_SIZE(head)
        cdef Py_ssize_t properties_size = head_size + UNIQUE_KEY_BYTES + PyBytes_GET_SIZE(tail)
        cdef Py_ssize_t size = ELEMENT_FIXED_BYTES + body_size + properties_size
        cdef bytes element = PyBytes_FromStringAndSize(NULL, size)
        cdef uint8_t* at = <uint8_t*> PyBytes_AS_STRING(element)
        put_u32(at, <uint32_t> size)
        memset(at + 4, 0, 12)
        put_u32(at + 16, <uint32_t> body_size)
        at += HEAD_BYTES
        memcpy(at, body, body_size)
        at += body_size
        # The end of the last property may be left out.
        put_u16(at, <uint16_t> properties_size)
        at += 2
        memcpy(at, PyBytes_AS_STRING(head), head_size)
        at += head_size
        memcpy(at, unique_key, UNIQUE_KEY_BYTES)
        memcpy(at + UNIQUE_KEY_BYTES, PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail))
        return element


@cython.final
cdef class QueueBatch:
    """Messages of one request for one queue."""

    cdef readonly object queue
    cdef readonly list places
    """Of the messages in the request."""
    cdef list _elements
    cdef Py_ssize_t _size
    cdef Py_ssize_t _from_end

    def __init__(self, queue not None, Py_ssize_t tail_size):
        """Their unique keys stand `tail_size` bytes before the ends of their elements."""
        self.queue = queue
        self._from_end = UNIQUE_KEY_BYTES + tail_size
        self.places = []
        self._elements = []

    @property
    def elements(self):
        """Return all of them in batch encoding."""
        return b"".join(self._elements)

    def write_stored(self, list outcomes not None, bytes middle not None, long long offset, bytes end not None):
        """Write the outcomes: what begins with the message id, `middle`, its offset, and `end`."""
        cdef char number[NUMBER_BYTES_MAX]
        cdef Py_ssize_t place, digits, size
        cdef bytes element, text
        cdef char* at
        for place, element in zip(self.places, self._elements):
            digits = snprintf(number, NUMBER_BYTES_MAX, "%lld", offset)
            size = (
                PyBytes_GET_SIZE(_BEGIN) + UNIQUE_KEY_BYTES + PyBytes_GET_SIZE(middle) + digits
                + PyBytes_GET_SIZE(end)
            )
            text = PyBytes_FromStringAndSize(NULL, size)
            at = PyBytes_AS_STRING(text)
            at = _put(at, PyBytes_AS_STRING(_BEGIN), PyBytes_GET_SIZE(_BEGIN))
            at = _put(
                at, PyBytes_AS_STRING(element) + PyBytes_GET_SIZE(element) - self._from_end, UNIQUE_KEY_BYTES
            )
            at = _put(at, PyBytes_AS_STRING(middle), PyBytes_GET_SIZE(middle))
            at = _put(at, number, digits)
            _put(at, PyBytes_AS_STRING(end), PyBytes_GET_SIZE(end))
            outcomes[place] = text
            offset += 1


@cython.final
cdef class BatchElements:
    """Sorts the messages of one request by their queues.

    `lanes` are those of the MQTT topics that are known, `queues` those of the broker topics; both may grow meanwhile.
    A batch of a queue is closed when it has BATCH_BYTES; a message of more than ALONE_BYTES is not taken: one
    that no broker takes is no trouble for others.
    """

    cdef readonly list batches
    cdef dict _lanes
    cdef dict _queues
    cdef dict _open
    cdef object _unique_keys
    cdef bytes _tail
    cdef Py_ssize_t _count
    cdef char _unique_key[UNIQUE_KEY_BYTES]
    cdef unsigned int _next_number
    cdef unsigned int _end_number

    def __init__(
        self, dict lanes not None, dict queues not None, unique_keys not None, Py_ssize_t count,
        bytes tail not None,
    ):
        """`count` messages come at most; `tail` are the properties of all of them behind the unique key."""
        self.batches = []
        self._lanes = lanes
        self._queues = queues
        self._open = {}
        self._unique_keys = unique_keys
        self._count = count
        self._tail = tail

    def take(self, tuple items not None, Py_ssize_t place):
        """Take messages from a place on; return the place of the first that needs more than this can do."""
        cdef Py_ssize_t end = len(items)
        cdef Py_ssize_t size
        cdef const char* at
        cdef Lane lane
        cdef str payload
        while place < end:
            each = items[place]
            payload = each.payload
            if (
                not payload or each.payload_json is not UNSET or each.payload_base64 or each.expiry_s
                or each.topic is not None
            ):
                break
            lane = self._lanes.get(each.mqtt_topic)
            if lane is None:
                break
            queues = self._queues.get(lane.topic)
            if not queues:
                break
            at = PyUnicode_AsUTF8AndSize(payload, &size)
            if size > _alone_bytes:
                break
            self._add(place, lane, queues, at, size, 2 * <Py_ssize_t> each.qos + <bint> each.retain)
            place += 1
        return place

    def add(
        self, Py_ssize_t place, Lane lane not None, queues not None, bytes payload not None, Py_ssize_t qos, *,
        bint is_retained,
    ):
        """Take a message."""
        self._add(
            place, lane, queues, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), 2 * qos + is_retained
        )

    cdef int _add(
        self, Py_ssize_t place, Lane lane, queues, const char* body, Py_ssize_t size, Py_ssize_t flags
    ) except -1:
        queue = lane.queue_of(queues)
        cdef QueueBatch batch = self._open.get(queue)
        if batch is None:
            batch = self._open[queue] = QueueBatch(queue, PyBytes_GET_SIZE(self._tail))
            self.batches.append(batch)
        self._next_key()
        cdef bytes element = lane.encode(body, size, flags, self._unique_key, self._tail)
        batch._elements.append(element)
        batch.places.append(place)
        batch._size += PyBytes_GET_SIZE(element)
        if batch._size >= BATCH_BYTES:
            del self._open[queue]
        return 0

    cdef int _next_key(self) except -1:
        cdef bytes prefix
        cdef char number[NUMBER_DIGITS + 1]
        if self._next_number == self._end_number:
            text, self._next_number, self._end_number = self._unique_keys.next_numbers(self._count)
            prefix = text.encode("ascii")
            assert PyBytes_GET_SIZE(prefix) == UNIQUE_KEY_BYTES - NUMBER_DIGITS
            memcpy(self._unique_key, PyBytes_AS_STRING(prefix), UNIQUE_KEY_BYTES - NUMBER_DIGITS)
        snprintf(number, NUMBER_DIGITS + 1, "%04X", self._next_number)
        memcpy(self._unique_key + UNIQUE_KEY_BYTES - NUMBER_DIGITS, number, NUMBER_DIGITS)
        self._next_number += 1
        return 0


cdef inline char* _put(char* at, const char* text, Py_ssize_t size) noexcept:
    memcpy(at, text, size)
    return at + size
