"""A message that waits for its turn at one device: a copy, because the record it came from may go."""

from libc.stdint cimport uint16_t, uint32_t

from iotmq.mqtt.outbound cimport DeliveryOptions
from iotmq.mqtt_front.device cimport Device
from iotmq.mqtt_front.outgoing cimport OutgoingMessage

cdef enum:
    EXPIRY_PROPERTY_BYTES = 5


cdef class HeldMessage:
    """What `Device.is_for_device` said of an OutgoingMessage, for later."""

    @staticmethod
    cdef HeldMessage of(OutgoingMessage message, const DeliveryOptions* delivery, uint32_t identifier):
        cdef HeldMessage held = HeldMessage()
        held.topic = message.view.topic[:message.view.topic_size]
        held.payload = message.view.payload[:message.view.payload_size]
        held.properties = b""
        if message.view.properties_size:
            held.properties = message.view.properties[:message.view.properties_size]
        held.delivery = delivery[0]
        held.identifier = identifier
        held.view = message.view
        return held

    cdef bint is_expired(self, double now_s) noexcept:
        """Whether nobody is to get it any more [MQTT-3.3.2-5]."""
        return self.view.has_expiry and self.view.expires_s <= now_s

    cdef uint16_t send(self, Device device, uint16_t packet_id) except? 0:
        """As `send_message`; the device is told what is left of the message's time [MQTT-3.3.2-6]."""
        if self.view.has_expiry and self.properties:
            left_s = min(max(1, <long long>(self.view.expires_s - device.group.now_s + 0.999)), 0xFFFFFFFF)
            self.properties = self.properties[:1] + left_s.to_bytes(4, "big") + self.properties[EXPIRY_PROPERTY_BYTES:]
        self.view.topic = self.topic
        self.view.payload = self.payload
        self.view.properties = self.properties
        self.delivery.identifiers = &self.identifier
        return device.send_message(&self.view, &self.delivery, packet_id)
