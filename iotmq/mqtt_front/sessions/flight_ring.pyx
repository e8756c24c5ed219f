"""Keep a session's messages in flight: sent to its device and not acknowledged, in the order of sending.

Operations: one more per message of QoS 1 or 2, one less per acknowledgement, and, a few times a second, how far
each queue is done with. Goals: a message in flight costs 24 bytes; a session without any holds no memory here;
one acknowledgement that does not come makes nothing slow. Plan: a ring of flights that are numbered in the order
of sending; the device keeps the number beside the packet id. It is a sliding window: nothing new is sent while
the oldest is `MQTT_FLIGHTS_MAX` behind. Cursors of all queues come of one pass.

A flight refers to its subscription without counting: the session has it in `subscriptions` for as long, and calls
`forget_ended` before it lets it go. A counted reference would be a circle that the collector does not see.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free

from iotmq.ports.sessions import NO_QUEUE_ID, InFlight

cdef enum:
    CAPACITY_MIN = 4
    KEPT_CAPACITY_MAX = 16      # an empty ring that has grown larger gives its memory back


cdef inline Flight* _at(const FlightRing* ring, uint32_t index) noexcept:
    return &ring.flights[(ring.first + index) & (ring.capacity - 1)]


cdef int64_t add_flight(FlightRing* ring, QueueSubscription subscription, Flight flight) except -1:
    flight.subscription = NULL if subscription is None else <void*>subscription
    if ring.count == ring.capacity:
        _grow(ring)
    ring.count += 1
    _at(ring, ring.count - 1)[0] = flight
    return <uint32_t>(ring.number + ring.count - 1)


cdef int _grow(FlightRing* ring) except -1:
    cdef uint32_t capacity = max(<uint32_t>CAPACITY_MIN, 2 * ring.capacity)
    cdef uint32_t index
    cdef Flight* grown = <Flight*>calloc(capacity, sizeof(Flight))
    if grown == NULL:
        raise MemoryError
    for index in range(ring.count):
        grown[index] = _at(ring, index)[0]
    free(ring.flights)
    ring.flights = grown
    ring.capacity = capacity
    ring.first = 0
    return 0


cdef Flight* flight_of(const FlightRing* ring, uint32_t number, uint16_t packet_id) noexcept:
    """Return the flight of a number, when it has this packet id and is not done; else NULL."""
    cdef uint32_t index = number - ring.number
    cdef Flight* flight
    if index >= ring.count:
        return NULL
    flight = _at(ring, index)
    return flight if flight.packet_id == packet_id and flight.state != FLIGHT_DONE else NULL


cdef Py_ssize_t drop_done(FlightRing* ring) noexcept:
    """Remove the oldest flights up to one that is not done; their queues have moved. Returns how many."""
    cdef Py_ssize_t dropped = 0
    cdef Flight* flight
    while ring.count and ring.flights[ring.first].state == FLIGHT_DONE:
        flight = &ring.flights[ring.first]
        if flight.subscription != NULL:
            (<QueueSubscription>flight.subscription).is_moved = True
        ring.first = (ring.first + 1) & (ring.capacity - 1)
        ring.count -= 1
        ring.number += 1
        dropped += 1
    if not ring.count and ring.capacity > KEPT_CAPACITY_MAX:
        free_flights(ring)
    return dropped


cdef void forget_ended(FlightRing* ring) noexcept:
    """Subscriptions that have ended are about to go; of their flights packet ids are left."""
    cdef uint32_t index
    cdef Flight* flight
    for index in range(ring.count):
        flight = _at(ring, index)
        if flight.subscription != NULL and (<QueueSubscription>flight.subscription).is_ended:
            flight.subscription = NULL


cdef void free_flights(FlightRing* ring) noexcept:
    """Forget every flight."""
    free(ring.flights)
    ring[0] = FlightRing(NULL, 0, 0, 0, ring.number + ring.count)


cdef int settle_cursors(const FlightRing* ring, tuple subscriptions) except -1:
    """Set the cursor of each queue: the position before which the device is done with its records."""
    cdef QueueSubscription subscription
    cdef uint32_t index
    cdef Flight* flight
    for subscription in subscriptions:
        subscription.cursor = subscription.next_position
    for index in range(ring.count):
        flight = _at(ring, index)
        if flight.state != FLIGHT_DONE and flight.subscription != NULL:
            subscription = <QueueSubscription>flight.subscription
            subscription.cursor = min(subscription.cursor, flight.position)
    return 0


cdef list in_flight(const FlightRing* ring, int qos_min):
    """Return the messages in flight, as ports.sessions.InFlight."""
    cdef list found = []
    cdef uint32_t index
    cdef Flight* flight
    for index in range(ring.count):
        flight = _at(ring, index)
        if flight.state != FLIGHT_DONE and flight.qos >= qos_min:
            if flight.subscription != NULL:
                found.append(InFlight(
                    flight.packet_id, flight.queue_id, flight.position, flight.state == FLIGHT_RELEASED
                ))
            elif flight.qos == 2:
                found.append(InFlight(flight.packet_id, flight.queue_id | NO_QUEUE_ID, flight.position, True))
    return found


cdef list done_past_cursors(const FlightRing* ring):
    """(queue id, position) that is done while an older one of its queue is not, by settled cursors."""
    cdef QueueSubscription subscription
    cdef list found = []
    cdef uint32_t index
    cdef Flight* flight
    for index in range(ring.count):
        flight = _at(ring, index)
        if flight.state == FLIGHT_DONE and flight.subscription != NULL:
            subscription = <QueueSubscription>flight.subscription
            if flight.position >= subscription.cursor:
                found.append((flight.queue_id, flight.position))
    return found


cdef int check_flights(const FlightRing* ring, tuple subscriptions) except -1:
    """AssertionError when the ring is none, or refers to what its session has let go."""
    cdef dict kept = {<size_t><void*>subscription: subscription for subscription in subscriptions}
    cdef set packet_ids = set()
    cdef uint32_t index
    cdef Flight* flight
    assert ring.count <= ring.capacity
    assert not ring.capacity & (ring.capacity - 1)
    assert (ring.flights == NULL) == (not ring.capacity)
    # Or it would have been removed.
    assert not ring.count or ring.flights[ring.first].state != FLIGHT_DONE
    for index in range(ring.count):
        flight = _at(ring, index)
        if flight.subscription != NULL:
            assert <size_t>flight.subscription in kept
            assert kept[<size_t>flight.subscription].queue_id == flight.queue_id
        if flight.state != FLIGHT_DONE:
            assert flight.packet_id not in packet_ids and flight.packet_id
            packet_ids.add(flight.packet_id)
    return 0
