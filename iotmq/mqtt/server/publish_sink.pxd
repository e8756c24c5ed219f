from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from iotmq.mqtt.codec.publish_properties cimport PublishProperties


cdef struct Publication:
    # A PUBLISH as it lies in the packet; valid during the call.
    const uint8_t* topic
    Py_ssize_t topic_size
    const uint8_t* payload
    Py_ssize_t payload_size
    uint32_t sequence       # what `ServerConnection.acknowledge` wants later, for QoS 1 and 2
    uint16_t packet_id      # 0 for QoS 0
    uint8_t qos
    bint is_retained
    bint is_duplicate       # the device may have sent it before
    const PublishProperties* properties     # of MQTT 5; NULL for a packet without any


cdef class PublishSink:
    cdef int on_publish(self, object connection, const Publication* publication) except -1
    cdef int on_release(self, object connection, uint16_t packet_id, object broker) except -1
    cdef int end_turn(self) except -1


cdef class CountingSink(PublishSink):
    cdef readonly uint64_t messages
    cdef readonly uint64_t payload_bytes
