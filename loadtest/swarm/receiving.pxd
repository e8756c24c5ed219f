# Everything that servers send: frames, packets, and the messages that subscribers follow.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from loadtest.swarm.connections cimport Connection
from loadtest.swarm.histogram cimport Histogram
from loadtest.swarm.publishing cimport Publishing

cdef enum:
    TRACKED_BYTES_LARGEST = 256 * 1024 * 1024

    LEDGER_WORDS = 128
    LEDGER_BITS = 64 * 128

# The latest messages of one publisher that came to a group of subscribers: a bit for each from `base` on.
cdef struct Ledger:
    uint64_t base              # all below are settled
    uint64_t end               # behind the highest that came
    uint64_t[LEDGER_WORDS] seen


cdef class Receiving(Publishing):
    cdef uint8_t* buffer               # one read, behind the kept beginning of a packet
    cdef uint8_t* acks                 # acknowledgements of what one read delivered
    cdef Py_ssize_t acks_size
    cdef uint8_t* sealed               # one read, with TLS
    cdef public bint has_text_stamps   # stamps may be hexadecimal digits somewhere in a payload
    cdef uint32_t group_count          # different shared subscriptions
    cdef Ledger* ledgers               # of each group and publisher; made at the first delivery
    cdef uint32_t publishers_tracked
    cdef uint32_t subscriber_count
    cdef int64_t oldest_repeat_ns      # the earliest stamp that came twice; 0 when none did
    cdef Histogram delivery

    cdef void _on_event(self, Connection* c, uint32_t events) noexcept nogil

    @cython.final
    cdef void _read(self, Connection* c) noexcept nogil

    @cython.final
    cdef Py_ssize_t _unseal(self, Connection* c, Py_ssize_t at, Py_ssize_t got) noexcept nogil

    @cython.final
    cdef Py_ssize_t _unframe(self, Connection* c, Py_ssize_t at, Py_ssize_t size) noexcept nogil

    @cython.final
    cdef Py_ssize_t _past_upgrade(self, const uint8_t* data, Py_ssize_t size) noexcept nogil

    @cython.final
    cdef Py_ssize_t _parse(self, Connection* c, Py_ssize_t size) noexcept nogil

    @cython.final
    cdef bint _on_packet(self, Connection* c, const uint8_t* packet, Py_ssize_t length,
        Py_ssize_t header) noexcept nogil

    @cython.final
    cdef bint _on_connack(self, Connection* c, const uint8_t* packet, Py_ssize_t length,
        Py_ssize_t header) noexcept nogil

    @cython.final
    cdef bint _on_suback(self, Connection* c, int code) noexcept nogil

    @cython.final
    cdef bint _on_publish(self, Connection* c, const uint8_t* packet, Py_ssize_t length, Py_ssize_t header,
        int64_t clock) noexcept nogil

    @cython.final
    cdef void _answer(self, int kind, const uint8_t* packet_id) noexcept nogil

    @cython.final
    cdef bint _is_new(self, Connection* c, uint32_t packet_id) noexcept nogil

    @cython.final
    cdef bint _on_released(self, Connection* c, uint32_t packet_id) noexcept nogil

    @cython.final
    cdef bint _follow_message(self, Connection* c, const uint8_t* payload, Py_ssize_t size,
        int64_t clock) noexcept nogil

    @cython.final
    cdef const uint8_t* _text_stamp(self, const uint8_t* payload, Py_ssize_t size) noexcept nogil

    @cython.final
    cdef bint _follow_publisher(self, Connection* c, uint32_t publisher, uint64_t sequence,
        int64_t stamp) noexcept nogil

    @cython.final
    cdef bint _follow_own_topic(self, Connection* c, uint32_t publisher, uint64_t sequence,
        int64_t stamp) noexcept nogil

    @cython.final
    cdef void _follow(self, uint64_t* expected, uint64_t sequence, int64_t stamp) noexcept nogil

    @cython.final
    cdef void _note_repeat(self, int64_t stamp) noexcept nogil

    @cython.final
    cdef void _follow_shared(self, uint32_t group, uint32_t publisher, uint64_t sequence,
        int64_t stamp) noexcept nogil

    cdef uint64_t _open_gaps(self) noexcept nogil
