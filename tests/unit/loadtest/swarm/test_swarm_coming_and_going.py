"""Devices that leave and come back, subscribe anew, and share subscriptions."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from scripted_server import CONNACK, SUBACK, Peer, puback, publish_packet, scripted, stamped
from swarm_runs import running_sink

from loadtest.swarm import Plan, Swarm, SwarmError

UNSUBACK = b"\xb0\x02\x00\x02"


def test_who_leaves_says_good_bye_and_comes_back() -> None:
    seen: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.greet()
        seen.append(peer.packet())

    with scripted(script, connections=3) as port:
        plan = Plan(port=port, idle=1, leave_per_s=20, return_after_s=0.01)
        with Swarm(plan) as swarm:
            swarm.connect()
            swarm.begin()
            while swarm.engine.counters_now()["reconnected"] < 2:
                swarm.engine.run(0.05)
            counters = swarm.engine.counters_now()
            latencies = swarm.engine.latencies()
    assert seen[:2] == [b"\xe0\x00", b"\xe0\x00"]
    assert counters["left"] >= 2
    assert counters["lost"] == counters["failed"] == 0
    assert latencies["reconnection"]["p50_ns"] >= 10e6


def test_who_leaves_rudely_says_nothing() -> None:
    seen: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.greet()
        seen.append(peer.packet())

    with scripted(script, connections=2) as port:
        plan = Plan(port=port, idle=1, leave_per_s=50, leaves_rudely=True, return_after_s=0.01)
        with Swarm(plan) as swarm:
            swarm.connect()
            swarm.begin()
            while not swarm.engine.counters_now()["reconnected"]:
                swarm.engine.run(0.02)
            swarm.engine.change()
    assert seen[0] == b""


def test_a_kept_session_is_not_subscribed_again_and_has_no_gap() -> None:
    connects: list[bytes] = []

    def script(peer: Peer) -> None:
        connects.append(peer.packet())
        if len(connects) == 1:
            peer.send(CONNACK)
            assert peer.packet()[:1] == b"\x82"
            peer.send(SUBACK + publish_packet(stamped(0, 0, 5)))
            assert peer.packet() == b"\xe0\x00"
        else:
            # The session is present, and the message that came meanwhile follows.
            peer.send(b"\x20\x02\x01\x00" + publish_packet(stamped(0, 2, 5)))
            peer.packet()

    with scripted(script, connections=2) as port:
        plan = Plan(
            port=port, subscribers=1, keeps_sessions=True, leave_per_s=50, return_after_s=0.01,
            publishers_tracked=1,
        )  # fmt: skip
        with Swarm(plan) as swarm:
            swarm.connect()
            while not swarm.engine.counters_now()["delivered"]:
                swarm.engine.run(0.02)
            swarm.begin()
            while not swarm.engine.counters_now()["left"]:
                swarm.engine.run(0.005)
            swarm.engine.change()
            while swarm.engine.counters_now()["delivered"] < 2:
                swarm.engine.run(0.02)
            counters = swarm.engine.counters_now()
    # Clean session is not set.
    assert all(packet[9] & 2 == 0 for packet in connects)
    assert counters["resumed"] == 1
    # Message 1 is lost: the session was to keep it.
    assert counters["sequence_gaps"] == 1


def test_without_a_session_what_came_meanwhile_is_no_gap() -> None:
    count: list[int] = []

    def script(peer: Peer) -> None:
        peer.greet()
        peer.packet()
        peer.send(SUBACK + publish_packet(stamped(0, 9 * len(count), 5)))
        count.append(1)
        peer.packet()

    with scripted(script, connections=2) as port:
        plan = Plan(port=port, subscribers=1, leave_per_s=50, return_after_s=0.01, publishers_tracked=1)
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
    assert counters["sequence_gaps"] == 0


def test_a_session_has_the_expiry_that_is_asked_for() -> None:
    seen: list[bytes] = []

    def script(peer: Peer) -> None:
        seen.append(peer.packet())
        peer.send(b"\x20\x03\x00\x00\x00")
        peer.packet()

    with scripted(script) as port:
        plan = Plan(port=port, idle=1, is_v5=True, session_expiry_s=600)
        with Swarm(plan) as swarm:
            swarm.connect()
    assert b"\x05\x11\x00\x00\x02\x58" in seen[0]


def test_subscriptions_are_made_anew() -> None:
    seen: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.greet()
        for answer in (SUBACK, UNSUBACK, SUBACK, UNSUBACK, SUBACK):
            seen.append(peer.packet())
            peer.send(answer)
        peer.packet()

    with scripted(script) as port:
        plan = Plan(port=port, subscribers=1, filter="f", qos=0, resubscribe_per_s=20)
        with Swarm(plan) as swarm:
            swarm.connect()
            swarm.begin()
            while swarm.engine.counters_now()["resubscribed"] < 2:
                swarm.engine.run(0.05)
            swarm.engine.change()
            latencies = swarm.engine.latencies()
    subscribe, unsubscribe = b"\x82\x06\x00\x01\x00\x01f\x00", b"\xa2\x05\x00\x02\x00\x01f"
    assert seen == [subscribe, unsubscribe, subscribe, unsubscribe, subscribe]
    assert latencies["subscription"]["count"] == 3


def test_what_went_by_between_two_subscriptions_is_no_gap() -> None:
    """Messages come before the UNSUBSCRIBE, between it and its answer, and after the new SUBSCRIBE."""

    def script(peer: Peer) -> None:
        peer.greet()
        peer.packet()
        peer.send(SUBACK + publish_packet(stamped(0, 0, 5)))
        peer.packet()
        peer.send(publish_packet(stamped(0, 1, 5)) + UNSUBACK)
        peer.packet()
        peer.send(SUBACK + publish_packet(stamped(0, 7, 5)) + publish_packet(stamped(0, 9, 5)))
        peer.packet()

    with scripted(script) as port:
        plan = Plan(port=port, subscribers=1, resubscribe_per_s=20, publishers_tracked=1)
        with Swarm(plan) as swarm:
            swarm.connect()
            swarm.begin()
            while swarm.engine.counters_now()["delivered"] < 4:
                swarm.engine.run(0.01)
                if swarm.engine.counters_now()["resubscribed"]:
                    swarm.engine.change()
            counters = swarm.engine.counters_now()
    # 8 is missing; 2 to 6 went by.
    assert counters["sequence_gaps"] == 1
    assert counters["sequence_repeats"] == 0


def test_publishers_come_back_and_what_was_not_acknowledged_is_abandoned() -> None:
    connections: list[int] = []

    def script(peer: Peer) -> None:
        connections.append(1)
        peer.greet()
        ids = [int.from_bytes(peer.packet()[-26:-24], "big") for _ in range(4)]
        if len(connections) == 1:
            peer.send(puback(ids[0]))
            return
        assert ids[0] > 4
        peer.send(b"".join(map(puback, ids)))
        while packet := peer.packet():
            if packet[:1] == b"\x32":
                peer.send(puback(int.from_bytes(packet[-26:-24], "big")))

    def script_and_close(peer: Peer) -> None:
        script(peer)
        if len(connections) == 1:
            peer.socket.close()

    with scripted(script_and_close, connections=2) as port:
        plan = Plan(
            port=port, publishers=1, window=4, reconnects=True, messages_max=20, payload_bytes=24, seconds=10,
            warmup_s=0,
        )  # fmt: skip
        with Swarm(plan) as swarm:
            swarm.connect()
            report = swarm.publish()
    counters = report.counters
    assert counters["reconnected"] == 1
    assert counters["abandoned"] >= 3
    assert counters["published"] == 20
    assert counters["acknowledged"] + counters["abandoned"] == 20
    assert report.is_drained


# Shared subscriptions


def test_the_members_of_a_group_have_every_message_once_among_them() -> None:
    """The two members get 0 2 4 6 8 and 1 3 5 8 10: 8 is there twice, 7 and 9 are missing."""
    got = threading.Barrier(2)
    order: list[int] = []

    def script(peer: Peer) -> None:
        peer.greet()
        assert b"$share/g/t" in peer.packet()
        order.append(1)
        mine = (0, 2, 4, 6, 8) if len(order) == 1 else (1, 3, 5, 8, 10)
        peer.send(SUBACK)
        got.wait(10)
        peer.send(b"".join(publish_packet(stamped(0, sequence, 5)) for sequence in mine))
        peer.packet()

    with scripted(script, connections=2) as port:
        plan = Plan(port=port, subscribers=2, filter="$share/g/t", publishers_tracked=1)
        with Swarm(plan) as swarm:
            swarm.connect()
            while swarm.engine.counters_now()["delivered"] < 10:
                swarm.engine.run(0.02)
            counters = swarm.engine.counters_now()
    assert counters["sequence_repeats"] == 1
    assert counters["sequence_gaps"] == 2


@pytest.mark.parametrize(
    ("sequences", "gaps", "repeats"),
    [
        ([0, 8_191, 8_192], 8_190, 0),
        ([0, 1, 20_000], 19_998, 0),
        ([0, 1, 2**40], 2**40 - 2, 0),
        ([5, 20_000, 5], 19_999, 1),
        (list(range(63, -1, -1)), 0, 0),
        (list(range(20_000)), 0, 0),
    ],
)
def test_far_steps_are_settled(sequences: list[int], gaps: int, repeats: int) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.packet()
        peer.send(SUBACK + b"".join(publish_packet(stamped(0, each, 5)) for each in sequences))
        peer.packet()

    plan = Plan(subscribers=1, filter="$share/g/t", publishers_tracked=1)
    with scripted(script) as port, Swarm(replace(plan, port=port)) as swarm:
        swarm.connect()
        while swarm.engine.counters_now()["delivered"] < len(sequences):
            swarm.engine.run(0.02)
        counters = swarm.engine.counters_now()
    assert counters["sequence_gaps"] == gaps
    assert counters["sequence_repeats"] == repeats


# Ramps


def test_planned_times_follow_a_ramp() -> None:
    """From 0 to 1,000 a second within a second: 500 messages, the quarter of them in the first half."""
    with running_sink() as sink:
        plan = Plan(
            port=sink.port, publishers=5, rate_per_s=1_000, ramp_s=1.0, seconds=1.0, warmup_s=0, window=1_000
        )
        with Swarm(plan) as swarm:
            swarm.connect()
            swarm.begin()
            swarm.engine.run(0.5)
            half = swarm.engine.counters_now()["published"]
            swarm.engine.run(0.5)
            whole = swarm.engine.counters_now()["published"]
            swarm.engine.run(0.5)
            after = swarm.engine.counters_now()["published"]
    assert half == pytest.approx(125, abs=25)
    assert whole == pytest.approx(500, abs=50)
    assert after == pytest.approx(1_000, abs=60)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"ramp_s": 1.0}, "ramp_s"),
        ({"rate_from_per_s": 5, "rate_per_s": 10}, "rate_from_per_s"),
        ({"rate_per_s": -1}, "rate_per_s"),
        ({"seconds": -1.0}, "seconds"),
        ({"leave_per_s": 1.0}, "leave_per_s"),
        ({"resubscribe_per_s": 1.0}, "resubscribe_per_s"),
        ({"qos": 3}, "qos"),
        ({"filter_qos": 3}, "filter_qos"),
        ({"port": 0}, "port"),
        ({"port": 65_536}, "port"),
        ({"session_expiry_s": 1}, "session_expiry_s"),
        ({"session_expiry_s": 2**32, "is_v5": True}, "session_expiry_s"),
        ({"connect_rate_per_s": 0.0}, "connect_rate_per_s"),
        ({"tls_ca": "x"}, "tls"),
        ({"keep_alive_s": 65_536}, "keep-alive"),
        ({"publish_properties": b"x"}, "publish_properties"),
    ],
)
def test_the_impossible_is_refused_by_name(wrong: dict[str, object], name: str) -> None:
    with pytest.raises(SwarmError, match=name):
        Swarm(Plan(publishers=1, **wrong))  # type: ignore[arg-type]
