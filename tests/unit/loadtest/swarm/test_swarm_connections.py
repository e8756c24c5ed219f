"""Connections of the load engine: refused, lost, made anew; and streams that are not what they should be."""

import socket
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_server import SUBACK, Peer, puback, publish_packet, scripted, stamped

from loadtest.swarm import Plan, Swarm, SwarmError

# Refused and lost


def test_a_refused_connection_is_reported_with_its_code() -> None:
    def script(peer: Peer) -> None:
        peer.packet()
        peer.send(b"\x20\x02\x00\x05")

    with (
        scripted(script) as port,
        Swarm(Plan(port=port, idle=1)) as swarm,
        pytest.raises(SwarmError, match=r"1 refused \(last code: 5\)"),
    ):
        swarm.connect()


def test_a_refused_subscription_is_reported() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        assert peer.packet()[:1] == b"\x82"
        peer.send(b"\x90\x03\x00\x01\x80")

    with (
        scripted(script) as port,
        Swarm(Plan(port=port, subscribers=1)) as swarm,
        pytest.raises(SwarmError, match=r"last code: 128"),
    ):
        swarm.connect()


def test_a_server_that_is_not_there_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Swarm(Plan(port=port, idle=3)) as swarm, pytest.raises(SwarmError, match="ECONNREFUSED"):
        swarm.connect()


def test_no_more_connections_are_in_progress_than_planned() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        plan = Plan(
            port=listener.getsockname()[1], idle=20, connects_in_progress_max=4, connect_timeout_s=0.2
        )
        with Swarm(plan) as swarm:
            with pytest.raises(SwarmError, match="0 of 20 connections"):
                swarm.connect()
            assert swarm.engine.counters_now()["opened"] == 4


def test_a_connection_closed_in_the_middle_is_lost_and_its_messages_abandoned() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        for i in range(5):
            peer.packet()
            peer.send(puback(i + 1))
        peer.socket.shutdown(socket.SHUT_RDWR)

    with scripted(script) as port:
        plan = Plan(port=port, publishers=1, window=10, seconds=20, rate_per_s=1_000)
        with Swarm(plan) as swarm:
            swarm.connect()
            began = time.monotonic()
            report = swarm.publish()
            assert time.monotonic() - began < 10
            assert swarm.engine.counters_now()["ready"] == 0
    assert report.counters["lost"] == 1
    assert report.counters["published"] == report.counters["acknowledged"] + report.counters["abandoned"]


def test_holding_notices_a_lost_connection() -> None:
    over = threading.Event()

    def script(peer: Peer) -> None:
        peer.greet()
        over.wait(10)
        peer.socket.shutdown(socket.SHUT_RDWR)

    with scripted(script) as port, Swarm(Plan(port=port, idle=1)) as swarm:
        swarm.connect()
        over.set()
        with pytest.raises(SwarmError, match="1 connections were lost"):
            swarm.hold(10)


# What a subscriber is sent


def _listen(stream: list[bytes]) -> dict[str, int]:
    """What a subscriber counted that was sent these pieces, one segment each."""

    def script(peer: Peer) -> None:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.greet()
        peer.packet()
        peer.send(SUBACK)
        for piece in stream:
            peer.send(piece)
        peer.socket.shutdown(socket.SHUT_WR)
        while peer.packet():
            pass

    with scripted(script) as port, Swarm(Plan(port=port, subscribers=1, publishers_tracked=3)) as swarm:
        # Not Swarm.connect: what is wrong with the stream may show before that is over.
        swarm.engine.connect(timeout_s=10)
        swarm.engine.run(10)
        return swarm.engine.counters_now()


def test_gaps_and_repeats_are_counted_for_each_publisher() -> None:
    sequences = [(0, 0), (1, 0), (0, 1), (0, 4), (0, 4), (1, 1), (0, 2), (2, 3), (9, 77)]
    counters = _listen(
        [b"".join(publish_packet(stamped(number, sequence, 1)) for number, sequence in sequences)]
    )
    assert counters["delivered"] == 9
    assert counters["sequence_gaps"] == 2 + 3
    assert counters["sequence_repeats"] == 2


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 300)), min_size=1, max_size=12), st.data())
def test_any_chunking_of_a_stream_gives_the_same_counts(
    messages: list[tuple[int, int]], data: st.DataObject
) -> None:
    stream = b"".join(publish_packet(b"p" * size, qos=qos) for qos, size in messages)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(stream) - 1)), max_size=20)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) if a < b]
    counters = _listen(pieces)
    assert counters["delivered"] == len(messages)
    assert counters["delivered_payload_bytes"] == sum(size for _, size in messages)
    assert counters["deliveries_acknowledged"] == sum(qos for qos, _ in messages)
    assert counters["protocol_errors"] == 0


@pytest.mark.parametrize(
    "packet",
    [
        b"\x30\x80\x80\x80\x80\x01",  # a length of five bytes
        b"\x30\xff\xff\xff\x7f",  # 256 MiB announced
        b"\x30\x01\x00",  # no room for the topic's length
        b"\x30\x04\x00\x05ab",  # a topic longer than the packet
        b"\x32\x03\x00\x01t",  # QoS 1 without a packet id
        b"\x34\x05\x00\x01t\x00\x01",  # QoS 2 was not asked for
        b"\x20\x02\x00\x00",  # a second CONNACK
        b"\x40\x03\x00\x01\x00",  # PUBACK of a later version
        b"\x00\x00",
    ],
)
def test_what_a_server_may_not_send_ends_the_connection(packet: bytes) -> None:
    counters = _listen([packet])
    assert counters["protocol_errors"] == 1
    assert counters["lost"] == 1


def test_percentiles_are_within_two_percent() -> None:
    now = time.monotonic_ns()
    second = 1_000_000_000
    stream = b"".join(publish_packet(stamped(0, i, now - (i + 1) * second)) for i in range(1_000))

    def script(peer: Peer) -> None:
        peer.greet()
        peer.packet()
        peer.send(SUBACK + stream)
        peer.packet()

    if now < 1_000 * second:
        pytest.skip("the machine has not been up long enough for stamps that far in the past")
    with scripted(script) as port, Swarm(Plan(port=port, subscribers=1)) as swarm:
        swarm.connect()
        swarm.engine.drain(10, delivered=1_000)
        summary = swarm.engine.latencies()["delivery"]
    assert summary["count"] == 1_000
    assert summary["p50_ns"] == pytest.approx(500 * second, rel=0.02)
    assert summary["p99_ns"] == pytest.approx(990 * second, rel=0.02)
    assert summary["max_ns"] == pytest.approx(1_000 * second, rel=0.02)
    assert summary["mean_ns"] == pytest.approx(500.5 * second, rel=0.02)


# Sessions that are kept, connections made anew


def test_a_session_that_is_present_is_not_subscribed_again() -> None:
    def script(peer: Peer) -> None:
        connect = peer.packet()
        assert connect[9] & 0x02 == 0, "clean session"
        peer.send(b"\x20\x02\x01\x00" + publish_packet(b"x"))
        assert peer.packet() in (b"", b"\xe0\x00")

    with (
        scripted(script) as port,
        Swarm(Plan(port=port, subscribers=1, keeps_sessions=True)) as swarm,
    ):
        swarm.connect()
        assert swarm.engine.drain(10, delivered=1)
        assert swarm.engine.counters_now()["resumed"] == 1


def test_a_lost_subscriber_goes_on_at_the_other_port() -> None:
    def first(peer: Peer) -> None:
        peer.greet()
        peer.packet()
        peer.send(SUBACK + publish_packet(stamped(0, 0, 1)) + b"\x30\x7f a packet that ends here")
        peer.socket.shutdown(socket.SHUT_RDWR)

    def second(peer: Peer) -> None:
        peer.packet()
        peer.send(b"\x20\x02\x01\x00" + publish_packet(stamped(0, 0, 1)) + publish_packet(stamped(0, 1, 1)))
        peer.packet()

    with scripted(first) as port, scripted(second) as other:
        plan = Plan(
            port=port, fallback_ports=(other,), subscribers=1, keeps_sessions=True, publishers_tracked=1
        )
        with Swarm(plan) as swarm:
            swarm.connect()
            assert swarm.engine.drain(10, delivered=3)
            counters = swarm.engine.counters_now()
            assert swarm.engine.latencies()["reconnection"]["count"] == 1
    assert (counters["lost"], counters["reconnected"], counters["ready"]) == (1, 1, 1)
    assert (counters["sequence_repeats"], counters["sequence_gaps"]) == (1, 0)


def test_a_lost_connection_tries_its_ports_in_turn_until_one_answers() -> None:
    def last(peer: Peer) -> None:
        peer.greet()
        peer.packet()

    def first(peer: Peer) -> None:
        peer.greet()
        peer.socket.shutdown(socket.SHUT_RDWR)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = listener.getsockname()[1]
    with scripted(first) as port, scripted(last) as other:
        plan = Plan(port=port, fallback_ports=(nobody, other), idle=1)
        with Swarm(plan) as swarm:
            swarm.connect()
            swarm.engine.run(0.2)
            assert swarm.engine.connect(timeout_s=10)
            counters = swarm.engine.counters_now()
            assert (counters["ready"], counters["reconnected"]) == (1, 1)
            swarm.hold(0.01)
