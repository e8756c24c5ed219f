"""AUTH packets in the connection core: MQTT 5 sections 3.15 and 4.12, whole and byte by byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_gateway import split_output
from mqtt5_corpus import connect_with
from mqtt5_oracle import read_properties
from mqtt_core import new_connection

from iotmq import limits
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Auth, Connect, Disconnect
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties, encode_properties
from iotmq.mqtt.reason_codes import Reason
from iotmq.mqtt.server.connection import AUTHENTICATING, CLOSED, CONNECTED, OPENING, ServerConnection

METHOD = "SCRAM-SHA-256"
CONTINUE, AGAIN = 0x18, 0x19
DATA_MAX = limits.MQTT_AUTHENTICATION_DATA_BYTES_MAX


def auth(code: int = CONTINUE, data: bytes | None = b"data", method: str | None = METHOD) -> bytes:
    return packets.encode_auth(code, Properties(authentication_method=method, authentication_data=data))


def begin(data: bytes | None = b"first", **properties: int) -> ServerConnection:
    """A connection whose CONNECT had a method."""
    connection, _ = new_connection(authentication_methods=[METHOD])
    connect = Properties(authentication_method=METHOD, authentication_data=data, **properties)
    connection.receive_data(connect_with(connect), 0.0)
    return connection


def asked() -> ServerConnection:
    """One that has been sent AUTH 0x18."""
    connection = begin()
    connection.events_received()
    connection.ask_authentication(b"challenge")
    connection.data_to_send()
    return connection


def accepted() -> ServerConnection:
    """One that is connected."""
    connection = asked()
    connection.receive_data(auth(), 0.0)
    connection.events_received()
    connection.accept_authentication(b"done")
    connection.open_session(session_present=False)
    connection.data_to_send()
    return connection


def sent(connection: ServerConnection) -> list[tuple[int, int, dict[str, object]]]:
    """(packet type, reason code, properties) of what the server wrote."""
    found = []
    for first, body in split_output(connection.data_to_send()):
        kind = first >> 4
        assert first & 15 == 0  # [MQTT-3.15.1-1] holds for the server, too
        at = 2 if kind == packets.CONNACK else 1
        found.append((kind, body[at - 1], read_properties(body[at:], kind)[1]))
    return found


@pytest.mark.parametrize("more", [0, 1])
def test_an_auth_packet_before_the_session_opens_is_no_larger_than_a_connect(more: int) -> None:
    connection, _ = new_connection(
        authentication_methods=[METHOD], packet_bytes_max=limits.MQTT_PACKET_BYTES_MAX
    )
    connection.receive_data(connect_with(Properties(authentication_method=METHOD)), 0.0)
    connection.ask_authentication(b"challenge")
    packet = packets.encode_packet(packets.AUTH, 0, bytes(limits.MQTT_CONNECT_BYTES_MAX + more))
    connection.receive_data(packet[:-1], 0.0)
    assert connection.close_reason is (reason_codes.PACKET_TOO_LARGE if more else None)


def test_an_exchange_opens_the_session_with_the_method_and_the_last_data() -> None:
    """[MQTT-4.12.0-2], [MQTT-4.12.0-3], [MQTT-4.12.0-5]"""
    connection = begin(b"first")
    (connect,) = connection.events_received()
    assert isinstance(connect, Connect)
    assert connect.properties.authentication_data == b"first"
    assert connection.state == OPENING
    connection.ask_authentication(b"challenge")
    assert connection.state == AUTHENTICATING
    assert sent(connection) == [
        (packets.AUTH, CONTINUE, {"authentication_method": METHOD, "authentication_data": b"challenge"})
    ]
    connection.receive_data(auth(CONTINUE, b"proof"), 0.0)
    assert connection.events_received() == [Auth(CONTINUE, METHOD, b"proof")]
    assert connection.state == OPENING
    connection.accept_authentication(b"signature")
    connection.open_session(session_present=False)
    assert connection.state == CONNECTED
    ((kind, code, properties),) = sent(connection)
    assert (kind, code) == (packets.CONNACK, 0)
    assert properties["authentication_method"] == METHOD
    assert properties["authentication_data"] == b"signature"


def test_an_exchange_may_have_many_steps_and_no_data() -> None:
    connection = begin(None)
    for _ in range(5):
        connection.ask_authentication()
        assert sent(connection) == [(packets.AUTH, CONTINUE, {"authentication_method": METHOD})]
        for byte in auth(CONTINUE, None):
            connection.receive_data(bytes([byte]), 0.0)
        assert connection.events_received()[-1] == Auth(CONTINUE, METHOD, None)
    connection.accept_authentication()
    connection.open_session(session_present=False)
    ((kind, _, properties),) = sent(connection)
    assert kind == packets.CONNACK
    assert properties["authentication_method"] == METHOD
    assert "authentication_data" not in properties


def test_without_a_method_nothing_is_said_of_one() -> None:
    """[MQTT-4.12.0-6]"""
    connection, _ = new_connection(authentication_methods=[METHOD])
    connection.receive_data(connect_with(NO_PROPERTIES), 0.0)
    connection.open_session(session_present=False)
    ((kind, code, properties),) = sent(connection)
    assert (kind, code) == (packets.CONNACK, 0)
    assert not any("authentication" in name for name in properties)


@pytest.mark.parametrize("method", ["SCRAM-SHA-1", "scram-sha-256", "", "SCRAM-SHA-256-PLUS"])
def test_a_method_the_server_does_not_have_is_refused(method: str) -> None:
    """[MQTT-4.12.0-1]"""
    connection, _ = new_connection(authentication_methods=[METHOD])
    connection.receive_data(connect_with(Properties(authentication_method=method)), 0.0)
    assert connection.close_reason == reason_codes.BAD_AUTHENTICATION_METHOD
    ((kind, code, _),) = sent(connection)
    assert (kind, code) == (packets.CONNACK, 0x8C)


def test_the_server_may_refuse_at_any_step() -> None:
    """[MQTT-4.12.0-4]"""
    for steps in range(3):
        connection = begin()
        for _ in range(steps):
            connection.ask_authentication(b"?")
            connection.receive_data(auth(), 0.0)
        connection.data_to_send()
        connection.refuse(reason_codes.NOT_AUTHORIZED, "no")
        assert connection.state == CLOSED
        ((kind, code, _),) = sent(connection)
        assert (kind, code) == (packets.CONNACK, 0x87)
        connection.open_session(session_present=False)
        connection.ask_authentication(b"?")
        connection.accept_authentication(b"?")
        assert connection.data_to_send() == b""


FORBIDDEN = {
    "CONNECT": connect_with(NO_PROPERTIES),
    "PUBLISH": packets.encode_publish("t", b"", properties=NO_PROPERTIES),
    "PUBACK": packets.encode_acknowledgement(packets.PUBACK, 1),
    "PUBREL": packets.encode_acknowledgement(packets.PUBREL, 1),
    "SUBSCRIBE": packets.encode_subscribe(1, [("#", 0)], NO_PROPERTIES),
    "UNSUBSCRIBE": packets.encode_unsubscribe(1, ["#"], NO_PROPERTIES),
    "PINGREQ": packets.PINGREQ_PACKET,
    "CONNACK": packets.encode_connack(0, session_present=False, properties=NO_PROPERTIES),
}


@pytest.mark.parametrize("name", FORBIDDEN)
@pytest.mark.parametrize("is_waiting", [False, True], ids=["asked", "while the server looks"])
def test_nothing_but_auth_and_disconnect_comes_before_the_connack(name: str, is_waiting: bool) -> None:
    """[MQTT-3.1.2-30]"""
    for pieces in ([FORBIDDEN[name]], [bytes([byte]) for byte in FORBIDDEN[name]]):
        connection = begin() if is_waiting else asked()
        connection.events_received()
        for piece in pieces:
            connection.receive_data(piece, 0.0)
        assert connection.close_reason == reason_codes.PROTOCOL_ERROR
        ((kind, code, _),) = sent(connection)
        assert (kind, code) == (packets.CONNACK, 0x82)
        assert not connection.has_events


def test_what_comes_in_one_piece_with_the_connect_is_an_answer_given_too_early() -> None:
    """An AUTH may wait behind its CONNECT, and is taken when the server asked; a second one may not."""
    connection, _ = new_connection(authentication_methods=[METHOD])
    connect = connect_with(Properties(authentication_method=METHOD))
    connection.receive_data(connect + auth(data=b"1") + auth(data=b"2"), 0.0)
    assert len(connection.events_received()) == 1
    connection.ask_authentication(None)
    assert connection.events_received() == [Auth(CONTINUE, METHOD, b"1")]
    connection.accept_authentication()
    connection.open_session(session_present=False)
    assert connection.close_reason == reason_codes.PROTOCOL_ERROR
    assert [packet[:2] for packet in sent(connection)] == [
        (packets.AUTH, CONTINUE),
        (packets.CONNACK, 0),
        (packets.DISCONNECT, 0x82),
    ]


def test_disconnect_ends_the_exchange_without_an_answer() -> None:
    connection = asked()
    connection.receive_data(packets.DISCONNECT_PACKET, 0.0)
    assert connection.events_received() == [Disconnect()]
    assert connection.close_reason == reason_codes.NORMAL
    assert connection.data_to_send() == b""


def test_the_exchange_has_the_time_of_a_connect() -> None:
    connection = begin()
    connection.ask_authentication()
    assert connection.next_deadline() == limits.MQTT_CONNECT_TIMEOUT_S
    connection.receive_data(auth()[:3], 5.0)
    assert connection.next_deadline() == limits.MQTT_CONNECT_TIMEOUT_S


def test_re_authentication_does_not_interrupt_the_traffic() -> None:
    connection = accepted()
    connection.receive_data(auth(AGAIN, b"first") + packets.PINGREQ_PACKET, 0.0)
    assert connection.events_received() == [Auth(AGAIN, METHOD, b"first")]
    assert connection.data_to_send() == packets.PINGRESP_PACKET
    connection.ask_authentication(b"challenge")
    connection.receive_data(FORBIDDEN["SUBSCRIBE"] + auth(CONTINUE, b"proof"), 0.0)
    assert [type(event).__name__ for event in connection.events_received()] == ["Subscribe", "Auth"]
    connection.accept_authentication(b"signature")
    assert connection.state == CONNECTED
    assert sent(connection) == [
        (packets.AUTH, CONTINUE, {"authentication_method": METHOD, "authentication_data": b"challenge"}),
        (packets.AUTH, 0, {"authentication_method": METHOD, "authentication_data": b"signature"}),
    ]
    # And once more.
    connection.receive_data(auth(AGAIN, None), 0.0)
    assert connection.events_received() == [Auth(AGAIN, METHOD, None)]


def test_re_authentication_that_fails_ends_the_connection() -> None:
    """[MQTT-4.12.1-2]"""
    connection = accepted()
    connection.receive_data(auth(AGAIN), 0.0)
    connection.close(reason_codes.NOT_AUTHORIZED)
    ((kind, code, _),) = sent(connection)
    assert (kind, code) == (packets.DISCONNECT, 0x87)


def raw_auth(body: bytes, flags: int = 0) -> bytes:
    return packets.encode_packet(packets.AUTH, flags, body)


NAMED = encode_properties(Properties(authentication_method=METHOD))
# name: (packet, how the connection was before, why it ends)
WRONG: dict[str, tuple[bytes, Callable[[], ServerConnection], Reason]] = {
    "reserved flags [MQTT-3.15.1-1]": (raw_auth(b"\x18" + NAMED, 1), asked, reason_codes.MALFORMED_PACKET),
    "no reason code [MQTT-3.15.2-1]": (raw_auth(b""), asked, reason_codes.PROTOCOL_ERROR),
    "success from a client [MQTT-3.15.2-1]": (auth(0x00), asked, reason_codes.PROTOCOL_ERROR),
    "a code that AUTH has not [MQTT-3.15.2-1]": (auth(0x80), asked, reason_codes.PROTOCOL_ERROR),
    "no properties": (raw_auth(b"\x18"), asked, reason_codes.PROTOCOL_ERROR),
    "no method (3.15.2.2.2)": (auth(method=None), asked, reason_codes.PROTOCOL_ERROR),
    "a method twice": (
        raw_auth(b"\x18" + bytes([2 * len(NAMED) - 2]) + NAMED[1:] * 2),
        asked,
        reason_codes.PROTOCOL_ERROR,
    ),
    "another method [MQTT-4.12.0-5]": (auth(method="PLAIN"), asked, reason_codes.PROTOCOL_ERROR),
    "another method later [MQTT-4.12.1-1]": (auth(AGAIN, method="X"), accepted, reason_codes.PROTOCOL_ERROR),
    "a property it has not": (raw_auth(b"\x18\x02\x01\x00"), asked, reason_codes.MALFORMED_PACKET),
    "bytes behind it": (raw_auth(b"\x18" + NAMED + b"x"), asked, reason_codes.MALFORMED_PACKET),
    "a beginning before the end": (auth(AGAIN), asked, reason_codes.PROTOCOL_ERROR),
    "an answer to nothing": (auth(CONTINUE), accepted, reason_codes.PROTOCOL_ERROR),
    "two beginnings": (auth(AGAIN) * 2, accepted, reason_codes.PROTOCOL_ERROR),
    "too much data": (auth(data=bytes(DATA_MAX + 1)), asked, reason_codes.QUOTA_EXCEEDED),
    "too much data later": (auth(AGAIN, bytes(DATA_MAX + 1)), accepted, reason_codes.QUOTA_EXCEEDED),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_auth_that_breaks_a_rule_ends_the_connection(name: str) -> None:
    packet, before, reason = WRONG[name]
    for pieces in ([packet], [packet[at : at + 1] for at in range(len(packet))]):
        connection = before()
        answer = packets.DISCONNECT if connection.state == CONNECTED else packets.CONNACK
        for piece in pieces:
            connection.receive_data(piece, 0.0)
        assert connection.close_reason == reason
        ((kind, code, _),) = sent(connection)
        assert (kind, code) == (answer, reason.v5_code)


def test_as_much_data_as_is_allowed() -> None:
    connection = asked()
    connection.receive_data(auth(data=bytes(DATA_MAX)), 0.0)
    assert connection.events_received() == [Auth(CONTINUE, METHOD, bytes(DATA_MAX))]
    connection = begin(bytes(DATA_MAX))
    assert connection.close_reason is None
    connection = begin(bytes(DATA_MAX + 1))
    assert connection.close_reason == reason_codes.QUOTA_EXCEEDED


def test_every_auth_cut_short_is_refused() -> None:
    _, body = split_output(auth(CONTINUE, b"proof"))[0]
    for end in range(len(body)):
        connection = asked()
        connection.receive_data(raw_auth(body[:end]), 0.0)
        assert connection.close_reason in (reason_codes.MALFORMED_PACKET, reason_codes.PROTOCOL_ERROR), end


@pytest.mark.parametrize("code", [CONTINUE, AGAIN])
def test_auth_after_a_connect_without_a_method_is_a_protocol_error(code: int) -> None:
    """[MQTT-4.12.0-7]"""
    connection, _ = new_connection(authentication_methods=[METHOD])
    connection.receive_data(connect_with(NO_PROPERTIES), 0.0)
    connection.open_session(session_present=False)
    connection.data_to_send()
    connection.receive_data(auth(code), 0.0)
    assert connection.close_reason == reason_codes.PROTOCOL_ERROR


@pytest.mark.parametrize("level", [3, 4])
def test_there_is_no_auth_before_mqtt_5(level: int) -> None:
    connection, _ = new_connection(authentication_methods=[METHOD])
    connection.receive_data(
        packets.encode_connect(Connect("d", True, 0, None, None, None, level, NO_PROPERTIES)), 0.0
    )
    connection.open_session(session_present=False)
    connection.data_to_send()
    connection.receive_data(auth(AGAIN), 0.0)
    assert connection.close_reason == reason_codes.PROTOCOL_ERROR
    assert connection.data_to_send() == b""


def test_an_auth_larger_than_the_client_takes_is_not_sent() -> None:
    connection = begin(packet_bytes_max=64)
    connection.ask_authentication(bytes(200))
    assert connection.close_reason == reason_codes.PACKET_TOO_LARGE
    ((kind, code, _),) = sent(connection)
    assert (kind, code) == (packets.CONNACK, 0x95)
