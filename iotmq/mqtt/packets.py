"""MQTT 3.1.1 control packets that are rare: decoded one at a time, encoded for clients and answers.

PUBLISH and its acknowledgements travel through `iotmq.mqtt.connection`, which never makes an object of
them; everything here costs microseconds and happens once per connection or subscription.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from iotmq import limits
from iotmq.mqtt import topics
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import (
    CLIENT_ID_NOT_VALID,
    MALFORMED_PACKET,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    UNSUPPORTED_PROTOCOL_VERSION,
)

CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14

PROTOCOL_LEVEL_3_1_1: Final = 4
REMAINING_LENGTH_MAX: Final = 268_435_455


class Will(NamedTuple):
    """What is published for a device that goes away without a DISCONNECT."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class Connect(NamedTuple):
    """A CONNECT that kept every rule; `client_id` is empty when the server is to assign one."""

    client_id: str
    clean_session: bool
    keep_alive_s: int
    will: Will | None
    user_name: str | None
    password: bytes | None


class Subscribe(NamedTuple):
    """A SUBSCRIBE: pairs of filter and requested QoS, in the packet's order."""

    packet_id: int
    subscriptions: tuple[tuple[str, int], ...]


class Unsubscribe(NamedTuple):
    """An UNSUBSCRIBE: filters in the packet's order."""

    packet_id: int
    filters: tuple[str, ...]


class Disconnect(NamedTuple):
    """A clean DISCONNECT: the will is dropped."""


Event = Connect | Subscribe | Unsubscribe | Disconnect


class _Reader:
    """A cursor over one packet's bytes; reading past the end is a malformed packet."""

    __slots__ = ("_at", "_body", "_packet")

    def __init__(self, body: bytes, packet: str) -> None:
        self._body = body
        self._at = 0
        self._packet = packet

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._body)

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._body):
            raise MqttProtocolError(MALFORMED_PACKET, f"{self._packet} ends in the middle of a field")
        piece = self._body[self._at : end]
        self._at = end
        return piece

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def binary(self) -> bytes:
        return self.take(self.u16())

    def packet_id(self) -> int:
        packet_id = self.u16()
        if packet_id == 0:  # [MQTT-2.3.1-1]
            raise MqttProtocolError(PROTOCOL_ERROR, f"{self._packet} has packet id 0")
        return packet_id


def decode_connect(body: bytes) -> Connect:
    """Decode the bytes behind a CONNECT's fixed header.

    Raises MqttProtocolError whose reason carries the CONNACK code, where the specification has one.
    """
    reader = _Reader(body, "CONNECT")
    _check_protocol(reader)
    flags = reader.u8()
    if flags & 1:  # [MQTT-3.1.2-3]
        raise MqttProtocolError(PROTOCOL_ERROR, "CONNECT has its reserved flag set")
    has_will = bool(flags & 0x04)
    will_qos = flags >> 3 & 3
    will_retain = bool(flags & 0x20)
    if will_qos == 3 or (not has_will and (will_qos or will_retain)):  # [MQTT-3.1.2-11, -13, -14, -15]
        raise MqttProtocolError(PROTOCOL_ERROR, "CONNECT has will flags that contradict each other")
    if flags & 0x40 and not flags & 0x80:  # [MQTT-3.1.2-22]
        raise MqttProtocolError(PROTOCOL_ERROR, "CONNECT has a password without a user name")
    keep_alive_s = reader.u16()
    client_id = _decode_client_id(reader.binary(), clean_session=bool(flags & 0x02))
    will = None
    if has_will:
        topic = topics.decode_topic_name(reader.binary())
        will = Will(topic, reader.binary(), will_qos, will_retain)
    user_name = topics.decode_text(reader.binary(), what="user name") if flags & 0x80 else None
    password = reader.binary() if flags & 0x40 else None
    if not reader.is_at_end:
        raise MqttProtocolError(MALFORMED_PACKET, "CONNECT has bytes behind its last field")
    return Connect(client_id, bool(flags & 0x02), keep_alive_s, will, user_name, password)


def _check_protocol(reader: _Reader) -> None:
    name = reader.binary()
    level = reader.u8()
    if name == b"MQTT" and level == PROTOCOL_LEVEL_3_1_1:
        return
    if name in (b"MQTT", b"MQIsdp"):  # [MQTT-3.1.2-2]
        raise MqttProtocolError(
            UNSUPPORTED_PROTOCOL_VERSION,
            f"protocol {name.decode()} level {level} is not supported, use MQTT 3.1.1",
        )
    raise MqttProtocolError(PROTOCOL_ERROR, "CONNECT names another protocol")  # [MQTT-3.1.2-1]


def _decode_client_id(raw: bytes, *, clean_session: bool) -> str:
    if len(raw) > limits.MQTT_CLIENT_ID_BYTES_MAX:
        raise MqttProtocolError(
            CLIENT_ID_NOT_VALID,
            f"client id is {len(raw)} bytes, at most {limits.MQTT_CLIENT_ID_BYTES_MAX} are allowed",
        )
    try:
        client_id = topics.decode_text(raw, what="client id")
    except MqttProtocolError as error:
        raise MqttProtocolError(CLIENT_ID_NOT_VALID, str(error)) from None
    if not client_id and not clean_session:  # [MQTT-3.1.3-8]
        raise MqttProtocolError(CLIENT_ID_NOT_VALID, "an empty client id needs a clean session")
    return client_id


def decode_subscribe(body: bytes) -> Subscribe:
    """Decode the bytes behind a SUBSCRIBE's fixed header; at least one filter [MQTT-3.8.3-3]."""
    reader = _Reader(body, "SUBSCRIBE")
    packet_id = reader.packet_id()
    subscriptions: list[tuple[str, int]] = []
    while not reader.is_at_end:
        topic_filter = topics.decode_topic_filter(reader.binary())
        qos = reader.u8()
        if qos > 2:  # [MQTT-3-8.3-4]
            raise MqttProtocolError(MALFORMED_PACKET, f"SUBSCRIBE asks for QoS byte {qos:#x}")
        subscriptions.append((topic_filter, qos))
        _check_filter_count(len(subscriptions))
    if not subscriptions:
        raise MqttProtocolError(PROTOCOL_ERROR, "SUBSCRIBE has no filter")
    return Subscribe(packet_id, tuple(subscriptions))


def decode_unsubscribe(body: bytes) -> Unsubscribe:
    """Decode the bytes behind an UNSUBSCRIBE's fixed header; at least one filter [MQTT-3.10.3-2]."""
    reader = _Reader(body, "UNSUBSCRIBE")
    packet_id = reader.packet_id()
    filters: list[str] = []
    while not reader.is_at_end:
        filters.append(topics.decode_topic_filter(reader.binary()))
        _check_filter_count(len(filters))
    if not filters:
        raise MqttProtocolError(PROTOCOL_ERROR, "UNSUBSCRIBE has no filter")
    return Unsubscribe(packet_id, tuple(filters))


def _check_filter_count(count: int) -> None:
    if count > limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX:
        raise MqttProtocolError(
            QUOTA_EXCEEDED, f"more than {limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX} filters in one packet"
        )


def encode_packet(packet_type: int, flags: int, body: bytes) -> bytes:
    """A whole packet: fixed header with remaining length [section 2.2.3], then `body`."""
    if len(body) > REMAINING_LENGTH_MAX:
        raise ValueError(f"a packet body of {len(body)} bytes cannot be encoded")
    header = bytearray([packet_type << 4 | flags])
    remaining = len(body)
    while True:
        remaining, digit = remaining >> 7, remaining & 0x7F
        header.append(digit | 0x80 if remaining else digit)
        if not remaining:
            return bytes(header) + body


def _text(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return len(raw).to_bytes(2, "big") + raw


def encode_connect(connect: Connect) -> bytes:
    """A CONNECT of protocol level 4, as a client sends it."""
    flags = 0x02 if connect.clean_session else 0
    payload = _text(connect.client_id)
    if connect.will is not None:
        flags |= 0x04 | connect.will.qos << 3 | (0x20 if connect.will.retain else 0)
        payload += _text(connect.will.topic) + _text(connect.will.payload)
    if connect.user_name is not None:
        flags |= 0x80
        payload += _text(connect.user_name)
    if connect.password is not None:
        flags |= 0x40
        payload += _text(connect.password)
    head = _text("MQTT") + bytes([PROTOCOL_LEVEL_3_1_1, flags]) + connect.keep_alive_s.to_bytes(2, "big")
    return encode_packet(CONNECT, 0, head + payload)


def encode_connack(return_code: int, *, session_present: bool) -> bytes:
    """A CONNACK; a refusal never says that a session is present [MQTT-3.2.2-4]."""
    return bytes([CONNACK << 4, 2, 1 if session_present and return_code == 0 else 0, return_code])


def encode_publish(
    topic: str | bytes,
    payload: bytes,
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    dup: bool = False,
) -> bytes:
    """A PUBLISH; `packet_id` is used for QoS 1 and 2 only."""
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    flags = (8 if dup else 0) | qos << 1 | (1 if retain else 0)
    return encode_packet(PUBLISH, flags, _text(topic) + identifier + payload)


def encode_acknowledgement(packet_type: int, packet_id: int) -> bytes:
    """PUBACK, PUBREC, PUBREL, PUBCOMP or UNSUBACK: two bytes of packet id behind the header."""
    flags = 2 if packet_type == PUBREL else 0
    return encode_packet(packet_type, flags, packet_id.to_bytes(2, "big"))


def encode_subscribe(packet_id: int, subscriptions: Sequence[tuple[str, int]]) -> bytes:
    """A SUBSCRIBE of (filter, QoS) pairs."""
    pairs = b"".join(_text(topic_filter) + bytes([qos]) for topic_filter, qos in subscriptions)
    return encode_packet(SUBSCRIBE, 2, packet_id.to_bytes(2, "big") + pairs)


def encode_suback(packet_id: int, return_codes: Sequence[int]) -> bytes:
    """A SUBACK: one return code per filter, in order [MQTT-3.8.4-5]."""
    return encode_packet(SUBACK, 0, packet_id.to_bytes(2, "big") + bytes(return_codes))


def encode_unsubscribe(packet_id: int, filters: Sequence[str]) -> bytes:
    """An UNSUBSCRIBE."""
    return encode_packet(UNSUBSCRIBE, 2, packet_id.to_bytes(2, "big") + b"".join(map(_text, filters)))


PINGREQ_PACKET: Final = bytes([PINGREQ << 4, 0])
PINGRESP_PACKET: Final = bytes([PINGRESP << 4, 0])
DISCONNECT_PACKET: Final = bytes([DISCONNECT << 4, 0])
