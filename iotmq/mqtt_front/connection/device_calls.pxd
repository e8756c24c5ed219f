from libc.stdint cimport uint16_t, uint32_t

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt.server.outbound cimport DeliveryOptions
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage


cdef class DeviceSession:
    """Define the calls from a device to a session that outlives its connection."""
    cdef bint send_beside_queues(self, OutgoingMessage message, const DeliveryOptions* delivery,
            uint32_t identifier) except -1
    cdef int message_done(self, uint16_t packet_id, uint32_t place) except -1
    cdef int message_received(self, uint16_t packet_id, uint32_t place) except -1
    cdef int room_again(self) except -1


cdef class DeviceLink:
    cdef int take(self, ByteBuffer* output) except -1


cdef object hook_message(str client_id, OutgoingMessage message, const DeliveryOptions* delivery)
