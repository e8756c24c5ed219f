"""Statements of MQTT 3.1.1 and 5 that no other test shows (docs/reference/mqtt-conformance.md)."""

from __future__ import annotations

import string
from typing import Any

import pytest
from fake_gateway import split_output
from mqtt5_corpus import connect_with, publish
from mqtt5_reading import read_all5
from mqtt_core import new_connection

from iotmq import limits
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect, Will
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt.server.connection import CLOSED, ServerConnection
from iotmq.mqtt.server.publish_sink import CollectingSink


def opened(
    level: int = 5, properties: Properties = NO_PROPERTIES, **settings: Any
) -> tuple[ServerConnection, CollectingSink]:
    connection, sink = new_connection(**settings)
    connect = Connect("d", True, 60, None, None, None, level, properties)
    connection.receive_data(packets.encode_connect(connect), 0.0)
    connection.events_received()
    connection.open_session(session_present=False)
    connection.data_to_send()
    return connection, sink


def answers(connection: ServerConnection) -> list[tuple[int, bytes]]:
    return split_output(connection.data_to_send())


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("size", range(1, 24))
def test_client_ids_that_every_server_allows(level: int, size: int) -> None:
    """[MQTT-3.1.3-5]: 1 to 23 letters and digits."""
    letters = string.digits + string.ascii_letters
    for begin in range(0, len(letters), size):
        name = (letters + letters)[begin : begin + size]
        connection, _ = new_connection()
        connection.receive_data(packets.encode_connect(Connect(name, True, 0, None, None, None, level)), 0.0)
        (event,) = connection.events_received()
        assert isinstance(event, Connect)
        assert event.client_id == name


@pytest.mark.parametrize("level", [4, 5])
def test_fields_of_connect_are_read_in_their_order(level: int) -> None:
    """[MQTT-3.1.3-1], [MQTT-3.1.3-3], [MQTT-3.1.2-9], [MQTT-3.1.2-17], [MQTT-3.1.2-19]"""
    connect = Connect("id", True, 7, Will("will/topic", b"will", 2, True), "user", b"password", level)
    connection, _ = new_connection()
    connection.receive_data(packets.encode_connect(connect), 0.0)
    assert connection.events_received() == [connect]


@pytest.mark.parametrize("level", [4, 5])
def test_nothing_behind_a_refused_connect_is_processed(level: int) -> None:
    """[MQTT-3.1.4-6], MQTT 3.1.1 [MQTT-3.1.4-5]"""
    connection, sink = new_connection()
    connect = packets.encode_connect(Connect("d", True, 60, None, None, None, level))
    more = packets.encode_publish("a", b"x", properties=NO_PROPERTIES if level == 5 else None)
    connection.receive_data(connect + more + packets.PINGREQ_PACKET, 0.0)
    connection.events_received()
    connection.refuse(reason_codes.NOT_AUTHORIZED)
    connection.receive_data(more + packets.PINGREQ_PACKET, 0.0)
    ((first, body),) = answers(connection)
    assert first == packets.CONNACK << 4
    assert body[:2] == (b"\0\x87" if level == 5 else b"\0\x05")
    assert not sink.published
    assert connection.state == CLOSED


def test_a_refusal_without_a_code_of_its_own_has_no_connack_before_mqtt_5() -> None:
    """MQTT 3.1.1 [MQTT-3.2.2-6]"""
    connection, _ = new_connection()
    connection.receive_data(packets.encode_connect(Connect("d", True, 60, None, None, None)), 0.0)
    connection.refuse(reason_codes.PAYLOAD_FORMAT_INVALID)
    assert connection.state == CLOSED
    assert connection.data_to_send() == b""


@pytest.mark.parametrize(("bytes_max", "is_told_why"), [(60, True), (59, False), (5, False), (4, None)])
def test_a_connack_is_no_larger_than_the_device_takes(bytes_max: int, is_told_why: bool | None) -> None:
    """[MQTT-3.2.2-19], [MQTT-3.2.2-20], [MQTT-3.1.2-24]: first the text goes, then the packet."""
    connection, _ = new_connection()
    connection.receive_data(connect_with(Properties(packet_bytes_max=bytes_max)), 0.0)
    connection.refuse(reason_codes.SERVER_BUSY, "t" * 52)
    told = answers(connection)
    assert [len(body) > 3 for _, body in told] == ([] if is_told_why is None else [is_told_why])
    assert sum(2 + len(body) for _, body in told) <= bytes_max


@pytest.mark.parametrize(("bytes_max", "code"), [(16, 0), (15, 0x95), (5, 0x95), (4, None)])
def test_a_device_that_takes_no_connack_of_acceptance_is_refused(bytes_max: int, code: int | None) -> None:
    """[MQTT-3.1.2-24]: a session that its device cannot be told of is none."""
    connection, _ = new_connection()
    connection.receive_data(connect_with(Properties(packet_bytes_max=bytes_max)), 0.0)
    connection.events_received()
    assert connection.open_session(session_present=False) is (code == 0)
    told = answers(connection)
    assert [body[1] for _, body in told] == ([] if code is None else [code])
    assert sum(2 + len(body) for _, body in told) <= bytes_max
    assert (connection.state == CLOSED) is (code != 0)


def test_answers_larger_than_the_device_takes_are_not_sent() -> None:
    """[MQTT-3.1.2-24], [MQTT-3.1.2-25]: as if they had been."""
    connection, _ = opened(properties=Properties(packet_bytes_max=30))
    connection.send_suback(1, [0] * 26)
    connection.send_unsuback(2, [0] * 26)
    connection.send_suback(3, [0] * 25)
    connection.send_unsuback(4, [0] * 25)
    assert answers(connection) == [(0x90, b"\0\3\0" + bytes(25)), (0xB0, b"\0\4\0" + bytes(25))]


@pytest.mark.parametrize("wanted", [None, 0, 1])
def test_answers_have_neither_reason_strings_nor_user_properties(wanted: int | None) -> None:
    """Only CONNACK, DISCONNECT and a SUBACK with a detail have one here: none makes an answer too large.

    [MQTT-3.1.2-29], [MQTT-3.4.2-2], [MQTT-3.4.2-3] and the same of PUBREC to UNSUBACK.
    """
    connection, _ = opened(properties=Properties(request_problem_information=wanted))
    connection.receive_data(publish(NO_PROPERTIES, qos=1, packet_id=1), 0.0)
    connection.receive_data(publish(NO_PROPERTIES, qos=2, packet_id=2), 0.0)
    connection.acknowledge_published(0, 2)
    for kind, packet_id in ((packets.PUBREL, 2), (packets.PUBREL, 9), (packets.PUBREC, 9)):
        connection.receive_data(packets.encode_acknowledgement(kind, packet_id), 0.0)
    connection.send_suback(3, [0, 0x97])
    connection.send_unsuback(4, [0x11])
    assert answers(connection) == [
        (0x40, b"\0\1"),
        (0x50, b"\0\2"),
        (0x70, b"\0\2"),
        (0x70, b"\0\x09\x92"),
        (0x62, b"\0\x09\x92"),
        (0x90, b"\0\3\0\0\x97"),
        (0xB0, b"\0\4\0\x11"),
    ]


@pytest.mark.parametrize(("wanted", "has_reason"), [(None, True), (1, True), (0, False)])
def test_a_suback_says_why_unless_the_device_wants_no_reasons(wanted: int | None, has_reason: bool) -> None:
    """[MQTT-3.1.2-29]"""
    connection, _ = opened(properties=Properties(request_problem_information=wanted))
    connection.send_suback(3, [0x97], "too deep")
    told = Properties(reason_string="too deep") if has_reason else NO_PROPERTIES
    assert connection.data_to_send() == packets.encode_suback(3, [0x97], told)


@pytest.mark.parametrize("level", [3, 4, 5])
def test_a_first_delivery_is_no_duplicate_and_has_a_packet_id_only_if_it_needs_one(level: int) -> None:
    """[MQTT-2.2.1-2], [MQTT-4.3.1-1], [MQTT-4.3.2-2], [MQTT-4.3.3-2]; 3.1.1 [MQTT-2.3.1-5]"""
    connection, _ = opened(level)
    for qos in (0, 1, 2):
        assert connection.deliver_message(b"t", b"x", qos)
    none = b"\0" if level == 5 else b""
    assert answers(connection) == [
        (0x30, b"\0\1t" + none + b"x"),
        (0x32, b"\0\1t\0\1" + none + b"x"),
        (0x34, b"\0\1t\0\2" + none + b"x"),
    ]


@pytest.mark.parametrize("level", [4, 5])
def test_packets_other_than_publish_do_not_wait_for_the_window(level: int) -> None:
    """[MQTT-3.3.4-10], [MQTT-4.9.0-3]"""
    connection, _ = opened(level, Properties(receive_max=1) if level == 5 else NO_PROPERTIES, in_flight_max=1)
    for _ in range(2):
        assert connection.deliver_message(b"t", b"x", 1)
    assert len(answers(connection)) == 1
    connection.receive_data(packets.PINGREQ_PACKET, 0.0)
    none = NO_PROPERTIES if level == 5 else None
    connection.receive_data(packets.encode_publish("a", b"", qos=1, packet_id=7, properties=none), 0.0)
    connection.acknowledge_published(0)
    connection.send_suback(3, [0])
    connection.send_unsuback(4, [0])
    connection.receive_data(packets.encode_acknowledgement(packets.PUBREL, 5), 0.0)
    assert [first >> 4 for first, _ in answers(connection)] == [
        packets.PINGRESP,
        packets.PUBACK,
        packets.SUBACK,
        packets.UNSUBACK,
        packets.PUBCOMP,
    ]
    assert connection.deliver_message(b"t", b"0", 0), "QoS 0 has no window"
    assert len(answers(connection)) == 1


def test_every_alias_up_to_the_maximum_is_accepted() -> None:
    """[MQTT-3.3.2-12], [MQTT-3.2.2-17]"""
    connection, sink = opened()
    for alias in range(1, limits.MQTT_TOPIC_ALIASES_MAX + 1):
        connection.receive_data(publish(Properties(topic_alias=alias), f"t/{alias}"), 0.0)
    for alias in range(limits.MQTT_TOPIC_ALIASES_MAX, 0, -1):
        connection.receive_data(publish(Properties(topic_alias=alias), ""), 0.0)
    assert connection.close_reason is None
    topics = [one[0] for one in sink.published]
    assert topics[len(topics) // 2 :] == topics[: len(topics) // 2][::-1]


@pytest.mark.parametrize("alias_max", [None, 0, 1, 3])
def test_no_alias_is_sent_above_what_the_device_takes(alias_max: int | None) -> None:
    """[MQTT-3.1.2-26], [MQTT-3.1.2-27], [MQTT-3.3.2-8], [MQTT-3.3.2-11]"""
    connection, _ = opened(properties=Properties(topic_alias_max=alias_max))
    for number in range(60):
        assert connection.deliver_message(b"a/long/topic/number/%d" % (number % 6), b"x", 0)
    sent = read_all5(connection.data_to_send())
    aliases = {one.properties.topic_alias for one in sent} - {None}
    assert aliases <= set(range(1, (alias_max or 0) + 1))
    assert bool(aliases) is bool(alias_max)


def test_aliases_end_with_their_connection() -> None:
    """[MQTT-3.3.2-7]"""
    first, _ = opened()
    first.receive_data(publish(Properties(topic_alias=1), "a"), 0.0)
    assert first.close_reason is None
    second, sink = opened()
    second.receive_data(publish(Properties(topic_alias=1), ""), 0.0)
    assert second.close_reason == reason_codes.PROTOCOL_ERROR
    assert not sink.published


@pytest.mark.parametrize("level", [4, 5])
def test_a_packet_id_means_a_new_message_once_the_exchange_is_over(level: int) -> None:
    """[MQTT-4.3.2-5], [MQTT-4.3.3-10], [MQTT-4.3.3-12], 3.1.1 [MQTT-4.3.2-2], [MQTT-4.3.3-2]: DUP or not."""
    connection, sink = opened(level)
    none = NO_PROPERTIES if level == 5 else None

    def send(qos: int, payload: bytes) -> None:
        packet = packets.encode_publish("a", payload, qos=qos, packet_id=7, dup=True, properties=none)
        connection.receive_data(packet, 0.0)

    send(1, b"1")
    connection.acknowledge_published(0)
    send(1, b"2")
    connection.acknowledge_published(1)
    send(2, b"3")
    connection.acknowledge_published(2)
    send(2, b"again")
    connection.receive_data(packets.encode_acknowledgement(packets.PUBREL, 7), 0.0)
    send(2, b"4")
    connection.acknowledge_published(4)
    assert [one[1] for one in sink.published] == [b"1", b"2", b"3", b"4"]
    assert [first >> 4 for first, _ in answers(connection)] == [4, 4, 5, 5, 7, 5]


def test_an_exchange_of_qos_2_goes_on_whatever_the_lifetime_of_its_message() -> None:
    """[MQTT-4.3.3-7], [MQTT-4.3.3-13]: both ways."""
    connection, _ = opened()
    connection.receive_data(publish(Properties(message_expiry_s=0), qos=2, packet_id=1), 0.0)
    connection.acknowledge_published(0)
    assert connection.deliver_message(b"t", b"x", 2, properties=b"\2\0\0\0\1", expires_s=1.0)
    connection.data_to_send()
    connection.receive_data(packets.encode_acknowledgement(packets.PUBREL, 1), 100.0)
    connection.receive_data(packets.encode_acknowledgement(packets.PUBREC, 1), 100.0)
    assert answers(connection) == [(0x70, b"\0\1"), (0x62, b"\0\1")]
    assert connection.in_flight_count == 1, "until PUBCOMP [MQTT-4.3.3-5]"
    connection.receive_data(packets.encode_acknowledgement(packets.PUBREC, 1), 100.0)
    assert answers(connection) == [(0x62, b"\0\1")], "PUBREL again, not PUBLISH [MQTT-4.3.3-6]"
    connection.receive_data(packets.encode_acknowledgement(packets.PUBCOMP, 1), 100.0)
    assert connection.in_flight_count == 0


@pytest.mark.parametrize("level", [4, 5])
def test_pubrecs_leave_in_the_order_of_the_publishes_and_pubcomps_in_that_of_the_pubrels(level: int) -> None:
    """As 4.6.0-3 and 4.6.0-4 want it of clients."""
    connection, _ = opened(level)
    none = NO_PROPERTIES if level == 5 else None
    ids = [30, 10, 20]
    for packet_id in ids:
        packet = packets.encode_publish("a", b"", qos=2, packet_id=packet_id, properties=none)
        connection.receive_data(packet, 0.0)
    for sequence in (2, 1, 0):
        connection.acknowledge_published(sequence)
    assert [int.from_bytes(body, "big") for _, body in answers(connection)] == ids
    for packet_id in ids:
        connection.receive_data(packets.encode_acknowledgement(packets.PUBREL, packet_id), 0.0)
    assert [int.from_bytes(body, "big") for _, body in answers(connection)] == ids


@pytest.mark.parametrize("level", [3, 4])
def test_before_mqtt_5_the_server_ends_without_a_word(level: int) -> None:
    """There is no DISCONNECT of a server in 3.1 and 3.1.1."""
    connection, _ = opened(level)
    connection.close(reason_codes.SESSION_TAKEN_OVER, "elsewhere")
    assert connection.data_to_send() == b""


def test_what_the_server_says_at_the_end_has_no_session_expiry_and_no_user_properties() -> None:
    """[MQTT-3.14.2-2], [MQTT-3.14.2-4], [MQTT-3.14.4-1]"""
    connection, _ = opened(properties=Properties(session_expiry_s=60, packet_bytes_max=20))
    connection.close(reason_codes.SERVER_BUSY, "why" * 10)
    assert connection.data_to_send() == b"\xe0\x02\x89\0"
    connection.receive_data(packets.PINGREQ_PACKET, 0.0)
    assert not connection.deliver_message(b"t", b"x", 0)
    assert connection.data_to_send() == b""
