"""Topics, client ids and payloads made from templates."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from scripted_server import Peer, parse_publish, puback, scripted
from swarm_runs import counters_of, running_sink

from loadtest.swarm import Plan, Swarm, SwarmError
from loadtest.swarm.engine import FIELD_SIZES, PAYLOAD_BYTES_MAX, Engine
from loadtest.swarm.packets import connect_packet
from loadtest.swarm.templates import Device, draw_sizes, fill, fill_payload, fill_topic

DEVICE = Device("7", "dev-7", "user", "pub")


def test_what_is_the_same_for_all_messages_is_filled_in_once() -> None:
    assert fill("a/%i/%c/%u/{n}/{kind}/100%%", DEVICE) == "a/7/dev-7/user/7/pub/100%"
    assert fill_topic("a/%i", DEVICE) == (b"a/7", [])


def test_what_changes_has_its_place() -> None:
    assert fill_topic("\u00e9/%s/b", DEVICE) == ("\u00e9/".encode() + b"0" * 10 + b"/b", [(3, "sequence")])
    filled = fill_payload('{"s": %s, "t": %t, "x": "%x"}', DEVICE)
    assert [filled.text[at : at + FIELD_SIZES[kind]] for at, kind in filled.fields] == [
        b"0" * 10, b"0" * 13, b"0" * 48,
    ]  # fmt: skip


@pytest.mark.parametrize("template", ["%", "a%q", "%t"])
def test_an_unknown_place_is_refused_by_name(template: str) -> None:
    with pytest.raises(SwarmError, match=r"there are %i, %c, %u"):
        fill_topic(template, DEVICE)
    with pytest.raises(SwarmError, match=r"the template"):
        Swarm(Plan(publishers=1, topic=template))


def test_payloads_are_json_with_counter_time_and_stamp() -> None:
    payloads: list[bytes] = []
    topics: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.greet()
        for i in range(12):
            _, topic, payload = parse_publish(peer.packet())
            topics.append(topic)
            payloads.append(payload)
            peer.send(puback(i + 1))
        peer.packet()

    before_ms = time.time() * 1_000
    with scripted(script) as port:
        plan = Plan(
            port=port, publishers=1, window=1, messages_max=12, topic="d/%c/%s", client_id="dev%i",
            payload_template='{"id": "%c", "n": %s, "at": %t, "stamp": "%x"}', number_base=3,
        )  # fmt: skip
        counters_of(plan)
    after_ms = time.time() * 1_000
    read = [json.loads(payload) for payload in payloads]
    assert topics == [b"d/dev3/%010d" % i for i in range(12)]
    assert [each["n"] for each in read] == list(range(12))
    assert {each["id"] for each in read} == {"dev3"}
    assert all(before_ms - 1 <= each["at"] <= after_ms + 1 for each in read)
    assert [each["stamp"][:32] for each in read] == [f"53574d31{3:08x}{i:016x}" for i in range(12)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_subscribers_find_the_stamp_in_a_text(qos: int) -> None:
    with running_sink(relay=True) as relay:
        plan = Plan(
            port=relay.port, publishers=1, subscribers=1, qos=qos, messages_max=500, measures_acks=True,
            payload_template='{"stamp": "%x"}', warmup_s=0,
        )  # fmt: skip
        with Swarm(plan) as swarm:
            swarm.connect()
            report = swarm.publish()
    assert report.counters["delivered"] == 500
    assert report.counters["delivered_unstamped"] == report.violations == 0
    assert report.latencies["delivery"]["count"] == 500
    assert report.latencies["acknowledgement"]["count"] == (500 if qos else 0)
    assert report.latencies["delivery"]["max_ns"] < 60e9


def test_a_text_without_a_stamp_is_counted_as_such() -> None:
    with running_sink(relay=True) as relay:
        plan = Plan(
            port=relay.port, publishers=1, subscribers=1, messages_max=10, payload_template="53574d31 %s"
        )
        counters = counters_of(plan)
    assert counters["delivered_unstamped"] == 10


# Sizes


def test_sizes_are_drawn_evenly_and_by_weight() -> None:
    even = draw_sizes("100-1000")
    assert min(even) < 150
    assert max(even) > 950
    assert sum(even) / len(even) == pytest.approx(550, rel=0.1)
    weighted = Counter(draw_sizes("10:3,2000:1"))
    assert set(weighted) == {10, 2000}
    assert weighted[10] / weighted[2000] == pytest.approx(3, rel=0.25)
    assert even == draw_sizes("100-1000")


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "x",
        "5",
        "9-3",
        "1:0",
        "1:2,",
        "1:2,,3:4",
        f"1-{PAYLOAD_BYTES_MAX + 1}",
        f"{PAYLOAD_BYTES_MAX + 1}:1",
    ],
)
def test_impossible_sizes_are_refused(wrong: str) -> None:
    with pytest.raises(SwarmError, match="payload sizes"):
        draw_sizes(wrong)


def test_the_largest_sizes_are_drawn() -> None:
    assert set(draw_sizes(f"{PAYLOAD_BYTES_MAX}:1")) == {PAYLOAD_BYTES_MAX}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_different_sizes_arrive_whole(qos: int) -> None:
    """The lengths of headers differ with the sizes: 2 to 4 bytes."""
    sizes: list[int] = []
    sequences: list[int] = []

    def script(peer: Peer) -> None:
        peer.greet()
        for i in range(200):
            packet_id, topic, payload = parse_publish(peer.packet())
            assert topic == b"devices/0/telemetry"
            sizes.append(len(payload))
            sequences.append(int.from_bytes(payload[8:16], "big"))
            if qos == 1:
                peer.send(puback(packet_id))
            elif qos == 2:
                assert packet_id == i + 1
                peer.send(b"\x50\x02" + packet_id.to_bytes(2, "big"))
                assert peer.packet()[:1] == b"\x62"
                peer.send(b"\x70\x02" + packet_id.to_bytes(2, "big"))
        peer.packet()

    with scripted(script) as port:
        plan = Plan(
            port=port,
            publishers=1,
            qos=qos,
            window=1,
            payload_sizes="30:1,120:1,3000:1,20000:1",
            messages_max=200,
        )
        with Swarm(plan) as swarm:
            swarm.connect()
            report = swarm.publish()
            progress = swarm.engine.publisher_progress()
    assert report.is_drained
    assert set(sizes) == {30, 120, 3_000, 20_000}
    assert sequences == list(range(200))
    assert progress == [(0, 200, 200 if qos else 0)]


def test_sizes_and_a_template_exclude_each_other() -> None:
    with pytest.raises(SwarmError, match="exclude each other"):
        Swarm(Plan(publishers=1, payload_sizes="1-2", payload_template="x"))


def test_a_field_fits_where_it_is() -> None:
    engine = Engine("127.0.0.1", 1, payload=b"x" * 48)
    engine.add_publisher(connect_packet("a"), b"t" * 10, topic_fields=[(0, "sequence")])
    for where in ({"topic_fields": [(1, "sequence")]}, {"payload_fields": [(1, "stamp")]}):
        with pytest.raises(ValueError, match="a field needs"):
            engine.add_publisher(connect_packet("a"), b"t" * 10, **where)  # type: ignore[arg-type]
