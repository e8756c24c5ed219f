"""QoS 2 of the load engine, in both directions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from eventually import eventually
from scripted_server import Peer, parse_publish, publish_packet, scripted, stamped
from swarm_runs import counters_of, running_sink

from loadtest.swarm import Plan, Swarm
from loadtest.swarm.engine import WINDOW_MAX

SUBACK_2 = b"\x90\x03\x00\x01\x02"
CONNACK_5 = b"\x20\x03\x00\x00\x00"


def answer(kind: int, packet_id: int, code: int | None = None) -> bytes:
    size = 2 if code is None else 3
    return bytes([kind, size]) + packet_id.to_bytes(2, "big") + (b"" if code is None else bytes([code]))


@pytest.mark.parametrize(("publishers", "window"), [(1, 1), (3, 7), (20, 100), (1, WINDOW_MAX)])
def test_every_message_of_a_counted_run_is_completed(publishers: int, window: int) -> None:
    with running_sink() as sink:
        plan = Plan(port=sink.port, publishers=publishers, window=window, qos=2, messages_max=5_003)
        with Swarm(plan) as swarm:
            swarm.connect()
            report = swarm.publish()
    assert report.counters["published"] == report.counters["acknowledged"] == 5_003
    assert report.violations == 0
    assert report.is_drained
    assert sink.messages == 5_003
    assert sink.protocol_errors == 0


def test_a_subscriber_completes_what_it_gets() -> None:
    with running_sink(relay=True) as relay:
        plan = Plan(port=relay.port, publishers=1, subscribers=1, qos=2, messages_max=3_000, warmup_s=0)
        counters = counters_of(plan)
    assert counters["delivered"] == 3_000
    assert counters["deliveries_acknowledged"] == 3_000
    assert counters["redelivered"] == counters["sequence_gaps"] == counters["sequence_repeats"] == 0
    assert relay.protocol_errors == 0


def test_releases_follow_in_the_order_of_the_messages() -> None:
    seen: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.greet()
        ids = [parse_publish(peer.packet())[0] for _ in range(4)]
        assert ids == [1, 2, 3, 4]
        # Out of turn: the releases wait for the first.
        peer.send(answer(0x50, 2) + answer(0x50, 1) + answer(0x50, 3) + answer(0x50, 4))
        seen.extend(peer.packet() for _ in range(4))
        peer.send(b"".join(answer(0x70, i) for i in (1, 3, 2, 4)))
        peer.packet()

    with scripted(script) as port:
        counters = counters_of(Plan(port=port, publishers=1, window=4, qos=2, messages_max=4))
    assert seen == [answer(0x62, i) for i in (1, 2, 3, 4)]
    assert counters["acknowledged"] == 4
    # PUBREC of 2, and PUBCOMP of 3.
    assert counters["acks_out_of_order"] == 2
    assert counters["acks_unknown"] == 0


def test_answers_to_nothing_are_counted() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.packet()
        peer.send(answer(0x70, 1) + answer(0x50, 9) + answer(0x50, 0) + answer(0x40, 1))
        peer.send(answer(0x50, 1) + answer(0x50, 1))
        assert peer.packet() == answer(0x62, 1)
        peer.send(answer(0x70, 1))
        peer.packet()

    with scripted(script) as port:
        counters = counters_of(Plan(port=port, publishers=1, window=1, qos=2, messages_max=1))
    assert counters["acknowledged"] == 1
    assert counters["acks_unknown"] == 5


def test_a_refused_message_is_over_without_a_release() -> None:
    def script(peer: Peer) -> None:
        assert peer.packet()[:1] == b"\x10"
        peer.send(CONNACK_5)
        peer.packet()
        peer.packet()
        peer.send(answer(0x50, 1, 0x97) + answer(0x50, 2))
        assert peer.packet() == answer(0x62, 2)
        peer.send(answer(0x70, 2))
        peer.packet()

    plan = Plan(publishers=1, window=2, qos=2, messages_max=2, is_v5=True)
    with scripted(script) as port, Swarm(replace(plan, port=port)) as swarm:
        swarm.connect()
        report = swarm.publish()
        ends = swarm.engine.ends()
    assert report.is_drained
    assert report.counters["acks_refused"] == 1
    assert ends["refused"] == {"0x97": 1}


def test_a_message_that_comes_again_before_its_release_is_delivered_once() -> None:
    answers: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.greet()
        peer.packet()
        first = publish_packet(stamped(0, 0, 5), qos=2, packet_id=7)
        peer.send(SUBACK_2 + first + first)
        answers.extend(peer.packet() for _ in range(2))
        peer.send(answer(0x62, 7))
        answers.append(peer.packet())
        peer.send(publish_packet(stamped(0, 1, 5), qos=2, packet_id=7))
        answers.append(peer.packet())

    with scripted(script) as port, Swarm(Plan(port=port, subscribers=1, qos=2)) as swarm:
        swarm.connect()

        def are_all_there() -> bool:
            swarm.engine.run(0.01)
            return len(answers) == 4

        eventually(are_all_there, "four answers", step_s=0)
        counters = swarm.engine.counters_now()
    assert answers == [answer(0x50, 7), answer(0x50, 7), answer(0x70, 7), answer(0x50, 7)]
    assert counters["delivered"] == 2
    assert counters["redelivered"] == 1
    assert counters["sequence_repeats"] == 0


def test_the_server_says_how_many_may_be_unacknowledged() -> None:
    """Receive Maximum of MQTT 5 is 2 here, behind a server keep-alive."""
    extra: list[bytes] = []

    def script(peer: Peer) -> None:
        assert peer.packet()[:1] == b"\x10"
        peer.send(b"\x20\x09\x00\x00\x06\x13\x00\x3c\x21\x00\x02")
        for first in (1, 3):
            for _ in range(2):
                peer.packet()
            peer.socket.settimeout(0.05)
            with pytest.raises(TimeoutError):
                extra.append(peer.packet())
            peer.socket.settimeout(None)
            peer.send(answer(0x40, first) + answer(0x40, first + 1))
        peer.packet()

    with scripted(script) as port:
        counters = counters_of(Plan(port=port, publishers=1, window=10, messages_max=4, is_v5=True))
    assert extra == []
    assert counters["acknowledged"] == 4
