"""Our client core against our server core: random programs, bytes cut anywhere, connections lost anywhere."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st
from mqtt_core import new_connection

from iotmq.mqtt.client.connection import CONNECTED, ClientConnection
from iotmq.mqtt.client.events import Acknowledged
from iotmq.mqtt.client.input import ReceivedMessage
from iotmq.mqtt.client.session import ClientSession, OutgoingMessage
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt.server.connection import CONNECTED as SERVER_CONNECTED

_TOPIC = b"a/topic/of/some/length"
_ENOUGH = 1_000_000


class Pair:
    """A client and a server, the bytes on their way between them, and what both saw over all connections."""

    def __init__(self, level: int, *, client_window: int, server_window: int, receive_max: int) -> None:
        self._level = level
        self._client_window = client_window
        self._server_limits = {
            "in_flight_max": server_window, "receive_max": receive_max, "topic_aliases_max": 2,
        }  # fmt: skip
        self.session = ClientSession()
        self.published: list[tuple[bytes, int]] = []
        self.done: list[object] = []
        self.delivered: list[bytes] = []
        self.received: list[bytes] = []
        # What the server stored in former connections.
        self._stored: list[bytes] = []
        self._unacknowledged: list[ReceivedMessage] = []
        self._begin(received_packet_ids=None)

    def _begin(self, *, received_packet_ids: list[int] | None) -> None:
        """A new connection, with the session of the packet ids, or a new one."""
        self._received_packet_ids = received_packet_ids
        properties = Properties(receive_max=3, topic_alias_max=2) if self._level == 5 else NO_PROPERTIES
        connect = Connect("c", received_packet_ids is None, 0, None, None, None, self._level, properties)
        self.client = ClientConnection(self.session, connect, 0.0, in_flight_max=self._client_window)
        self.server, self.sink = new_connection(**self._server_limits)
        self._answered = 0
        self._to_server = self._to_client = b""

    def reconnect(self, *, is_resumed: bool) -> None:
        """Lose the connection, with the bytes on their way."""
        self._stored = self.stored
        # What a server sends again is not the business of its core: that one begins anew.
        self.delivered = list(self.received)
        self.session.received.clear()
        self._unacknowledged.clear()
        # A session that was never opened cannot be there.
        is_there = is_resumed and self.server.state == SERVER_CONNECTED
        self._begin(received_packet_ids=self.server.received_packet_ids if is_there else None)
        self.move(_ENOUGH, _ENOUGH)

    @property
    def stored(self) -> list[bytes]:
        """What is sent again within a session, the broker knows by its packet id."""
        is_resumed = self._received_packet_ids is not None
        return self._stored + [
            payload
            for _, payload, qos, *_ in self.sink.published
            if not (is_resumed and qos == 2 and payload in self._stored)
        ]

    def move(self, to_server: int, to_client: int) -> None:
        """So many bytes arrive on either side."""
        self._to_server += self.client.data_to_send(0.0)
        data, self._to_server = self._to_server[:to_server], self._to_server[to_server:]
        self.server.receive_data(data, 0.0)
        for event in self.server.events_received():
            assert isinstance(event, Connect)
            is_present = self._received_packet_ids is not None
            self.server.restore_received(self._received_packet_ids or [])
            self.server.open_session(session_present=is_present)
        self._to_client += self.server.data_to_send()
        data, self._to_client = self._to_client[:to_client], self._to_client[to_client:]
        self.client.receive_data(data, 0.0)
        for event in self.client.events_received():
            if isinstance(event, Acknowledged):
                assert event.code == 0
                self.done.append(event.token)
            elif isinstance(event, ReceivedMessage):
                assert event.topic.encode() == _TOPIC
                self.received.append(event.payload)
                self._unacknowledged.append(event)
        assert self.client.ending is None
        assert self.server.close_reason is None

    def publish(self, qos: int) -> None:
        payload = b"%d" % len(self.published)
        if qos or self.client.state == CONNECTED:
            self.published.append((payload, qos))
            self.client.publish(OutgoingMessage(_TOPIC, payload, qos=qos, token=payload))

    def deliver(self, qos: int) -> None:
        payload = b"%d" % len(self.delivered)
        if self.server.state == SERVER_CONNECTED and self.server.deliver_message(_TOPIC, payload, qos):
            self.delivered.append(payload)

    def store(self, count: int) -> None:
        """The server is sure of so many more messages."""
        for one in self.sink.published[self._answered : self._answered + count]:
            if one[2]:
                self.server.acknowledge_published(one[4])
        self._answered = min(len(self.sink.published), self._answered + count)

    def acknowledge(self, count: int) -> None:
        """The client's program takes so many messages."""
        taken, self._unacknowledged = self._unacknowledged[:count], self._unacknowledged[count:]
        for message in taken:
            self.client.acknowledge(message)

    def finish(self) -> None:
        """Until nothing moves any more."""
        seen = None
        while seen != (
            seen := (len(self.done), len(self.stored), len(self.received), len(self.session.received))
        ):
            for _ in range(4):
                self.move(_ENOUGH, _ENOUGH)
                self.store(_ENOUGH)
                self.acknowledge(_ENOUGH)


QOS = st.integers(0, 2)
PIECE = st.integers(0, 60)
STEPS = st.one_of(
    st.tuples(st.just("publish"), QOS),
    st.tuples(st.just("deliver"), QOS),
    st.tuples(st.just("move"), PIECE, PIECE),
    st.tuples(st.just("move"), PIECE, PIECE),
    st.tuples(st.just("store"), st.integers(1, 4)),
    st.tuples(st.just("acknowledge"), st.integers(1, 4)),
    st.tuples(st.just("lose"), st.booleans()),
)


@given(
    level=st.sampled_from([3, 4, 5]),
    windows=st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5)),
    steps=st.lists(STEPS, max_size=60),
)
@example(level=3, windows=(1, 1, 1), steps=[("publish", 2), ("move", 17, 4), ("move", 29, 0), ("lose", True)])
def test_every_message_arrives_whatever_happens_to_connections(
    level: int, windows: tuple[int, int, int], steps: list[tuple[object, ...]]
) -> None:
    """Once with QoS 2 while the server keeps the session; at least once otherwise; each in its order."""
    client_window, server_window, receive_max = windows
    pair = Pair(level, client_window=client_window, server_window=server_window, receive_max=receive_max)
    lost_sessions = losses = 0
    for name, *numbers in steps:
        if name == "lose":
            is_resumed = bool(numbers[0]) and pair.server.state == SERVER_CONNECTED
            losses += 1
            lost_sessions += not is_resumed
            pair.reconnect(is_resumed=is_resumed)
        else:
            getattr(pair, str(name))(*numbers)
    pair.finish()
    kept = [(payload, qos) for payload, qos in pair.published if qos]
    assert sorted(map(repr, pair.done)) == sorted(repr(payload) for payload, _ in kept)
    assert pair.session.unfinished_count == 0
    assert not pair.session.received
    for payload, qos in pair.published:
        count = pair.stored.count(payload)
        if qos == 0:
            assert count == 1 if not losses else count <= 1
        elif qos == 1:
            assert count == 1 if not losses else count >= 1
        else:
            assert count == 1 if not lost_sessions else count >= 1
    # The first time each was stored, in the order of publishing, as far as they waited for an answer.
    first_times = list(dict.fromkeys(pair.stored))
    assert [one for one in first_times if one in dict(kept)] == [payload for payload, _ in kept]
    assert pair.received == pair.delivered


# Whatever a server sends -------------------------------------------------------------------------------

_FROM_SERVER = [
    packets.encode_publish("a/b", b"payload", properties=Properties(user_properties=(("a", "b"),))),
    packets.encode_publish("a/b", b"payload", qos=1, packet_id=3, properties=Properties(topic_alias=1)),
    packets.encode_publish("", b"payload", qos=2, packet_id=4, properties=Properties(topic_alias=1)),
    packets.encode_acknowledgement(packets.PUBACK, 1),
    packets.encode_acknowledgement(packets.PUBREC, 2),
    packets.encode_acknowledgement(packets.PUBCOMP, 2, 0x92),
    packets.encode_acknowledgement(packets.PUBREL, 4),
    packets.encode_suback(3, [1, 0x80], Properties(reason_string="why")),
    packets.encode_unsuback(4, [0], NO_PROPERTIES),
    packets.encode_auth(0x18, Properties(authentication_method="M", authentication_data=b"x")),
    packets.encode_disconnect(0x8B, Properties(server_reference="other")),
    packets.PINGRESP_PACKET,
    packets.encode_connack(0, session_present=False, properties=Properties(receive_max=1)),
]


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Packets of a server, some with a few other bytes in them, or just bytes."""
    data = bytearray(
        b"".join(draw(st.lists(st.sampled_from(_FROM_SERVER) | st.binary(max_size=8), max_size=6)))
    )
    for _ in range(draw(st.integers(0, 3)) if data else 0):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def _client(level: int) -> ClientConnection:
    """Connected, with messages and questions under way."""
    method = Properties(authentication_method="M", topic_alias_max=2, packet_bytes_max=1_000)
    connect = Connect("c", True, 0, None, None, None, level, method if level == 5 else NO_PROPERTIES)
    client = ClientConnection(ClientSession(), connect, 0.0)
    told = NO_PROPERTIES if level == 5 else None
    client.receive_data(packets.encode_connack(0, session_present=False, properties=told), 0.0)
    for qos in (1, 2):
        client.publish(OutgoingMessage(_TOPIC, b"", qos=qos))
    client.subscribe([("a", 1), ("b", 1)])
    client.unsubscribe(["a"])
    return client


@given(level=st.sampled_from([3, 4, 5]), data=streams(), cuts=st.lists(st.integers(0, 100), max_size=4))
def test_no_bytes_of_a_server_are_more_than_an_ending(level: int, data: bytes, cuts: list[int]) -> None:
    """Nothing raises, and pieces mean what the whole means."""
    whole, pieces = _client(level), _client(level)
    whole.receive_data(data, 0.0)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for begin, end in itertools.pairwise(edges):
        pieces.receive_data(data[begin:end], 0.0)
    assert whole.ending == pieces.ending
    assert list(map(repr, whole.events_received())) == list(map(repr, pieces.events_received()))
    assert whole.data_to_send(0.0) == pieces.data_to_send(0.0)
    if whole.ending is not None and not whole.ending.is_by_server:
        assert whole.ending.code in (0x81, 0x82, 0x94, 0x95)
