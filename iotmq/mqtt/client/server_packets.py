"""Packets that servers send, as a client reads them.

PUBLISH is read by `iotmq.mqtt.client.input`, which is compiled. What a client is sent becomes no record, so
the limits of records do not hold here: those of the packet do.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.field_reader import FieldReader
from iotmq.mqtt.codec.packets import PROTOCOL_LEVEL_5, REMAINING_LENGTH_MAX
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties, read_properties
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import (
    CONTINUE_AUTHENTICATION,
    FIRST_ERROR,
    MALFORMED_PACKET,
    PROTOCOL_ERROR,
    RE_AUTHENTICATE,
)
from iotmq.mqtt.topics import topics


class Connack(NamedTuple):
    """A CONNACK; `code` is that of the packet, so its meaning depends on the version."""

    is_session_present: bool
    code: int
    properties: Properties = NO_PROPERTIES


class Receipt(NamedTuple):
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""

    packet_id: int
    code: int = 0
    properties: Properties = NO_PROPERTIES


class Answers(NamedTuple):
    """SUBACK, or UNSUBACK of MQTT 5 (before, it has no codes): a code for each filter, in order."""

    packet_id: int
    codes: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


class ServerDisconnect(NamedTuple):
    """A DISCONNECT of MQTT 5 from the server."""

    code: int
    properties: Properties = NO_PROPERTIES


class ServerAuth(NamedTuple):
    """A step of enhanced authentication by the server (section 3.15)."""

    code: int
    properties: Properties = NO_PROPERTIES


class ServerPacketReader(FieldReader):
    """Takes every text that the specification allows, and as many properties as a packet has."""

    properties_bytes_max: ClassVar[int] = REMAINING_LENGTH_MAX
    user_properties_max: ClassVar[int] = REMAINING_LENGTH_MAX

    __slots__ = ()

    def value(self, what: str) -> str:
        return topics.decode_any_text(self.binary(), what=what)


def decode_connack(body: bytes, level: int) -> Connack:
    """Raises MqttProtocolError, as all of these do."""
    reader = ServerPacketReader(body, "CONNACK")
    flags, code = reader.u8(), reader.u8()
    if flags > 1:  # [MQTT-3.2.2-1]
        raise MqttProtocolError(MALFORMED_PACKET, f"CONNACK has flags {flags:#x}")
    if flags and code:  # [MQTT-3.2.2-4], MQTT 5 [MQTT-3.2.2-6]
        raise MqttProtocolError(PROTOCOL_ERROR, "CONNACK refuses, and says that a session is present")
    # A server that does not know MQTT 5 answers in its own version.
    has_properties = level == PROTOCOL_LEVEL_5 and not reader.is_at_end
    properties = read_properties(reader, packets.CONNACK) if has_properties else NO_PROPERTIES
    reader.check_end()
    return Connack(bool(flags), code, properties)


def decode_receipt(packet_type: int, body: bytes, level: int) -> Receipt:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""
    reader = ServerPacketReader(body, packets.RECEIPT_NAMES[packet_type])
    packet_id = reader.packet_id()
    if level != PROTOCOL_LEVEL_5:
        reader.check_end()
        return Receipt(packet_id)
    return Receipt(packet_id, *packets.read_reason(reader, packet_type))


def decode_suback(body: bytes, level: int) -> Answers:
    """Codes are the granted QoS, or 0x80 and above for a filter that is refused."""
    reader = ServerPacketReader(body, "SUBACK")
    packet_id = reader.packet_id()
    properties = read_properties(reader, packets.SUBACK) if level == PROTOCOL_LEVEL_5 else NO_PROPERTIES
    codes = tuple(reader.rest())
    if any(2 < code < FIRST_ERROR for code in codes):  # [MQTT-3.9.3-2]
        raise MqttProtocolError(MALFORMED_PACKET, "SUBACK has a code that is reserved")
    return Answers(packet_id, codes, properties)


def decode_unsuback(body: bytes, level: int) -> Answers:
    """Before MQTT 5 there are no codes."""
    reader = ServerPacketReader(body, "UNSUBACK")
    packet_id = reader.packet_id()
    if level != PROTOCOL_LEVEL_5:
        reader.check_end()
        return Answers(packet_id, ())
    properties = read_properties(reader, packets.UNSUBACK)
    return Answers(packet_id, tuple(reader.rest()), properties)


def decode_server_disconnect(body: bytes) -> ServerDisconnect:
    """Return why the server ends the connection."""
    return ServerDisconnect(*packets.read_reason(ServerPacketReader(body, "DISCONNECT"), packets.DISCONNECT))


def decode_server_auth(body: bytes) -> ServerAuth:
    """Return the server's part of enhanced authentication."""
    # [MQTT-3.15.2-1]
    return ServerAuth(
        *packets.read_reason(
            ServerPacketReader(body, "AUTH"), packets.AUTH, {0x00, CONTINUE_AUTHENTICATION, RE_AUTHENTICATE}
        )
    )
