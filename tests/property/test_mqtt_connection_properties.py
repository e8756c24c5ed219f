"""The compiled connection against its twin: streams of legal, odd and damaged packets, in any chunking."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from mqtt5_corpus import CONNECT5
from mqtt5_corpus import CORPUS as CORPUS5
from mqtt_comparison import check_against_twin
from mqtt_corpus import CONNECT, CORPUS

from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt.server.connection import ServerConnection
from iotmq.mqtt.server.connection_settings import ConnectionSettings
from iotmq.mqtt.server.publish_sink import CollectingSink

PACKET_BYTES_MAX = 2_000

NAME = st.text(st.sampled_from("ab/$é+#\0"), max_size=6)
PACKET_ID = st.integers(0, 4)
LEGAL = st.one_of(
    st.builds(
        lambda topic, payload, qos, packet_id, retain, dup: packets.encode_publish(
            topic, payload, qos=qos, packet_id=packet_id, retain=retain, dup=dup and qos > 0
        ),
        st.text(st.sampled_from("ab/$é"), min_size=1, max_size=6),
        st.binary(max_size=300),
        st.integers(0, 2),
        st.integers(1, 4),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(packets.encode_acknowledgement, st.sampled_from([packets.PUBACK, packets.PUBREL]), PACKET_ID),
    st.builds(
        packets.encode_subscribe,
        st.integers(1, 65_535),
        st.lists(
            st.tuples(st.sampled_from(["a", "a/+", "#", "é/#"]), st.integers(0, 2)), min_size=1, max_size=3
        ),
    ),
    st.builds(packets.encode_unsubscribe, st.integers(1, 65_535), st.lists(st.just("a/+"), min_size=1)),
    st.just(packets.PINGREQ_PACKET),
)
ODD = st.one_of(
    st.sampled_from([case.stream for case in CORPUS]),
    st.builds(
        lambda topic, qos: packets.encode_publish(topic, b"x", qos=qos, packet_id=1), NAME, st.integers(0, 2)
    ),
    st.builds(packets.encode_packet, st.integers(0, 15), st.integers(0, 15), st.binary(max_size=20)),
    st.binary(max_size=30),
    st.sampled_from(
        [packets.DISCONNECT_PACKET, CONNECT, packets.encode_publish("a", bytes(PACKET_BYTES_MAX))]
    ),
)
STREAM = st.builds(
    lambda first, parts: first + b"".join(parts),
    st.sampled_from([CONNECT, CONNECT, CONNECT, b""]),
    st.lists(st.one_of(LEGAL, LEGAL, LEGAL, ODD), max_size=12),
)

# The same for MQTT 5.
VALUE = st.text(st.sampled_from("ab é\n"), max_size=4)
PROPERTIES = st.builds(
    Properties,
    payload_format=st.sampled_from([None, 0, 1]),
    message_expiry_s=st.sampled_from([None, 0, 7]),
    content_type=st.one_of(st.none(), VALUE),
    response_topic=st.sampled_from([None, "a/b"]),
    correlation_data=st.one_of(st.none(), st.binary(max_size=5)),
    topic_alias=st.sampled_from([None, None, 1, 2]),
    user_properties=st.lists(st.tuples(VALUE, VALUE), max_size=2).map(tuple),
)
USER_PROPERTIES = st.builds(
    Properties, user_properties=st.lists(st.tuples(VALUE, VALUE), max_size=2).map(tuple)
)
LEGAL5 = st.one_of(
    st.builds(
        lambda topic, payload, qos, packet_id, retain, dup, properties: packets.encode_publish(
            topic,
            payload,
            qos=qos,
            packet_id=packet_id,
            retain=retain,
            dup=dup and qos > 0,
            properties=properties,
        ),
        st.one_of(st.text(st.sampled_from("ab/$é"), min_size=1, max_size=6), st.just("")),
        st.binary(max_size=300),
        st.integers(0, 2),
        st.integers(1, 4),
        st.booleans(),
        st.booleans(),
        PROPERTIES,
    ),
    st.builds(
        packets.encode_acknowledgement,
        st.sampled_from([packets.PUBACK, packets.PUBREC, packets.PUBREL, packets.PUBCOMP]),
        PACKET_ID,
        st.sampled_from([0, 0, 0x92, 0x80]),
    ),
    st.builds(
        packets.encode_subscribe,
        st.integers(1, 65_535),
        st.lists(
            st.tuples(st.sampled_from(["a", "a/+", "$share/g/a", "é/#"]), st.integers(0, 0x2E)),
            min_size=1,
            max_size=3,
        ),
        st.builds(Properties, subscription_identifiers=st.sampled_from([(), (5,), (300,)])),
    ),
    st.builds(
        packets.encode_unsubscribe,
        st.integers(1, 65_535),
        st.lists(st.just("a/+"), min_size=1),
        USER_PROPERTIES,
    ),
    st.just(packets.PINGREQ_PACKET),
)
ODD5 = st.one_of(
    st.sampled_from([case.stream for case in CORPUS5]),
    st.builds(packets.encode_packet, st.integers(0, 15), st.integers(0, 15), st.binary(max_size=20)),
    st.builds(packets.encode_disconnect, st.sampled_from([0, 4, 0x8E]), USER_PROPERTIES),
    st.sampled_from(
        [CONNECT5, packets.encode_publish("a", bytes(PACKET_BYTES_MAX), properties=NO_PROPERTIES)]
    ),
)
STREAM5 = st.builds(
    lambda parts: CONNECT5 + b"".join(parts),
    st.lists(st.one_of(LEGAL5, LEGAL5, LEGAL5, ODD5), max_size=12),
)


@st.composite
def chunked(
    draw: st.DrawFn, streams: st.SearchStrategy[bytes] = STREAM, *, is_damaged: bool = False
) -> list[bytes]:
    """A stream in pieces; a damaged one has a few bytes changed, added or taken away."""
    stream = bytearray(draw(streams))
    for _ in range(draw(st.integers(1, 3)) if is_damaged and stream else 0):
        at = draw(st.integers(0, len(stream)))
        change = draw(st.sampled_from(["set", "add", "cut"]))
        if change == "add" or at == len(stream):
            stream.insert(at, draw(st.integers(0, 255)))
        elif change == "set":
            stream[at] = draw(st.integers(0, 255))
        else:
            del stream[at]
    ends = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    return [bytes(stream[start:end]) for start, end in zip([0, *ends], [*ends, len(stream)], strict=True)]


def check(chunks: list[bytes]) -> None:
    check_against_twin(chunks, packet_bytes_max=PACKET_BYTES_MAX)


@settings(max_examples=300)
@given(chunked())
@example([CONNECT[:1], CONNECT[1:]])
@example([CONNECT + b"\x30\xff\xff\xff\xff\x01"])
def test_any_chunking_gives_what_the_twin_gives(chunks: list[bytes]) -> None:
    check(chunks)


@settings(max_examples=300)
@given(chunked(is_damaged=True))
def test_damaged_streams_give_what_the_twin_gives(chunks: list[bytes]) -> None:
    check(chunks)


@settings(max_examples=300)
@given(chunked(STREAM5))
def test_any_chunking_of_mqtt_5_gives_what_the_twin_gives(chunks: list[bytes]) -> None:
    check(chunks)


@settings(max_examples=300)
@given(chunked(STREAM5, is_damaged=True))
def test_damaged_streams_of_mqtt_5_give_what_the_twin_gives(chunks: list[bytes]) -> None:
    check(chunks)


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=50), max_size=8))
def test_anything_ends_with_a_reason_and_never_with_an_exception(chunks: list[bytes]) -> None:
    check(chunks)
    check([CONNECT, *chunks])
    check([CONNECT5, *chunks])


@settings(max_examples=100)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(0, 1)), st.tuples(st.just("ack"), st.integers(0, 8))
        ),
        max_size=120,
    ),
    st.integers(1, 5),
)
def test_windows_of_deliveries_keep_order_and_lose_nothing(steps: list[tuple[str, int]], window: int) -> None:
    """QoS 1 towards a subscriber against a list: at most `window` unacknowledged, the rest in order."""
    connection = ServerConnection(ConnectionSettings(in_flight_max=window), CollectingSink(), 0.0)
    connection.receive_data(CONNECT, 0.0)
    connection.events_received()
    connection.open_session(session_present=False)
    connection.data_to_send()
    sent = 0
    received: list[int] = []
    in_flight: list[int] = []

    def read() -> None:
        output = connection.data_to_send()
        at = 0
        while at < len(output):
            body = output[at + 2 : at + 2 + output[at + 1]]
            if output[at] >> 1 & 3:
                in_flight.append(int.from_bytes(body[3:5], "big"))
                received.append(int.from_bytes(body[5:9], "big"))
            at += 2 + output[at + 1]
        assert len(set(in_flight)) == len(in_flight) <= window
        assert 0 not in in_flight

    for step, value in steps:
        if step == "send":
            assert connection.deliver_message(b"t", sent.to_bytes(4, "big"), value)
            sent += value
        elif value < len(in_flight):
            connection.receive_data(packets.encode_acknowledgement(packets.PUBACK, in_flight.pop(value)), 0.0)
        read()
    while in_flight:
        connection.receive_data(packets.encode_acknowledgement(packets.PUBACK, in_flight.pop()), 0.0)
        read()
    assert received == list(range(sent))
    assert connection.in_flight_count == connection.queued_bytes == 0
