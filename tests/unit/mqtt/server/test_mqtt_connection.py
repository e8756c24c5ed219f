"""The compiled connection core: limits, acknowledgements, delivery windows."""

from __future__ import annotations

import pytest
from fake_gateway import split_output
from mqtt_core import PACKET_BYTES_MAX, new_connection
from mqtt_corpus import ANSWERS, ANSWERS_5, CONNECT, Answers

from iotmq import limits
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect, Will
from iotmq.mqtt.server.connection import (
    AWAITING_CONNECT,
    CLOSED,
    OPENING,
    ServerConnection,
)
from iotmq.mqtt.server.connection_settings import ConnectionSettings
from iotmq.mqtt.server.publish_sink import CollectingSink


@pytest.mark.parametrize(("size", "is_taken"), [(PACKET_BYTES_MAX, True), (PACKET_BYTES_MAX + 1, False)])
def test_packet_size_limit(size: int, is_taken: bool) -> None:
    connection, sink = new_connection()
    connection.receive_data(CONNECT, 0.0)
    connection.events_received()
    connection.open_session(session_present=False)
    body = b"\0\x01a" + bytes(size - 3)
    connection.receive_data(packets.encode_packet(packets.PUBLISH, 0, body)[:10], 0.0)
    assert (connection.close_reason is None) is is_taken
    if not is_taken:
        assert connection.close_reason == reason_codes.PACKET_TOO_LARGE
        assert "mqtt.packet_bytes_max" in (connection.close_detail or "")
        assert not sink.published


def test_input_behind_connect_waits_until_the_session_is_open() -> None:
    connection, sink = new_connection()
    connection.receive_data(CONNECT + packets.encode_publish("a", b"1"), 0.0)
    connection.receive_data(packets.encode_publish("b", b"2"), 0.0)
    assert connection.state == OPENING
    assert not sink.published
    connection.open_session(session_present=False)
    assert [one[:2] for one in sink.published] == [("a", b"1"), ("b", b"2")]
    assert connection.data_to_send() == packets.encode_connack(0, session_present=False)


def open_connection(**settings: object) -> tuple[ServerConnection, CollectingSink]:
    connection, sink = new_connection(**settings)
    connection.receive_data(CONNECT, 0.0)
    connection.events_received()
    connection.open_session(session_present=False)
    connection.data_to_send()
    return connection, sink


def test_acknowledgements_leave_in_the_order_of_the_publishes() -> None:
    """[MQTT-4.6.0-2], even when a later message is durable first."""
    connection, _ = open_connection()
    for packet_id in (10, 20, 30):
        connection.receive_data(packets.encode_publish("a", b"", qos=1, packet_id=packet_id), 0.0)
    connection.acknowledge_published(1)
    assert connection.data_to_send() == b""
    connection.acknowledge_published(0)
    assert connection.data_to_send() == packets.encode_acknowledgement(
        4, 10
    ) + packets.encode_acknowledgement(4, 20)
    connection.acknowledge_published(2)
    assert connection.data_to_send() == packets.encode_acknowledgement(4, 30)
    assert connection.unacknowledged_count == 0


def test_acknowledging_what_is_not_outstanding_is_an_error_of_the_caller() -> None:
    connection, _ = open_connection()
    with pytest.raises(ValueError, match="outstanding"):
        connection.acknowledge_published(0)


def test_as_many_unacknowledged_messages_as_there_are_packet_ids_but_not_more() -> None:
    connection, sink = open_connection()
    stream = b"".join(
        packets.encode_publish("a", b"", qos=1, packet_id=number % 65535 + 1) for number in range(65_536)
    )
    connection.receive_data(stream, 0.0)
    assert connection.close_reason is None
    connection.receive_data(packets.encode_publish("a", b"", qos=1, packet_id=1), 0.0)
    assert connection.close_reason == reason_codes.RECEIVE_MAXIMUM_EXCEEDED
    assert len(sink.published) == 65_536


def read_publishes(output: bytes) -> list[tuple[int, bytes]]:
    """(packet id or 0, payload) of the PUBLISH packets in `output` to topic `t`."""
    found = []
    at = 0
    while at < len(output):
        size = output[at + 1]
        assert size < 128
        qos = output[at] >> 1 & 3
        body = output[at + 2 : at + 2 + size]
        assert body[:3] == b"\0\x01t"
        found.append((int.from_bytes(body[3:5], "big") if qos else 0, body[5:] if qos else body[3:]))
        at += 2 + size
    return found


def test_delivery_of_qos_1_keeps_to_the_window_and_goes_on_in_order() -> None:
    connection, _ = open_connection(in_flight_max=3)
    for number in range(10):
        assert connection.deliver_message(b"t", b"%d" % number, 1)
    assert read_publishes(connection.data_to_send()) == [(1, b"0"), (2, b"1"), (3, b"2")]
    assert connection.in_flight_count == 3
    assert connection.queued_bytes > 0
    connection.receive_data(packets.encode_acknowledgement(packets.PUBACK, 2), 0.0)
    assert read_publishes(connection.data_to_send()) == [(4, b"3")]
    connection.receive_data(packets.encode_acknowledgement(packets.PUBACK, 2), 0.0)
    assert connection.data_to_send() == b"", "an acknowledgement counts once"
    for packet_id in (1, 3, 4, 5, 6, 7, 8, 9, 10):
        connection.receive_data(packets.encode_acknowledgement(packets.PUBACK, packet_id), 0.0)
    assert [payload for _, payload in read_publishes(connection.data_to_send())] == [
        b"%d" % n for n in range(4, 10)
    ]
    assert connection.in_flight_count == 0
    assert connection.queued_bytes == 0


def test_what_waits_is_dropped_by_its_topic_and_the_rest_goes_on_in_order() -> None:
    connection, _ = open_connection(in_flight_max=1)
    assert connection.withdraw_queued(lambda topic: True) == 0
    sizes = (0, 1, 200, 20_000)
    for number, size in enumerate(sizes * 5):
        topic = b"bad" if number % 3 else b"t"
        assert connection.deliver_message(topic, b"%d" % number + b"." * size, 1)
    asked: list[bytes] = []
    connection.withdraw_queued(lambda topic: bool(asked.append(topic)))
    assert asked == [b"bad" if number % 3 else b"t" for number in range(1, 20)]
    with pytest.raises(ZeroDivisionError):
        connection.withdraw_queued(lambda topic: bool(1 // (topic == b"bad")))
    assert connection.withdraw_queued(lambda topic: topic == b"bad") == 13
    left = connection.queued_bytes
    assert connection.withdraw_queued(lambda topic: topic == b"bad") == 0
    got = [connection.data_to_send()]
    for packet_id in range(1, 7):
        connection.receive_data(packets.encode_acknowledgement(packets.PUBACK, packet_id), 0.0)
        got.append(connection.data_to_send())
    assert 0 < sum(map(len, got[1:])) < left
    for number, packet in zip(range(0, 19, 3), got, strict=True):
        assert packet.rstrip(b".").endswith(b"%d" % number)
    assert connection.queued_bytes == 0
    connection.deliver_message(b"bad", b"", 1)
    assert connection.withdraw_queued(lambda topic: True) == 1
    assert connection.queued_bytes == 0


def test_what_was_for_a_device_that_has_gone_holds_no_memory() -> None:
    connection, _ = open_connection(in_flight_max=1)
    connection.forget_output()
    for _ in range(10):
        assert connection.deliver_message(b"t", b"." * 1_000, 1)
    assert connection.output_bytes
    assert connection.queued_bytes
    connection.receive_eof()
    connection.forget_output()
    assert (connection.output_bytes, connection.queued_bytes) == (0, 0)
    assert connection.data_to_send() == b""


def test_packet_ids_wrap_and_never_collide_with_one_in_flight() -> None:
    connection, _ = open_connection(in_flight_max=1000)
    assert connection.deliver_message(b"t", b"held", 1)
    held = read_publishes(connection.data_to_send())[0][0]
    seen = set()
    for _ in range(70_000):
        assert connection.deliver_message(b"t", b"", 1)
        packet_id = read_publishes(connection.data_to_send())[0][0]
        assert packet_id not in (0, held)
        seen.add(packet_id)
        connection.receive_data(packets.encode_acknowledgement(packets.PUBACK, packet_id), 0.0)
    assert len(seen) > 60_000, "nearly all of them are used"
    assert connection.in_flight_count == 1


def test_what_a_slow_subscriber_leaves_is_bounded_and_the_rest_is_dropped() -> None:
    payload = bytes(100)
    limit = 16 * 1024
    for qos in (0, 1):
        connection, _ = open_connection(queued_bytes_max=limit, in_flight_max=1)
        taken = sum(connection.deliver_message(b"t", payload, qos) for _ in range(1_000))
        per_message = (connection.output_bytes + connection.queued_bytes) / taken
        assert limit - 2 * per_message <= taken * per_message <= limit + 2 * per_message, qos
        assert connection.output_bytes + connection.queued_bytes <= limit + 1_000
        assert not connection.deliver_message(b"t", payload, qos)


def test_what_waits_for_a_subscriber_at_its_limit_of_bytes_and_past_it() -> None:
    payload = bytes(100)
    least = len(payload) + 1 + 4
    for qos in (0, 1):
        connection, _ = open_connection(in_flight_max=1)
        assert connection.deliver_message(b"t", payload, 1), "fills the window"
        connection.data_to_send()
        assert connection.deliver_message(b"t", payload, qos)
        per_message = connection.output_bytes + connection.queued_bytes
        for limit, taken in ((9 * per_message + least, 10), (9 * per_message + least - 1, 9)):
            connection, _ = open_connection(queued_bytes_max=limit, in_flight_max=1)
            assert connection.deliver_message(b"t", payload, 1)
            connection.data_to_send()
            answers = [connection.deliver_message(b"t", payload, qos) for _ in range(12)]
            assert answers == [True] * taken + [False] * (12 - taken), qos
            assert connection.output_bytes + connection.queued_bytes == taken * per_message


def test_one_message_larger_than_the_bound_is_still_delivered_to_an_idle_subscriber() -> None:
    connection, _ = open_connection(queued_bytes_max=1_000)
    assert connection.deliver_message(b"t", bytes(5_000), 0)
    assert connection.output_bytes == 5_000 + 3 + 3


def test_deadlines_follow_keep_alive_and_the_connect_timeout() -> None:
    connection, _ = new_connection(connect_timeout_s=5.0)
    connection.receive_data(CONNECT[:3], 4.0)
    assert connection.state == AWAITING_CONNECT
    assert connection.next_deadline() == 5.0, "bytes that are not a CONNECT do not buy time"
    connection.receive_data(CONNECT[3:], 4.5)
    connection.open_session(session_present=False)
    assert connection.next_deadline() == 4.5 + 90.0
    connection.receive_data(packets.PINGREQ_PACKET, 50.0)
    assert connection.next_deadline() == 50.0 + 90.0
    connection.receive_data(packets.DISCONNECT_PACKET, 60.0)
    assert connection.next_deadline() is None


def test_no_keep_alive_means_no_deadline() -> None:
    connection, _ = new_connection()
    connection.receive_data(packets.encode_connect(Connect("d", True, 0, None, None, None)), 0.0)
    connection.open_session(session_present=False)
    assert connection.next_deadline() is None


def test_end_of_input_is_a_lost_connection_unless_disconnect_came_first() -> None:
    lost, _ = open_connection()
    lost.receive_eof()
    assert lost.close_reason == reason_codes.CONNECTION_LOST
    clean, _ = open_connection()
    clean.receive_data(packets.DISCONNECT_PACKET, 0.0)
    clean.receive_eof()
    assert clean.close_reason == reason_codes.NORMAL
    assert clean.events_received() == [packets.Disconnect()]


def test_a_closed_connection_drops_input_and_deliveries() -> None:
    connection, sink = open_connection()
    connection.close(reason_codes.SESSION_TAKEN_OVER)
    connection.receive_data(packets.encode_publish("a", b"1"), 0.0)
    assert connection.state == CLOSED
    assert not sink.published
    assert not connection.deliver_message(b"t", b"", 0)
    assert connection.data_to_send() == b""


def test_refusal_after_connect_carries_its_code() -> None:
    connection, _ = new_connection()
    connection.receive_data(CONNECT, 0.0)
    connection.refuse(reason_codes.SERVER_UNAVAILABLE)
    assert connection.data_to_send() == bytes([0x20, 2, 0, 3])


@pytest.mark.parametrize("value", [0, 65_536])
def test_in_flight_limit_is_checked(value: int) -> None:
    with pytest.raises(ValueError, match="in_flight_max"):
        ConnectionSettings(in_flight_max=value)


LEVELS_AND_ANSWERS = [(5, one) for one in ANSWERS_5] + [(level, one) for level in (3, 4) for one in ANSWERS]


@pytest.mark.parametrize(
    ("level", "answers"), LEVELS_AND_ANSWERS, ids=lambda value: getattr(value, "name", str(value))
)
def test_an_acknowledgement_its_message_does_not_wait_for_ends_the_connection(
    level: int, answers: Answers
) -> None:
    """[MQTT-4.13.1-1], 3.1.1 [MQTT-4.8.0-1]; one of a message that is done is harmless."""
    connection, _ = new_connection()
    connection.receive_data(packets.encode_connect(Connect("d", True, 60, None, None, None, level)), 0.0)
    connection.events_received()
    connection.open_session(session_present=False)
    connection.data_to_send()
    assert connection.deliver_message(b"t", b"x", answers.qos)
    connection.receive_data(answers.stream, 0.0)
    assert connection.close_reason == answers.reason
    if answers.reason is None:
        assert connection.in_flight_count == 0
    elif level == 5:
        assert split_output(connection.data_to_send())[-1][1][0] == answers.reason.v5_code


@pytest.mark.parametrize("more", [0, 1])
def test_a_connect_is_no_larger_than_the_longest_legal_one_and_other_packets_are(more: int) -> None:
    size = limits.MQTT_CONNECT_BYTES_MAX + more
    connection, _ = new_connection(packet_bytes_max=limits.MQTT_PACKET_BYTES_MAX)
    connection.receive_data(packets.encode_packet(packets.CONNECT, 0, bytes(size))[:-1], 0.0)
    assert connection.close_reason is (reason_codes.PACKET_TOO_LARGE if more else None)
    connection, _ = new_connection(packet_bytes_max=limits.MQTT_PACKET_BYTES_MAX)
    connection.receive_data(packets.encode_connect(Connect("d", True, 0, None, None, None)), 0.0)
    connection.open_session(session_present=False)
    connection.receive_data(packets.encode_publish("t", bytes(size)), 0.0)
    assert connection.close_reason is None


def test_the_longest_legal_connect_is_taken() -> None:
    longest = "x" * 65_535
    will = Will("t" * limits.MQTT_TOPIC_BYTES_MAX, bytes(65_535), 1, True)
    client_id = "c" * limits.MQTT_CLIENT_ID_BYTES_MAX
    packet = packets.encode_connect(Connect(client_id, True, 0, will, longest, longest.encode()))
    assert len(packet) + 2 * limits.MQTT_PROPERTIES_BYTES_MAX < limits.MQTT_CONNECT_BYTES_MAX
    connection, _ = new_connection(packet_bytes_max=limits.MQTT_PACKET_BYTES_MAX)
    connection.receive_data(packet, 0.0)
    assert len(connection.events_received()) == 1
