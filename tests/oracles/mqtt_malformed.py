"""Malformed packets made from the tables of the specifications, each with what has to end its connection.

One thing is wrong with each: flags, a reason code, a property in the wrong place, twice, out of its range,
cut, or text that is no text. `mqtt_corpus` and `mqtt5_corpus` have those that are one of a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import mqtt5_oracle
from mqtt5_corpus import MALFORMED, PROTOCOL, connect_with
from mqtt_corpus import CONNECT, Case

from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.framing import encode_variable_integer
from iotmq.mqtt.codec.properties import Properties, write_binary, write_text
from iotmq.mqtt.reason_codes import Reason

# Table 2-2: the flags that each type has to have; of PUBLISH they mean something.
FLAGS = {kind: 2 if kind in (6, 8, 10) else 0 for kind in range(16) if kind != packets.PUBLISH}

# Bytes that are no UTF-8 text: [MQTT-1.5.4-1], [MQTT-1.5.4-2] and the table of RFC 3629.
NO_TEXT = {
    "a lone continuation": b"\x80",
    "a start without its end": b"a\xc3",
    "an overlong slash": b"\xc0\xaf",
    "an overlong NUL": b"\xc0\x80",
    "three bytes for two": b"\xe0\x82\xac",
    "the first surrogate": b"\xed\xa0\x80",
    "the last surrogate": b"\xed\xbf\xbf",
    "a pair of surrogates": b"\xed\xa1\x8c\xed\xbe\xb4",
    "past U+10FFFF": b"\xf4\x90\x80\x80",
    "five bytes": b"\xf8\x88\x80\x80\x80",
    "0xFE": b"\xfe",
    "NUL": b"\0",
    "NUL inside": b"a\0b",
}

MISPLACED_WILDCARDS = ("a/#/b", "a#", "#a", "#/a", "##", "a+", "+a", "a/b+/c", "++", "a/+#")


def packet(kind: int, flags: int, *parts: bytes) -> bytes:
    return packets.encode_packet(kind, flags, b"".join(parts))


def padded(whole: bytes) -> bytes:
    """With a remaining length of two bytes where one is enough."""
    assert whole[1] < 128
    return bytes([whole[0], whole[1] | 0x80, 0]) + whole[2:]


def with_properties(raw: bytes) -> bytes:
    return encode_variable_integer(len(raw)) + raw


def _connect(properties: bytes) -> bytes:
    return packet(1, 0, b"\0\4MQTT\5\2\0\x3c", properties, write_text("d"))


def _will(properties: bytes) -> bytes:
    return packet(
        1, 0, b"\0\4MQTT\5\6\0\x3c\0", write_text("d"), properties, write_text("w"), write_binary(b"x")
    )


# A packet of each kind that has properties, around their bytes with the length. "W" is the will.
AROUND: dict[int | str, Callable[[bytes], bytes]] = {
    1: _connect,
    "W": _will,
    3: lambda properties: packet(3, 0, write_text("a"), properties, b"x"),
    4: lambda properties: packet(4, 0, b"\0\7\0", properties),
    5: lambda properties: packet(5, 0, b"\0\7\0", properties),
    6: lambda properties: packet(6, 2, b"\0\7\0", properties),
    7: lambda properties: packet(7, 0, b"\0\7\0", properties),
    8: lambda properties: packet(8, 2, b"\0\1", properties, write_text("a"), b"\0"),
    10: lambda properties: packet(10, 2, b"\0\1", properties, write_text("a")),
    14: lambda properties: packet(14, 0, b"\0", properties),
}
_VALUES = {
    "byte": b"\1",
    "two": b"\0\1",
    "four": b"\0\0\0\1",
    "variable": b"\1",
    "text": b"\0\1a",
    "binary": b"\0\1a",
    "pair": b"\0\1a\0\1b",
}


def of_flags() -> Iterator[Case]:
    """[MQTT-2.1.3-1], MQTT 3.1.1 [MQTT-2.2.2-2]: every flag that is wrong, of every packet type."""
    for kind, right in FLAGS.items():
        for flags in range(16):
            if flags != right:
                whole = packet(kind, flags, b"" if kind in (0, 12, 13, 14, 15) else b"\0\1")
                yield Case(f"type {kind} with flags {flags}", whole, MALFORMED)
        whole = packet(kind, right, b"\0\1")
        if kind in (0, 2, 9, 11, 13):
            yield Case(f"type {kind}, which is not for a server", whole, PROTOCOL)


def of_properties() -> Iterator[Case]:
    """Table 2-4: every property in every packet."""
    for kind, around in AROUND.items():
        is_first = kind in (1, "W")

        def case(what: str, raw: bytes, reason: Reason, kind: int | str = kind) -> Case:
            around, is_first = AROUND[kind], kind in (1, "W")
            return Case(f"{what} in {kind}", around(with_properties(raw)), reason, is_first)

        for identifier, (name, data_type, allowed) in mqtt5_oracle.TABLE.items():
            good = bytes([identifier]) + _VALUES[data_type]
            if kind not in allowed:
                yield case(name, good, MALFORMED)
                continue
            if name != "user_properties" and not (name == "subscription_identifiers" and kind == 3):
                yield case(f"{name} twice", good * 2, PROTOCOL)
            if identifier in mqtt5_oracle.NOT_ZERO:
                yield case(f"{name} 0", bytes([identifier]) + bytes(len(good) - 1), PROTOCOL)
            if data_type == "byte":
                yield case(f"{name} 2", bytes([identifier, 2]), PROTOCOL)
            for end in range(1, len(good)):
                yield case(f"{name} cut to {end}", good[:end], MALFORMED)
            yield from of_property_text(kind, identifier, name, data_type)
        yield case("no identifier there is", b"\x7e\1", MALFORMED)
        yield case("an identifier of two bytes", b"\x80\1\1", MALFORMED)
        yield Case(f"no property length in {kind}", around(b"\x80\0"), MALFORMED, is_first)
        yield Case(f"a length of five bytes in {kind}", around(b"\xff\xff\xff\xff\1"), MALFORMED, is_first)
        yield Case(f"a length past the end in {kind}", around(b"\x7f"), MALFORMED, is_first)


def of_property_text(kind: int | str, identifier: int, name: str, data_type: str) -> Iterator[Case]:
    """[MQTT-1.5.7-1], [MQTT-3.3.2-13], [MQTT-3.3.2-19] and others."""
    if data_type not in ("text", "pair"):
        return
    for what, raw in NO_TEXT.items():
        values = [write_binary(raw)] if data_type == "text" else []
        if data_type == "pair":
            values = [write_binary(raw) + write_text("b"), write_text("a") + write_binary(raw)]
        for value in values:
            stream = AROUND[kind](with_properties(bytes([identifier]) + value))
            yield Case(f"{what} in {name} of {kind}", stream, MALFORMED, kind in (1, "W"))


def of_codes() -> Iterator[Case]:
    """Sections 3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1, 3.14.2.1: every reason code a client has not got."""
    receipts = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
    goodbyes = {0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99}
    allowed = {4: receipts, 5: receipts, 6: {0x00, 0x92}, 7: {0x00, 0x92}, 14: goodbyes}
    for kind, codes in allowed.items():
        for code in set(range(256)) - codes:
            head = b"" if kind == 14 else b"\0\7"
            stream = packet(kind, FLAGS[kind], head, bytes([code]))
            yield Case(f"type {kind} with code {code:#x}", stream, PROTOCOL)


def of_texts(level: int) -> Iterator[Case]:
    """Text outside of properties: topics, filters, client id, will topic, user name."""
    none = b"\0" if level == 5 else b""
    head = write_text("MQIsdp" if level == 3 else "MQTT") + bytes([level])
    for what, raw in NO_TEXT.items():
        text = write_binary(raw)
        yield Case(f"{what} in a topic", packet(3, 0, text, none, b"x"), MALFORMED)
        yield Case(f"{what} in a filter", packet(8, 2, b"\0\1", none, text, b"\0"), MALFORMED)
        yield Case(
            f"{what} in a second filter", packet(8, 2, b"\0\1", none, b"\0\1a\0", text, b"\0"), MALFORMED
        )
        yield Case(f"{what} in a filter to leave", packet(10, 2, b"\0\1", none, text), MALFORMED)
        client_id = packet(1, 0, head, b"\2\0\x3c", none, text)
        yield Case(f"{what} in a client id", client_id, MALFORMED, True)
        user = packet(1, 0, head, b"\x82\0\x3c", none, b"\0\1d", text)
        yield Case(f"{what} in a user name", user, MALFORMED, True)
        will = packet(1, 0, head, b"\6\0\x3c", none, b"\0\1d", none, text, b"\0\0")
        yield Case(f"{what} in a will topic", will, MALFORMED, True)
    for name in MISPLACED_WILDCARDS:
        topic = packet(3, 0, write_text(name), none, b"x")
        yield Case(f"publish to {name}", topic, reason_codes.TOPIC_NAME_INVALID)
        yield Case(f"subscribe to {name}", packet(8, 2, b"\0\1", none, write_text(name), b"\0"), MALFORMED)
        yield Case(f"unsubscribe from {name}", packet(10, 2, b"\0\1", none, write_text(name)), MALFORMED)
    for name, kind in (("subscribe", 8), ("unsubscribe", 10)):
        options = b"\0" if kind == 8 else b""
        yield Case(f"{name}, packet id 0", packet(kind, 2, b"\0\0", none, b"\0\1a", options), PROTOCOL)
        yield Case(f"{name}, empty filter", packet(kind, 2, b"\0\1", none, b"\0\0", options), MALFORMED)
    yield Case("subscribe without options", packet(8, 2, b"\0\1", none, b"\0\1a"), MALFORMED)
    for qos in (1, 2):
        zero = packet(3, qos << 1, b"\0\1a", b"\0\0", none, b"x")
        yield Case(f"publish qos {qos}, packet id 0", zero, PROTOCOL)
    yield from of_receipts(level)


def of_receipts(level: int) -> Iterator[Case]:
    """[MQTT-2.2.1-3]; 3.1.1 [MQTT-2.3.1-1]: nothing that could be acknowledged has packet id 0."""
    for kind in (packets.PUBACK, packets.PUBREC, packets.PUBREL, packets.PUBCOMP):
        for rest in (b"", b"\0", b"\0\0") if level == 5 else (b"",):
            whole = packet(kind, FLAGS[kind], b"\0\0", rest)
            yield Case(f"type {kind}, packet id 0, {len(rest)} bytes behind", whole, PROTOCOL)


def of_connect_flags(level: int) -> Iterator[Case]:
    """Flags of CONNECT that contradict each other or what is there (sections 3.1.2.3 to 3.1.2.9)."""
    broken = MALFORMED if level == 5 else PROTOCOL
    none = b"\0" if level == 5 else b""
    head = b"\0\4MQTT" + bytes([level])

    def case(what: str, flags: int, payload: bytes, reason: Reason) -> Case:
        return Case(what, packet(1, 0, head, bytes([flags]), b"\0\x3c", none, payload), reason, True)

    will = none + b"\0\1w\0\0"
    for flags in range(256):
        has_will, qos, retains = flags & 4, flags >> 3 & 3, flags & 0x20
        is_broken = flags & 1 or qos == 3 or (not has_will and (qos or retains))
        if level == 4 and flags & 0x40 and not flags & 0x80:
            is_broken = True
        payload = b"\0\1d" + (will if has_will else b"")
        payload += (b"\0\1u" if flags & 0x80 else b"") + (b"\0\1p" if flags & 0x40 else b"")
        if is_broken:
            yield case(f"connect flags {flags:#x}", flags, payload, broken)
        elif flags & 0xC4:
            yield case(f"connect flags {flags:#x}, a field missing", flags, payload[:-3], MALFORMED)
        else:
            yield case(f"connect flags {flags:#x}, a field too many", flags, payload + b"\0\1x", MALFORMED)


def of_options() -> Iterator[Case]:
    """Section 3.8.3.1: all options there are not."""
    for options in range(256):
        raw = packet(8, 2, b"\0\1\0\0\1a", bytes([options]))
        if options & 3 == 3:
            # QoS 3 is a protocol error, reserved bits are malformed; both at once may be either.
            if not options & 0xC0:
                yield Case(f"options {options:#x}", raw, PROTOCOL)
        elif options & 0xC0:
            yield Case(f"options {options:#x}", raw, MALFORMED)
        elif options >> 4 == 3:
            yield Case(f"options {options:#x}", raw, PROTOCOL)


def of_old_options() -> Iterator[Case]:
    """MQTT 3.1.1 [MQTT-3-8.3-4]: a QoS of 0, 1 or 2, and nothing else."""
    for options in range(3, 256):
        yield Case(f"options {options:#x}", packet(8, 2, b"\0\1\0\1a", bytes([options])), MALFORMED)


def of_lengths() -> Iterator[Case]:
    """[MQTT-1.5.5-1]: a remaining length of more bytes than it needs."""
    yield Case("CONNECT, padded length", padded(connect_with()), MALFORMED, True)
    yield Case("CONNECT of 3.1.1, padded length", padded(CONNECT), None, True)
    for name, whole in (
        ("PUBLISH", packet(3, 0, b"\0\1a\0x")),
        ("PUBACK", packet(4, 0, b"\0\1")),
        ("PINGREQ", packets.PINGREQ_PACKET),
        ("DISCONNECT", packets.DISCONNECT_PACKET),
        ("DISCONNECT with a code", packets.encode_disconnect(0, Properties(reason_string="x"))),
    ):
        yield Case(f"{name}, padded length", padded(whole), MALFORMED)
    yield Case("a length of five bytes", b"\x30\x80\x80\x80\x80\1", MALFORMED)


def of_old_flags() -> Iterator[Case]:
    """MQTT 3.1 has DUP in PUBREL, SUBSCRIBE and UNSUBSCRIBE; 15 types have no flags at all."""
    for case in of_flags():
        kind, flags = case.stream[0] >> 4, case.stream[0] & 15
        if not (kind in (6, 8, 10) and flags == 10):
            yield case


MALFORMED_31: dict[str, list[Case]] = {
    "flags": list(of_old_flags()),
    "texts": list(of_texts(3)),
    "options": list(of_old_options()),
}
MALFORMED_5: dict[str, list[Case]] = {
    "flags": [case for case in of_flags() if not case.name.startswith("type 15")],
    "properties": list(of_properties()),
    "codes": list(of_codes()),
    "texts": list(of_texts(5)),
    "connect flags": list(of_connect_flags(5)),
    "options": list(of_options()),
    "lengths": list(of_lengths()),
}
MALFORMED_311: dict[str, list[Case]] = {
    "flags": list(of_flags()),
    "texts": list(of_texts(4)),
    "connect flags": list(of_connect_flags(4)),
    "options": list(of_old_options()),
}
