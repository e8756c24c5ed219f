"""Named MQTT 5 byte streams from a client, and why each ends the connection (None: it goes on)."""

from __future__ import annotations

from mqtt_corpus import Case

from iotmq import limits
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.framing import encode_variable_integer
from iotmq.mqtt.codec.packets import Connect, Will
from iotmq.mqtt.codec.properties import (
    NO_PROPERTIES,
    Properties,
    encode_properties,
    write_binary,
    write_text,
)

MALFORMED = reason_codes.MALFORMED_PACKET
PROTOCOL = reason_codes.PROTOCOL_ERROR


def connect_with(properties: Properties = NO_PROPERTIES, **fields: object) -> bytes:
    """A CONNECT of MQTT 5."""
    connect = Connect("device-1", True, 60, None, None, None, 5, properties)
    return packets.encode_connect(connect._replace(**fields))


CONNECT5 = connect_with(Properties(session_expiry_s=60))


def publish(raw: bytes | Properties, topic: str = "a", *, qos: int = 0, packet_id: int = 1) -> bytes:
    """A PUBLISH with these properties, encoded or not."""
    encoded = (
        encode_properties(raw) if isinstance(raw, Properties) else encode_variable_integer(len(raw)) + raw
    )
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    return packets.encode_packet(packets.PUBLISH, qos << 1, write_text(topic) + identifier + encoded + b"x")


def _connect(flags: int, behind: bytes, *, properties: bytes = b"\0") -> bytes:
    return packets.encode_packet(
        packets.CONNECT, 0, b"\0\4MQTT\5" + bytes([flags]) + b"\0\x3c" + properties + behind
    )


def _packet(kind: int, flags: int, *parts: bytes) -> bytes:
    return packets.encode_packet(kind, flags, b"".join(parts))


EVERYTHING = Properties(
    payload_format=1,
    message_expiry_s=3_600,
    content_type="text/plain",
    response_topic="answers/1",
    correlation_data=b"\0\1\xff",
    user_properties=(("site", "北"), ("site", "2"), ("", "")),
)
_CONNECT_PROPERTIES = Properties(
    session_expiry_s=3_600,
    receive_max=10,
    packet_bytes_max=65_536,
    topic_alias_max=5,
    request_response_information=1,
    request_problem_information=0,
    user_properties=(("a", "b"),),
)
_USERS_MAX = limits.MQTT_USER_PROPERTIES_MAX
_BYTES_MAX = limits.MQTT_PROPERTIES_BYTES_MAX

# Packets that are right, each with one way to write it.
VALID: list[Case] = [
    Case("connect", CONNECT5, is_first=True),
    Case("connect with every property", connect_with(_CONNECT_PROPERTIES), is_first=True),
    Case(
        "connect with a will",
        connect_with(
            will=Will(
                "w/t", b"gone", 1, True, Properties(will_delay_s=5, content_type="x", message_expiry_s=1)
            )
        ),
        is_first=True,
    ),
    Case(
        "connect without client id, not clean", connect_with(client_id="", clean_session=False), is_first=True
    ),
    Case("connect with a password alone", connect_with(password=b"secret"), is_first=True),
    Case("publish", publish(NO_PROPERTIES)),
    Case("publish with every property", publish(EVERYTHING, qos=1)),
    Case("publish qos 2", publish(EVERYTHING, qos=2) + packets.encode_acknowledgement(packets.PUBREL, 1)),
    Case("publish sets and uses an alias", publish(b"\x23\0\1", "long/topic") + publish(b"\x23\0\1", "")),
    Case(
        "publish changes an alias",
        publish(b"\x23\0\1", "one") + publish(b"\x23\0\1", "two") + publish(b"\x23\0\1", "", qos=1),
    ),
    Case("publish with the highest alias", publish(b"\x23\0\x20", "a")),
    Case("publish with as many user properties as are allowed", publish(b"\x26\0\0\0\0" * _USERS_MAX)),
    Case(
        "publish with as many bytes of properties as are allowed",
        publish(b"\x09" + write_binary(bytes(_BYTES_MAX - 3))),
    ),
    Case("puback with a reason", _packet(4, 0, b"\0\7\x10")),
    Case(
        "puback that refuses, with properties",
        _packet(4, 0, b"\0\7\x97", encode_properties(Properties(reason_string="full"))),
    ),
    Case("pubrec that refuses", _packet(5, 0, b"\0\7\x80")),
    Case("pubrec of nothing", _packet(5, 0, b"\0\7\0")),
    Case("pubrel with a reason", _packet(6, 2, b"\0\7\x92")),
    Case("pubcomp with a reason and no properties", _packet(7, 0, b"\0\7\x92\0")),
    Case(
        "subscribe",
        packets.encode_subscribe(
            1, [("a/+", 0), ("#", 0x2D)], Properties(subscription_identifiers=(268_435_455,))
        ),
    ),
    Case(
        "subscribe with user properties",
        packets.encode_subscribe(1, [("a", 2)], Properties(user_properties=(("a", "b"),))),
    ),
    Case(
        "unsubscribe", packets.encode_unsubscribe(2, ["a", "b/#"], Properties(user_properties=(("a", "b"),)))
    ),
    Case("pingreq", packets.PINGREQ_PACKET),
    Case("disconnect without anything", packets.DISCONNECT_PACKET, reason_codes.NORMAL),
    Case("disconnect with will", _packet(14, 0, b"\4"), reason_codes.NORMAL),
    Case(
        "disconnect with an expiry",
        packets.encode_disconnect(0, Properties(session_expiry_s=5, reason_string="bye")),
        reason_codes.NORMAL,
    ),
]

BROKEN: list[Case] = [
    Case("reserved flag", _connect(3, write_text("d")), MALFORMED, is_first=True),
    Case("will qos 3", _connect(0x1E, write_text("d")), MALFORMED, is_first=True),
    Case("will retain without will", _connect(0x22, write_text("d")), MALFORMED, is_first=True),
    Case(
        "connect with a property of publish",
        _connect(2, write_text("d"), properties=b"\2\1\1"),
        MALFORMED,
        is_first=True,
    ),
    Case(
        "connect with an unknown property",
        _connect(2, write_text("d"), properties=b"\2\x7f\1"),
        MALFORMED,
        is_first=True,
    ),
    Case(
        "receive maximum 0", _connect(2, write_text("d"), properties=b"\3\x21\0\0"), PROTOCOL, is_first=True
    ),
    Case(
        "maximum packet size 0",
        _connect(2, write_text("d"), properties=b"\5\x27\0\0\0\0"),
        PROTOCOL,
        is_first=True,
    ),
    Case(
        "session expiry twice",
        _connect(2, write_text("d"), properties=b"\x0a" + b"\x11\0\0\0\1" * 2),
        PROTOCOL,
        is_first=True,
    ),
    Case(
        "request problem information 2",
        _connect(2, write_text("d"), properties=b"\2\x17\2"),
        PROTOCOL,
        is_first=True,
    ),
    Case(
        "authentication data alone",
        _connect(2, write_text("d"), properties=b"\4\x16\0\1x"),
        PROTOCOL,
        is_first=True,
    ),
    Case(
        "an authentication method",
        connect_with(Properties(authentication_method="SCRAM-SHA-1")),
        reason_codes.BAD_AUTHENTICATION_METHOD,
        is_first=True,
    ),
    Case(
        "connect without properties",
        packets.encode_packet(1, 0, b"\0\4MQTT\5\2\0\x3c"),
        MALFORMED,
        is_first=True,
    ),
    Case(
        "client id past its maximum",
        connect_with(client_id="x" * (limits.MQTT_CLIENT_ID_BYTES_MAX + 1)),
        reason_codes.CLIENT_ID_NOT_VALID,
        is_first=True,
    ),
    Case(
        "will with a property of connect",
        _connect(6, write_text("d") + b"\5\x11\0\0\0\1" + b"\0\1w\0\0"),
        MALFORMED,
        is_first=True,
    ),
    Case(
        "will to a wildcard",
        connect_with(will=Will("a/#", b"", 0, False)),
        reason_codes.TOPIC_NAME_INVALID,
        is_first=True,
    ),
    Case("second connect", CONNECT5, PROTOCOL),
    Case("auth", _packet(15, 0, b"\x18\0"), PROTOCOL),
    Case("publish without properties", b"\x30\x03\0\1a", MALFORMED),
    Case("publish with properties past its end", _packet(3, 0, b"\0\1a\x05\1\1"), MALFORMED),
    Case("publish with a length not in shortest form", _packet(3, 0, b"\0\1a\x80\0"), MALFORMED),
    Case(
        "publish with a property length of five bytes", _packet(3, 0, b"\0\1a\x80\x80\x80\x80\1"), MALFORMED
    ),
    Case("publish with an unknown property", publish(b"\x04\0"), MALFORMED),
    Case("publish with a property of connect", publish(b"\x21\0\1"), MALFORMED),
    Case("publish with payload format 2", publish(b"\1\2"), PROTOCOL),
    Case("publish with payload format twice", publish(b"\1\1\1\1"), PROTOCOL),
    Case("publish with expiry twice", publish(b"\2\0\0\0\1" * 2), PROTOCOL),
    Case("publish with expiry cut", publish(b"\2\0\0\0"), MALFORMED),
    Case("publish with content type twice", publish(b"\3\0\1a" * 2), PROTOCOL),
    Case("publish with content type not UTF-8", publish(b"\3\0\1\xff"), MALFORMED),
    Case("publish with content type with NUL", publish(b"\3\0\1\0"), MALFORMED),
    Case("publish with a response topic with a wildcard", publish(b"\x08\0\3a/#"), PROTOCOL),
    Case("publish with an empty response topic", publish(b"\x08\0\0"), PROTOCOL),
    Case("publish with response topic twice", publish(b"\x08\0\1a" * 2), PROTOCOL),
    Case("publish with correlation data twice", publish(b"\x09\0\1a" * 2), PROTOCOL),
    Case("publish with correlation data cut", publish(b"\x09\0\5a"), MALFORMED),
    Case("publish with a subscription identifier", publish(b"\x0b\1"), PROTOCOL),
    Case("publish with half a user property", publish(b"\x26\0\1a"), MALFORMED),
    Case("publish with a user property that would forge one", publish(b"\x26\0\3a\x01b\0\1c"), MALFORMED),
    Case("publish with a surrogate in a user property", publish(b"\x26\0\3\xed\xa0\x80\0\0"), MALFORMED),
    Case(
        "publish with one user property too many",
        publish(b"\x26\0\0\0\0" * (_USERS_MAX + 1)),
        reason_codes.QUOTA_EXCEEDED,
    ),
    Case(
        "publish with one byte of properties too many",
        publish(b"\x09" + write_binary(bytes(_BYTES_MAX - 2))),
        reason_codes.QUOTA_EXCEEDED,
    ),
    Case("publish with alias 0", publish(b"\x23\0\0"), PROTOCOL),
    Case("publish with alias twice", publish(b"\x23\0\1\x23\0\2"), PROTOCOL),
    Case("publish with one alias too many", publish(b"\x23\0\x21"), reason_codes.TOPIC_ALIAS_INVALID),
    Case("publish with an alias that means nothing", publish(b"\x23\0\2", ""), PROTOCOL),
    Case("publish with neither topic nor alias", publish(b"", ""), PROTOCOL),
    Case("publish to a wildcard", publish(b"", "a/+"), reason_codes.TOPIC_NAME_INVALID),
    Case("publish packet id 0", publish(b"", qos=1, packet_id=0), PROTOCOL),
    Case("puback with a code it does not have", _packet(4, 0, b"\0\7\x92"), PROTOCOL),
    Case("puback cut", _packet(4, 0, b"\0"), MALFORMED),
    Case("puback with a property it cannot have", _packet(4, 0, b"\0\7\0\2\1\1"), MALFORMED),
    Case("puback with reason string twice", _packet(4, 0, b"\0\7\0\x08" + b"\x1f\0\1a" * 2), PROTOCOL),
    Case("puback with bytes behind", _packet(4, 0, b"\0\7\0\0x"), MALFORMED),
    Case("pubrel with a code it does not have", _packet(6, 2, b"\0\7\x80"), PROTOCOL),
    Case("pubrel without its flags", _packet(6, 0, b"\0\7\0"), MALFORMED),
    Case("pubcomp with flags", _packet(7, 1, b"\0\7\0"), MALFORMED),
    Case("subscribe without properties", packets.encode_packet(8, 2, b"\0\1"), MALFORMED),
    Case("subscribe to nothing", packets.encode_subscribe(1, [], NO_PROPERTIES), PROTOCOL),
    Case("subscribe qos 3", packets.encode_subscribe(1, [("a", 3)], NO_PROPERTIES), PROTOCOL),
    Case("subscribe retain handling 3", packets.encode_subscribe(1, [("a", 0x30)], NO_PROPERTIES), PROTOCOL),
    Case("subscribe reserved options", packets.encode_subscribe(1, [("a", 0x40)], NO_PROPERTIES), MALFORMED),
    Case(
        "subscribe no-local to a shared one",
        packets.encode_subscribe(1, [("$share/g/a", 5)], NO_PROPERTIES),
        PROTOCOL,
    ),
    Case("subscription identifier 0", _packet(8, 2, b"\0\1\2\x0b\0", b"\0\1a\0"), PROTOCOL),
    Case("two subscription identifiers", _packet(8, 2, b"\0\1\4\x0b\1\x0b\2", b"\0\1a\0"), PROTOCOL),
    Case("subscribe with a property of publish", _packet(8, 2, b"\0\1\2\1\1", b"\0\1a\0"), MALFORMED),
    Case("unsubscribe from nothing", packets.encode_unsubscribe(2, [], NO_PROPERTIES), PROTOCOL),
    Case("unsubscribe with an identifier", _packet(10, 2, b"\0\1\2\x0b\1", b"\0\1a"), MALFORMED),
    Case("pingreq with body", b"\xc0\x01x", MALFORMED),
    Case("disconnect with a code of the server", _packet(14, 0, b"\x8e"), PROTOCOL),
    Case(
        "disconnect with a server reference",
        packets.encode_disconnect(0, Properties(server_reference="x")),
        PROTOCOL,
    ),
    Case("disconnect with bytes behind", _packet(14, 0, b"\0\0x"), MALFORMED),
]
CORPUS = VALID + BROKEN
