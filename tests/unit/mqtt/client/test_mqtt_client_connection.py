"""The client's side of a connection: what it sends, what it makes of packets, what it keeps for the next."""

from __future__ import annotations

from typing import Any

import pytest
from fake_gateway import split_output
from mqtt5_reading import read_publish5
from mqtt_corpus import ANSWERS, ANSWERS_5, Answers
from mqtt_malformed import of_receipts

from iotmq import limits
from iotmq.errors import ConnectionClosedError, MessageRefusedError, SubscriptionError
from iotmq.mqtt.client.connection import AWAITING_CONNACK, CLOSED, CONNECTED, ClientConnection
from iotmq.mqtt.client.events import (
    Acknowledged,
    Challenged,
    Connected,
    ConnectRefused,
    Subscribed,
    Unsubscribed,
)
from iotmq.mqtt.client.input import ReceivedMessage
from iotmq.mqtt.client.server_packets import ServerAuth
from iotmq.mqtt.client.session import ClientSession, OutgoingMessage
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect, encode_acknowledgement, encode_publish
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties, encode_properties
from iotmq.mqtt.reason_codes import reason_text

PUBACK, PUBREC, PUBREL, PUBCOMP = packets.PUBACK, packets.PUBREC, packets.PUBREL, packets.PUBCOMP


def connect(level: int = 5, *, clean: bool = True, keep_alive_s: int = 60, **properties: Any) -> Connect:
    return Connect("c", clean, keep_alive_s, None, None, None, level, Properties(**properties))


class Bench:
    """A connection whose server is the test."""

    def __init__(
        self, level: int = 5, session: ClientSession | None = None, *, in_flight_max: int = 10, **fields: Any
    ) -> None:
        self.level = level
        self.session = session if session is not None else ClientSession()
        self.core = ClientConnection(
            self.session, connect(level, **fields), 100.0, in_flight_max=in_flight_max, answer_timeout_s=20.0
        )
        ((first, _),) = self.sent()
        assert first == packets.CONNECT << 4

    def sent(self) -> list[tuple[int, bytes]]:
        return split_output(self.core.data_to_send(100.0))

    def types_sent(self) -> list[int]:
        return [first >> 4 for first, _ in self.sent()]

    def receive(self, *data: bytes) -> list[Any]:
        self.core.receive_data(b"".join(data), 100.0)
        return self.core.events_received()

    def open(self, *, is_resumed: bool = False, **properties: Any) -> list[Any]:
        told = Properties(**properties) if self.level == 5 else None
        return self.receive(packets.encode_connack(0, session_present=is_resumed, properties=told))

    def publish(self, payload: bytes, qos: int = 1, **fields: Any) -> None:
        self.core.publish(OutgoingMessage(b"t", payload, qos=qos, token=payload, **fields))

    @property
    def of_v5(self) -> Properties | None:
        return NO_PROPERTIES if self.level == 5 else None


def opened(level: int = 5, session: ClientSession | None = None, **fields: Any) -> Bench:
    bench = Bench(level, session, **fields)
    (event,) = bench.open()
    assert isinstance(event, Connected)
    return bench


def payloads(found: list[tuple[int, bytes]], level: int = 5) -> list[tuple[bytes, int, bool]]:
    """(payload, packet id, DUP) of PUBLISH packets to the topic t."""
    head = 6 if level == 5 else 5
    return [
        (body[head:], int.from_bytes(body[3:5], "big"), bool(first & 8))
        for first, body in found
        if first >> 4 == packets.PUBLISH
    ]


@pytest.mark.parametrize("level", [3, 4, 5])
def test_a_connection_is_open_with_its_connack(level: int) -> None:
    bench = Bench(level)
    assert bench.core.state == AWAITING_CONNACK
    assert bench.open() == [Connected(False, "c")]
    assert bench.core.state == CONNECTED


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_server_that_has_to_prove_who_it_is_gets_nothing_before(is_resumed: bool) -> None:
    first = opened(in_flight_max=2)
    for payload in (b"1", b"2", b"3"):
        first.publish(payload)
    bench = Bench(5, first.session, in_flight_max=2, authentication_method="M", clean=False)
    (event,) = bench.open(is_resumed=is_resumed, authentication_method="M")
    assert isinstance(event, Connected)
    assert bench.receive(encode_acknowledgement(PUBACK, 1)) == [], "it was not sent that message"
    bench.publish(b"4")
    assert bench.types_sent() == []
    bench.core.trust()
    # A new session gives new packet ids, none of which is acknowledged yet.
    done = [b"1"] if is_resumed else []
    assert [event.token for event in bench.core.events_received()] == done
    assert [payload for payload, _, _ in payloads(bench.sent())] == [b"1", b"2", b"3"][: 2 + is_resumed]
    bench.core.trust()
    assert bench.types_sent() == []


def test_what_a_server_sends_behind_its_connack_waits_until_it_is_trusted() -> None:
    bench = Bench(5, authentication_method="M")
    told = Properties(authentication_method="M")
    connack = packets.encode_connack(0, session_present=False, properties=told)
    (event,) = bench.receive(connack, encode_publish("t", b"x", properties=NO_PROPERTIES), b"\0\0")
    assert isinstance(event, Connected)
    bench.core.trust()
    (message,) = bench.core.events_received()
    assert message.payload == b"x"
    assert bench.core.state == CLOSED, "what follows is no packet"


def test_what_the_server_grants_is_kept_to() -> None:
    bench = Bench()
    (event,) = bench.open(assigned_client_id="given", qos_max=1, is_retain_available=0, packet_bytes_max=50)
    assert event.client_id == "given"
    with pytest.raises(MessageRefusedError, match="QoS 1"):
        bench.publish(b"x", 2)
    with pytest.raises(MessageRefusedError, match="retain"):
        bench.publish(b"x", 1, retain=True)
    # 2 header, 2+1 topic, 2 packet id, 1 properties: 42 bytes of payload fill 50.
    bench.publish(b"x" * 42)
    with pytest.raises(MessageRefusedError, match="51 bytes; the server takes 50"):
        bench.publish(b"x" * 43)
    assert bench.types_sent() == [packets.PUBLISH]


def test_subscriptions_the_server_does_not_have_are_refused_here() -> None:
    bench = Bench()
    bench.open(are_wildcards_available=0, is_sharing_available=0, are_subscription_identifiers_available=0)
    for filters in ("a/+", "#", "$share/g/a"):
        with pytest.raises(SubscriptionError, match="server"):
            bench.core.subscribe([(filters, 0)])
    with pytest.raises(SubscriptionError, match="identifiers"):
        bench.core.subscribe([("a", 0)], Properties(subscription_identifiers=(1,)))
    assert bench.types_sent() == []


@pytest.mark.parametrize(
    ("level", "code", "expected"), [(4, 1, 0x84), (4, 5, 0x87), (5, 0x86, 0x86), (5, 1, 0x84)]
)
def test_a_refusal_has_one_code_for_all_versions(level: int, code: int, expected: int) -> None:
    bench = Bench(level)
    # A server that does not know MQTT 5 answers without properties.
    has_properties = level == 5 and code >= 0x80
    told = Properties(reason_string="no") if has_properties else None
    (event,) = bench.receive(packets.encode_connack(code, session_present=False, properties=told))
    assert isinstance(event, ConnectRefused)
    assert event.code == expected
    assert bench.core.state == CLOSED
    assert bench.core.ending is not None
    assert bench.core.ending.is_by_server
    assert reason_text(expected) in bench.core.ending.text
    assert bench.core.ending.text.endswith(": no") is has_properties


# Publishing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [3, 4, 5])
def test_each_qos_ends_with_its_acknowledgement(level: int) -> None:
    bench = opened(level)
    bench.publish(b"zero", 0)
    bench.publish(b"one", 1)
    bench.publish(b"two", 2)
    assert bench.types_sent() == [packets.PUBLISH] * 3
    assert bench.receive(encode_acknowledgement(PUBACK, 1)) == [Acknowledged(b"one")]
    assert bench.receive(encode_acknowledgement(PUBREC, 2)) == []
    assert bench.sent() == [(PUBREL << 4 | 2, b"\0\2")]
    assert bench.receive(encode_acknowledgement(PUBCOMP, 2)) == [Acknowledged(b"two")]
    assert bench.session.unfinished_count == 0


def test_a_refused_message_is_done_with_the_servers_reason() -> None:
    bench = opened()
    bench.publish(b"one", 1)
    bench.publish(b"two", 2)
    told = Properties(reason_string="not today")
    packet = packets.encode_packet(PUBACK, 0, b"\0\1\x87" + encode_properties(told))
    assert bench.receive(packet, encode_acknowledgement(PUBREC, 2, 0x97)) == [
        Acknowledged(b"one", 0x87, f"{reason_text(0x87)}: not today"),
        Acknowledged(b"two", 0x97, reason_text(0x97)),
    ]
    assert PUBREL not in bench.types_sent()


def test_no_matching_subscribers_is_no_refusal() -> None:
    bench = opened()
    bench.publish(b"one", 1)
    assert bench.receive(encode_acknowledgement(PUBACK, 1, 0x10)) == [Acknowledged(b"one")]


@pytest.mark.parametrize("receive_max", [1, 3, None])
def test_the_window_is_the_smaller_of_ours_and_the_servers(receive_max: int | None) -> None:
    bench = Bench(in_flight_max=5)
    bench.open(receive_max=receive_max)
    window = receive_max or 5
    for number in range(8):
        bench.publish(b"%d" % number, 1 + number % 2)
    sent = payloads(bench.sent())
    assert [payload for payload, _, _ in sent] == [b"%d" % number for number in range(window)]
    # PUBREC does not open it, PUBCOMP does.
    for _, packet_id, _ in sent:
        bench.receive(encode_acknowledgement(PUBACK if packet_id % 2 else PUBREC, packet_id))
    bench.receive(
        *(encode_acknowledgement(PUBCOMP, packet_id) for _, packet_id, _ in sent if not packet_id % 2)
    )
    assert [payload for payload, _, _ in payloads(bench.sent())] == [
        b"%d" % number for number in range(window, min(8, 2 * window))
    ]


@pytest.mark.parametrize("level", [4, 5])
def test_other_packets_do_not_wait_for_the_window(level: int) -> None:
    """[MQTT-3.3.4-8]"""
    bench = opened(level, in_flight_max=1)
    bench.publish(b"1")
    bench.publish(b"2")
    assert bench.types_sent() == [packets.PUBLISH]
    bench.core.subscribe([("a", 1)])
    (message,) = bench.receive(encode_publish("a", b"x", qos=1, packet_id=9, properties=bench.of_v5))
    bench.core.acknowledge(message)
    bench.core.unsubscribe(["a"])
    bench.publish(b"3", 0)
    assert sorted(bench.types_sent()) == sorted(
        [packets.SUBSCRIBE, PUBACK, packets.UNSUBSCRIBE, packets.PUBLISH]
    )


def test_an_unknown_pubrec_is_answered_so_that_the_server_is_done() -> None:
    bench = opened()
    bench.receive(encode_acknowledgement(PUBREC, 7))
    assert bench.sent() == [(PUBREL << 4 | 2, b"\0\7\x92")]
    assert bench.receive(encode_acknowledgement(PUBACK, 7), encode_acknowledgement(PUBCOMP, 7)) == []
    assert bench.core.state == CONNECTED


def test_topics_that_come_again_get_an_alias() -> None:
    bench = Bench()
    bench.open(topic_alias_max=2)
    for _ in range(4):
        bench.core.publish(
            OutgoingMessage(b"a/long/topic", b"x", qos=0, properties=Properties(content_type="c"))
        )
    found = [read_publish5(packet) for packet in bench.sent()]
    assert [one.topic for one in found] == ["a/long/topic"] * 2 + [""] * 2
    assert [one.properties.topic_alias for one in found] == [None, 1, 1, 1]
    assert {one.properties.content_type for one in found} == {"c"}


# Reconnecting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [4, 5])
def test_what_was_in_flight_is_sent_again_in_order(level: int) -> None:
    bench = opened(level)
    for number in range(5):
        bench.publish(b"%d" % number, 2 if number in (1, 3) else 1)
    # 0 is done, 1 has its PUBREC.
    bench.receive(encode_acknowledgement(PUBACK, 1), encode_acknowledgement(PUBREC, 2))
    again = Bench(level, bench.session, clean=False)
    again.open(is_resumed=True)
    sent = again.sent()
    assert sent[0] == (PUBREL << 4 | 2, b"\0\2")
    assert payloads(sent, level) == [(b"2", 3, True), (b"3", 4, True), (b"4", 5, True)]
    # A packet id that is taken is not given again.
    again.publish(b"new")
    assert payloads(again.sent(), level) == [(b"new", 6, False)]
    events = again.receive(
        encode_acknowledgement(PUBCOMP, 2),
        encode_acknowledgement(PUBACK, 3),
        encode_acknowledgement(PUBREC, 4),
    )
    assert events == [Acknowledged(b"1"), Acknowledged(b"2")]


def test_the_window_holds_for_what_is_sent_again() -> None:
    bench = opened()
    for number in range(4):
        bench.publish(b"%d" % number)
    again = Bench(5, bench.session, clean=False)
    again.open(is_resumed=True, receive_max=2)
    assert payloads(again.sent()) == [(b"0", 1, True), (b"1", 2, True)]
    again.receive(encode_acknowledgement(PUBACK, 2))
    assert payloads(again.sent()) == [(b"2", 3, True)]


def test_without_a_session_at_the_server_messages_are_new_ones() -> None:
    """[MQTT-3.2.2-5]; what the server had taken already (PUBREC) is done."""
    bench = opened()
    bench.publish(b"one", 1)
    bench.publish(b"two", 2)
    bench.receive(encode_acknowledgement(PUBREC, 2))
    bench.receive(encode_publish("x", b"in", qos=2, packet_id=9, properties=NO_PROPERTIES))
    again = Bench(5, bench.session)
    assert again.open() == [Connected(False, "c"), Acknowledged(b"two")]
    assert [(payload, is_again) for payload, _, is_again in payloads(again.sent())] == [(b"one", False)]
    assert again.session.received == set()


def test_a_message_that_the_new_server_does_not_take_is_refused_when_its_turn_comes() -> None:
    bench = opened(in_flight_max=1)
    bench.publish(b"x" * 100)
    bench.publish(b"y" * 100)
    again = Bench(5, bench.session, clean=False)
    _, *events = again.open(is_resumed=True, packet_bytes_max=50)
    assert [(event.token[:1], event.code) for event in events] == [(b"x", 0x95), (b"y", 0x95)]
    assert again.sent() == []


def test_qos_0_needs_a_connection_and_the_others_wait_for_one() -> None:
    bench = Bench()
    with pytest.raises(ConnectionClosedError):
        bench.publish(b"zero", 0)
    bench.publish(b"one", 1)
    assert bench.sent() == []
    bench.open()
    assert payloads(bench.sent()) == [(b"one", 1, False)]


# Receiving --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [3, 4, 5])
def test_messages_are_answered_when_their_owner_has_them(level: int) -> None:
    bench = opened(level)
    messages = bench.receive(
        encode_publish("a/b", b"0", properties=bench.of_v5),
        encode_publish("a/b", b"1", qos=1, packet_id=5, retain=True, properties=bench.of_v5),
        encode_publish("a/\u00e4", b"2", qos=2, packet_id=6, properties=bench.of_v5),
    )
    assert [(one.topic, one.payload, one.qos, one.is_retained, one.packet_id) for one in messages] == [
        ("a/b", b"0", 0, False, 0), ("a/b", b"1", 1, True, 5), ("a/\u00e4", b"2", 2, False, 6),
    ]  # fmt: skip
    assert bench.sent() == []
    for message in messages:
        bench.core.acknowledge(message)
    assert bench.sent() == [(PUBACK << 4, b"\0\5"), (PUBREC << 4, b"\0\6")]
    bench.receive(encode_acknowledgement(PUBREL, 6))
    assert bench.sent() == [(PUBCOMP << 4, b"\0\6")]


@pytest.mark.parametrize("level", [4, 5])
def test_qos_2_is_handed_on_once_over_connections(level: int) -> None:
    bench = opened(level)
    packet = encode_publish("t", b"x", qos=2, packet_id=6, properties=bench.of_v5)
    duplicate = encode_publish("t", b"x", qos=2, packet_id=6, dup=True, properties=bench.of_v5)
    (message,) = bench.receive(packet)
    # Not acknowledged yet: once is enough.
    assert bench.receive(duplicate) == []
    assert bench.sent() == []
    bench.core.acknowledge(message)
    assert bench.receive(duplicate) == []
    assert bench.sent() == [(PUBREC << 4, b"\0\6")] * 2
    again = Bench(level, bench.session, clean=False)
    again.open(is_resumed=True)
    assert again.receive(duplicate) == []
    assert again.sent() == [(PUBREC << 4, b"\0\6")]
    again.receive(encode_acknowledgement(PUBREL, 6))
    assert again.sent() == [(PUBCOMP << 4, b"\0\6")]
    # Now it is another message.
    assert [one.payload for one in again.receive(packet)] == [b"x"]


def test_an_unknown_pubrel_is_answered_with_its_reason() -> None:
    bench = opened()
    bench.receive(encode_acknowledgement(PUBREL, 3))
    assert bench.sent() == [(PUBCOMP << 4, b"\0\3\x92")]


def test_messages_wait_while_no_packet_id_is_free() -> None:
    bench = opened(in_flight_max=65_535)
    question = bench.core.subscribe([("a", 1)])
    for _ in range(65_535):
        bench.publish(b"x")
    assert (len(bench.session.publishing), len(bench.session.waiting)) == (65_534, 1)
    bench.core.data_to_send(100.0)
    bench.receive(packets.encode_suback(question, [1], NO_PROPERTIES))
    assert payloads(bench.sent()) == [(b"x", question, False)]
    bench.publish(b"y")
    bench.receive(encode_acknowledgement(PUBACK, 7))
    assert payloads(bench.sent()) == [(b"y", 7, False)]
    # A session that has all of them sends them again.
    again = opened(session=bench.session, in_flight_max=65_535, clean=False)
    assert again.core.state == CONNECTED
    resumed = Bench(session=bench.session, in_flight_max=65_535, clean=False)
    resumed.open(is_resumed=True)
    assert len(bench.session.publishing) == 65_535


@pytest.mark.parametrize("room", [0, 1, 2, 3, 4, 8])
@pytest.mark.parametrize("payload_bytes", [10, 16_280])
def test_a_message_that_fits_without_an_alias_goes_without_one(room: int, payload_bytes: int) -> None:
    """[MQTT-3.2.2-15]"""
    payload = bytes(payload_bytes)
    message = OutgoingMessage(b"t" * 80, payload, qos=1)
    whole = encode_publish("t" * 80, payload, qos=1, packet_id=1, properties=NO_PROPERTIES)
    bench = Bench()
    bench.open(topic_alias_max=2, packet_bytes_max=len(whole) + room)
    bench.core.publish(message)
    sent = bench.core.data_to_send(100.0)
    assert len(sent) <= len(whole) + room
    aliased = encode_publish("t" * 80, payload, qos=1, packet_id=1, properties=Properties(topic_alias=1))
    assert sent in ((whole,) if room < 3 else (aliased,) if room == 8 else (whole, aliased))


def test_properties_and_aliases_of_messages() -> None:
    bench = opened(topic_alias_max=2)
    properties = Properties(
        user_properties=(("a", "1"), ("a", "2")), correlation_data=b"\0", message_expiry_s=9
    )
    aliased = Properties(topic_alias=2)
    messages = bench.receive(
        encode_publish("t", b"", properties=properties),
        encode_publish("u", b"", properties=aliased),
        encode_publish("", b"", properties=aliased),
        encode_publish("", b"", properties=aliased),
    )
    assert [one.topic for one in messages] == ["t", "u", "u", "u"]
    assert messages[0].properties == properties


def test_a_message_may_have_more_properties_than_a_record_can() -> None:
    bench = opened()
    pairs = tuple((f"name {number}", "x\x01" * 100) for number in range(limits.MQTT_USER_PROPERTIES_MAX + 1))
    (message,) = bench.receive(encode_publish("t", b"", properties=Properties(user_properties=pairs)))
    assert message.properties.user_properties == pairs


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (encode_publish("t", b"", properties=Properties(topic_alias=3)), 0x94),
        (encode_publish("", b"", properties=Properties(topic_alias=1)), 0x82),
        (encode_publish("", b"", properties=NO_PROPERTIES), 0x82),
        (encode_publish("a/+", b"", properties=NO_PROPERTIES), 0x81),
        (encode_publish(b"\xff", b"", properties=NO_PROPERTIES), 0x81),
        (b"\x36\x06\0\1t\0\1\0", 0x81),
        (b"\x38\x04\0\1t\0", 0x81),
        (b"\x32\x06\0\1t\0\0\0", 0x82),
        (b"\x30\x01\0", 0x81),
        (b"\x30\x03\0\2t", 0x81),
        (b"\x30\x04\0\1t\5", 0x81),
        (b"\x30\x03\0\1t", 0x81),
        (b"\x30\xff\xff\xff\xff\x01", 0x81),
        (packets.encode_connack(0, session_present=False, properties=NO_PROPERTIES), 0x82),
        (packets.encode_suback(9, [0], NO_PROPERTIES), 0x82),
        (packets.encode_suback(9, [7], NO_PROPERTIES), 0x81),
        (packets.encode_unsuback(9, [0], NO_PROPERTIES), 0x82),
        (b"\x60\x02\0\1", 0x81),
        (packets.PINGREQ_PACKET, 0x82),
        (b"\xd0\x01\0", 0x82),
        (b"\xf0\x00", 0x82),
        (b"\x00\x00", 0x82),
    ],
)  # fmt: skip
def test_a_server_that_breaks_a_rule_is_told_and_left(data: bytes, code: int) -> None:
    bench = opened(topic_alias_max=2)
    for size in (1, len(data)):
        bench = opened(topic_alias_max=2)
        for at in range(0, len(data), size):
            bench.core.receive_data(data[at : at + size], 100.0)
        assert bench.core.state == CLOSED
        assert bench.core.ending is not None
        assert bench.core.ending.code == code
        assert not bench.core.ending.is_by_server
        assert bench.sent() == [(packets.DISCONNECT << 4, bytes([code, 0]))]


def test_a_packet_past_what_the_server_was_told_ends_the_connection() -> None:
    # The remaining length is what is bounded: 98 and two bytes of header are a packet of 100.
    for size, is_taken in ((94, True), (97, False)):
        bench = opened(packet_bytes_max=100)
        found = bench.receive(encode_publish("t", b"x" * size, properties=NO_PROPERTIES))
        assert (len(found) == 1) is is_taken
        assert bench.core.ending is None or "100" in bench.core.ending.text


def test_a_server_that_sends_more_than_the_receive_maximum_is_left() -> None:
    bench = opened(receive_max=2)
    message = [
        encode_publish("t", b"", qos=1 + n % 2, packet_id=n, properties=NO_PROPERTIES) for n in (1, 2, 3)
    ]
    assert len(bench.receive(*message[:2])) == 2
    bench.receive(message[2])
    assert bench.core.ending is not None
    assert bench.core.ending.code == 0x93


@pytest.mark.parametrize("qos", [1, 2])
def test_the_message_past_the_receive_maximum_is_new_when_it_comes_again(qos: int) -> None:
    def message(number: int, *, dup: bool = False) -> bytes:
        return encode_publish(
            "t", b"%d" % number, qos=qos, packet_id=number, dup=dup, properties=NO_PROPERTIES
        )

    first = opened(receive_max=2, clean=False)
    taken = first.receive(message(1), message(2), message(3), message(4))
    assert [event.payload for event in taken] == [b"1", b"2"]
    assert first.core.state == CLOSED
    again = Bench(5, first.session, receive_max=2, clean=False)
    again.open(is_resumed=True)
    if qos == 2:
        assert again.receive(message(1, dup=True), message(2, dup=True)) == []
        assert again.sent() == [(PUBREC << 4, b"\0\1"), (PUBREC << 4, b"\0\2")]
        again.receive(encode_acknowledgement(PUBREL, 1), encode_acknowledgement(PUBREL, 2))
    late = again.receive(message(3, dup=True), message(4, dup=True))
    assert [event.payload for event in late] == [b"3", b"4"]
    assert again.core.state == CONNECTED


LEVELS_AND_ANSWERS = [(5, one) for one in ANSWERS_5] + [(level, one) for level in (3, 4) for one in ANSWERS]


@pytest.mark.parametrize(
    ("level", "answers"), LEVELS_AND_ANSWERS, ids=lambda value: getattr(value, "name", str(value))
)
def test_an_acknowledgement_its_message_does_not_wait_for_ends_the_connection(
    level: int, answers: Answers
) -> None:
    bench = opened(level)
    bench.publish(b"one", answers.qos)
    events = bench.receive(answers.stream)
    if answers.reason is None:
        assert bench.core.state == CONNECTED
        assert [event.token for event in events] == [b"one"]
        assert not bench.session.unfinished_count
    else:
        assert bench.core.ending is not None
        assert bench.core.ending.code == answers.reason.v5_code
        assert bench.session.unfinished_count == 1, "the next connection goes on with it"


@pytest.mark.parametrize("level", [3, 4, 5])
def test_an_acknowledgement_with_packet_id_0_ends_the_connection(level: int) -> None:
    for case in of_receipts(level):
        bench = opened(level)
        assert not bench.receive(case.stream)
        assert bench.core.ending is not None, case.name
        assert case.reason is not None
        assert bench.core.ending.code == case.reason.v5_code, case.name


# Asking -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [3, 4, 5])
def test_questions_get_their_answers(level: int) -> None:
    bench = opened(level)
    first = bench.core.subscribe([("a", 0), ("b/#", 2)])
    second = bench.core.unsubscribe(["a"])
    assert bench.types_sent() == [packets.SUBSCRIBE, packets.UNSUBSCRIBE]
    unsuback = (
        packets.encode_unsuback(second, [0x11], NO_PROPERTIES)
        if level == 5
        else encode_acknowledgement(packets.UNSUBACK, second)
    )
    events = bench.receive(packets.encode_suback(first, [0, 0x80], bench.of_v5), unsuback)
    assert isinstance(events[0], Subscribed)
    assert events[0].answers[:2] == (first, (0, 0x80))
    assert isinstance(events[1], Unsubscribed)
    assert events[1].answers.packet_id == second


def test_an_answer_with_another_number_of_codes_is_an_error() -> None:
    bench = opened()
    packet_id = bench.core.subscribe([("a", 0), ("b", 0)])
    bench.receive(packets.encode_suback(packet_id, [0], NO_PROPERTIES))
    assert bench.core.ending is not None
    assert bench.core.ending.code == 0x82


def test_authentication_goes_to_and_fro_before_the_connack() -> None:
    bench = Bench(authentication_method="M", authentication_data=b"1")
    challenge = Properties(authentication_method="M", authentication_data=b"2")
    assert bench.receive(packets.encode_auth(0x18, challenge)) == [Challenged(ServerAuth(0x18, challenge))]
    bench.core.authenticate(b"3")
    ((first, body),) = bench.sent()
    assert first == packets.AUTH << 4
    assert packets.decode_auth(body) == packets.Auth(0x18, "M", b"3")
    (event,) = bench.open(authentication_method="M", authentication_data=b"4")
    assert event.properties.authentication_data == b"4"


def test_authentication_that_nobody_began_is_an_error() -> None:
    bench = opened()
    with pytest.raises(ConnectionClosedError):
        bench.core.authenticate(b"")
    bench.receive(packets.encode_auth(0x18, Properties(authentication_method="M")))
    assert bench.core.state == CLOSED


# Time and ends ----------------------------------------------------------------------------------------


def test_a_server_that_does_not_answer_connect_is_left() -> None:
    bench = Bench()
    assert bench.core.next_deadline() == 120.0
    bench.core.tick(119.9)
    assert bench.core.state == AWAITING_CONNACK
    bench.core.tick(120.0)
    assert bench.core.state == CLOSED
    assert bench.sent() == []


def test_silence_is_ended_by_a_ping_and_a_missing_answer_ends_the_connection() -> None:
    bench = opened(keep_alive_s=60)
    assert bench.core.next_deadline() == 160.0
    bench.core.tick(160.0)
    assert split_output(bench.core.data_to_send(160.0)) == [(packets.PINGREQ << 4, b"")]
    assert bench.core.next_deadline() == 180.0
    bench.core.receive_data(packets.PINGRESP_PACKET, 161.0)
    assert bench.core.next_deadline() == 220.0
    bench.core.tick(220.0)
    bench.core.tick(240.0, is_reading=False)
    assert bench.core.state == CONNECTED, "what is not read cannot be missed"
    assert len(split_output(bench.core.data_to_send(240.0))) == 2
    bench.core.tick(260.0)
    assert bench.core.state == CLOSED


def test_a_publisher_that_hears_nothing_asks_whether_the_server_is_there() -> None:
    bench = opened(keep_alive_s=10)
    bench.publish(b"x", 0)
    bench.core.data_to_send(109.0)
    assert bench.core.next_deadline() == 110.0


def test_the_servers_keep_alive_wins_and_none_is_none() -> None:
    bench = Bench(keep_alive_s=60)
    bench.open(server_keep_alive_s=5)
    assert bench.core.next_deadline() == 105.0
    assert opened(keep_alive_s=0).core.next_deadline() is None


def test_a_disconnect_of_the_server_says_why() -> None:
    bench = opened()
    told = Properties(reason_string="maintenance", server_reference="other:1883")
    bench.receive(packets.encode_disconnect(0x9C, told))
    ending = bench.core.ending
    assert ending is not None
    assert (ending.code, ending.is_by_server, ending.properties.server_reference) == (
        0x9C,
        True,
        "other:1883",
    )
    assert "use another server" in ending.text
    assert "maintenance" in ending.text


@pytest.mark.parametrize(
    ("level", "expiry_s", "expected"),
    [(4, None, b""), (5, None, b""), (5, 0, b"\0\5\x11\0\0\0\0")],
)
def test_good_bye(level: int, expiry_s: int | None, expected: bytes) -> None:
    bench = opened(level)
    bench.core.disconnect(session_expiry_s=expiry_s)
    assert bench.sent() == [(packets.DISCONNECT << 4, expected)]
    assert bench.core.ending is not None
    assert bench.core.ending.is_ours
    # Whatever comes now is nobody's.
    assert bench.receive(encode_publish("t", b"", properties=bench.of_v5)) == []


def test_the_end_of_the_other_side_ends_the_connection() -> None:
    bench = opened()
    bench.core.receive_eof("reset")
    assert bench.core.ending is not None
    assert "reset" in bench.core.ending.text
    assert bench.core.next_deadline() is None
    with pytest.raises(ConnectionClosedError):
        bench.core.subscribe([("a", 0)])


def test_messages_before_the_connack_are_an_error() -> None:
    bench = Bench()
    assert bench.receive(encode_publish("t", b"", properties=NO_PROPERTIES)) == []
    assert bench.core.state == CLOSED


def test_a_session_that_should_not_be_there_is_an_error() -> None:
    bench = Bench(clean=True)
    bench.open(is_resumed=True)
    assert bench.core.state == CLOSED


def test_packet_ids_wrap_and_run_out() -> None:
    session = ClientSession()
    for _ in range(65_535):
        session.begin_publishing(OutgoingMessage(b"t", b"", qos=1))
    with pytest.raises(OverflowError):
        session.new_packet_id()
    del session.publishing[77]
    assert session.new_packet_id() == 77


def test_a_received_message_can_be_made_and_read() -> None:
    message = ReceivedMessage("t", b"x", qos=1, is_retained=True, packet_id=3)
    assert (message.topic, message.qos, message.is_retained, message.is_duplicate) == ("t", 1, True, False)
    assert repr(message) == "ReceivedMessage('t', b'x', qos=1, is_retained=True)"
