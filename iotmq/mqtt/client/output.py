"""Encode a client's packets into one buffer, within what the server grants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from iotmq.mqtt.client.session import OutgoingMessage
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.framing import append_publish, decode_variable_integer, encode_variable_integer
from iotmq.mqtt.codec.packets import PROTOCOL_LEVEL_5
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties, encode_properties
from iotmq.mqtt.reason_codes import PACKET_TOO_LARGE, QOS_NOT_SUPPORTED, RETAIN_NOT_SUPPORTED
from iotmq.mqtt.topics.topic_aliases import OutboundAliases

_TOPIC_ALIAS: Final = 0x23
_NO_PROPERTIES: Final = b"\0"
# At most: fixed header, size of the topic, one byte more for that of the properties, packet id, and an alias.
_HEADER_BYTES_MAX: Final = 5 + 2 + 1 + 2 + 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Hold the limits of the server (MQTT 5 section 3.2.2.3), with the defaults where it names none."""

    receive_max: int = 65_535
    qos_max: int = 2
    packet_bytes_max: int = packets.REMAINING_LENGTH_MAX + 5
    has_retain: bool = True
    has_wildcards: bool = True
    has_sharing: bool = True
    has_subscription_identifiers: bool = True

    @classmethod
    def of(cls, connack: Properties) -> Granted:
        return cls(
            receive_max=connack.receive_max or 65_535,
            qos_max=2 if connack.qos_max is None else connack.qos_max,
            packet_bytes_max=connack.packet_bytes_max or packets.REMAINING_LENGTH_MAX + 5,
            has_retain=connack.is_retain_available != 0,
            has_wildcards=connack.are_wildcards_available != 0,
            has_sharing=connack.is_sharing_available != 0,
            has_subscription_identifiers=connack.are_subscription_identifiers_available != 0,
        )


class ClientOutput:
    """Return the packets that wait to be written."""

    def __init__(self, protocol_level: int) -> None:
        self._is_v5 = protocol_level == PROTOCOL_LEVEL_5
        self._data = bytearray()
        self._aliases: OutboundAliases | None = None
        # Of topic, properties and payload; with more a PUBLISH has no alias.
        self._aliased_bytes_max = 0
        # A publisher's messages mostly have the same properties: they are encoded once.
        self._last_properties = NO_PROPERTIES
        self._last_encoded = _NO_PROPERTIES

    @property
    def size(self) -> int:
        return len(self._data)

    def take(self) -> bytes:
        """Everything, which is gone then."""
        data, self._data = self._data, bytearray()
        return bytes(data)

    def write(self, packet: bytes) -> None:
        self._data += packet

    def give_aliases(self, count_max: int, packet_bytes_max: int) -> None:
        """Allow so many topic aliases: topics that come again get one, where a packet has room for it."""
        self._aliases = OutboundAliases(count_max)
        self._aliased_bytes_max = packet_bytes_max - _HEADER_BYTES_MAX

    def acknowledge(self, packet_type: int, packet_id: int, code: int = 0) -> None:
        """PUBACK, PUBREC, PUBREL or PUBCOMP."""
        self._data += packets.encode_acknowledgement(packet_type, packet_id, code)

    def refusal(self, message: OutgoingMessage, granted: Granted) -> tuple[int, str] | None:
        """Return why a message cannot be sent to a server that grants this: reason code and words."""
        if message.qos > granted.qos_max:  # [MQTT-3.2.2-11]
            return QOS_NOT_SUPPORTED, f"the server takes QoS {granted.qos_max} at most"
        if message.retain and not granted.has_retain:  # [MQTT-3.2.2-14]
            return RETAIN_NOT_SUPPORTED, "the server does not retain messages"
        size = len(message.payload) + len(message.topic) + _HEADER_BYTES_MAX
        if self._is_v5:
            size += len(self._encoded(message.properties))
        if size > granted.packet_bytes_max and self._exact_size(message) > granted.packet_bytes_max:
            # [MQTT-3.2.2-15]
            return (
                PACKET_TOO_LARGE.v5_code,
                f"a packet of {self._exact_size(message)} bytes; the server takes {granted.packet_bytes_max}",
            )
        return None

    def publish(self, message: OutgoingMessage, *, is_duplicate: bool = False) -> None:
        """A PUBLISH; with QoS 1 and 2 under the message's packet id."""
        topic, payload, qos = message.topic, message.payload, message.qos
        properties = b""
        if self._is_v5:
            properties = self._encoded(message.properties)
            size = len(topic) + len(properties) + len(payload)
            if self._aliases is not None and size <= self._aliased_bytes_max:
                alias, is_known = self._aliases.alias_of(topic)
                if alias:
                    properties = _with_alias(properties, alias)
                    topic = b"" if is_known else topic
        flags = is_duplicate << 3 | qos << 1 | message.retain
        append_publish(self._data, flags, topic, message.packet_id, properties, payload)

    def _exact_size(self, message: OutgoingMessage) -> int:
        """Return the size of its PUBLISH with the topic and without an alias."""
        remaining = 2 + len(message.topic) + (2 if message.qos else 0) + len(message.payload)
        if self._is_v5:
            remaining += len(self._encoded(message.properties))
        return 1 + len(encode_variable_integer(remaining)) + remaining

    def _encoded(self, properties: Properties) -> bytes:
        if properties is not self._last_properties:
            self._last_encoded = encode_properties(properties)
            self._last_properties = properties
        return self._last_encoded


def _with_alias(properties: bytes, alias: int) -> bytes:
    """Encoded properties with a topic alias before them."""
    rest = properties[decode_variable_integer(properties)[1] :]
    return encode_variable_integer(len(rest) + 3) + bytes([_TOPIC_ALIAS]) + alias.to_bytes(2, "big") + rest
