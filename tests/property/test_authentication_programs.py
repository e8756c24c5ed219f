"""Random courses of an exchange of AUTH packets, both sides, against a model of MQTT 5 section 4.12."""

from __future__ import annotations

from dataclasses import dataclass

from fake_gateway import split_output
from hypothesis import given, settings
from hypothesis import strategies as st
from mqtt5_corpus import connect_with
from mqtt_core import new_connection

from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Auth, Connect, Subscribe
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt.server.connection import AUTHENTICATING, CLOSED, CONNECTED, OPENING

METHOD = "SCRAM-SHA-256"


def auth(code: int, method: str = METHOD) -> bytes:
    return packets.encode_auth(code, Properties(authentication_method=method))


# What a client may send, right or wrong.
CLIENT = {
    "continue": auth(0x18),
    "again": auth(0x19),
    "other method": auth(0x18, "X"),
    "subscribe": packets.encode_subscribe(1, [("a", 0)], NO_PROPERTIES),
    "ping": packets.PINGREQ_PACKET,
}
# What the server's side may do, where it is its turn.
SERVER = ("ask", "accept", "refuse")


@dataclass
class Model:
    """Whose turn it is, by the text of section 4.12."""

    is_connected: bool = False
    turn: str = "server"
    is_broken: bool = False

    def client(self, word: str) -> None:
        is_auth = word in ("continue", "again", "other method")
        if not self.is_connected and not is_auth:  # [MQTT-3.1.2-30]
            self.is_broken = True
        elif not is_auth:
            pass
        elif word == "other method":  # [MQTT-4.12.0-5]
            self.is_broken = True
        elif word == "continue":
            self.is_broken = self.turn != "client"
            self.turn = "server"
        else:
            self.is_broken = self.turn != "nobody"
            self.turn = "server"

    def server(self, word: str) -> list[tuple[int, int]]:
        """(packet type, reason code) of what it sends."""
        if word == "ask":
            self.turn = "client"
            return [(packets.AUTH, 0x18)]
        if word == "refuse":
            self.is_broken = True
            return [(packets.DISCONNECT if self.is_connected else packets.CONNACK, 0x87)]
        self.turn = "nobody"
        sent = [(packets.AUTH, 0) if self.is_connected else (packets.CONNACK, 0)]
        self.is_connected = True
        return sent


def answers(output: bytes) -> list[tuple[int, int]]:
    return [
        (first >> 4, body[1] if first >> 4 == packets.CONNACK else body[0])
        for first, body in split_output(output)
        if first >> 4 != packets.PINGRESP
    ]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*CLIENT, *SERVER]), max_size=12), st.integers(1, 40))
def test_an_exchange_goes_as_the_specification_says(words: list[str], piece_size: int) -> None:
    connection, _ = new_connection(authentication_methods=[METHOD])
    model = Model()
    connection.receive_data(connect_with(Properties(authentication_method=METHOD)), 0.0)
    assert isinstance(connection.events_received()[0], Connect)
    for word in words:
        if word in CLIENT:
            if model.turn == "server" and not model.is_connected and word != "subscribe" and word != "ping":
                continue  # it would wait for its turn, which another test has
            packet = CLIENT[word]
            for at in range(0, len(packet), piece_size):
                connection.receive_data(packet[at : at + piece_size], 0.0)
            model.client(word)
            expected = [(packets.DISCONNECT if model.is_connected else packets.CONNACK, 0x82)]
            assert answers(connection.data_to_send()) == (expected if model.is_broken else [])
            wanted = {"subscribe": Subscribe, "ping": None}.get(word, Auth)
            events = connection.events_received()
            assert [type(event) for event in events] == (
                [] if model.is_broken or wanted is None else [wanted]
            )
        elif model.turn == "server":
            was_connected = model.is_connected
            expected = model.server(word)
            if word == "ask":
                connection.ask_authentication(b"q")
            elif word == "refuse":
                connection.refuse(reason_codes.NOT_AUTHORIZED)
            else:
                connection.accept_authentication(b"a")
                if not was_connected:
                    connection.open_session(session_present=False)
            assert answers(connection.data_to_send()) == expected
        if model.is_broken:
            assert connection.state == CLOSED
            break
        if model.is_connected:
            assert connection.state == CONNECTED
        else:
            assert connection.state == (AUTHENTICATING if model.turn == "client" else OPENING)
