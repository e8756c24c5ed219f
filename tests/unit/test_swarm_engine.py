"""The load engine against its own sink and against servers that misbehave on purpose."""

import itertools
import json
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtest.swarm import (
    STAMP_BYTES,
    Plan,
    Sink,
    Swarm,
    SwarmError,
    connect_packet,
    read_stamp,
    subscribe_packet,
)
from loadtest.swarm.__main__ import main
from loadtest.swarm.engine import (
    PAYLOAD_BYTES_MAX,
    PORTS_MAX,
    RING_BYTES_MAX,
    TOPICS_PER_PUBLISHER_MAX,
    WINDOW_MAX,
    Engine,
)

CONNACK = b"\x20\x02\x00\x00"
SUBACK = b"\x90\x03\x00\x01\x01"
STAMP_MAGIC = 0x53574D31


class Peer:
    """The server's side of one accepted connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.held = b""

    def packet(self) -> bytes:
        """The next whole packet; b"" at the end of the stream."""
        while True:
            size = _packet_size(self.held)
            if size is not None and len(self.held) >= size:
                packet, self.held = self.held[:size], self.held[size:]
                return packet
            data = self.socket.recv(65_536)
            if not data:
                return b""
            self.held += data

    def greet(self) -> None:
        assert self.packet()[:1] == b"\x10"
        self.socket.sendall(CONNACK)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)


@contextmanager
def scripted(script: Callable[[Peer], None], connections: int = 1) -> Iterator[int]:
    """A server that runs the script for each connection; yields its port, re-raises what a script raised."""
    failures: list[BaseException] = []
    sockets: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        try:
            script(Peer(connection))
        except OSError:
            pass
        except BaseException as error:
            failures.append(error)

    def accept() -> None:
        threads = []
        for _ in range(connections):
            try:
                connection = listener.accept()[0]
            except OSError:
                break
            sockets.append(connection)
            threads.append(threading.Thread(target=serve, args=(connection,)))
            threads[-1].start()
        for thread in threads:
            thread.join(10)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield listener.getsockname()[1]
        finally:
            # The swarm is closed by now, so scripts come to the end of their streams.
            acceptor.join(20)
            for one in sockets:
                one.close()
    if failures:
        raise failures[0]


@pytest.fixture
def sink() -> Iterator[Sink]:
    yield from _running(Sink())


@pytest.fixture
def relay() -> Iterator[Sink]:
    yield from _running(Sink(relay=True))


def _running(server: Sink) -> Iterator[Sink]:
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server
    server.stop()
    thread.join(10)
    assert not thread.is_alive()


def _packet_size(data: bytes) -> int | None:
    remaining, shift = 0, 0
    for at, digit in enumerate(data[1:5], start=1):
        remaining |= (digit & 0x7F) << shift
        if digit < 0x80:
            return at + 1 + remaining
        shift += 7
    return None


def _parse_publish(packet: bytes) -> tuple[int, bytes, bytes]:
    """(packet id, topic, payload); the id is 0 for QoS 0."""
    at = 1
    while packet[at] >= 0x80:
        at += 1
    at += 1
    size = int.from_bytes(packet[at : at + 2], "big")
    topic, at = packet[at + 2 : at + 2 + size], at + 2 + size
    if packet[0] & 6:
        return int.from_bytes(packet[at : at + 2], "big"), topic, packet[at + 2 :]
    return 0, topic, packet[at:]


def _puback(packet_id: int) -> bytes:
    return b"\x40\x02" + packet_id.to_bytes(2, "big")


def _stamped(publisher: int, sequence: int, time_ns: int, size: int = STAMP_BYTES) -> bytes:
    return struct.pack(">IIQQ", STAMP_MAGIC, publisher, sequence, time_ns).ljust(size, b"x")


def _publish(payload: bytes, *, qos: int = 0, packet_id: int = 7) -> bytes:
    body = b"\x00\x01t" + (packet_id.to_bytes(2, "big") if qos else b"") + payload
    size, length = len(body), b""
    while True:
        size, digit = divmod(size, 128)
        length += bytes([digit | (0x80 if size else 0)])
        if not size:
            return bytes([0x30 | qos << 1]) + length + body


def _run(plan: Plan) -> dict[str, int]:
    """Connects, publishes and closes; the counters of the phase."""
    with Swarm(plan) as swarm:
        swarm.connect()
        return swarm.publish().counters


# Against the sink


@pytest.mark.parametrize(("publishers", "window"), [(1, 1), (1, WINDOW_MAX), (7, 3), (50, 100)])
def test_every_message_of_a_counted_run_is_acknowledged(sink: Sink, publishers: int, window: int) -> None:
    with Swarm(Plan(port=sink.port, publishers=publishers, window=window, messages_max=5_003)) as swarm:
        swarm.connect()
        report = swarm.publish()
        progress = swarm.engine.publisher_progress()
    assert report.counters["published"] == report.counters["acknowledged"] == 5_003
    assert report.violations == 0
    assert report.is_drained
    assert sink.messages == 5_003
    assert sum(written for _, written, _ in progress) == sum(acked for _, _, acked in progress) == 5_003


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("payload_bytes", [STAMP_BYTES, 100, 3_000])
def test_a_subscriber_counts_every_delivery_in_sequence(relay: Sink, qos: int, payload_bytes: int) -> None:
    plan = Plan(
        port=relay.port,
        publishers=5,
        subscribers=1,
        qos=qos,
        payload_bytes=payload_bytes,
        messages_max=20_000,
        warmup_s=0,
    )
    with Swarm(plan) as swarm:
        assert swarm.engine.tracks_sequences
        swarm.connect()
        report = swarm.publish()
    assert report.counters["delivered"] == 20_000
    assert report.counters["delivered_payload_bytes"] == 20_000 * payload_bytes
    assert report.counters["deliveries_acknowledged"] == (20_000 if qos else 0)
    assert report.counters["delivered_unstamped"] == 0
    assert report.violations == 0
    assert report.is_drained
    assert report.latencies["delivery"]["count"] == 20_000


@pytest.mark.parametrize("lead_max", [1, 50])
def test_a_lead_keeps_qos_0_within_reach_of_the_subscriber(relay: Sink, lead_max: int) -> None:
    plan = Plan(port=relay.port, publishers=3, subscribers=1, qos=0, lead_max=lead_max, messages_max=2_000)
    counters = _run(plan)
    assert counters["delivered"] == 2_000
    assert counters["sequence_gaps"] == counters["sequence_repeats"] == 0


def test_a_lead_gives_up_what_was_dropped(sink: Sink) -> None:
    """The sink delivers nothing, so a publisher goes on by its lead each time that is noticed."""
    plan = Plan(port=sink.port, publishers=1, subscribers=1, qos=0, lead_max=10, messages_max=25)
    counters = _run(plan)
    assert counters["published"] == 25
    assert counters["delivered"] == 0


def test_payloads_too_small_for_a_stamp_are_counted_as_such(relay: Sink) -> None:
    plan = Plan(
        port=relay.port, publishers=2, subscribers=1, qos=0, payload_bytes=STAMP_BYTES - 1, messages_max=100
    )
    counters = _run(plan)
    assert counters["delivered"] == counters["delivered_unstamped"] == 100


def test_packet_ids_wrap_without_a_violation(sink: Sink) -> None:
    counters = _run(Plan(port=sink.port, publishers=1, window=1_000, messages_max=200_000, seconds=30))
    assert counters["acknowledged"] == 200_000
    assert counters["acks_unknown"] == counters["acks_out_of_order"] == 0


def test_a_run_ends_with_its_time(sink: Sink) -> None:
    with Swarm(Plan(port=sink.port, publishers=2, rate_per_s=100, seconds=0.2, warmup_s=0)) as swarm:
        swarm.connect()
        report = swarm.publish()
    assert 0.2 <= report.seconds < 5
    assert report.is_drained


def test_idle_connections_keep_themselves_alive(sink: Sink) -> None:
    with Swarm(Plan(port=sink.port, idle=3, keep_alive_s=1)) as swarm:
        swarm.connect()
        swarm.hold(1.3)
        assert swarm.engine.counters_now()["pings"] >= 3


def test_connections_are_opened_at_the_planned_pace(sink: Sink) -> None:
    with Swarm(Plan(port=sink.port, idle=11, connect_rate_per_s=50)) as swarm:
        assert swarm.connect() >= 10 / 50
    assert sink.connects == 11


def test_source_addresses_are_used_in_turn() -> None:
    seen = []

    def script(peer: Peer) -> None:
        seen.append(peer.socket.getpeername()[0])
        peer.greet()
        peer.packet()

    with scripted(script, connections=4) as port:
        plan = Plan(port=port, idle=4, source_addresses=("127.0.0.2", "127.0.0.3"))
        with Swarm(plan) as swarm:
            swarm.connect()
    assert sorted(seen) == ["127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.3"]


def test_another_thread_can_end_a_phase(sink: Sink) -> None:
    with Swarm(Plan(port=sink.port, idle=1)) as swarm:
        swarm.connect()
        timer = threading.Timer(0.05, swarm.engine.wake)
        timer.start()
        began = time.monotonic()
        assert not swarm.engine.run(30)
        assert time.monotonic() - began < 10
        timer.join()


# Against a scripted server


def test_messages_leave_in_order_with_consecutive_packet_ids() -> None:
    count = 65_600
    seen: list[tuple[int, int, int]] = []

    def script(peer: Peer) -> None:
        peer.greet()
        for _ in range(count):
            packet_id, topic, payload = _parse_publish(peer.packet())
            assert topic == b"devices/5/telemetry"
            stamp = read_stamp(payload)
            assert stamp is not None
            seen.append((packet_id, stamp[0], stamp[1]))
            if len(seen) % 50 == 0:
                peer.send(b"".join(_puback(one) for one, _, _ in seen[-50:]))
        peer.packet()

    with scripted(script) as port:
        plan = Plan(port=port, publishers=1, number_base=5, window=100, messages_max=count, seconds=30)
        counters = _run(plan)
    assert seen == [(i % 65_535 + 1, 5, i) for i in range(count)]
    assert counters["acknowledged"] == count
    assert counters["acks_unknown"] == counters["acks_out_of_order"] == 0


def test_the_window_is_filled_and_never_passed() -> None:
    extra: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.greet()
        for first in (1, 5, 9):
            for _ in range(4):
                assert peer.packet()[:1] == b"\x32"
            peer.socket.settimeout(0.05)
            with pytest.raises(TimeoutError):
                extra.append(peer.packet())
            peer.socket.settimeout(None)
            peer.send(b"".join(_puback(i) for i in range(first, first + 4)))

    with scripted(script) as port:
        counters = _run(Plan(port=port, publishers=1, window=4, messages_max=12))
    assert extra == []
    assert counters["acknowledged"] == 12


def test_acknowledgements_may_come_byte_by_byte() -> None:
    def script(peer: Peer) -> None:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert peer.packet()[:1] == b"\x10"
        _drip(peer, CONNACK)
        for i in range(20):
            peer.packet()
            _drip(peer, _puback(i + 1))
        peer.packet()

    with scripted(script) as port:
        counters = _run(Plan(port=port, publishers=1, window=3, messages_max=20))
    assert counters["acknowledged"] == 20
    assert counters["acks_unknown"] == counters["acks_out_of_order"] == counters["protocol_errors"] == 0


def _drip(peer: Peer, data: bytes) -> None:
    for i in range(len(data)):
        peer.send(data[i : i + 1])


def test_acknowledgements_out_of_order_are_counted_and_still_complete_the_run() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        for first in range(1, 13, 4):
            for _ in range(4):
                peer.packet()
            peer.send(b"".join(_puback(first + i) for i in (2, 0, 3, 1)))
        peer.packet()

    plan = Plan(publishers=1, window=4, messages_max=12)
    with scripted(script) as port, Swarm(replace(plan, port=port)) as swarm:
        swarm.connect()
        report = swarm.publish()
    assert report.counters["acknowledged"] == 12
    # 3, then 4 before 2: two of four come before their turn.
    assert report.counters["acks_out_of_order"] == 6
    assert report.violations == 6
    assert report.is_drained


@pytest.mark.parametrize("wrong", [0, 2, 60_000])
def test_acknowledgements_of_nothing_are_counted(wrong: int) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.packet()
        peer.send(_puback(wrong) + _puback(1) + _puback(1))
        peer.packet()

    plan = Plan(publishers=1, window=1, messages_max=1)
    with scripted(script) as port, Swarm(replace(plan, port=port)) as swarm:
        swarm.connect()
        report = swarm.publish()
        swarm.engine.run(0.05)
        counters = swarm.engine.counters_now()
    assert report.counters["acknowledged"] == 1
    assert counters["acks_unknown"] == 2


def test_large_messages_survive_a_slow_reader() -> None:
    seen: list[int] = []

    def script(peer: Peer) -> None:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        peer.greet()
        for _ in range(24):
            packet_id, _, payload = _parse_publish(peer.packet())
            stamp = read_stamp(payload)
            assert stamp is not None
            assert len(payload) == 200_000
            seen.append(stamp[1])
            if qos:
                peer.send(_puback(packet_id))
        peer.packet()

    for qos in (0, 1):
        seen.clear()
        with scripted(script) as port:
            plan = Plan(
                port=port,
                publishers=1,
                qos=qos,
                window=5,
                payload_bytes=200_000,
                messages_max=24,
                seconds=30,
            )
            counters = _run(plan)
        assert seen == list(range(24))
        assert counters["acknowledged"] == (24 if qos else 0)


def test_paced_messages_carry_the_time_they_were_due() -> None:
    stamps: list[int] = []

    def script(peer: Peer) -> None:
        peer.greet()
        for i in range(50):
            stamp = read_stamp(_parse_publish(peer.packet())[2])
            assert stamp is not None
            stamps.append(stamp[2])
            if i == 10:
                stalled.wait(10)
            peer.send(_puback(i + 1))
        peer.packet()

    stalled = threading.Event()
    with scripted(script) as port:
        plan = Plan(port=port, publishers=1, window=1, rate_per_s=1_000, messages_max=50, warmup_s=0)
        with Swarm(plan) as swarm:
            swarm.connect()
            timer = threading.Timer(0.3, stalled.set)
            timer.start()
            report = swarm.publish()
            timer.join()
    assert {after - before for before, after in itertools.pairwise(stamps)} == {1_000_000}
    # The stall held up 40 of 50 messages, and each of them is charged for its share of it.
    assert report.latencies["acknowledgement"]["count"] == 50
    assert report.latencies["acknowledgement"]["p50_ns"] > 200e6
    assert report.counters["acknowledged"] == 50


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
            peer.send(_puback(i + 1))
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
    counters = _listen([b"".join(_publish(_stamped(number, sequence, 1)) for number, sequence in sequences)])
    assert counters["delivered"] == 9
    assert counters["sequence_gaps"] == 2 + 3
    assert counters["sequence_repeats"] == 2


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 300)), min_size=1, max_size=12), st.data())
def test_any_chunking_of_a_stream_gives_the_same_counts(
    messages: list[tuple[int, int]], data: st.DataObject
) -> None:
    stream = b"".join(_publish(b"p" * size, qos=qos) for qos, size in messages)
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
    stream = b"".join(_publish(_stamped(0, i, now - (i + 1) * second)) for i in range(1_000))

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


# Many topics, sessions that are kept, connections made anew


def test_a_publisher_sends_in_turn_to_its_topics(sink: Sink) -> None:
    topics: list[str] = []
    sequences: list[int] = []

    def script(peer: Peer) -> None:
        peer.greet()
        for count in range(7):
            _, topic, payload = _parse_publish(peer.packet())
            topics.append(topic.decode())
            stamped = read_stamp(payload)
            assert stamped is not None
            assert stamped[0] == 2
            sequences.append(stamped[1])
            peer.send(_puback(count + 1))
        peer.packet()

    with scripted(script) as port:
        plan = Plan(
            port=port, publishers=1, number_base=2, topics_per_publisher=3, topic="a/{n}/b", window=2,
            messages_max=7,
        )  # fmt: skip
        assert _run(plan)["acknowledged"] == 7
    assert topics == [f"a/{number:07d}/b" for number in (6, 7, 8, 6, 7, 8, 6)]
    assert sequences == list(range(7))


def test_a_subscriber_of_one_topic_of_many_finds_gaps_repeats_and_what_is_not_for_it() -> None:
    """Subscriber 7 with three topics to a publisher has the sequences 1, 4, 7... of publisher 2."""

    def script(peer: Peer) -> None:
        peer.greet()
        assert b"own/0000007" in peer.packet()
        stamps = [(2, 1), (2, 4), (2, 13), (2, 4), (2, 16), (2, 5), (1, 1)]
        peer.send(SUBACK + b"".join(_publish(_stamped(number, sequence, 5)) for number, sequence in stamps))
        peer.socket.shutdown(socket.SHUT_WR)

    with scripted(script) as port:
        plan = Plan(port=port, subscribers=1, number_base=7, filter="own/{n}", topics_per_publisher=3)
        with Swarm(plan) as swarm:
            swarm.engine.connect(timeout_s=10)
            swarm.engine.run(10)
            counters = swarm.engine.counters_now()
            assert swarm.engine.oldest_repeat_at_ns == 5
    assert counters["delivered"] == 7
    assert counters["sequence_gaps"] == 2
    assert counters["sequence_repeats"] == 1
    assert counters["misdelivered"] == 2


def test_a_session_that_is_present_is_not_subscribed_again() -> None:
    def script(peer: Peer) -> None:
        connect = peer.packet()
        assert connect[9] & 0x02 == 0, "clean session"
        peer.send(b"\x20\x02\x01\x00" + _publish(b"x"))
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
        peer.send(SUBACK + _publish(_stamped(0, 0, 1)) + b"\x30\x7f a packet that ends here")
        peer.socket.shutdown(socket.SHUT_RDWR)

    def second(peer: Peer) -> None:
        peer.packet()
        peer.send(b"\x20\x02\x01\x00" + _publish(_stamped(0, 0, 1)) + _publish(_stamped(0, 1, 1)))
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


def test_a_lead_holds_for_qos_1_too(relay: Sink) -> None:
    plan = Plan(port=relay.port, publishers=3, subscribers=1, window=100, lead_max=2, messages_max=900)
    counters = _run(plan)
    assert counters["delivered"] == counters["acknowledged"] == 900


# Limits and packets


def test_a_will_stands_in_the_connect_packet() -> None:
    packet = connect_packet("ab", will=("w", b"gone"))
    assert packet == b"\x10\x17\x00\x04MQTT\x04\x0e\x00\x3c\x00\x02ab\x00\x01w\x00\x04gone"


def test_a_number_fits_the_digits_of_its_topic() -> None:
    engine = Engine("127.0.0.1", 1, window=1, topics_per_publisher=1_000_000, number_base=9)
    engine.add_publisher(connect_packet("a"), b"t/0000000", number_at=2)
    with pytest.raises(ValueError, match="7 digits"):
        engine.add_publisher(connect_packet("a"), b"t/0000000", number_at=2)
    with pytest.raises(ValueError, match="7 digits at 3"):
        Engine("127.0.0.1", 1, topics_per_publisher=2).add_publisher(
            connect_packet("a"), b"t/0000000", number_at=3
        )


def test_limits_hold_at_and_past_them() -> None:
    Engine("127.0.0.1", 1, window=WINDOW_MAX, payload=b"x" * PAYLOAD_BYTES_MAX)
    Engine("127.0.0.1", 65_535, window=1, qos=0)
    for wrong in (
        {"window": 0},
        {"window": WINDOW_MAX + 1},
        {"payload": b"x" * (PAYLOAD_BYTES_MAX + 1)},
        {"qos": 2},
        {"lead_max": -1},
        {"lead_max": 1, "topics_per_publisher": 2},
        {"topics_per_publisher": 0},
        {"topics_per_publisher": TOPICS_PER_PUBLISHER_MAX + 1},
        {"fallback_ports": [1] * PORTS_MAX},
    ):
        with pytest.raises(ValueError, match=r"must be|at most|a lead"):
            Engine("127.0.0.1", 1, **wrong)  # type: ignore[arg-type]
    for port in (0, 65_536):
        with pytest.raises(ValueError, match="port"):
            Engine("127.0.0.1", port)


def test_memory_for_windows_is_bounded() -> None:
    engine = Engine("127.0.0.1", 1, window=WINDOW_MAX, payload=b"x" * (RING_BYTES_MAX // WINDOW_MAX))
    with pytest.raises(ValueError, match="window x packet size"):
        engine.add_publisher(connect_packet("a"), b"t")


def test_a_topic_fits_its_length_field() -> None:
    engine = Engine("127.0.0.1", 1, window=1)
    assert engine.add_publisher(connect_packet("a"), b"t" * 65_535) == 0
    for topic in (b"", b"t" * 65_536):
        with pytest.raises(ValueError, match="topic"):
            engine.add_publisher(connect_packet("a"), topic)


def test_a_plan_beyond_the_open_files_is_refused_before_it_starts() -> None:
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with pytest.raises(SwarmError, match="open files"):
        Swarm(Plan(idle=files_max))
    with pytest.raises(SwarmError, match="at least one connection"):
        Swarm(Plan())
    with pytest.raises(SwarmError, match="a lead needs"):
        Swarm(Plan(publishers=1, qos=0, lead_max=1))


def test_stamps_are_read_back() -> None:
    assert read_stamp(_stamped(1, 2, 3, size=100)) == (1, 2, 3)
    assert read_stamp(_stamped(1, 2, 3)[:-1]) is None
    assert read_stamp(b"\x00" * 100) is None
    assert read_stamp(b"") is None


def test_packets_follow_the_specification() -> None:
    assert connect_packet("ab", keep_alive_s=10) == b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x0a\x00\x02ab"
    assert connect_packet("", username="u", password="p", is_clean=False) == (
        b"\x10\x12\x00\x04MQTT\x04\xc0\x00\x3c\x00\x00\x00\x01u\x00\x01p"
    )
    assert subscribe_packet("a/#", 1) == b"\x82\x08\x00\x01\x00\x03a/#\x01"
    assert subscribe_packet("x" * 200, 0)[:3] == b"\x82\xcd\x01"


def test_packets_of_mqtt_5_have_their_properties() -> None:
    assert connect_packet("ab", keep_alive_s=10, is_v5=True) == (
        b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x0a\x00\x00\x02ab"
    )
    assert connect_packet("ab", keep_alive_s=10, is_clean=False, will=("w", b"x"), is_v5=True) == (
        b"\x10\x1b\x00\x04MQTT\x05\x0c\x00\x0a\x05\x11\xff\xff\xff\xff\x00\x02ab\x00\x00\x01w\x00\x01x"
    )
    assert subscribe_packet("a/#", 1, is_v5=True) == b"\x82\x09\x00\x01\x00\x00\x03a/#\x01"


CONNACK_5 = b"\x20\x06\x00\x00\x03\x21\x04\x00"  # with a receive maximum


def test_a_publisher_of_mqtt_5_sends_properties_and_takes_reason_codes() -> None:
    seen: list[bytes] = []

    def script(peer: Peer) -> None:
        assert peer.packet()[7:10] == b"T\x05\x02"
        peer.send(CONNACK_5)
        seen.extend(peer.packet() for _ in range(4))
        # Nobody subscribes; success with an empty list of properties; success; refused.
        peer.send(
            b"\x40\x03\x00\x01\x10" + b"\x40\x04\x00\x02\x00\x00" + _puback(3) + b"\x40\x03\x00\x04\x97"
        )
        peer.packet()

    properties = b"\x01\x01"
    plan = Plan(publishers=1, window=4, messages_max=4, topic="t", is_v5=True, publish_properties=properties)
    with scripted(script) as port:
        counters = _run(replace(plan, port=port))
    assert counters["acknowledged"] == 4
    assert counters["refused"] == 1
    assert counters["protocol_errors"] == counters["acks_unknown"] == 0
    for number, packet in enumerate(seen):
        assert packet[:10] == b"\x32\x6c\x00\x01t\x00" + bytes([number + 1]) + b"\x02" + properties
        stamp = read_stamp(packet[10:])
        assert stamp is not None
        assert stamp[1] == number


@pytest.mark.parametrize("properties", [b"", b"\x01\x01", b"\x26\x00\x01a\x00\xc8" + b"v" * 200])
def test_a_subscriber_of_mqtt_5_finds_the_payload_behind_properties(properties: bytes) -> None:
    size = len(properties)
    length = bytes([size]) if size < 128 else bytes([size % 128 | 0x80, size // 128])

    def script(peer: Peer) -> None:
        peer.packet()
        peer.send(CONNACK_5)
        assert peer.packet()[:5] == b"\x82\x19\x00\x01\x00"
        peer.send(b"\x90\x04\x00\x01\x00\x01")
        for number in range(3):
            peer.send(_publish(length + properties + _stamped(0, number, 1), qos=1, packet_id=number + 1))
        for number in range(3):
            assert peer.packet() == _puback(number + 1)
        peer.send(b"\x30\x05\x00\x01t\x7f\x00")  # properties that end behind the packet
        peer.packet()

    plan = Plan(subscribers=1, publishers_tracked=1, filter="devices/+/telemetry", is_v5=True)
    with scripted(script) as port, Swarm(replace(plan, port=port)) as swarm:
        swarm.connect()
        while swarm.engine.counters_now()["ready"]:
            swarm.engine.run(0.01)
        counters = swarm.engine.counters_now()
    assert counters["delivered"] == 3
    assert counters["delivered_unstamped"] == counters["sequence_gaps"] == counters["sequence_repeats"] == 0
    assert counters["protocol_errors"] == 1


def test_a_subscription_of_mqtt_5_is_refused_with_any_code_that_is_an_error() -> None:
    def script(peer: Peer) -> None:
        peer.packet()
        peer.send(CONNACK_5)
        peer.packet()
        peer.send(b"\x90\x04\x00\x01\x00\x97")
        peer.packet()

    plan = Plan(subscribers=1, is_v5=True)
    with (
        scripted(script) as port,
        Swarm(replace(plan, port=port)) as swarm,
        pytest.raises(SwarmError, match="last code: 151"),
    ):
        swarm.connect()


# The command line


def test_the_command_line_prints_a_report_as_json(sink: Sink, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["publish", "--port", str(sink.port), "--publishers", "3", "--messages", "500"]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["counters"]["acknowledged"] == 500
    assert report["violations"] == 0


def test_the_command_line_holds_connections(sink: Sink, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hold", "--port", str(sink.port), "--idle", "5", "--seconds", "0.1"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert json.loads(first)["connections"] == 5
    assert json.loads(last)["counters"]["ready"] == 5


def test_the_command_line_names_what_went_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert main(["hold", "--port", str(port), "--idle", "1"]) == 1
    assert "ECONNREFUSED" in capsys.readouterr().err
