"""The slow, obvious twin of `iotmq.mqtt.server.connection.ServerConnection`: whole packets, Python
objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mqtt5_oracle

from iotmq import limits
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import NO_PROPERTIES
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import Reason
from iotmq.mqtt.topics import topics


@dataclass
class Outcome:
    """Everything an observer of a connection can see."""

    events: list[packets.Event] = field(default_factory=list)
    published: list[tuple[str, bytes, int, bool, int]] = field(default_factory=list)
    output: bytes = b""
    close_reason: Reason | None = None
    # Before the one that ended the connection; the compiled core only.
    chunks_taken: int = 0


def split_packets(stream: bytes, *, packet_bytes_max: int) -> list[Any]:
    """(first byte, body, whether its length is longer than it need be) of every whole packet.

    An MqttProtocolError is last where the stream is broken.
    """
    found: list[Any] = []
    at = 0
    while at < len(stream):
        remaining = 0
        for place in range(4):
            if at + 1 + place >= len(stream):
                return found
            digit = stream[at + 1 + place]
            remaining |= (digit & 0x7F) << (7 * place)
            if not digit & 0x80:
                break
        else:
            found.append(MqttProtocolError(reason_codes.MALFORMED_PACKET, "remaining length"))
            return found
        if remaining > packet_bytes_max:
            found.append(MqttProtocolError(reason_codes.PACKET_TOO_LARGE, "too large"))
            return found
        start = at + 2 + place
        if start + remaining > len(stream):
            return found
        is_padded = place > 0 and stream[start - 1] == 0
        found.append((stream[at], stream[start : start + remaining], is_padded))
        at = start + remaining
    return found


def run_connection(stream: bytes, *, packet_bytes_max: int) -> Outcome:
    """What a server does with `stream` when every session opens and every message is durable at once.

    What it says in MQTT 5 about the end of a connection comes without a reason string, and without the
    properties of a CONNACK: see `shortened`.
    """
    if stream and stream[0] != packets.CONNECT << 4:
        is_connect = stream[0] >> 4 == packets.CONNECT
        reason = reason_codes.MALFORMED_PACKET if is_connect else reason_codes.PROTOCOL_ERROR
        return Outcome(close_reason=reason)
    server = _Server()
    for packet in split_packets(stream, packet_bytes_max=packet_bytes_max):
        try:
            if isinstance(packet, MqttProtocolError):
                raise packet
            first, body, is_padded = packet
            if server.level == 5 and 2 + len(body) + (len(body) > 127) > packet_bytes_max:
                raise MqttProtocolError(reason_codes.PACKET_TOO_LARGE, "too large")
            if is_padded:
                server.check_length_form(body)
            server.handle(first, body)
        except MqttProtocolError as error:
            server.fail(error.reason)
        if server.outcome.close_reason is not None:
            break
    return server.outcome


def shortened(first: int, body: bytes) -> bytes:
    """A packet: a CONNACK or DISCONNECT of MQTT 5 without its properties, every other as it is."""
    kind = first >> 4
    if kind == packets.CONNACK and len(body) > 2:
        body = body[:2] + b"\0"
    elif kind == packets.DISCONNECT:
        body = body[:1] + b"\0"
    return packets.encode_packet(kind, first & 15, body)


class _Server:
    def __init__(self) -> None:
        self.outcome = Outcome()
        self.level = 4
        self.is_bridge = False
        self.is_open = False
        self.has_expiry = False
        self.received: set[int] = set()
        self.sequence = 0
        self.aliases: dict[int, str] = {}

    def fail(self, reason: Reason) -> None:
        self.outcome.close_reason = reason
        if self.level == 5:
            if self.is_open:
                self.outcome.output += packets.encode_disconnect(reason.v5_code)
            else:
                self.outcome.output += packets.encode_connack(
                    reason.v5_code, session_present=False, properties=NO_PROPERTIES
                )
        elif not self.is_open and reason.connack_code is not None:
            self.outcome.output += packets.encode_connack(reason.connack_code, session_present=False)

    def check_length_form(self, body: bytes) -> None:
        if self.is_open:
            is_v5 = self.level == 5
        else:
            is_v5 = body[:6] == b"\0\4MQTT" and len(body) > 6 and 5 <= body[6] < 0x80
        if is_v5:
            self.level = 5
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "length")

    def handle(self, first: int, body: bytes) -> None:
        kind, flags = first >> 4, first & 15
        if kind == packets.PUBLISH:
            self.publish(flags, body)
            return
        is_short = len(body) == 2 or self.level == 5
        if flags == 0 and is_short and kind in (packets.PUBACK, packets.PUBREC, packets.PUBCOMP):
            self.receipt(kind, body)
            return
        wanted = 2 if kind in (packets.PUBREL, packets.SUBSCRIBE, packets.UNSUBSCRIBE) else 0
        if flags != wanted and not (self.level == 3 and wanted and flags == wanted | 8):
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "flags")
        if kind == packets.CONNECT:
            self.connect(body)
        elif kind == packets.SUBSCRIBE:
            self.outcome.events.append(packets.decode_subscribe(body, self.level, is_bridge=self.is_bridge))
        elif kind == packets.UNSUBSCRIBE:
            self.outcome.events.append(packets.decode_unsubscribe(body, self.level))
        elif kind == packets.PUBREL:
            self.receipt(kind, body)
        elif kind == packets.DISCONNECT and self.level == 5:
            disconnect = packets.decode_disconnect(body)
            if disconnect.session_expiry_s and not self.has_expiry:
                raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "expiry")
            self.outcome.events.append(disconnect)
            self.outcome.close_reason = reason_codes.NORMAL
        elif kind in (packets.PINGREQ, packets.DISCONNECT):
            if body:
                raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "body")
            if kind == packets.PINGREQ:
                self.outcome.output += packets.PINGRESP_PACKET
            else:
                self.outcome.events.append(packets.Disconnect())
                self.outcome.close_reason = reason_codes.NORMAL
        else:
            if kind == packets.AUTH and self.level == 5:
                packets.decode_auth(body)  # it may be malformed
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "not for a server")

    def connect(self, body: bytes) -> None:
        if self.is_open:
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "second CONNECT")
        if body[:6] == b"\0\4MQTT" and len(body) > 6 and 5 <= body[6] < 0x80:
            self.level = 5
        connect = packets.decode_connect(body)
        self.level = connect.protocol_level
        self.is_bridge = connect.is_bridge
        if connect.properties.authentication_method is not None:
            raise MqttProtocolError(reason_codes.BAD_AUTHENTICATION_METHOD, "method")
        self.has_expiry = bool(connect.properties.session_expiry_s)
        self.outcome.events.append(connect)
        self.outcome.output += packets.encode_connack(
            0, session_present=False, properties=NO_PROPERTIES if self.level == 5 else None
        )
        self.is_open = True

    def publish(self, flags: int, body: bytes) -> None:
        qos = flags >> 1 & 3
        if qos == 3 or (qos == 0 and flags & 8 and self.level != 3) or len(body) < 2:
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "flags")
        size = int.from_bytes(body[:2], "big")
        head = 2 + size + (2 if qos else 0)
        if head > len(body):
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "short")
        packet_id = int.from_bytes(body[2 + size : head], "big") if qos else 0
        if qos and packet_id == 0:
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "packet id 0")
        raw_topic = body[2 : 2 + size]
        if self.level == 5:
            taken, properties = mqtt5_oracle.read_properties(body[head:], packets.PUBLISH)
            head += taken
            raw_topic = self.resolve(raw_topic, properties)
        own = self.sequence
        if qos:
            self.sequence += 1
        if qos == 2 and packet_id in self.received:
            self.outcome.output += packets.encode_acknowledgement(packets.PUBREC, packet_id)
            return
        if qos == 2:
            self.received.add(packet_id)
        topic = topics.decode_topic_name(raw_topic)
        self.outcome.published.append((topic, body[head:], qos, bool(flags & 1), own if qos else 0))
        if qos:
            answer = packets.PUBACK if qos == 1 else packets.PUBREC
            self.outcome.output += packets.encode_acknowledgement(answer, packet_id)

    def resolve(self, raw_topic: bytes, properties: dict[str, Any]) -> bytes:
        if "subscription_identifiers" in properties:
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "subscription identifier")
        alias = properties.get("topic_alias")
        if alias is None:
            if not raw_topic:
                raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "no topic")
            return raw_topic
        if alias > limits.MQTT_TOPIC_ALIASES_MAX:
            raise MqttProtocolError(reason_codes.TOPIC_ALIAS_INVALID, "alias")
        if raw_topic:
            self.aliases[alias] = raw_topic
        elif alias not in self.aliases:
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "unknown alias")
        return self.aliases[alias]

    def receipt(self, kind: int, body: bytes) -> None:
        """PUBACK, PUBREC, PUBREL and PUBCOMP. Nothing was sent: what the device thinks it got is released."""
        if self.level == 5 and len(body) != 2:
            packet_id, code = packets.decode_acknowledgement(kind, body)
        elif len(body) == 2:
            packet_id, code = int.from_bytes(body, "big"), 0
        else:
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "PUBREL")
        if packet_id == 0:
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "packet id 0")
        unknown = 0x92 if self.level == 5 else 0
        if kind == packets.PUBREC and code < 0x80:
            self.outcome.output += packets.encode_acknowledgement(packets.PUBREL, packet_id, unknown)
        elif kind == packets.PUBREL:
            code = 0 if packet_id in self.received else unknown
            self.received.discard(packet_id)
            self.outcome.output += packets.encode_acknowledgement(packets.PUBCOMP, packet_id, code)
