"""What of a session is in flight: sent to its device and not acknowledged, in the order of sending.

Operations: one more per message of QoS 1 or 2, one less per acknowledgement, and, a few times a second, how far
each queue is done with. Goals: a message in flight costs 24 bytes; a session without any holds no memory here;
one acknowledgement that does not come makes nothing slow. Plan: a ring of flights that are numbered in the order
of sending; the device keeps the number beside the packet id. It is a sliding window: nothing new is sent while
the oldest is `MQTT_FLIGHTS_MAX` behind. Cursors of all queues come of one pass.

The references in the ring are counted, and the collector does not see them: `free_flights` ends every session.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free

from iotmq.client.session_ports import NO_QUEUE_ID, InFlight

cdef enum:
    CAPACITY_MIN = 4
    KEPT_CAPACITY_MAX = 16      # an empty ring that has grown larger gives its memory back


cdef inline Flight* _at(const FlightRing* ring, uint32_t index) noexcept:
    return &ring.flights[(ring.first + index) & (ring.capacity - 1)]


cdef int64_t add_flight(
    FlightRing* ring, QueueSubscription subscription, int64_t position, uint16_t packet_id, uint8_t qos, uint8_t state
) except -1:
    if ring.count == ring.capacity:
        _grow(ring)
    ring.count += 1
    _at(ring, ring.count - 1)[0] = Flight(<void*>subscription, position, packet_id, qos, state)
    Py_INCREF(subscription)
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
    """The flight of a number, when it has this packet id and is not done; else NULL."""
    cdef uint32_t index = number - ring.number
    cdef Flight* flight
    if index >= ring.count:
        return NULL
    flight = _at(ring, index)
    return flight if flight.packet_id == packet_id and flight.state != FLIGHT_DONE else NULL


cdef QueueSubscription take_done(FlightRing* ring):
    """Remove the oldest flight when it is done: what it was for, or None when there is nothing to remove."""
    cdef QueueSubscription subscription
    if not ring.count or ring.flights[ring.first].state != FLIGHT_DONE:
        if not ring.count and ring.capacity > KEPT_CAPACITY_MAX:
            free_flights(ring)
        return None
    subscription = <QueueSubscription>ring.flights[ring.first].subscription
    Py_DECREF(subscription)
    ring.first = (ring.first + 1) & (ring.capacity - 1)
    ring.count -= 1
    ring.number += 1
    return subscription


cdef void free_flights(FlightRing* ring) noexcept:
    """Forget every flight."""
    cdef uint32_t index
    for index in range(ring.count):
        Py_DECREF(<object>_at(ring, index).subscription)
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
        if flight.state != FLIGHT_DONE:
            subscription = <QueueSubscription>flight.subscription
            subscription.cursor = min(subscription.cursor, flight.position)
    return 0


cdef list in_flight(const FlightRing* ring, int qos_min):
    """What is not done, as session_ports.InFlight."""
    cdef QueueSubscription subscription
    cdef list found = []
    cdef uint32_t index
    cdef Flight* flight
    for index in range(ring.count):
        flight = _at(ring, index)
        if flight.state != FLIGHT_DONE and flight.qos >= qos_min:
            subscription = <QueueSubscription>flight.subscription
            if not subscription.is_ended:
                found.append(InFlight(
                    flight.packet_id, subscription.queue_id, flight.position, flight.state == FLIGHT_RELEASED
                ))
            elif flight.qos == 2:
                found.append(InFlight(flight.packet_id, subscription.queue_id | NO_QUEUE_ID, flight.position, True))
    return found


cdef list done_past_cursors(const FlightRing* ring):
    """(queue id, position) that is done while an older one of its queue is not, by settled cursors."""
    cdef QueueSubscription subscription
    cdef list found = []
    cdef uint32_t index
    cdef Flight* flight
    for index in range(ring.count):
        flight = _at(ring, index)
        if flight.state == FLIGHT_DONE:
            subscription = <QueueSubscription>flight.subscription
            if not subscription.is_ended and flight.position >= subscription.cursor:
                found.append((subscription.queue_id, flight.position))
    return found
