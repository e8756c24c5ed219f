from libc.stdint cimport uint8_t, uint16_t, uint32_t

from iotmq.mqtt.acknowledgements cimport AcknowledgementRing
from iotmq.mqtt.byte_buffer cimport ByteBuffer
from iotmq.mqtt.framing cimport Packet
from iotmq.mqtt.outbound cimport OutboundHalf
from iotmq.mqtt.publish_sink cimport PublishSink


cdef class ServerConnection(OutboundHalf):
    cdef PublishSink sink
    cdef ByteBuffer _input              # a packet that has begun; all input while the session opens
    cdef AcknowledgementRing _acks      # what the device waits for
    cdef set _qos2_received             # packet ids between PUBLISH and PUBREL; None until the first
    cdef list _events                   # None while there are none
    cdef public double last_received_s
    cdef double _connect_deadline_s
    cdef public uint16_t keep_alive_s   # from CONNECT; the owner may shorten it
    cdef readonly object close_reason   # None until the connection is to end
    cdef readonly str close_detail

    cdef int receive(self, const uint8_t* data, Py_ssize_t size) except -1
    cdef int acknowledge(self, uint32_t sequence, uint32_t count) except -1

    cdef int _receive_packets(self, const uint8_t* data, Py_ssize_t size) except -1
    cdef int _check_first_byte(self, uint8_t first) except -1
    cdef int _check_empty(self, Py_ssize_t size, str name) except -1
    cdef int _add_event(self, object event) except -1
    cdef int _handle_packet(self, const Packet* packet) except -1
    cdef int _handle_publish(self, uint8_t first, const uint8_t* body, Py_ssize_t size) except -1
    cdef int _handle_rare(self, uint8_t first, const uint8_t* body, Py_ssize_t size) except -1
    cdef int _handle_connect(self, bytes body) except -1
    cdef int _handle_pubrel(self, const uint8_t* body, Py_ssize_t size) except -1
    cdef void _fail(self, object reason, str detail)
