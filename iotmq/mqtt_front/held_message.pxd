from libc.stdint cimport uint16_t, uint32_t

from iotmq.mqtt.outbound cimport DeliveryOptions, OutboundMessage
from iotmq.mqtt_front.device cimport Device
from iotmq.mqtt_front.outgoing cimport OutgoingMessage


cdef class HeldMessage:
    cdef bytes topic
    cdef bytes payload
    cdef bytes properties
    cdef uint32_t identifier
    cdef OutboundMessage view
    cdef DeliveryOptions delivery

    @staticmethod
    cdef HeldMessage of(OutgoingMessage message, const DeliveryOptions* delivery, uint32_t identifier)
    cdef bint is_expired(self, double now_s) noexcept
    cdef uint16_t send(self, Device device, uint16_t packet_id) except? 0
