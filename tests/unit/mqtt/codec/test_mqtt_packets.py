"""The rare packets: decoding, encoding, limits."""

from __future__ import annotations

import pytest

from iotmq import limits
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect, Subscribe, Unsubscribe, Will
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import Reason


def body_of(packet: bytes) -> bytes:
    """What stands behind the fixed header; its length field is checked on the way."""
    at, remaining, shift = 1, 0, 0
    while True:
        remaining |= (packet[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not packet[at - 1] & 0x80:
            break
    assert len(packet) - at == remaining
    return packet[at:]


def text(raw: bytes) -> bytes:
    return len(raw).to_bytes(2, "big") + raw


CONNECTS = [
    Connect("device-1", True, 60, None, None, None),
    Connect("", True, 0, None, None, None),
    Connect("d", False, 65_535, None, "user", None),
    Connect("d", True, 1, None, "", b""),
    Connect("d", True, 1, None, "user", b"\0\xff"),
    Connect("设备", True, 1, Will("w", b"", 0, False), None, None),
    Connect("d", True, 1, Will("w/t", b"gone", 1, True), "u", b"p"),
    Connect("d", True, 1, Will("w/t", bytes(65_535), 2, False), None, None),
    Connect("x" * limits.MQTT_CLIENT_ID_BYTES_MAX, True, 1, None, None, None),
]


@pytest.mark.parametrize("connect", CONNECTS, ids=lambda connect: connect.client_id[:10])
def test_connect_round_trip(connect: Connect) -> None:
    packet = packets.encode_connect(connect)
    assert packet[0] == 0x10
    assert packets.decode_connect(body_of(packet)) == connect


def test_every_cut_of_a_connect_is_malformed() -> None:
    body = body_of(packets.encode_connect(CONNECTS[6]))
    for end in range(len(body)):
        with pytest.raises(MqttProtocolError) as raised:
            packets.decode_connect(body[:end])
        assert raised.value.reason == reason_codes.MALFORMED_PACKET


def connect_body(flags: int, payload: bytes) -> bytes:
    return text(b"MQTT") + bytes([4, flags]) + b"\0\x3c" + payload


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (text(b"x" * (limits.MQTT_CLIENT_ID_BYTES_MAX + 1)), reason_codes.CLIENT_ID_NOT_VALID),
        (text(b"a\x02"), reason_codes.CLIENT_ID_NOT_VALID),
        (text(b"d") + b"behind", reason_codes.MALFORMED_PACKET),
    ],
)
def test_refused_client_ids(payload: bytes, reason: Reason) -> None:
    with pytest.raises(MqttProtocolError) as raised:
        packets.decode_connect(connect_body(2, payload))
    assert raised.value.reason == reason


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (b"", reason_codes.TOPIC_NAME_INVALID),
        (b"a/+", reason_codes.TOPIC_NAME_INVALID),
        (b"\xff", reason_codes.MALFORMED_PACKET),
    ],
)
def test_refused_wills(topic: bytes, reason: Reason) -> None:
    with pytest.raises(MqttProtocolError) as raised:
        packets.decode_connect(connect_body(0x06, text(b"d") + text(topic) + text(b"")))
    assert raised.value.reason == reason


def test_user_name_must_be_text() -> None:
    with pytest.raises(MqttProtocolError) as raised:
        packets.decode_connect(connect_body(0x82, text(b"d") + text(b"\xff")))
    assert raised.value.reason == reason_codes.MALFORMED_PACKET


def test_subscribe_and_unsubscribe_round_trip() -> None:
    pairs = (("a/+/b", 0), ("#", 1), ("温/#", 2), ("a/+/b", 1))
    assert packets.decode_subscribe(body_of(packets.encode_subscribe(65_535, pairs))) == Subscribe(
        65_535, pairs
    )
    filters = ("a", "+/b")
    assert packets.decode_unsubscribe(body_of(packets.encode_unsubscribe(1, filters))) == Unsubscribe(
        1, filters
    )


FILTERS_MAX = limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX


def test_filters_of_one_packet_at_the_limit_and_past_it() -> None:
    pairs = [(f"f/{number}", 0) for number in range(FILTERS_MAX)]
    names = [name for name, _ in pairs]
    assert (
        len(packets.decode_subscribe(body_of(packets.encode_subscribe(1, pairs))).subscriptions)
        == FILTERS_MAX
    )
    assert (
        len(packets.decode_unsubscribe(body_of(packets.encode_unsubscribe(1, names))).filters) == FILTERS_MAX
    )
    with pytest.raises(MqttProtocolError) as raised:
        packets.decode_subscribe(body_of(packets.encode_subscribe(1, [*pairs, ("one/more", 0)])))
    assert raised.value.reason == reason_codes.QUOTA_EXCEEDED
    with pytest.raises(MqttProtocolError) as raised:
        packets.decode_unsubscribe(body_of(packets.encode_unsubscribe(1, [*names, "one/more"])))
    assert raised.value.reason == reason_codes.QUOTA_EXCEEDED


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_remaining_length_is_as_short_as_it_can_be(size: int) -> None:
    packet = packets.encode_packet(packets.PUBLISH, 0, bytes(size))
    digits = 1 if size < 128 else 2 if size < 16_384 else 3 if size < 2_097_152 else 4
    assert len(packet) == 1 + digits + size
    assert body_of(packet) == bytes(size)


def test_a_packet_past_the_format_cannot_be_encoded() -> None:
    with pytest.raises(ValueError, match="268435456"):
        packets.encode_packet(packets.PUBLISH, 0, bytes(packets.REMAINING_LENGTH_MAX + 1))


def test_short_packets() -> None:
    assert packets.encode_connack(0, session_present=True) == b"\x20\x02\x01\x00"
    assert packets.encode_connack(5, session_present=True) == b"\x20\x02\x00\x05"
    assert packets.encode_acknowledgement(packets.PUBREL, 258) == b"\x62\x02\x01\x02"
    assert packets.encode_acknowledgement(packets.PUBACK, 258) == b"\x40\x02\x01\x02"
    assert packets.encode_suback(1, [0, 1, 0x80]) == b"\x90\x05\x00\x01\x00\x01\x80"
    assert (
        packets.encode_publish("a", b"x", qos=1, packet_id=2, retain=True, dup=True)
        == b"\x3b\x06\0\x01a\0\x02x"
    )
    assert packets.encode_publish("a", b"x") == b"\x30\x04\0\x01ax"
    assert (
        packets.PINGREQ_PACKET + packets.PINGRESP_PACKET + packets.DISCONNECT_PACKET == b"\xc0\0\xd0\0\xe0\0"
    )


def test_reasons_say_whose_fault_it_was_and_have_connack_codes_of_the_specification() -> None:
    for name in dir(reason_codes):
        reason = getattr(reason_codes, name)
        if isinstance(reason, Reason):
            assert reason.connack_code in (None, 1, 2, 3, 4, 5)
    assert reason_codes.MALFORMED_PACKET.is_peer_fault
    assert not reason_codes.CONNECTION_LOST.is_peer_fault


@pytest.mark.parametrize("level", [3, 4])
def test_a_bridge_is_a_client_of_its_version(level: int) -> None:
    connect = packets.Connect("b", False, 60, None, None, None, level, is_bridge=True)
    packet = packets.encode_connect(connect)
    assert bytes([level | 0x80]) in packet[:12]
    assert packets.decode_connect(body_of(packet)) == connect


@pytest.mark.parametrize(("name", "level"), [("MQTT", 0x85), ("MQTT", 0x83), ("MQIsdp", 0x84)])
def test_other_levels_with_the_bit_of_bridges_are_none(name: str, level: int) -> None:
    body = len(name).to_bytes(2, "big") + name.encode() + bytes([level, 2, 0, 60]) + text(b"b")
    with pytest.raises(MqttProtocolError) as refused:
        packets.decode_connect(body)
    assert refused.value.reason is reason_codes.UNSUPPORTED_PROTOCOL_VERSION


def test_a_bridge_has_the_subscription_options_it_cannot_ask_for() -> None:
    body = b"\0\1" + text(b"a/#") + b"\1" + text(b"$share/g/a/#") + b"\2"
    assert packets.decode_subscribe(body, 4).subscriptions == (("a/#", 1), ("$share/g/a/#", 2))
    assert packets.decode_subscribe(body, 4, is_bridge=True).subscriptions == (
        ("a/#", 1 | 12),
        ("$share/g/a/#", 2 | 8),
    )
