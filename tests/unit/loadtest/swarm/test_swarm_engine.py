"""The load engine against its own sink and against servers that follow a script."""

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from scripted_server import CONNACK, SUBACK, Peer, parse_publish, puback, publish_packet, scripted, stamped
from swarm_runs import counters_of, running_sink

from loadtest.swarm import STAMP_BYTES, Plan, Sink, Swarm, read_stamp
from loadtest.swarm.engine import WINDOW_MAX


@pytest.fixture
def sink() -> Iterator[Sink]:
    with running_sink() as sink:
        yield sink


@pytest.fixture
def relay() -> Iterator[Sink]:
    with running_sink(relay=True) as relay:
        yield relay


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
    counters = counters_of(plan)
    assert counters["delivered"] == 2_000
    assert counters["sequence_gaps"] == counters["sequence_repeats"] == 0


def test_a_lead_gives_up_what_was_dropped(sink: Sink) -> None:
    """The sink delivers nothing, so a publisher goes on by its lead each time that is noticed."""
    plan = Plan(port=sink.port, publishers=1, subscribers=1, qos=0, lead_max=10, messages_max=25)
    counters = counters_of(plan)
    assert counters["published"] == 25
    assert counters["delivered"] == 0


def test_payloads_too_small_for_a_stamp_are_counted_as_such(relay: Sink) -> None:
    plan = Plan(
        port=relay.port, publishers=2, subscribers=1, qos=0, payload_bytes=STAMP_BYTES - 1, messages_max=100
    )
    counters = counters_of(plan)
    assert counters["delivered"] == counters["delivered_unstamped"] == 100


def test_packet_ids_wrap_without_a_violation(sink: Sink) -> None:
    counters = counters_of(Plan(port=sink.port, publishers=1, window=1_000, messages_max=200_000, seconds=30))
    assert counters["acknowledged"] == 200_000
    assert counters["acks_unknown"] == counters["acks_out_of_order"] == 0


def test_a_run_ends_with_its_time(sink: Sink) -> None:
    with Swarm(Plan(port=sink.port, publishers=2, rate_per_s=100, seconds=0.2, warmup_s=0)) as swarm:
        swarm.connect()
        report = swarm.publish()
    assert 0.2 <= report.seconds < 5
    assert report.is_drained


def test_what_is_planned_is_sent_also_by_one_that_sleeps_until_then(sink: Sink) -> None:
    plan = Plan(port=sink.port, publishers=2, rate_per_s=500, messages_max=100, seconds=20, warmup_s=0)
    with Swarm(replace(plan, shares_cores=True)) as swarm:
        assert swarm.engine.spin_ns == 0
        swarm.connect()
        report = swarm.publish()
    # Of a hundred messages the last is due 0.198 s after the first, and nobody waits for the 20 s.
    assert 0.198 <= report.seconds < 10
    assert report.counters["acknowledged"] == 100
    with Swarm(plan) as punctual:
        assert punctual.engine.spin_ns > 0


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


def test_a_lead_holds_for_qos_1_too(relay: Sink) -> None:
    plan = Plan(port=relay.port, publishers=3, subscribers=1, window=100, lead_max=2, messages_max=900)
    counters = counters_of(plan)
    assert counters["delivered"] == counters["acknowledged"] == 900


# Against a scripted server


def test_messages_leave_in_order_with_consecutive_packet_ids() -> None:
    count = 65_600
    seen: list[tuple[int, int, int]] = []

    def script(peer: Peer) -> None:
        peer.greet()
        for _ in range(count):
            packet_id, topic, payload = parse_publish(peer.packet())
            assert topic == b"devices/5/telemetry"
            stamp = read_stamp(payload)
            assert stamp is not None
            seen.append((packet_id, stamp[0], stamp[1]))
            if len(seen) % 50 == 0:
                peer.send(b"".join(puback(one) for one, _, _ in seen[-50:]))
        peer.packet()

    with scripted(script) as port:
        plan = Plan(port=port, publishers=1, number_base=5, window=100, messages_max=count, seconds=30)
        counters = counters_of(plan)
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
            peer.send(b"".join(puback(i) for i in range(first, first + 4)))

    with scripted(script) as port:
        counters = counters_of(Plan(port=port, publishers=1, window=4, messages_max=12))
    assert extra == []
    assert counters["acknowledged"] == 12


def test_acknowledgements_may_come_byte_by_byte() -> None:
    def script(peer: Peer) -> None:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert peer.packet()[:1] == b"\x10"
        _drip(peer, CONNACK)
        for i in range(20):
            peer.packet()
            _drip(peer, puback(i + 1))
        peer.packet()

    with scripted(script) as port:
        counters = counters_of(Plan(port=port, publishers=1, window=3, messages_max=20))
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
            peer.send(b"".join(puback(first + i) for i in (2, 0, 3, 1)))
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
        peer.send(puback(wrong) + puback(1) + puback(1))
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
            packet_id, _, payload = parse_publish(peer.packet())
            stamp = read_stamp(payload)
            assert stamp is not None
            assert len(payload) == 200_000
            seen.append(stamp[1])
            if qos:
                peer.send(puback(packet_id))
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
            counters = counters_of(plan)
        assert seen == list(range(24))
        assert counters["acknowledged"] == (24 if qos else 0)


def test_paced_messages_carry_the_time_they_were_due() -> None:
    stamps: list[int] = []

    def script(peer: Peer) -> None:
        peer.greet()
        for i in range(50):
            stamp = read_stamp(parse_publish(peer.packet())[2])
            assert stamp is not None
            stamps.append(stamp[2])
            if i == 10:
                stalled.wait(10)
            peer.send(puback(i + 1))
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


def test_what_was_due_is_sent_after_the_end_and_charged_for_its_wait() -> None:
    """A server that stalls until the measured time is over must not be spared what was due meanwhile."""

    def script(peer: Peer) -> None:
        peer.greet()
        for i in range(10):
            peer.packet()
            peer.send(puback(i + 1))
        assert stopped.wait(10)
        count = 10
        while peer.packet()[:1] == b"\x32":
            count += 1
            peer.send(puback(count))

    stopped = threading.Event()
    with scripted(script) as port:
        plan = Plan(port=port, publishers=1, window=1, rate_per_s=1_000)
        with Swarm(plan) as swarm:
            swarm.connect()
            swarm.begin()
            swarm.engine.run(0.2)
            swarm.engine.stop()
            waiting = swarm.engine.counters_now()
            stopped.set()
            assert swarm.engine.drain(10)
            counters = swarm.engine.counters_now()
            acknowledgement = swarm.engine.histograms()["acknowledgement"]
            latencies = swarm.engine.latencies()
    assert waiting["published"] == 11
    assert waiting["unsent"] == pytest.approx(190, abs=10)
    assert counters["unsent"] == counters["outstanding"] == 0
    assert counters["acknowledged"] == acknowledgement.count == pytest.approx(201, abs=10)
    assert latencies["acknowledgement"]["p50_ns"] > 50e6
    # The load generator itself was not late.
    assert latencies["send_delay"]["count"] == counters["published"]
    assert latencies["send_delay"]["p50_ns"] < 50e6


def test_what_a_server_never_takes_is_counted_as_unsent() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.packet()
        peer.packet()

    with scripted(script) as port:
        plan = Plan(
            port=port, publishers=1, window=1, rate_per_s=1_000, messages_max=50, seconds=0.2, warmup_s=0,
            drain_timeout_s=0.1,
        )  # fmt: skip
        with Swarm(plan) as swarm:
            swarm.connect()
            report = swarm.publish()
    assert not report.is_drained
    assert report.counters["published"] == report.counters["outstanding"] == 1
    assert report.counters["unsent"] == 49


@pytest.mark.parametrize("from_per_s", [0, 1_000, 2_000])
def test_messages_that_the_load_generator_has_not_come_to_are_unsent(sink: Sink, from_per_s: int) -> None:
    """The engine does not run for a while: what was due meanwhile is counted, along a ramp, too."""
    plan = Plan(
        port=sink.port, publishers=1, rate_per_s=2_000, rate_from_per_s=from_per_s,
        ramp_s=0.2 if from_per_s else 0,
    )  # fmt: skip
    with Swarm(plan) as swarm:
        swarm.connect()
        swarm.begin()
        # What is tested is the passing of planned times.
        time.sleep(0.3)
        swarm.engine.stop()
        unsent = swarm.engine.counters_now()["unsent"]
        assert swarm.engine.drain(10)
        counters = swarm.engine.counters_now()
    assert counters["unsent"] == 0
    assert counters["published"] == pytest.approx(unsent, abs=2)
    assert unsent >= (500 if from_per_s == 1_000 else 600)


# Many topics


def test_a_publisher_sends_in_turn_to_its_topics() -> None:
    topics: list[str] = []
    sequences: list[int] = []

    def script(peer: Peer) -> None:
        peer.greet()
        for count in range(7):
            _, topic, payload = parse_publish(peer.packet())
            topics.append(topic.decode())
            stamp = read_stamp(payload)
            assert stamp is not None
            assert stamp[0] == 2
            sequences.append(stamp[1])
            peer.send(puback(count + 1))
        peer.packet()

    with scripted(script) as port:
        plan = Plan(
            port=port, publishers=1, number_base=2, topics_per_publisher=3, topic="a/{n}/b", window=2,
            messages_max=7,
        )  # fmt: skip
        assert counters_of(plan)["acknowledged"] == 7
    assert topics == [f"a/{number:07d}/b" for number in (6, 7, 8, 6, 7, 8, 6)]
    assert sequences == list(range(7))


def test_a_subscriber_of_one_topic_of_many_finds_gaps_repeats_and_what_is_not_for_it() -> None:
    """Subscriber 7 with three topics to a publisher has the sequences 1, 4, 7... of publisher 2."""

    def script(peer: Peer) -> None:
        peer.greet()
        assert b"own/0000007" in peer.packet()
        stamps = [(2, 1), (2, 4), (2, 13), (2, 4), (2, 16), (2, 5), (1, 1)]
        peer.send(
            SUBACK + b"".join(publish_packet(stamped(number, sequence, 5)) for number, sequence in stamps)
        )
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


def test_a_subscriber_of_its_own_topic_has_no_gap_where_it_had_no_session() -> None:
    count: list[int] = []

    def script(peer: Peer) -> None:
        peer.greet()
        peer.packet()
        peer.send(SUBACK + publish_packet(stamped(0, 9 * len(count), 5)))
        count.append(1)
        peer.packet()

    with scripted(script, connections=2) as port:
        plan = Plan(
            port=port, subscribers=1, filter="own/{n}", topics_per_publisher=3, leave_per_s=50,
            return_after_s=0.01,
        )  # fmt: skip
        with Swarm(plan) as swarm:
            swarm.connect()
            while not swarm.engine.counters_now()["delivered"]:
                swarm.engine.run(0.02)
            swarm.begin()
            while swarm.engine.counters_now()["delivered"] < 2:
                swarm.engine.run(0.005)
                if swarm.engine.counters_now()["left"]:
                    swarm.engine.change()
            counters = swarm.engine.counters_now()
    assert counters["misdelivered"] == 0
    assert counters["sequence_gaps"] == 0
