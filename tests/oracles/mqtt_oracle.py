"""The slow, obvious twin of `iotmq.mqtt.connection.ServerConnection`: whole packets, Python objects."""

from __future__ import annotations

from dataclasses import dataclass, field

from iotmq.mqtt import packets, reason_codes, topics
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import Reason


@dataclass
class Outcome:
    """Everything an observer of a connection can see."""

    events: list[packets.Event] = field(default_factory=list)
    published: list[tuple[str, bytes, int, bool, int]] = field(default_factory=list)
    output: bytes = b""
    close_reason: Reason | None = None


def split_packets(stream: bytes, *, packet_bytes_max: int) -> list[tuple[int, bytes]]:
    """(first byte, body) of every whole packet; an MqttProtocolError is last where the stream is broken."""
    found: list = []
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
        found.append((stream[at], stream[start : start + remaining]))
        at = start + remaining
    return found


def run_connection(stream: bytes, *, packet_bytes_max: int) -> Outcome:
    """What a server does with `stream` when every session opens and every message is durable at once."""
    outcome = Outcome()
    if stream and stream[0] != packets.CONNECT << 4:
        is_connect = stream[0] >> 4 == packets.CONNECT
        outcome.close_reason = reason_codes.MALFORMED_PACKET if is_connect else reason_codes.PROTOCOL_ERROR
        return outcome
    is_open = False
    received: set[int] = set()
    sequence = 0
    for packet in split_packets(stream, packet_bytes_max=packet_bytes_max):
        try:
            if isinstance(packet, MqttProtocolError):
                raise packet
            first, body = packet
            kind, flags = first >> 4, first & 15
            if kind == packets.PUBLISH:
                qos = flags >> 1 & 3
                if qos == 3 or (qos == 0 and flags & 8) or len(body) < 2:
                    raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "flags")
                size = int.from_bytes(body[:2], "big")
                head = 2 + size + (2 if qos else 0)
                if head > len(body):
                    raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "short")
                packet_id = int.from_bytes(body[2 + size : head], "big") if qos else 0
                if qos and packet_id == 0:
                    raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "packet id 0")
                own = sequence
                if qos:
                    sequence += 1
                if qos == 2 and packet_id in received:
                    outcome.output += packets.encode_acknowledgement(packets.PUBREC, packet_id)
                    continue
                if qos == 2:
                    received.add(packet_id)
                topic = topics.decode_topic_name(body[2 : 2 + size])
                outcome.published.append((topic, body[head:], qos, bool(flags & 1), own if qos else 0))
                if qos:
                    answer = packets.PUBACK if qos == 1 else packets.PUBREC
                    outcome.output += packets.encode_acknowledgement(answer, packet_id)
                continue
            if kind in (packets.PUBACK, packets.PUBCOMP) and flags == 0 and len(body) == 2:
                continue
            if kind == packets.PUBREC and flags == 0 and len(body) == 2:
                # Nothing was sent: what the device thinks it got is released.
                packet_id = int.from_bytes(body, "big")
                if packet_id:
                    outcome.output += packets.encode_acknowledgement(packets.PUBREL, packet_id)
                continue
            wanted = 2 if kind in (packets.PUBREL, packets.SUBSCRIBE, packets.UNSUBSCRIBE) else 0
            if flags != wanted:
                raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "flags")
            if kind == packets.CONNECT:
                if is_open:
                    raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "second CONNECT")
                outcome.events.append(packets.decode_connect(body))
                outcome.output += packets.encode_connack(0, session_present=False)
                is_open = True
            elif kind == packets.SUBSCRIBE:
                outcome.events.append(packets.decode_subscribe(body))
            elif kind == packets.UNSUBSCRIBE:
                outcome.events.append(packets.decode_unsubscribe(body))
            elif kind == packets.PUBREL:
                if len(body) != 2:
                    raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "PUBREL")
                received.discard(int.from_bytes(body, "big"))
                outcome.output += packets.encode_acknowledgement(packets.PUBCOMP, int.from_bytes(body, "big"))
            elif kind in (packets.PINGREQ, packets.DISCONNECT):
                if body:
                    raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "body")
                if kind == packets.PINGREQ:
                    outcome.output += packets.PINGRESP_PACKET
                else:
                    outcome.events.append(packets.Disconnect())
                    outcome.close_reason = reason_codes.NORMAL
                    return outcome
            else:
                raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "not for a server")
        except MqttProtocolError as error:
            outcome.close_reason = error.reason
            if not is_open and error.reason.connack_code is not None:
                outcome.output += packets.encode_connack(error.reason.connack_code, session_present=False)
            return outcome
    return outcome
