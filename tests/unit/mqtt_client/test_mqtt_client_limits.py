"""What a client of ours has in flight, takes from a server and keeps unread: at the limits and past."""

from __future__ import annotations

import pytest
from fake_gateway import split_output

from iotmq import limits
from iotmq.mqtt.client.connection import ClientConnection
from iotmq.mqtt.client.session import ClientSession, OutgoingMessage
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import NO_PROPERTIES
from iotmq.mqtt_client.settings import MqttClientSettings
from iotmq.mqtt_client.unread import UnreadMessages

MESSAGE = packets.encode_publish("t", b"", qos=1, packet_id=1, properties=NO_PROPERTIES)


def connected(settings: MqttClientSettings) -> ClientConnection:
    """A connection as the client makes it; its server grants everything."""
    connect = settings.connect_packet(is_first=True, client_id="c", authenticator=None)
    core = ClientConnection(ClientSession(), connect, 0.0, in_flight_max=settings.window)
    told = NO_PROPERTIES if settings.protocol_level == packets.PROTOCOL_LEVEL_5 else None
    core.receive_data(packets.encode_connack(0, session_present=False, properties=told), 0.0)
    core.events_received()
    core.data_to_send(0.0)
    return core


@pytest.mark.parametrize(
    ("protocol_level", "window"),
    [
        (3, limits.MQTT_CLIENT_IN_FLIGHT_UNTOLD_MAX),
        (4, limits.MQTT_CLIENT_IN_FLIGHT_UNTOLD_MAX),
        (5, limits.MQTT_CLIENT_IN_FLIGHT_MAX),
    ],
)
def test_one_message_more_than_the_window_waits(protocol_level: int, window: int) -> None:
    core = connected(MqttClientSettings(protocol_level=protocol_level))
    for _ in range(window + 1):
        core.publish(OutgoingMessage(b"t", b"x", qos=1, token=None))
    assert len(split_output(core.data_to_send(0.0))) == window
    core.receive_data(packets.encode_acknowledgement(packets.PUBACK, 1), 0.0)
    assert len(split_output(core.data_to_send(0.0))) == 1


def test_a_server_may_have_as_many_messages_unanswered_as_it_was_told() -> None:
    core = connected(MqttClientSettings())
    core.receive_data(MESSAGE * limits.MQTT_CLIENT_RECEIVE_MAX, 0.0)
    assert len(core.events_received()) == limits.MQTT_CLIENT_RECEIVE_MAX
    assert core.ending is None
    core.receive_data(MESSAGE, 0.0)
    assert core.ending is not None
    assert core.ending.code == 0x93


@pytest.mark.parametrize(
    ("length", "code"),
    [
        # The largest there is in the protocol; what is larger cannot be said.
        (b"\xff\xff\xff\x7f", None),
        (b"\x80\x80\x80\x80\x01", 0x81),
    ],
)
def test_a_packet_may_be_as_large_as_packets_are(length: bytes, code: int | None) -> None:
    assert limits.MQTT_CLIENT_PACKET_BYTES_MAX > packets.REMAINING_LENGTH_MAX
    core = connected(MqttClientSettings())
    core.receive_data(bytes([packets.PUBLISH << 4]) + length, 0.0)
    assert (core.ending.code if core.ending is not None else None) == code


class Reading:
    """Stands for a connection: whether it is read."""

    is_paused = False

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


def test_a_connection_is_read_until_so_much_is_unread() -> None:
    unread = UnreadMessages(MqttClientSettings().unread_bytes_max)
    reading = Reading()
    unread.add(reading, [], limits.MQTT_CLIENT_UNREAD_BYTES_MAX - 1)  # type: ignore[arg-type]
    assert not reading.is_paused
    unread.add(reading, [], 1)  # type: ignore[arg-type]
    assert reading.is_paused
    unread.take(None)
    assert reading.is_paused, "until all of it is taken"
    unread.take(None)
    assert not reading.is_paused
