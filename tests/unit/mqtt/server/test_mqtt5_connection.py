"""MQTT 5 (and 3.1) in the connection core: flow control, aliases, reasons."""

from __future__ import annotations

import pytest
from fake_gateway import split_output
from mqtt5_corpus import CONNECT5, connect_with, publish
from mqtt_core import new_connection

from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.field_reader import FieldReader
from iotmq.mqtt.codec.packets import Connect, Disconnect
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties, read_properties
from iotmq.mqtt.server.connection import ServerConnection
from iotmq.mqtt.server.connection_settings import ConnectionSettings
from iotmq.mqtt.server.publish_sink import CollectingSink


def open_connection(
    properties: Properties = NO_PROPERTIES, **settings: int
) -> tuple[ServerConnection, CollectingSink]:
    connection, sink = new_connection(**settings)
    connection.receive_data(connect_with(properties), 0.0)
    connection.events_received()
    connection.open_session(session_present=False)
    connection.data_to_send()
    return connection, sink


def answers(connection: ServerConnection) -> list[tuple[int, bytes]]:
    return split_output(connection.data_to_send())


def properties_of(packet: tuple[int, bytes], *, behind: int) -> Properties:
    first, body = packet
    return read_properties(FieldReader(body[behind:], "packet"), first >> 4)


def test_connack_says_what_the_device_may_send() -> None:
    connection, _ = new_connection(receive_max=7, topic_aliases_max=3, packet_bytes_max=5_000)
    connection.receive_data(CONNECT5, 0.0)
    connection.open_session(session_present=True, properties=Properties(assigned_client_id="x"))
    (connack,) = answers(connection)
    assert connack[1][:2] == b"\1\0"
    assert properties_of(connack, behind=2) == Properties(
        assigned_client_id="x", receive_max=7, topic_alias_max=3, packet_bytes_max=5_000
    )


def test_an_end_by_the_server_is_a_disconnect_with_reason_and_text() -> None:
    connection, _ = open_connection()
    connection.close(reason_codes.SESSION_TAKEN_OVER, "elsewhere")
    (packet,) = answers(connection)
    assert packet[0] == packets.DISCONNECT << 4
    assert packet[1][0] == 0x8E
    assert properties_of(packet, behind=1) == Properties(reason_string="elsewhere")


def test_reasons_without_a_code_of_their_packet_are_unspecified_errors() -> None:
    connection, _ = open_connection()
    connection.close(reason_codes.CLIENT_ID_NOT_VALID)
    assert answers(connection) == [(packets.DISCONNECT << 4, b"\x80\0")]
    connection, _ = new_connection()
    connection.receive_data(CONNECT5, 0.0)
    connection.refuse(reason_codes.KEEP_ALIVE_TIMEOUT)
    assert answers(connection) == [(packets.CONNACK << 4, b"\0\x80\0")]


@pytest.mark.parametrize(("bytes_max", "is_told_why"), [(100, True), (20, False)])
def test_a_reason_text_is_left_out_when_the_device_takes_no_packet_that_large(
    bytes_max: int, is_told_why: bool
) -> None:
    connection, _ = open_connection(Properties(packet_bytes_max=bytes_max))
    connection.close(reason_codes.SERVER_BUSY, "t" * 30)
    (packet,) = answers(connection)
    assert packet[1][0] == 0x89
    assert (len(packet[1]) > 2) is is_told_why


def test_a_good_bye_of_the_device_has_no_answer() -> None:
    connection, _ = open_connection(Properties(session_expiry_s=5))
    connection.receive_data(packets.encode_disconnect(4, Properties(session_expiry_s=9)), 0.0)
    assert connection.close_reason == reason_codes.NORMAL
    assert connection.events_received() == [Disconnect(4, 9)]
    assert connection.data_to_send() == b""


def test_a_session_without_expiry_gets_none_by_its_disconnect() -> None:
    connection, _ = open_connection()
    connection.receive_data(packets.encode_disconnect(0, Properties(session_expiry_s=9)), 0.0)
    assert connection.close_reason == reason_codes.PROTOCOL_ERROR


def test_the_packet_size_counts_the_header() -> None:
    """[MQTT-3.2.2-15]: what MQTT 3.1.1 is allowed is the remaining length."""
    for whole_bytes in (499, 500, 501, 502):
        connection, sink = open_connection(packet_bytes_max=500)
        packet = packets.encode_packet(packets.PUBLISH, 0, b"\0\1a\0" + bytes(whole_bytes - 7))
        assert len(packet) == whole_bytes
        connection.receive_data(packet, 0.0)
        assert len(sink.published) == (whole_bytes <= 500)
        expected = None if whole_bytes <= 500 else reason_codes.PACKET_TOO_LARGE
        assert connection.close_reason == expected


@pytest.mark.parametrize("qos", [1, 2])
def test_as_many_messages_without_an_answer_as_the_device_was_told_but_not_more(qos: int) -> None:
    connection, sink = open_connection(receive_max=3)
    for packet_id in (1, 2, 3):
        connection.receive_data(publish(NO_PROPERTIES, qos=qos, packet_id=packet_id), 0.0)
    connection.acknowledge_published(0)
    assert connection.close_reason is None
    if qos == 2:
        connection.receive_data(packets.encode_acknowledgement(packets.PUBREL, 1), 0.0)
    connection.receive_data(publish(NO_PROPERTIES, qos=qos, packet_id=4), 0.0)
    assert connection.close_reason is None
    connection.receive_data(publish(NO_PROPERTIES, qos=qos, packet_id=5), 0.0)
    assert connection.close_reason == reason_codes.RECEIVE_MAXIMUM_EXCEEDED
    assert len(sink.published) == 4
    assert answers(connection)[-1][1][0] == 0x93


def test_a_repeated_message_of_qos_2_counts_once() -> None:
    connection, sink = open_connection(receive_max=1)
    for _ in range(3):
        connection.receive_data(publish(NO_PROPERTIES, qos=2, packet_id=1), 0.0)
    assert connection.close_reason is None
    assert len(sink.published) == 1


def test_what_was_received_in_an_earlier_connection_is_not_counted() -> None:
    connection, _ = open_connection(receive_max=1)
    connection.restore_received([7, 8])
    connection.receive_data(publish(NO_PROPERTIES, qos=2, packet_id=1), 0.0)
    assert connection.close_reason is None
    connection.receive_data(publish(NO_PROPERTIES, qos=2, packet_id=2), 0.0)
    assert connection.close_reason == reason_codes.RECEIVE_MAXIMUM_EXCEEDED


def test_a_restored_packet_id_is_a_duplicate_with_dup_and_a_new_message_without() -> None:
    connection, sink = open_connection()
    connection.restore_received([7, 8])
    for packet_id, payload, dup in [(7, b"again", True), (8, b"new", False), (8, b"new again", True)]:
        packet = packets.encode_publish(
            "t", payload, qos=2, packet_id=packet_id, dup=dup, properties=NO_PROPERTIES
        )
        connection.receive_data(packet, 0.0)
    assert [message[1] for message in sink.published] == [b"new"]
    assert connection.received_packet_ids == [7], "the session has no more of them"


def test_the_window_towards_the_device_is_the_smaller_one() -> None:
    connection, _ = open_connection(Properties(receive_max=2), in_flight_max=5)
    for number in range(4):
        assert connection.deliver_message(b"t", b"%d" % number, 1)
    assert len(answers(connection)) == 2
    connection.receive_data(b"\x40\x03\0\x01\x97", 0.0)
    assert [packet[1][-1:] for packet in answers(connection)] == [b"2"], "a refusal makes room, too"


def test_a_message_of_qos_2_that_the_device_refuses_is_over() -> None:
    connection, _ = open_connection()
    assert connection.deliver_message(b"t", b"x", 2)
    connection.data_to_send()
    connection.receive_data(b"\x50\x03\0\x01\x80", 0.0)
    assert connection.data_to_send() == b"", "no PUBREL"
    assert connection.in_flight_count == 0


def test_unknown_packet_ids_are_named() -> None:
    connection, _ = open_connection()
    connection.receive_data(packets.encode_acknowledgement(packets.PUBREL, 9), 0.0)
    connection.receive_data(packets.encode_acknowledgement(packets.PUBREC, 9), 0.0)
    assert answers(connection) == [(0x70, b"\0\x09\x92"), (0x62, b"\0\x09\x92")]


def test_a_message_larger_than_the_device_takes_is_not_sent() -> None:
    """[MQTT-3.1.2-24]: the limit is of the whole packet."""
    packet = packets.encode_publish(
        b"t", bytes(20), qos=1, packet_id=1, properties=Properties(content_type="x")
    )
    for bytes_max in range(len(packet) - 2, len(packet) + 2):
        connection, _ = open_connection(Properties(packet_bytes_max=bytes_max))
        is_sent = connection.deliver_message(b"t", bytes(20), 1, properties=b"\3\0\1x")
        assert is_sent is (bytes_max >= len(packet))
        assert connection.data_to_send() == (packet if is_sent else b"")


def test_a_delivery_has_the_messages_properties_and_the_subscriptions() -> None:
    connection, _ = open_connection()
    assert connection.deliver_message(
        b"t", b"x", 0, properties=b"\1\1", is_retained=True, identifiers=[5, 70_000]
    )
    ((first, body),) = answers(connection)
    assert first == packets.PUBLISH << 4 | 1
    assert read_properties(FieldReader(body[3:], "PUBLISH"), 3) == Properties(
        payload_format=1, subscription_identifiers=(5, 70_000)
    )
    assert body[-1:] == b"x"


def test_a_message_that_waits_for_the_window_says_what_is_left_of_its_time_or_goes() -> None:
    """[MQTT-3.3.2-5], [MQTT-3.3.2-6]"""
    connection, _ = open_connection(in_flight_max=1)
    expiry = b"\2\0\0\0\x64"
    assert connection.deliver_message(b"t", b"0", 1, properties=expiry, expires_s=100.0)
    assert connection.deliver_message(b"t", b"1", 1, properties=expiry, expires_s=100.0)
    assert connection.deliver_message(b"t", b"2", 1, properties=expiry, expires_s=100.0)
    assert connection.deliver_message(b"t", b"3", 1)
    connection.data_to_send()
    connection.receive_data(packets.encode_acknowledgement(packets.PUBACK, 1), 70.0)
    ((_, body),) = answers(connection)
    assert read_properties(FieldReader(body[5:], "PUBLISH"), 3).message_expiry_s == 30
    connection.receive_data(packets.encode_acknowledgement(packets.PUBACK, 2), 100.0)
    ((_, body),) = answers(connection)
    assert body[-1:] == b"3"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_that_says_it_is_text_is_checked_when_asked(qos: int) -> None:
    text, data = Properties(payload_format=1), Properties(payload_format=0)
    connection, sink = open_connection(checks_payload_format=True)

    def send(payload: bytes, properties: Properties, packet_id: int) -> None:
        packet = packets.encode_publish("a", payload, qos=qos, packet_id=packet_id, properties=properties)
        connection.receive_data(packet, 0.0)

    send("\0é\U0010ffff".encode(), text, 1)
    send(b"\xff", data, 2)
    send(b"\xff", NO_PROPERTIES, 3)
    assert len(sink.published) == 3
    send(b"\xed\xa0\x80", text, 4)
    assert len(sink.published) == 3
    if qos:
        connection.acknowledge_published(0, 3)
        assert connection.close_reason is None
        assert answers(connection)[-1] == ((packets.PUBACK if qos == 1 else packets.PUBREC) << 4, b"\0\4\x99")
    else:
        assert connection.close_reason == reason_codes.PAYLOAD_FORMAT_INVALID
    other, sink = open_connection()
    other.receive_data(packets.encode_publish("a", b"\xff", properties=text), 0.0)
    assert len(sink.published) == 1, "nobody asked"


def test_a_topic_that_comes_again_is_sent_by_its_alias() -> None:
    connection, _ = open_connection(Properties(topic_alias_max=2))
    topic = b"devices/4711/commands"
    for _ in range(3):
        assert connection.deliver_message(topic, b"x", 0, properties=b"\1\1")
    packets_sent = [body for _, body in answers(connection)]
    assert packets_sent[0].startswith(len(topic).to_bytes(2, "big") + topic + b"\x02")
    assert packets_sent[1] == len(topic).to_bytes(2, "big") + topic + b"\x05\1\1\x23\0\1x"
    assert packets_sent[2] == b"\0\0" + b"\x05\1\1\x23\0\1x"


def test_what_waits_for_the_window_has_no_alias() -> None:
    """Its order among the others is not known when it is encoded."""
    connection, _ = open_connection(Properties(topic_alias_max=2, receive_max=1))
    topic = b"devices/4711/commands"
    for qos in (1, 1, 0, 0):
        connection.deliver_message(topic, b"x", qos)
    connection.receive_data(packets.encode_acknowledgement(packets.PUBACK, 1), 0.0)
    sent = answers(connection)
    assert [body[:2] != b"\0\0" for _, body in sent] == [True, True, False, True]
    assert b"\x23" not in sent[3][1]


def test_mqtt_3_1_is_spoken_beside() -> None:
    connection, sink = new_connection()
    connect = packets.encode_connect(Connect("old", True, 60, None, None, None, 3))
    assert connect[2:] == b"\0\6MQIsdp\3\2\0\x3c\0\3old"
    connection.receive_data(connect, 0.0)
    connection.open_session(session_present=True)
    assert connection.data_to_send() == b"\x20\2\0\0", "no session present flag"
    # DUP is a flag of SUBSCRIBE, UNSUBSCRIBE and PUBREL there, and of any PUBLISH.
    connection.receive_data(b"\x8a" + packets.encode_subscribe(1, [("a", 1)])[1:], 0.0)
    connection.receive_data(b"\xaa" + packets.encode_unsubscribe(1, ["a"])[1:], 0.0)
    connection.receive_data(b"\x6a\2\0\1" + b"\x38\4\0\1ax", 0.0)
    assert connection.close_reason is None
    assert [one[0] for one in sink.published] == ["a"]


@pytest.mark.parametrize("flags", [0x82, 0xC2])
def test_mqtt_3_1_goes_by_what_is_there_of_user_name_and_password(flags: int) -> None:
    connection, _ = new_connection()
    connection.receive_data(
        packets.encode_packet(1, 0, b"\0\6MQIsdp\3" + bytes([flags]) + b"\0\x3c\0\1d"), 0.0
    )
    (event,) = connection.events_received()
    assert isinstance(event, Connect)
    assert event.user_name is event.password is None


def test_mqtt_3_1_has_no_empty_client_id() -> None:
    connection, _ = new_connection()
    connection.receive_data(packets.encode_packet(1, 0, b"\0\6MQIsdp\3\2\0\x3c\0\0"), 0.0)
    assert connection.data_to_send() == b"\x20\2\0\2"


def test_subacks_say_more_in_mqtt_5() -> None:
    connection, _ = open_connection()
    connection.send_suback(1, [0, 0x97])
    connection.send_unsuback(2, [0, 0x11])
    assert answers(connection) == [(0x90, b"\0\1\0\0\x97"), (0xB0, b"\0\2\0\0\x11")]
    old, _ = new_connection()
    old.receive_data(packets.encode_connect(Connect("d", True, 60, None, None, None)), 0.0)
    old.open_session(session_present=False)
    old.data_to_send()
    old.send_suback(1, [0, 0x97])
    old.send_unsuback(2, [0, 0x11])
    assert answers(old) == [(0x90, b"\0\1\0\x80"), (0xB0, b"\0\2")]


def test_receive_max_is_checked() -> None:
    with pytest.raises(ValueError, match="receive_max"):
        ConnectionSettings(receive_max=0)


def test_a_delivery_has_no_more_identifiers_than_there_is_room_for() -> None:
    connection, _ = open_connection()
    assert connection.deliver_message(b"t", b"x", 0, identifiers=range(1, 17))
    with pytest.raises(ValueError, match="17 subscription identifiers"):
        connection.deliver_message(b"t", b"x", 0, identifiers=range(1, 18))


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("payload_bytes", [10, 30_000])
def test_a_message_as_large_as_the_device_takes_is_sent_without_an_alias_if_need_be(
    qos: int, payload_bytes: int
) -> None:
    topic, payload = "t" * 80, bytes(payload_bytes)

    def encoded(properties: Properties) -> bytes:
        packet_id = 1 if qos else 0
        return packets.encode_publish(topic, payload, qos=qos, packet_id=packet_id, properties=properties)

    plain, aliased = encoded(NO_PROPERTIES), encoded(Properties(topic_alias=1))
    for bytes_max in range(len(plain) - 1, len(aliased) + 2):
        connection, _ = open_connection(Properties(packet_bytes_max=bytes_max, topic_alias_max=1))
        assert connection.deliver_message(topic.encode(), payload, qos) is (bytes_max >= len(plain))
        sent = connection.data_to_send()
        wanted = aliased if bytes_max >= len(aliased) else plain
        assert sent == (wanted if bytes_max >= len(plain) else b"")
