from libc.stdint cimport uint8_t, uint16_t, uint32_t

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt.codec.framing cimport Packet


cdef class ReceivedMessage:
    cdef readonly str topic
    cdef readonly bytes payload
    cdef readonly uint8_t qos
    cdef readonly bint is_retained
    cdef readonly bint is_duplicate
    cdef readonly uint16_t packet_id
    cdef readonly object properties


cdef class ClientInput:
    cdef ByteBuffer _unfinished
    cdef uint32_t _packet_bytes_max
    cdef int _protocol_level
    cdef int _topic_aliases_max
    cdef dict _aliases              # alias -> topic
    cdef bytes _last_topic_bytes    # a topic that comes again is not decoded again; its text is _last_topic
    cdef str _last_topic
    cdef bytes _last_raw_properties     # nor are properties; what they say is _last_properties
    cdef object _last_properties

    cdef ReceivedMessage _message(self, const Packet* packet)
    cdef str _topic(self, const uint8_t* at, Py_ssize_t size)
    cdef object _properties(self, const uint8_t* at, Py_ssize_t size)
    cdef str _resolve(self, int alias, str topic)
