"""Define the calls from a device to its session and its transport, and what it tells users' programs."""

from libc.stdint cimport uint16_t, uint32_t

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt.server.outbound cimport DeliveryOptions
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage

from iotmq.hooks import Message


cdef class DeviceSession:
    """Define the calls from a device to a session that outlives its connection; durable.DurableSession is one."""

    cdef bint send_beside_queues(
        self, OutgoingMessage message, const DeliveryOptions* delivery, uint32_t identifier
    ) except -1:
        """Send a message of QoS 2 that comes from no queue of the session; False when there is no room now."""
        raise NotImplementedError("a DeviceSession overrides send_beside_queues")

    cdef int message_done(self, uint16_t packet_id, uint32_t place) except -1:
        """PUBACK or PUBCOMP came."""
        raise NotImplementedError("a DeviceSession overrides message_done")

    cdef int message_received(self, uint16_t packet_id, uint32_t place) except -1:
        """PUBREC came; 1 when PUBREL may follow at once."""
        raise NotImplementedError("a DeviceSession overrides message_received")

    cdef int room_again(self) except -1:
        """The device may take more than before."""
        raise NotImplementedError("a DeviceSession overrides room_again")


cdef class DeviceLink:
    """Define the calls from a device to a transport that is compiled, too."""

    cdef int take(self, ByteBuffer* output) except -1:
        """Send the output, or keep it; leaves none of it."""
        raise NotImplementedError("a DeviceLink overrides take")


cdef object hook_message(str client_id, OutgoingMessage message, const DeliveryOptions* delivery):
    """Return a message to a device as programs see it (iotmq.hooks)."""
    return Message(
        client_id=client_id,
        topic=message.view.topic[:message.view.topic_size].decode("utf-8", "replace"),
        payload=message.view.payload[:message.view.payload_size],
        qos=delivery.qos,
        is_retained=bool(delivery.is_retained),
    )
