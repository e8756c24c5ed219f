"""Control packets of MQTT 3.1, 3.1.1 and 5 that are rare: decoded one at a time, encoded for everybody.

PUBLISH and its acknowledgements travel through `iotmq.mqtt.server.connection`, which never makes an object of
them; everything here costs microseconds and happens once per connection or subscription. Where the versions
differ, a function takes the protocol level: 3, 4 or 5.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final, NamedTuple

from iotmq import limits
from iotmq.mqtt.codec.field_reader import FieldReader
from iotmq.mqtt.codec.framing import append_publish, encode_variable_integer
from iotmq.mqtt.codec.properties import (
    NO_PROPERTIES,
    WILL,
    Properties,
    encode_properties,
    read_properties,
    write_binary,
    write_text,
)
from iotmq.mqtt.codec.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED, SubscriptionOptions
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import (
    CLIENT_CODES,
    CLIENT_ID_NOT_VALID,
    MALFORMED_PACKET,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from iotmq.mqtt.topics import topics

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
AUTH: Final = 15

PROTOCOL_LEVEL_3_1: Final = 3
PROTOCOL_LEVEL_3_1_1: Final = 4
PROTOCOL_LEVEL_5: Final = 5
REMAINING_LENGTH_MAX: Final = 268_435_455


class Will(NamedTuple):
    """Describe the will message, published for a device that goes away without a DISCONNECT."""

    topic: str
    """The MQTT topic."""
    payload: bytes
    """The payload."""
    qos: int
    """0, 1 or 2."""
    retain: bool
    """Whether the message is retained."""
    properties: Properties = NO_PROPERTIES
    """Properties of MQTT 5, the will delay among them."""


class Connect(NamedTuple):
    """A CONNECT that kept every rule; `client_id` is empty when the server is to assign one.

    `clean_session` is what MQTT 5 calls clean start.
    """

    client_id: str
    clean_session: bool
    keep_alive_s: int
    will: Will | None
    user_name: str | None
    password: bytes | None
    protocol_level: int = PROTOCOL_LEVEL_3_1_1
    properties: Properties = NO_PROPERTIES
    is_bridge: bool = False
    """Whether it set the bit that bridges of MQTT 3.1 and 3.1.1 set."""


class Subscribe(NamedTuple):
    """A SUBSCRIBE: pairs of filter and options, in the packet's order.

    Options are the byte of MQTT 5 section 3.8.3.1, whose two lowest bits are the requested QoS, and all there
    is before.
    """

    packet_id: int
    subscriptions: tuple[tuple[str, int], ...]
    identifier: int = 0


class Unsubscribe(NamedTuple):
    """An UNSUBSCRIBE: filters in the packet's order."""

    packet_id: int
    filters: tuple[str, ...]


class Disconnect(NamedTuple):
    """A DISCONNECT: with reason code 0 the will is dropped. `session_expiry_s` is None when it stays."""

    reason_code: int = 0
    session_expiry_s: int | None = None


class Auth(NamedTuple):
    """An AUTH of a client: it goes on with an exchange (0x18), or begins one on a live connection (0x19)."""

    reason_code: int
    method: str
    data: bytes | None = None


Event = Connect | Subscribe | Unsubscribe | Disconnect | Auth


def decode_connect(body: bytes) -> Connect:
    """Decode the bytes behind a CONNECT's fixed header.

    Raises MqttProtocolError whose reason carries the CONNACK code, where the specification has one.
    """
    reader = FieldReader(body, "CONNECT")
    level, is_bridge = _read_protocol(reader)
    broken = MALFORMED_PACKET if level == PROTOCOL_LEVEL_5 else PROTOCOL_ERROR
    flags = reader.u8()
    if flags & 1 and level != PROTOCOL_LEVEL_3_1:  # [MQTT-3.1.2-3]
        raise MqttProtocolError(broken, "CONNECT has its reserved flag set")
    has_will = bool(flags & 0x04)
    will_qos = flags >> 3 & 3
    will_retain = bool(flags & 0x20)
    if will_qos == 3 or (not has_will and (will_qos or will_retain)):  # [MQTT-3.1.2-11, -13, -14, -15]
        raise MqttProtocolError(broken, "CONNECT has will flags that contradict each other")
    if flags & 0x40 and not flags & 0x80 and level != PROTOCOL_LEVEL_5:  # [MQTT-3.1.2-22]
        raise MqttProtocolError(PROTOCOL_ERROR, "CONNECT has a password without a user name")
    keep_alive_s = reader.u16()
    properties = NO_PROPERTIES
    if level == PROTOCOL_LEVEL_5:
        properties = read_properties(reader, CONNECT)
        if properties.authentication_data is not None and properties.authentication_method is None:
            raise MqttProtocolError(PROTOCOL_ERROR, "CONNECT has authentication data without a method")
    client_id = _decode_client_id(reader.binary(), level, is_clean=bool(flags & 0x02))
    will = None
    if has_will:
        will_properties = read_properties(reader, WILL) if level == PROTOCOL_LEVEL_5 else NO_PROPERTIES
        topic = topics.decode_topic_name(reader.binary())
        will = Will(topic, reader.binary(), will_qos, will_retain, will_properties)
    # MQTT 3.1 goes by what is there, because clients of MQTT 3 set the flags without it.
    is_lenient = level == PROTOCOL_LEVEL_3_1
    has_user_name = bool(flags & 0x80) and not (is_lenient and reader.is_at_end)
    user_name = topics.decode_text(reader.binary(), what="user name") if has_user_name else None
    has_password = bool(flags & 0x40) and not (is_lenient and reader.is_at_end)
    password = reader.binary() if has_password else None
    reader.check_end()
    return Connect(
        client_id, bool(flags & 0x02), keep_alive_s, will, user_name, password, level, properties, is_bridge
    )


def answer_level(body: bytes) -> int:
    """Return the protocol level in which a CONNECT that may be broken is answered."""
    is_named = body.startswith(b"\0\x04MQTT") and len(body) > 6
    # One with the bit of a bridge knows the answers of 3.1.1, and comes back without it.
    is_newer = is_named and PROTOCOL_LEVEL_5 <= body[6] < _BRIDGE_BIT
    return PROTOCOL_LEVEL_5 if is_newer else PROTOCOL_LEVEL_3_1_1


_PROTOCOLS: Final = {
    (b"MQIsdp", PROTOCOL_LEVEL_3_1),
    (b"MQTT", PROTOCOL_LEVEL_3_1_1),
    (b"MQTT", PROTOCOL_LEVEL_5),
}


# What bridges of Mosquitto and others add to the level of 3.1 and 3.1.1, which have no options to say what a
# bridge wants: retain flags as they were published, and nothing of its own back.
_BRIDGE_BIT: Final = 0x80


def _read_protocol(reader: FieldReader) -> tuple[int, bool]:
    name = reader.binary()
    level = reader.u8()
    if (name, level) in _PROTOCOLS:
        return level, False
    if (name, level & ~_BRIDGE_BIT) in _PROTOCOLS and level & ~_BRIDGE_BIT != PROTOCOL_LEVEL_5:
        return level & ~_BRIDGE_BIT, True
    if name in (b"MQTT", b"MQIsdp"):  # [MQTT-3.1.2-2]
        raise MqttProtocolError(
            UNSUPPORTED_PROTOCOL_VERSION,
            f"protocol {name.decode()} level {level} is not supported, use MQTT 3.1, 3.1.1 or 5",
        )
    raise MqttProtocolError(PROTOCOL_ERROR, "CONNECT names another protocol")  # [MQTT-3.1.2-1]


def _decode_client_id(raw: bytes, level: int, *, is_clean: bool) -> str:
    if len(raw) > limits.MQTT_CLIENT_ID_BYTES_MAX:
        raise MqttProtocolError(
            CLIENT_ID_NOT_VALID,
            f"client id is {len(raw)} bytes, at most {limits.MQTT_CLIENT_ID_BYTES_MAX} are allowed",
        )
    try:
        client_id = topics.decode_text(raw, what="client id")
    except MqttProtocolError as error:
        # What is no text is malformed wherever it is [MQTT-3.1.3-4], and before MQTT 5 gets no CONNACK
        # [MQTT-3.1.4-1]; what is text, but not to our taste, is refused.
        if level == PROTOCOL_LEVEL_5 or not topics.is_text(raw):
            raise
        raise MqttProtocolError(CLIENT_ID_NOT_VALID, str(error)) from None
    if not client_id and level == PROTOCOL_LEVEL_3_1:
        raise MqttProtocolError(CLIENT_ID_NOT_VALID, "MQTT 3.1 has no empty client id")
    if not client_id and not is_clean and level != PROTOCOL_LEVEL_5:  # [MQTT-3.1.3-8]
        raise MqttProtocolError(CLIENT_ID_NOT_VALID, "an empty client id needs a clean session")
    return client_id


def decode_subscribe(body: bytes, level: int = PROTOCOL_LEVEL_3_1_1, *, is_bridge: bool = False) -> Subscribe:
    """Decode the bytes behind a SUBSCRIBE's fixed header; at least one filter [MQTT-3.8.3-3].

    A bridge gets the options that it cannot ask for before MQTT 5.
    """
    reader = FieldReader(body, "SUBSCRIBE")
    packet_id = reader.packet_id()
    properties = read_properties(reader, SUBSCRIBE) if level == PROTOCOL_LEVEL_5 else NO_PROPERTIES
    subscriptions: list[tuple[str, int]] = []
    while not reader.is_at_end:
        topic_filter = topics.decode_topic_filter(reader.binary())
        options = reader.u8()
        _check_options(topic_filter, options, level)
        if is_bridge:
            options |= RETAIN_AS_PUBLISHED | (0 if topics.is_shared(topic_filter) else NO_LOCAL)
        subscriptions.append((topic_filter, options))
        _check_filter_count(len(subscriptions))
    if not subscriptions:
        raise MqttProtocolError(PROTOCOL_ERROR, "SUBSCRIBE has no filter")
    return Subscribe(packet_id, tuple(subscriptions), next(iter(properties.subscription_identifiers), 0))


def _check_options(topic_filter: str, options: int, level: int) -> None:
    if options & 3 == 3 or options & (0xC0 if level == PROTOCOL_LEVEL_5 else 0xFC):
        # [MQTT-3-8.3-4], MQTT 5 [MQTT-3.8.3-5]; QoS 3 is a protocol error there, section 3.8.3.1.
        is_quality = level == PROTOCOL_LEVEL_5 and not options & 0xC0
        raise MqttProtocolError(
            PROTOCOL_ERROR if is_quality else MALFORMED_PACKET, f"SUBSCRIBE has options {options:#x}"
        )
    asked = SubscriptionOptions.decode(options)
    if asked.retain_handling == 3:
        raise MqttProtocolError(PROTOCOL_ERROR, "SUBSCRIBE has retain handling 3")
    if asked.no_local and topics.is_shared(topic_filter):  # [MQTT-3.8.3-4]
        raise MqttProtocolError(PROTOCOL_ERROR, "SUBSCRIBE has no-local on a shared subscription")


def decode_unsubscribe(body: bytes, level: int = PROTOCOL_LEVEL_3_1_1) -> Unsubscribe:
    """Decode the bytes behind an UNSUBSCRIBE's fixed header; at least one filter [MQTT-3.10.3-2]."""
    reader = FieldReader(body, "UNSUBSCRIBE")
    packet_id = reader.packet_id()
    if level == PROTOCOL_LEVEL_5:
        read_properties(reader, UNSUBSCRIBE)
    filters: list[str] = []
    while not reader.is_at_end:
        filters.append(topics.decode_topic_filter(reader.binary()))
        _check_filter_count(len(filters))
    if not filters:
        raise MqttProtocolError(PROTOCOL_ERROR, "UNSUBSCRIBE has no filter")
    return Unsubscribe(packet_id, tuple(filters))


RECEIPT_NAMES: Final = {PUBACK: "PUBACK", PUBREC: "PUBREC", PUBREL: "PUBREL", PUBCOMP: "PUBCOMP"}


def decode_acknowledgement(packet_type: int, body: bytes) -> tuple[int, int]:
    """(packet id, reason code) of an MQTT 5 PUBACK, PUBREC, PUBREL or PUBCOMP."""
    reader = FieldReader(body, RECEIPT_NAMES[packet_type])
    packet_id = reader.packet_id()
    return packet_id, read_reason(reader, packet_type, CLIENT_CODES[packet_type])[0]


def decode_disconnect(body: bytes) -> Disconnect:
    """An MQTT 5 DISCONNECT from a client."""
    reader = FieldReader(body, "DISCONNECT")
    code, properties = read_reason(reader, DISCONNECT, CLIENT_CODES[DISCONNECT])
    if properties.server_reference is not None:
        raise MqttProtocolError(PROTOCOL_ERROR, "DISCONNECT of a client has a server reference")
    return Disconnect(code, properties.session_expiry_s)


def decode_auth(body: bytes) -> Auth:
    """An MQTT 5 AUTH from a client; it has a method in any case [section 3.15.2.2.2]."""
    code, properties = read_reason(FieldReader(body, "AUTH"), AUTH, CLIENT_CODES[AUTH])
    if properties.authentication_method is None:
        raise MqttProtocolError(PROTOCOL_ERROR, "AUTH has no authentication method")
    return Auth(code, properties.authentication_method, properties.authentication_data)


def read_reason(
    reader: FieldReader, packet_type: int, allowed: Set[int] | None = None
) -> tuple[int, Properties]:
    """Read the reason code, one of `allowed`, and the properties at a packet's end; both may be left out."""
    code = 0 if reader.is_at_end else reader.u8()
    if allowed is not None and code not in allowed:
        raise MqttProtocolError(PROTOCOL_ERROR, f"{reader.packet} has reason code {code:#x}")
    properties = NO_PROPERTIES if reader.is_at_end else read_properties(reader, packet_type)
    reader.check_end()
    return code, properties


def _check_filter_count(count: int) -> None:
    if count > limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX:
        raise MqttProtocolError(
            QUOTA_EXCEEDED, f"more than {limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX} filters in one packet"
        )


def encode_packet(packet_type: int, flags: int, body: bytes) -> bytes:
    """A whole packet: fixed header with remaining length [section 2.2.3], then `body`."""
    if len(body) > REMAINING_LENGTH_MAX:
        raise ValueError(f"a packet body of {len(body)} bytes cannot be encoded")
    return bytes([packet_type << 4 | flags]) + encode_variable_integer(len(body)) + body


def _optional(properties: Properties | None) -> bytes:
    return b"" if properties is None else encode_properties(properties)


def encode_connect(connect: Connect) -> bytes:
    """A CONNECT, as a client sends it."""
    is_v5 = connect.protocol_level == PROTOCOL_LEVEL_5
    flags = 0x02 if connect.clean_session else 0
    payload = write_text(connect.client_id)
    if connect.will is not None:
        flags |= 0x04 | connect.will.qos << 3 | (0x20 if connect.will.retain else 0)
        payload += _optional(connect.will.properties if is_v5 else None)
        payload += write_text(connect.will.topic) + write_binary(connect.will.payload)
    if connect.user_name is not None:
        flags |= 0x80
        payload += write_text(connect.user_name)
    if connect.password is not None:
        flags |= 0x40
        payload += write_binary(connect.password)
    name = "MQIsdp" if connect.protocol_level == PROTOCOL_LEVEL_3_1 else "MQTT"
    head = (
        write_text(name)
        + bytes([connect.protocol_level | connect.is_bridge * _BRIDGE_BIT, flags])
        + connect.keep_alive_s.to_bytes(2, "big")
    )
    return encode_packet(CONNECT, 0, head + _optional(connect.properties if is_v5 else None) + payload)


def encode_connack(code: int, *, session_present: bool, properties: Properties | None = None) -> bytes:
    """A CONNACK; a refusal never says that a session is present [MQTT-3.2.2-4].

    With properties, be they none, it is one of MQTT 5, as with all packets below.
    """
    head = bytes([1 if session_present and code == 0 else 0, code])
    return encode_packet(CONNACK, 0, head + _optional(properties))


def encode_publish(
    topic: str | bytes,
    payload: bytes,
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    dup: bool = False,
    properties: Properties | None = None,
) -> bytes:
    """A PUBLISH; `packet_id` is used for QoS 1 and 2 only."""
    packet = bytearray()
    raw_topic = topic.encode() if isinstance(topic, str) else topic
    append_publish(packet, dup << 3 | qos << 1 | retain, raw_topic, packet_id, _optional(properties), payload)
    return bytes(packet)


def encode_acknowledgement(packet_type: int, packet_id: int, code: int = 0) -> bytes:
    """A PUBACK, PUBREC, PUBREL or PUBCOMP, or an UNSUBACK before MQTT 5; a `code` of 0 is left out."""
    flags = 2 if packet_type == PUBREL else 0
    reason = bytes([code]) if code else b""
    return encode_packet(packet_type, flags, packet_id.to_bytes(2, "big") + reason)


def encode_auth(code: int, properties: Properties) -> bytes:
    """An AUTH, from either side."""
    return encode_packet(AUTH, 0, bytes([code]) + encode_properties(properties))


def encode_subscribe(
    packet_id: int, subscriptions: Sequence[tuple[str, int]], properties: Properties | None = None
) -> bytes:
    """A SUBSCRIBE of (filter, options) pairs."""
    pairs = b"".join(write_text(topic_filter) + bytes([options]) for topic_filter, options in subscriptions)
    return encode_packet(SUBSCRIBE, 2, packet_id.to_bytes(2, "big") + _optional(properties) + pairs)


def encode_suback(packet_id: int, codes: Sequence[int], properties: Properties | None = None) -> bytes:
    """A SUBACK: one code per filter, in order [MQTT-3.8.4-5]."""
    return encode_packet(SUBACK, 0, packet_id.to_bytes(2, "big") + _optional(properties) + bytes(codes))


def encode_unsubscribe(packet_id: int, filters: Sequence[str], properties: Properties | None = None) -> bytes:
    """An UNSUBSCRIBE."""
    names = b"".join(map(write_text, filters))
    return encode_packet(UNSUBSCRIBE, 2, packet_id.to_bytes(2, "big") + _optional(properties) + names)


def encode_unsuback(packet_id: int, codes: Sequence[int], properties: Properties) -> bytes:
    """An UNSUBACK of MQTT 5: one code per filter, in order."""
    return encode_packet(
        UNSUBACK, 0, packet_id.to_bytes(2, "big") + encode_properties(properties) + bytes(codes)
    )


def encode_disconnect(code: int, properties: Properties = NO_PROPERTIES) -> bytes:
    """A DISCONNECT of MQTT 5."""
    return encode_packet(DISCONNECT, 0, bytes([code]) + encode_properties(properties))


PINGREQ_PACKET: Final = bytes([PINGREQ << 4, 0])
PINGRESP_PACKET: Final = bytes([PINGRESP << 4, 0])
DISCONNECT_PACKET: Final = bytes([DISCONNECT << 4, 0])
