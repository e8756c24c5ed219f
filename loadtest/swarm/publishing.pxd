# Publishers: rings of ready-made packets, the pace they are sent at, and their acknowledgements.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from loadtest.swarm.connections cimport Connection, Connections
from loadtest.swarm.histogram cimport Histogram

cdef enum:
    STAMP_MAGIC_C = 0x53574D31
    STAMP_BYTES_C = 24
    IDS = 65_535
    TOPICS_PER_PUBLISHER_LARGEST = 1_000_000


cdef class Publishing(Connections):
    cdef bytes payload
    cdef bytes publish_properties      # with their length; empty for 3.1.1
    cdef bint is_v5
    cdef uint32_t topics_per_publisher
    cdef uint32_t window
    cdef bint measures_acks
    cdef uint32_t number_base
    cdef uint64_t ring_bytes_total
    cdef uint32_t publisher_count
    cdef uint32_t* publishers          # indexes of the publisher connections
    cdef uint64_t lead_max             # messages a publisher may be ahead of the subscribers; 0: any
    cdef uint32_t* moved               # publishers that may go on after this read
    cdef uint32_t moved_count
    cdef uint64_t delivered_at_look    # value of delivered when leads were last looked at
    cdef int64_t looked_at_ns
    cdef bint publishing
    cdef bint kick                     # publishers have to be started at the next turn
    cdef uint64_t remaining            # messages that may still be created; with a pace: that may become due
    cdef uint64_t rate_per_s           # 0: as fast as windows allow
    cdef uint64_t rate_from_per_s      # the rate at the beginning of a ramp
    cdef int64_t ramp_ns               # how long the ramp lasts; 0 for none
    cdef uint64_t ramp_count           # messages that are due while it lasts
    cdef int64_t wall_ahead_ns         # from CLOCK_MONOTONIC to the time of day
    cdef list sizes                    # of payloads, when they differ; else empty
    cdef int64_t paced_from_ns
    cdef uint64_t paced                # messages that became due since then
    cdef int64_t paced_until_ns        # what is due later is not sent: publishing was stopped
    cdef bint pacing                   # messages are still handed to publishers
    cdef int64_t measure_from_ns       # older stamps are not measured
    cdef Histogram acknowledgement
    cdef Histogram send_delay

    cdef list _slot_sizes(self, uint32_t number, uint32_t size)
    cdef tuple _packet(self, bytes topic, bytes payload, uint32_t number, bint has_stamp)
    cdef uint32_t _slots(self, uint32_t packet_size)
    cdef uint64_t _ring_bytes(self, list packets, uint32_t slots)
    cdef int _add_fields(self, Connection* c, list fields, uint32_t topic_end, uint32_t payload_end) except -1
    cdef int _fill_ring(self, Connection* c, list packets) except -1
    cdef void _start_publishers(self) noexcept nogil
    cdef int64_t _due_ns(self, uint64_t index) noexcept nogil

    @cython.final
    cdef int64_t _steady_ns(self, uint64_t index) noexcept nogil

    @cython.final
    cdef uint64_t _count_due(self, int64_t at_ns) noexcept nogil

    cdef uint64_t _unsent(self) noexcept nogil
    cdef int64_t _send_due(self) noexcept nogil
    cdef void _pump(self, Connection* c) noexcept nogil

    @cython.final
    cdef void _create(self, Connection* c) noexcept nogil

    @cython.final
    cdef void _fill_fields(self, Connection* c, uint8_t* packet, uint64_t sequence, int64_t stamp) noexcept nogil

    @cython.final
    cdef void _write(self, Connection* c) noexcept nogil

    @cython.final
    cdef void _write_secure(self, Connection* c, uint64_t end) noexcept nogil

    @cython.final
    cdef size_t _ring_size(self, Connection* c) noexcept nogil

    @cython.final
    cdef uint64_t _lead_left(self, Connection* c) noexcept nogil

    cdef void _move_on(self) noexcept nogil
    cdef void _give_up_lost(self) noexcept nogil
    cdef void _sweep(self) noexcept nogil
    cdef Py_ssize_t _count_acks(self, Connection* c, const uint8_t* data, Py_ssize_t size) noexcept nogil

    @cython.final
    cdef void _measure_ack(self, Connection* c, uint64_t sequence, int64_t clock) noexcept nogil

    @cython.final
    cdef uint64_t _sequence_of(self, Connection* c, uint32_t packet_id) noexcept nogil

    cdef bint _on_ack(self, Connection* c, uint32_t packet_id) noexcept nogil

    @cython.final
    cdef void _complete(self, Connection* c, uint64_t sequence) noexcept nogil

    cdef bint _on_received(self, Connection* c, uint32_t packet_id, bint is_refused) noexcept nogil
    cdef bint _is_between_packets(self, Connection* c) noexcept nogil

    @cython.final
    cdef bint _release(self, Connection* c) noexcept nogil

    cdef bint _on_completed(self, Connection* c, uint32_t packet_id) noexcept nogil
