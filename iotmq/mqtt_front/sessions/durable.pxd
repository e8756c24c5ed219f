from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from iotmq.mqtt_front.connection.held_message cimport HeldMessage
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage
from iotmq.mqtt_front.sessions.durable_egress cimport DurableEgress
from iotmq.mqtt_front.sessions.flight_ring cimport FlightRing
from iotmq.mqtt_front.sessions.kept_session cimport KeptSession, QueueSubscription


cdef class DurableSession(KeptSession):
    cdef DurableEgress egress
    cdef readonly tuple subscriptions   # of QueueSubscription; a filter has one for each broker
    cdef FlightRing _flights
    # True or not, in a byte each.
    cdef uint8_t is_pausing             # until more of what had waited may go
    cdef uint8_t is_held_told           # the broker is being told of what is held
    cdef uint8_t had_received           # packet ids of QoS 2, when the broker was told last
    # A hundred thousand of these are idle, and a container without content costs more than all of the above: what
    # is empty mostly is None then.
    cdef object _pace                   # of what had waited, once the first of it was sent; None without limits
    cdef dict _behind                   # subscriptions that have to read, those that read longest ago first
    cdef set _done                      # (queue id, position) the device was done with in an earlier connection
    cdef dict _repeated                 # (queue id, position) -> InFlight of an earlier connection
    cdef list _held                     # QoS 2 messages that wait until the broker knows their packet ids
    cdef list _to_release               # PUBRELs that wait for the broker: number of the PUBREC and packet id in one int
    cdef int64_t _received_count        # PUBRECs

    cdef bint send(self, QueueSubscription subscription, int64_t position, OutgoingMessage message) except -1
    cdef int _hold(self, uint16_t packet_id, HeldMessage held) except -1
    cdef int _remove(self, QueueSubscription subscription) except -1
    cdef int _note_done_early(self, uint32_t queue_id, int64_t position) except -1
    cdef int _release_repeated(self, set queue_ids) except -1
    cdef bint may_replay(self) except -1
    cdef int _caught_up(self, QueueSubscription subscription) except -1
    cdef int forget_repeated(self, QueueSubscription subscription) except -1
    cdef bint _has_room(self) except -1
    cdef int _records_wanted(self, QueueSubscription subscription) except -1
    cdef int fall_behind(self, QueueSubscription subscription) except -1
    cdef int read(self, QueueSubscription subscription) except -1
    cdef int _add_flight(self, QueueSubscription subscription, int64_t position, uint16_t packet_id,
            uint8_t qos, uint8_t state) except -1
    cdef int _keep_packet_id(self, uint32_t queue_id, int64_t position, uint16_t packet_id, uint8_t state) except -1
    cdef list _in_flight(self, int qos_min)
    cdef list _done_past_cursors(self)
    cdef int move(self, QueueSubscription subscription) except -1
