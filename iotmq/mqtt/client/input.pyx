"""Decode what a client of MQTT is sent: bytes in, messages and packets out.

A PUBLISH becomes a `ReceivedMessage`; every other packet stays a pair of its first byte and its body, which
`iotmq.mqtt.client.server_packets` reads. Goal: a subscriber in Python takes some hundred thousand small
messages a second, so there is one object per message beside its payload, and a topic or properties that come
again are not decoded again.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memcmp

from iotmq.mqtt.codec.framing cimport (
    Packet,
    PublishHead,
    next_packet,
    read_publish_head,
    read_variable_integer,
)
from iotmq.mqtt.codec.packet_types cimport LEVEL_5, PACKET_PUBLISH

from iotmq.mqtt.client.server_packets import ServerPacketReader
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import NO_PROPERTIES, read_properties
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import MALFORMED_PACKET, PACKET_TOO_LARGE, PROTOCOL_ERROR, TOPIC_ALIAS_INVALID


cdef class ReceivedMessage:
    """An application message from the server. `packet_id` is 0 with QoS 0."""

    def __init__(
        self, str topic not None, bytes payload not None, *, int qos=0, bint is_retained=False, bint is_duplicate=False,
        int packet_id=0, properties=NO_PROPERTIES,
    ):
        self.topic = topic
        self.payload = payload
        self.qos = <uint8_t>qos
        self.is_retained = is_retained
        self.is_duplicate = is_duplicate
        self.packet_id = <uint16_t>packet_id
        self.properties = properties

    def __repr__(self):
        return f"ReceivedMessage({self.topic!r}, {self.payload[:64]!r}, qos={self.qos}, is_retained={self.is_retained})"


cdef class ClientInput:
    """The input of one connection. Sizes and aliases are what the server was told in CONNECT."""

    def __init__(self, *, int protocol_level, uint32_t packet_bytes_max, int topic_aliases_max):
        self._protocol_level = protocol_level
        self._packet_bytes_max = packet_bytes_max
        self._topic_aliases_max = topic_aliases_max
        self._aliases = {}
        self._last_topic_bytes = b""
        self._last_raw_properties = b"\0"
        self._last_properties = NO_PROPERTIES

    def __dealloc__(self):
        free(self._unfinished.data)

    def receive(self, const uint8_t[::1] data not None, list found not None):
        """Append what came whole to `found`; raises MqttProtocolError, with what came before in `found`."""
        cdef Py_ssize_t at = 0, size = data.shape[0]
        cdef Packet packet
        if not size:
            return
        while True:
            try:
                if not next_packet(&self._unfinished, &data[0], size, &at, self._packet_bytes_max, &packet):
                    return
            except MqttProtocolError as error:
                raise self._in_our_words(error) from None
            try:
                if packet.first >> 4 == PACKET_PUBLISH:
                    found.append(self._message(&packet))
                else:
                    found.append((packet.first, packet.body[:packet.size]))
            finally:
                free(packet.memory)

    def _in_our_words(self, error):
        """Name the setting of the client in an error that the framing words for a server."""
        if error.reason is not PACKET_TOO_LARGE:
            return error
        return MqttProtocolError(
            PACKET_TOO_LARGE, f"a packet is larger than the {self._packet_bytes_max} bytes that packet_bytes_max allows"
        )

    cdef ReceivedMessage _message(self, const Packet* packet):
        cdef const uint8_t* body = packet.body
        cdef Py_ssize_t size = packet.size, at, properties_size
        cdef PublishHead head
        cdef ReceivedMessage message = ReceivedMessage.__new__(ReceivedMessage)
        read_publish_head(packet, self._protocol_level, &head)
        at = head.size
        message.topic = self._topic(head.topic, head.topic_size)
        message.qos = head.qos
        message.is_retained = head.is_retained
        message.is_duplicate = head.is_duplicate
        message.packet_id = head.packet_id
        message.properties = NO_PROPERTIES
        if self._protocol_level == LEVEL_5:
            properties_size = _whole_size(body + at, size - at)
            if properties_size > 1:
                message.properties = self._properties(body + at, properties_size)
                if message.properties.topic_alias is not None:
                    message.topic = self._resolve(message.properties.topic_alias, message.topic)
            at += properties_size
        if not message.topic:
            raise MqttProtocolError(PROTOCOL_ERROR, "PUBLISH has neither a topic nor an alias")
        message.payload = body[at:size]
        return message

    cdef str _topic(self, const uint8_t* at, Py_ssize_t size):
        """Return the topic's text, empty when an alias stands for it."""
        cdef str topic
        cdef const uint8_t* last = self._last_topic_bytes
        if size == 0:
            return ""
        if size == len(self._last_topic_bytes) and memcmp(last, at, size) == 0:
            return self._last_topic
        try:
            topic = at[:size].decode("utf-8")
        except UnicodeDecodeError:
            raise MqttProtocolError(MALFORMED_PACKET, "PUBLISH has a topic that is not UTF-8") from None
        if "+" in topic or "#" in topic or "\0" in topic:  # [MQTT-3.3.2-2], [MQTT-4.7.3-2]
            raise MqttProtocolError(MALFORMED_PACKET, "PUBLISH has a topic with a wildcard or a NUL")
        self._last_topic_bytes = at[:size]
        self._last_topic = topic
        return topic

    cdef object _properties(self, const uint8_t* at, Py_ssize_t size):
        cdef const uint8_t* last = self._last_raw_properties
        if size != len(self._last_raw_properties) or memcmp(last, at, size) != 0:
            raw = at[:size]
            self._last_properties = read_properties(ServerPacketReader(raw, "PUBLISH"), packets.PUBLISH)
            self._last_raw_properties = raw
        return self._last_properties

    cdef str _resolve(self, int alias, str topic):
        """Remember what an alias means, or say it."""
        if alias > self._topic_aliases_max:  # [MQTT-3.3.2-11]
            raise MqttProtocolError(
                TOPIC_ALIAS_INVALID, f"PUBLISH has topic alias {alias}, {self._topic_aliases_max} are allowed"
            )
        if topic:
            self._aliases[alias] = topic
            return topic
        try:
            return self._aliases[alias]
        except KeyError:
            raise MqttProtocolError(
                PROTOCOL_ERROR, f"PUBLISH has topic alias {alias}, which means nothing yet"
            ) from None


cdef Py_ssize_t _whole_size(const uint8_t* at, Py_ssize_t size) except -1:
    """Bytes of the properties at `at` with their length."""
    cdef uint32_t value
    cdef int taken = read_variable_integer(at, size, &value)
    if taken <= 0 or size - taken < <Py_ssize_t>value:
        raise MqttProtocolError(MALFORMED_PACKET, "PUBLISH ends in its properties")
    return taken + <Py_ssize_t>value
