from libc.stdint cimport int64_t, uint8_t

from iotmq.message.records.fields cimport RecordParts
from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt.server.outbound cimport OutboundMessage


cdef class OutgoingMessage:
    """Hold the parts of a record for subscribers. The pointers are valid as long as the record, or until the next `read`."""

    cdef OutboundMessage view
    cdef int qos                        # as published: subscribers get no more than this
    cdef bint is_retained               # as published
    cdef bint is_expired                # nobody is to get it any more [MQTT-3.3.2-5]
    cdef const uint8_t* client_id       # of the device that published it
    cdef Py_ssize_t client_id_size
    cdef const uint8_t* publisher       # of the connection it came over: that device's, or a bridge's
    cdef Py_ssize_t publisher_size
    cdef bint has_come_over_bridge
    cdef public bint takes_any_record   # one without an MQTT topic has the name of its broker topic
    cdef object _clock
    cdef double _left_s                 # until it expires
    cdef object _tracing                # telemetry.tracing.Tracing; None while messages are not traced
    cdef const uint8_t* _traceparent    # the message's context; NULL without one, and while nothing is traced
    cdef bint is_sampled                # its deliveries are spans
    cdef int _traced_count              # of them, those that there are by now
    cdef object _begun_ns               # when it was read, of one that is sampled
    cdef const uint8_t* _tracestate
    cdef Py_ssize_t _tracestate_size
    cdef bint _has_user_context         # among the properties that a device has set
    cdef const uint8_t* _raw            # the record's properties
    cdef Py_ssize_t _raw_size
    cdef bint _has_v5                   # there may be some that only MQTT 5 has
    cdef bint is_encoded                # `view.properties` is what MQTT 5 wants
    cdef ByteBuffer _properties
    cdef bytes _inflated

    cdef bint read(self, const RecordParts* record) except -1
    cdef int encode_properties(self) except -1
    cdef int note_traced(self, client_id, int qos) except -1
    cdef int _look_for_context(self) except -1
    cdef int append_expiry(self, ByteBuffer* target) except -1
    cdef bint is_from(self, const uint8_t* client_id, Py_ssize_t size) noexcept
    cdef int _look(self, const uint8_t* at, const uint8_t* end, int64_t* time_to_live_ms) except -1
