from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from iotmq.mqtt_front.sessions.kept_session cimport QueueSubscription

cdef enum:
    FLIGHT_SENT = 0
    FLIGHT_RELEASED = 1     # QoS 2: it has its PUBREL
    FLIGHT_DONE = 2


cdef struct Flight:
    void* subscription      # the QueueSubscription, which its session keeps; NULL when it has no queue any more
    int64_t position
    uint32_t queue_id       # with NO_QUEUE_ID in it for one that never had a queue
    uint16_t packet_id
    uint8_t qos
    uint8_t state


cdef struct FlightRing:
    # All zeros is an empty one, which holds no memory.
    Flight* flights
    uint32_t first, count, capacity
    uint32_t number         # of the oldest; flights are numbered in the order of sending


# Returns the number of the flight; `subscription` None is one of which only the packet id counts.
cdef int64_t add_flight(FlightRing* ring, QueueSubscription subscription, Flight flight) except -1
cdef Flight* flight_of(const FlightRing* ring, uint32_t number, uint16_t packet_id) noexcept
cdef Py_ssize_t drop_done(FlightRing* ring) noexcept
cdef void forget_ended(FlightRing* ring) noexcept
cdef void free_flights(FlightRing* ring) noexcept
cdef int settle_cursors(const FlightRing* ring, tuple subscriptions) except -1
cdef list in_flight(const FlightRing* ring, int qos_min)
cdef list done_past_cursors(const FlightRing* ring)
cdef int check_flights(const FlightRing* ring, tuple subscriptions) except -1
