from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from iotmq.mqtt.codec.framing cimport Packet, PublishHead
from iotmq.mqtt.codec.publish_properties cimport PublishProperties
from iotmq.mqtt.server.connection cimport ServerConnection
from iotmq.mqtt.server.outbound cimport OutboundMessage


cdef class TraceBudget:
    cdef public int64_t left            # packets that may still be looked at in this second
    cdef readonly uint64_t skipped      # packets that were not


cdef class Tap:
    cdef object _tracer                 # told of packets and decisions
    cdef TraceBudget _budget
    cdef bint _takes_all                # else messages alone whose topic is wanted
    cdef dict _is_wanted                # topic as bytes -> bool, of those that were asked about

    cdef int received(self, TracedConnection connection, const Packet* packet) except -1
    cdef int sent(self, TracedConnection connection, const uint8_t* data, Py_ssize_t size) except -1
    cdef int ended(self, TracedConnection connection) except -1
    cdef bint wants(self, bytes topic) except -1
    cdef int _tell(self, TracedConnection connection, bint is_sent, const Packet* packet, bytes topic) except -1


cdef class TracedConnection(ServerConnection):
    cdef readonly Tap tap               # None while nobody traces it

    cdef int end_trace(self) except -1
    cdef int hand_over(self, object transport) except -1
    cdef int note_lost(self, str why, const OutboundMessage* message) except -1
    cdef bytes _known_topic(self, bint is_sent, uint16_t alias)
