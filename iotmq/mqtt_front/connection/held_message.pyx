"""Messages that wait for their turn at devices: copies, because the records they came from may go."""

from libc.stdint cimport uint16_t, uint32_t
from libc.string cimport memcmp

from iotmq.mqtt.server.outbound cimport DeliveryOptions, OutboundMessage
from iotmq.mqtt_front.connection.device cimport Device
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage

cdef enum:
    EXPIRY_PROPERTY_BYTES = 5


cdef class MessageCopy:
    """Hold what is the same for all devices that a message waits for."""

    @staticmethod
    cdef MessageCopy of(OutgoingMessage message):
        cdef MessageCopy copy = MessageCopy()
        if not message.is_encoded:
            message.encode_properties()     # a device of MQTT 5 may be the next
        copy.view = message.view
        copy.topic = message.view.topic[:message.view.topic_size]
        copy.payload = message.view.payload[:message.view.payload_size]
        copy.properties = b""
        if message.view.properties_size:
            copy.properties = message.view.properties[:message.view.properties_size]
        copy.view.topic = copy.topic
        copy.view.payload = copy.payload
        copy.view.properties = copy.properties
        return copy

    cdef bint is_of(self, OutgoingMessage message) noexcept:
        """Return whether it is still that message which stands there: a log that lost its end has another one."""
        cdef OutboundMessage* view = &message.view
        return (
            view.topic_size == self.view.topic_size
            and view.payload_size == self.view.payload_size
            and memcmp(view.topic, self.view.topic, view.topic_size) == 0
            and memcmp(view.payload, self.view.payload, view.payload_size) == 0
        )


cdef class HeldMessage:
    """Keep the answer of `Device.is_for_device` about an OutgoingMessage for later."""

    @staticmethod
    cdef HeldMessage of(MessageCopy copy, const DeliveryOptions* delivery, uint32_t identifier):
        cdef HeldMessage held = HeldMessage()
        held.copy = copy
        held.delivery = delivery[0]
        held.identifier = identifier
        return held

    cdef bint is_expired(self, double now_s) noexcept:
        """Return whether nobody is to get it any more [MQTT-3.3.2-5]."""
        return self.copy.view.has_expiry and self.copy.view.expires_s <= now_s

    cdef uint16_t send(self, Device device, uint16_t packet_id) except? 0:
        """As `send_message`; the device is told what is left of the message's time [MQTT-3.3.2-6]."""
        cdef OutboundMessage view = self.copy.view
        cdef bytes properties = self.copy.properties
        if view.has_expiry:
            left_s = min(max(1, <long long>(view.expires_s - device.group.now_s + 0.999)), 0xFFFFFFFF)
            properties = properties[:1] + left_s.to_bytes(4, "big") + properties[EXPIRY_PROPERTY_BYTES:]
            view.properties = properties
        self.delivery.identifiers = &self.identifier
        return device.send_message(&view, &self.delivery, packet_id)
