"""Named MQTT byte streams from a client, and why each ends the connection (None: it goes on)."""

from __future__ import annotations

from typing import NamedTuple

from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect, Will
from iotmq.mqtt.reason_codes import Reason


class Case(NamedTuple):
    """`stream` follows a CONNECT unless `is_first`."""

    name: str
    stream: bytes
    reason: Reason | None = None
    is_first: bool = False


CONNECT = packets.encode_connect(Connect("device-1", True, 60, None, None, None))


def _connect(flags: int, payload: bytes, *, name: bytes = b"MQTT", level: int = 4) -> bytes:
    head = len(name).to_bytes(2, "big") + name + bytes([level, flags]) + b"\0\x3c"
    return packets.encode_packet(packets.CONNECT, 0, head + payload)


def _text(raw: bytes) -> bytes:
    return len(raw).to_bytes(2, "big") + raw


MALFORMED = reason_codes.MALFORMED_PACKET
PROTOCOL = reason_codes.PROTOCOL_ERROR

CORPUS: list[Case] = [
    Case("connect", CONNECT, is_first=True),
    Case(
        "connect with will, user and password",
        packets.encode_connect(Connect("d", False, 0, Will("w/t", b"gone", 1, True), "user", b"\0secret")),
        is_first=True,
    ),
    Case("connect with empty client id", _connect(2, _text(b"")), is_first=True),
    Case(
        "empty client id without clean session",
        _connect(0, _text(b"")),
        reason_codes.CLIENT_ID_NOT_VALID,
        is_first=True,
    ),
    Case("client id not UTF-8", _connect(2, _text(b"\xff")), MALFORMED, is_first=True),
    Case("client id with NUL", _connect(2, _text(b"a\0")), MALFORMED, is_first=True),
    Case(
        "client id with a control character",
        _connect(2, _text(b"a\n")),
        reason_codes.CLIENT_ID_NOT_VALID,
        is_first=True,
    ),
    Case(
        "protocol level 6",
        _connect(2, _text(b"d"), level=6),
        reason_codes.UNSUPPORTED_PROTOCOL_VERSION,
        is_first=True,
    ),
    Case(
        "protocol MQIsdp of a level it does not have",
        _connect(2, _text(b"d"), name=b"MQIsdp", level=4),
        reason_codes.UNSUPPORTED_PROTOCOL_VERSION,
        is_first=True,
    ),
    Case("another protocol", _connect(2, _text(b"d"), name=b"HTTP"), PROTOCOL, is_first=True),
    Case("reserved connect flag", _connect(3, _text(b"d")), PROTOCOL, is_first=True),
    Case("will qos 3", _connect(0x1E, _text(b"d") + _text(b"t") + _text(b"")), PROTOCOL, is_first=True),
    Case("will retain without will", _connect(0x22, _text(b"d")), PROTOCOL, is_first=True),
    Case("password without user name", _connect(0x42, _text(b"d") + _text(b"p")), PROTOCOL, is_first=True),
    Case("connect cut in the client id", _connect(2, b"\0\x09abc"), MALFORMED, is_first=True),
    Case("connect with bytes behind", _connect(2, _text(b"d") + b"x"), MALFORMED, is_first=True),
    Case("connect with flags", b"\x11" + CONNECT[1:], MALFORMED, is_first=True),
    Case("publish before connect", packets.encode_publish("a", b""), PROTOCOL, is_first=True),
    Case("http request", b"GET / HTTP/1.1\r\n\r\n", PROTOCOL, is_first=True),
    Case("tls client hello", bytes.fromhex("16030100a5010000a10303") + bytes(9), MALFORMED, is_first=True),
    Case("second connect", CONNECT, PROTOCOL),
    Case("publish qos 0", packets.encode_publish("devices/1/telemetry", b"21.5")),
    Case("publish qos 1", packets.encode_publish("devices/1/telemetry", b"21.5", qos=1, packet_id=7)),
    Case(
        "publish qos 1 dup retain",
        packets.encode_publish("a", b"x", qos=1, packet_id=7, dup=True, retain=True),
    ),
    Case(
        "publish qos 2",
        packets.encode_publish("a", b"x", qos=2, packet_id=9) + packets.encode_acknowledgement(6, 9),
    ),
    Case(
        "publish qos 2 twice",
        packets.encode_publish("a", b"x", qos=2, packet_id=9)
        + packets.encode_publish("a", b"x", qos=2, packet_id=9, dup=True)
        + packets.encode_acknowledgement(packets.PUBREL, 9)
        + packets.encode_publish("a", b"y", qos=2, packet_id=9),
    ),
    Case("publish with empty payload", packets.encode_publish("a", b"")),
    Case("publish of 300 bytes", packets.encode_publish("a/b", b"p" * 300, qos=1, packet_id=65535)),
    Case("publish to UTF-8 topic", packets.encode_publish("温度/ℬ/😀", b"1")),
    Case("publish to $ topic", packets.encode_publish("$other/x", b"1")),
    Case("publish qos 3", b"\x36\x05\0\x01a\0\x01", MALFORMED),
    Case("publish qos 0 with dup", b"\x38\x03\0\x01a", MALFORMED),
    Case("publish packet id 0", packets.encode_publish("a", b"x", qos=1, packet_id=0), PROTOCOL),
    Case("publish without topic length", b"\x30\x01\0", MALFORMED),
    Case("publish cut in its topic", b"\x30\x04\0\x09ab", MALFORMED),
    Case("publish cut before its packet id", b"\x32\x03\0\x01a", MALFORMED),
    Case("publish to empty topic", packets.encode_publish("", b"x"), reason_codes.TOPIC_NAME_INVALID),
    Case("publish to wildcard", packets.encode_publish("a/+", b"x"), reason_codes.TOPIC_NAME_INVALID),
    Case(
        "publish to #", packets.encode_publish("#", b"x", qos=1, packet_id=3), reason_codes.TOPIC_NAME_INVALID
    ),
    Case("publish to bad UTF-8", packets.encode_publish(b"a\xc3", b"x"), MALFORMED),
    Case("publish to surrogate", packets.encode_publish(b"a\xed\xa0\x80", b"x"), MALFORMED),
    Case("publish to topic with NUL", packets.encode_publish(b"a\0b", b"x"), MALFORMED),
    Case("publish to topic with separator", packets.encode_publish(b"a\x01b\x02", b"x"), MALFORMED),
    Case("puback of nothing", packets.encode_acknowledgement(packets.PUBACK, 77)),
    Case("puback of three bytes", b"\x40\x03\0\x01\0", PROTOCOL),
    Case("pubrec of nothing", packets.encode_acknowledgement(packets.PUBREC, 1)),
    Case("puback of packet id 0", b"\x40\x02\0\0", PROTOCOL),
    Case("pubrec of packet id 0", b"\x50\x02\0\0", PROTOCOL),
    Case("pubrel of packet id 0", b"\x62\x02\0\0", PROTOCOL),
    Case("pubcomp of packet id 0", b"\x70\x02\0\0", PROTOCOL),
    Case("pubrec of three bytes", b"\x50\x03\0\x01\0", PROTOCOL),
    Case("pubrec with flags", b"\x52\x02\0\x01", MALFORMED),
    Case("pubcomp of nothing", packets.encode_acknowledgement(packets.PUBCOMP, 1)),
    Case("pubcomp of one byte", b"\x70\x01\0", PROTOCOL),
    Case("pubrel of nothing", packets.encode_acknowledgement(packets.PUBREL, 5)),
    Case("pubrel without its flags", b"\x60\x02\0\x05", MALFORMED),
    Case("pubrel of one byte", b"\x62\x01\0", MALFORMED),
    Case("subscribe", packets.encode_subscribe(1, [("a/+/b", 0), ("#", 1), ("x/#", 2)])),
    Case("subscribe without its flags", b"\x80" + packets.encode_subscribe(1, [("a", 0)])[1:], MALFORMED),
    Case("subscribe to nothing", packets.encode_subscribe(1, []), PROTOCOL),
    Case("subscribe qos 3", packets.encode_subscribe(1, [("a", 3)]), MALFORMED),
    Case("subscribe packet id 0", packets.encode_subscribe(0, [("a", 0)]), PROTOCOL),
    Case("subscribe to a+", packets.encode_subscribe(1, [("a+", 0)]), MALFORMED),
    Case("subscribe to a/#/b", packets.encode_subscribe(1, [("a/#/b", 0)]), MALFORMED),
    Case("subscribe to empty filter", packets.encode_subscribe(1, [("", 0)]), MALFORMED),
    Case("subscribe cut in its qos", packets.encode_packet(8, 2, b"\0\x01\0\x01a"), MALFORMED),
    Case("unsubscribe", packets.encode_unsubscribe(2, ["a", "b/#"])),
    Case("unsubscribe from nothing", packets.encode_unsubscribe(2, []), PROTOCOL),
    Case("pingreq", packets.PINGREQ_PACKET),
    Case("pingreq with body", b"\xc0\x01x", MALFORMED),
    Case("pingreq with flags", b"\xc1\x00", MALFORMED),
    Case("disconnect", packets.DISCONNECT_PACKET, reason_codes.NORMAL),
    Case("disconnect with body", b"\xe0\x01x", MALFORMED),
    Case("reserved type 0", b"\x00\x00", PROTOCOL),
    Case("reserved type 15", b"\xf0\x00", PROTOCOL),
    Case("connack from a client", b"\x20\x02\0\0", PROTOCOL),
    Case("suback from a client", packets.encode_suback(1, [0]), PROTOCOL),
    Case("pingresp from a client", packets.PINGRESP_PACKET, PROTOCOL),
    Case("remaining length of five bytes", b"\x30\x80\x80\x80\x80\x01", MALFORMED),
    Case("remaining length not in shortest form", b"\xc0\x80\x00"),
    Case("packet past the limit", b"\x30\xff\xff\xff\x7f", reason_codes.PACKET_TOO_LARGE),
]


class Answers(NamedTuple):
    """What is said to a PUBLISH of `qos` and packet id 1, and why that ends the connection, if it does.

    Both sides publish, so both cores see these.
    """

    name: str
    qos: int
    stream: bytes
    reason: Reason | None = None


_PUBACK, _PUBREC, _PUBCOMP = b"\x40\x02\0\x01", b"\x50\x02\0\x01", b"\x70\x02\0\x01"

ANSWERS: list[Answers] = [
    Answers("puback", 1, _PUBACK),
    Answers("puback twice", 1, _PUBACK * 2),
    Answers("pubrec for qos 1", 1, _PUBREC, PROTOCOL),
    Answers("pubcomp for qos 1", 1, _PUBCOMP, PROTOCOL),
    Answers("pubrec and pubcomp", 2, _PUBREC + _PUBCOMP),
    Answers("pubrec twice", 2, _PUBREC * 2 + _PUBCOMP),
    Answers("pubcomp twice", 2, _PUBREC + _PUBCOMP * 2),
    Answers("puback for qos 2", 2, _PUBACK, PROTOCOL),
    Answers("pubcomp before pubrec", 2, _PUBCOMP, PROTOCOL),
    Answers("puback after pubrec", 2, _PUBREC + _PUBACK, PROTOCOL),
]
# Of MQTT 5: codes are 0x10, nobody subscribes, and 0x97, quota exceeded.
ANSWERS_5: list[Answers] = [
    *ANSWERS,
    Answers("puback with an error", 1, b"\x40\x03\0\x01\x97"),
    Answers("pubrec with a code for qos 1", 1, b"\x50\x03\0\x01\x10", PROTOCOL),
    Answers("pubrec with an error for qos 1", 1, b"\x50\x03\0\x01\x97", PROTOCOL),
    Answers("pubrec with an error", 2, b"\x50\x03\0\x01\x97"),
    Answers("pubrec with an error after pubrec", 2, _PUBREC + b"\x50\x03\0\x01\x97", PROTOCOL),
    Answers("puback with an error for qos 2", 2, b"\x40\x03\0\x01\x97", PROTOCOL),
]
