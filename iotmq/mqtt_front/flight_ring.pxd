from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from iotmq.mqtt_front.kept_session cimport QueueSubscription

cdef enum:
    FLIGHT_SENT = 0
    FLIGHT_RELEASED = 1     # QoS 2: it has its PUBREL
    FLIGHT_DONE = 2


cdef struct Flight:
    void* subscription      # a counted reference to the QueueSubscription
    int64_t position
    uint16_t packet_id
    uint8_t qos
    uint8_t state


cdef struct FlightRing:
    # All zeros is an empty one, which holds no memory.
    Flight* flights
    uint32_t first, count, capacity
    uint32_t number         # of the oldest; flights are numbered in the order of sending


# Returns the number of the flight.
cdef int64_t add_flight(FlightRing* ring, QueueSubscription subscription, int64_t position, uint16_t packet_id, uint8_t qos, uint8_t state) except -1
cdef Flight* flight_of(const FlightRing* ring, uint32_t number, uint16_t packet_id) noexcept
cdef QueueSubscription take_done(FlightRing* ring)
cdef void free_flights(FlightRing* ring) noexcept
cdef int settle_cursors(const FlightRing* ring, tuple subscriptions) except -1
cdef list in_flight(const FlightRing* ring, int qos_min)
cdef list done_past_cursors(const FlightRing* ring)
