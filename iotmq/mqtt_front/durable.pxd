from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from iotmq.mqtt_front.device cimport Device, DeviceGroup, DeviceSession
from iotmq.mqtt_front.outgoing cimport OutgoingMessage


cdef struct Flight:
    void* subscription      # a counted reference to the QueueSubscription
    int64_t position
    uint16_t packet_id
    uint8_t qos
    uint8_t state


cdef class QueueSubscription:
    cdef DurableSession session
    cdef readonly str topic_filter
    cdef readonly uint32_t queue_id
    cdef uint32_t identifier            # of the subscription; 0 = none
    cdef public uint64_t options        # as in client.session_ports.SessionSubscription
    cdef int64_t next_position      # records before were sent
    cdef int64_t repeated_before    # records before may have been sent in an earlier connection
    cdef int64_t live_from          # records from here on came while the device was there; -1 = not known yet
    cdef int64_t pushed_position    # the last record that was pushed while the queue is read
    # True or not, in a byte each: there is one of these for every subscription of every connected session.
    cdef uint8_t is_behind          # what comes next has to be read
    cdef uint8_t is_reading
    cdef uint8_t is_moved           # since the broker was told last
    cdef uint8_t is_ended

    cdef int change(self, uint64_t options) except -1


cdef class DurableSession(DeviceSession):
    cdef DurableEgress egress
    cdef readonly Device device
    cdef readonly str client_id
    cdef readonly int64_t epoch
    cdef readonly tuple subscriptions   # of QueueSubscription; a filter has one for each broker
    cdef Flight* flights                # ring in the order of sending
    cdef uint32_t flights_first, flights_count, flights_capacity
    # True or not, in a byte each.
    cdef uint8_t is_pausing             # until more of what had waited may go
    cdef uint8_t is_moved               # the broker is to be told of something
    cdef uint8_t has_moved_flights      # of QoS 2
    cdef uint8_t had_received           # packet ids of QoS 2, when the broker was told last
    cdef uint8_t is_scheduled
    cdef readonly bint is_ended
    # A hundred thousand of these are idle, and a container without content costs more than all of the above: what
    # is empty mostly is None then.
    cdef object _pace                   # of what had waited, once the first of it was sent; None without limits
    cdef list _behind                   # subscriptions that have to read
    cdef set _done                      # (queue id, position) the device was done with in an earlier connection
    cdef dict _repeated                 # (queue id, position) -> InFlight of an earlier connection
    cdef list _held                     # QoS 2 messages that wait until the broker knows their packet ids
    cdef list _to_release               # packet ids whose PUBREL waits for the broker

    cdef int offer(self, QueueSubscription subscription, int64_t position, OutgoingMessage message) except -1
    cdef bint send(self, QueueSubscription subscription, int64_t position, OutgoingMessage message) except -1
    cdef int _remove(self, QueueSubscription subscription) except -1
    cdef int _release_repeated(self, QueueSubscription subscription) except -1
    cdef bint may_replay(self) except -1
    cdef int _caught_up(self, QueueSubscription subscription) except -1
    cdef int forget_repeated(self, QueueSubscription subscription) except -1
    cdef int64_t cursor_of(self, QueueSubscription subscription) noexcept
    cdef int fall_behind(self, QueueSubscription subscription) except -1
    cdef int read(self, QueueSubscription subscription) except -1
    cdef int add_flight(self, QueueSubscription subscription, int64_t position, uint16_t packet_id, uint8_t qos, uint8_t state) except -1
    cdef Flight* flight_of(self, uint16_t packet_id) noexcept
    cdef int drop_done(self) except -1
    cdef int move(self, QueueSubscription subscription) except -1


cdef class DurableEgress:
    cdef readonly DeviceGroup group
    cdef readonly object port           # client.session_ports.SessionPort
    cdef object _handler
    cdef object _pace_limits            # mqtt_front.pace.PaceLimits
    cdef bint has_pace
    cdef int replay_records_max
    cdef dict _queues                   # queue id -> its QueueSubscription, or a list of several
    cdef list _moved                    # sessions the broker is to be told of
    cdef list _scheduled                # sessions that go on in the next turn
    cdef list _persisting               # sessions whose QoS 2 state the broker is to know first
    cdef OutgoingMessage _message
    cdef object _progress_timer
    cdef readonly uint64_t delivered
    cdef readonly uint64_t dropped
    cdef readonly uint64_t read_records
    cdef readonly uint64_t malformed
    cdef readonly uint64_t refused_progress

    cdef tuple find(self, queue_id)
    cdef int put(self, QueueSubscription subscription) except -1
    cdef int discard(self, QueueSubscription subscription) except -1
    cdef int _pass_on(self, QueueSubscription subscription) except -1
    cdef int schedule(self, DurableSession session) except -1
    cdef int note_moved(self, DurableSession session) except -1
    cdef int persist(self, DurableSession session) except -1
