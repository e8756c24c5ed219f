"""Servers that do not do what they should: counted by kind, and never waited for in vain."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from scripted_server import CONNACK, SUBACK, Peer, puback, scripted

from loadtest.swarm import Plan, Swarm, SwarmError
from loadtest.swarm.room import check_room, port_range

ANSWER_TIMEOUT_S = 0.2


def reset(peer: Peer) -> None:
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.socket.close()


def resets_before_connack(peer: Peer) -> None:
    peer.packet()
    reset(peer)


def closes_before_connack(peer: Peer) -> None:
    peer.packet()
    peer.socket.shutdown(socket.SHUT_RDWR)


def says_nothing(peer: Peer) -> None:
    while peer.packet():
        pass


def refuses(peer: Peer) -> None:
    peer.packet()
    peer.send(b"\x20\x02\x00\x05")
    peer.packet()


def refuses_the_subscription(peer: Peer) -> None:
    peer.greet()
    peer.packet()
    peer.send(b"\x90\x03\x00\x01\x80")
    peer.packet()


def never_grants_the_subscription(peer: Peer) -> None:
    peer.greet()
    while peer.packet():
        pass


def sends_no_mqtt(peer: Peer) -> None:
    peer.packet()
    peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    peer.packet()


def acknowledges_what_was_not_sent(peer: Peer) -> None:
    peer.packet()
    peer.send(puback(1))
    peer.packet()


@pytest.mark.parametrize(
    ("script", "kind", "refused"),
    [
        (resets_before_connack, "ECONNRESET", {}),
        (closes_before_connack, "closed", {}),
        (says_nothing, "no_answer", {}),
        (never_grants_the_subscription, "no_answer", {}),
        (refuses, "refused", {"0x05": 1}),
        (refuses_the_subscription, "refused", {"0x80": 1}),
        (sends_no_mqtt, "protocol", {}),
        (acknowledges_what_was_not_sent, "protocol", {}),
    ],
)
def test_connections_that_fail_are_counted_by_kind(
    script: Callable[[Peer], None], kind: str, refused: dict[str, int]
) -> None:
    began_s = time.monotonic()
    plan = Plan(subscribers=1, answer_timeout_s=ANSWER_TIMEOUT_S)
    with scripted(script) as port, Swarm(replace(plan, port=port)) as swarm:
        with pytest.raises(SwarmError, match="0 of 1 connections got in"):
            swarm.connect()
        assert swarm.engine.ends() == {"failed": {kind: 1}, "lost": {}, "refused": refused}
    assert time.monotonic() - began_s < 10


def vanishes(peer: Peer) -> None:
    peer.packet()
    reset(peer)


def disconnects(peer: Peer) -> None:
    peer.packet()
    peer.send(b"\xe0\x02\x8b\x00")
    peer.packet()


def answers_nothing_more(peer: Peer) -> None:
    while peer.packet():
        pass


def sends_garbage(peer: Peer) -> None:
    peer.packet()
    peer.send(b"\x00\x00")
    peer.packet()


@pytest.mark.parametrize(
    ("script", "kind", "refused"),
    [
        (vanishes, "ECONNRESET", {}),
        (disconnects, "disconnected", {"0x8b": 1}),
        (answers_nothing_more, "silent", {}),
        (sends_garbage, "protocol", {}),
    ],
)
def test_connections_that_are_lost_are_counted_by_kind(
    script: Callable[[Peer], None], kind: str, refused: dict[str, int]
) -> None:
    def whole(peer: Peer) -> None:
        assert peer.packet()[:1] == b"\x10"
        peer.send(b"\x20\x03\x00\x00\x00")
        script(peer)

    with scripted(whole) as port:
        plan = Plan(
            port=port, publishers=1, is_v5=True, window=5, seconds=10, warmup_s=0, drain_timeout_s=0.1,
            answer_timeout_s=ANSWER_TIMEOUT_S,
        )  # fmt: skip
        with Swarm(plan) as swarm:
            swarm.connect()
            report = swarm.publish()
            assert swarm.engine.ends() == {"failed": {}, "lost": {kind: 1}, "refused": refused}
    assert report.counters["abandoned"] == report.counters["published"] - report.counters["acknowledged"]
    assert report.seconds < 8


def test_a_server_that_does_not_answer_a_ping_is_given_up() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        while peer.packet():
            pass

    with scripted(script) as port:
        plan = Plan(port=port, idle=1, keep_alive_s=1, answer_timeout_s=ANSWER_TIMEOUT_S)
        with Swarm(plan) as swarm:
            swarm.connect()
            swarm.engine.run(10)
            assert swarm.engine.ends()["lost"] == {"silent": 1}


def test_a_slow_server_is_waited_for() -> None:
    def script(peer: Peer) -> None:
        peer.packet()
        time.sleep(ANSWER_TIMEOUT_S / 4)
        peer.send(CONNACK)
        peer.packet()
        time.sleep(ANSWER_TIMEOUT_S / 4)
        peer.send(SUBACK)
        peer.packet()

    plan = Plan(subscribers=1, answer_timeout_s=5 * ANSWER_TIMEOUT_S)
    with scripted(script) as port, Swarm(replace(plan, port=port)) as swarm:
        swarm.connect()
        assert swarm.engine.ends() == {"failed": {}, "lost": {}, "refused": {}}
        assert swarm.engine.latencies()["connection"]["p50_ns"] >= ANSWER_TIMEOUT_S / 4 * 1e9


def test_nobody_there_is_counted_as_refused_by_the_kernel() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Swarm(Plan(port=port, idle=3)) as swarm:
        with pytest.raises(SwarmError, match="ECONNREFUSED"):
            swarm.connect()
        assert swarm.engine.ends()["failed"] == {"ECONNREFUSED": 3}


# Room on this machine


def test_too_few_ports_are_named_with_the_setting_that_makes_more() -> None:
    low, high = port_range()
    count = high - low + 1
    plan = Plan(idle=count + 1)
    with pytest.raises(SwarmError, match="give 2 source addresses"):
        check_room(plan, [Plan(idle=1)])
    check_room(Plan(idle=count), [Plan(idle=1)])
    check_room(Plan(idle=count + 1, source_addresses=("127.0.0.2", "127.0.0.3")), [Plan(idle=1)])


def test_too_little_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.swarm.room.memory_bytes", lambda: 6 * 1024 * 100)
    check_room(Plan(idle=100))
    with pytest.raises(SwarmError, match="MiB of memory"):
        check_room(Plan(idle=101))
    with pytest.raises(SwarmError, match="MiB of memory"):
        check_room(Plan(idle=100, tls=True))
