from libc.stdint cimport uint16_t, uint32_t

from iotmq.mqtt.server.outbound cimport DeliveryOptions, OutboundMessage
from iotmq.mqtt_front.connection.device cimport Device
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage


cdef class MessageCopy:
    cdef bytes topic
    cdef bytes payload
    cdef bytes properties
    cdef OutboundMessage view
    cdef object __weakref__

    @staticmethod
    cdef MessageCopy of(OutgoingMessage message)
    cdef bint is_of(self, OutgoingMessage message) noexcept


cdef class HeldMessage:
    cdef MessageCopy copy
    cdef uint32_t identifier
    cdef DeliveryOptions delivery

    @staticmethod
    cdef HeldMessage of(MessageCopy copy, const DeliveryOptions* delivery, uint32_t identifier)
    cdef bint is_expired(self, double now_s) noexcept
    cdef uint16_t send(self, Device device, uint16_t packet_id) except? 0
