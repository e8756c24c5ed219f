"""Egress: one copy per device, the lower QoS, slow devices, and pushes that are not what they should be."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from fake_gateway import (
    FakeTransport,
    Front,
    matches_of,
    read_publish,
    receive,
    record_of,
    split_output,
)
from loop_turns import turn_s_max
from mqtt5_reading import read_publish5

from iotmq import limits
from iotmq.message.bodies import COMPRESSED, compress_body
from iotmq.message.compression import Compression
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.framing import encode_variable_integer
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt.server.publish_sink import CollectingSink
from iotmq.mqtt_front.deliver.egress import Egress


class Bench:
    def __init__(self, **settings: int) -> None:
        self.front = Front(CollectingSink(), **settings)
        self.egress = Egress(self.front.group)

    def deliver(self, records: bytes, matches: bytes) -> None:
        self.egress.deliver(records, matches)
        self.front.loop.run()

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.egress.delivered, self.egress.dropped, self.egress.malformed


@pytest.fixture
def bench() -> Bench:
    return Bench()


def received(transport: FakeTransport) -> list[tuple[str, bytes, int]]:
    return [read_publish(packet) for packet in split_output(transport.take())]


def test_ids_name_filters_while_somebody_is_on_them_and_are_not_used_again(bench: Bench) -> None:
    (one, _), (two, _) = bench.front.connect("one"), bench.front.connect("two")
    first = bench.egress.subscribe("a/#", one, 0)
    assert first is not None
    assert bench.egress.subscribe("a/#", two, 1) is None
    assert bench.egress.subscribe("a/#", two, 0) is None
    assert bench.egress.filter_count == 1
    assert bench.egress.unsubscribe("a/#", one) is None
    assert bench.egress.unsubscribe("a/#", one) is None
    assert bench.egress.unsubscribe("a/#", two) == first
    assert bench.egress.unsubscribe("a/#", two) is None
    assert bench.egress.filter_count == 0
    assert bench.egress.subscribe("a/#", one, 0) not in (None, first)


def test_a_record_of_another_topic_than_its_filter_is_left_out_and_counted(bench: Bench) -> None:
    device, transport = bench.front.connect()
    ids = [bench.egress.subscribe(name, device, 0) or 0 for name in ("a/b", "ä", "#")]
    first, second = record_of("a/b", b"1"), record_of("ä", b"2")
    bench.deliver(first + second, matches_of((0, [ids[0]]), (len(first), [ids[0]])))
    bench.deliver(second, matches_of((0, ids)))
    assert received(transport) == [("a/b", b"1", 0), ("ä", b"2", 0)]
    assert bench.egress.misdirected == 2
    assert bench.counts == (2, 0, 0)


def test_very_many_filters_of_a_device_that_match_one_message_keep_nobody_waiting(bench: Bench) -> None:
    count = limits.MQTT_SUBSCRIPTIONS_PER_SESSION_MAX
    device, transport = bench.front.connect(properties=Properties())
    ids = [bench.egress.subscribe(f"f{number}/#", device, (number + 1) << 8) or 0 for number in range(count)]
    record, matches = record_of("a", b"x"), matches_of((0, ids))
    began_s = time.thread_time()
    bench.egress.deliver(record, matches)
    assert time.thread_time() - began_s < turn_s_max()
    bench.front.loop.run()
    ((_, body),) = split_output(transport.take())
    identifiers = b"".join(b"\x0b" + encode_variable_integer(number + 1) for number in range(count))
    assert identifiers in body
    # Nothing is left over for the next.
    bench.deliver(record, matches_of((0, ids[:2])))
    (packet,) = split_output(transport.take())
    assert read_publish5(packet).properties.subscription_identifiers == (1, 2)


def test_a_record_reaches_everybody_on_its_filter_and_nobody_else(bench: Bench) -> None:
    devices = [bench.front.connect(f"d{number}") for number in range(5)]
    for device, _ in devices:
        filter_id = bench.egress.subscribe("a", device, 1) or 1
    bench.egress.subscribe("b", bench.front.connect("other")[0], 1)
    bench.egress.unsubscribe("a", devices[1][0])
    bench.egress.unsubscribe("a", devices[4][0])
    bench.deliver(record_of("a", b"x"), matches_of((0, [filter_id])))
    assert [received(out) for _, out in devices] == [
        [("a", b"x", 1)],
        [],
        [("a", b"x", 1)],
        [("a", b"x", 1)],
        [],
    ]
    assert bench.counts == (3, 0, 0)


def test_overlapping_filters_of_one_device_make_one_copy_of_the_highest_qos(bench: Bench) -> None:
    (low, low_out), (high, high_out) = bench.front.connect("low"), bench.front.connect("high")
    ids = [bench.egress.subscribe(name, low, 0) for name in ("a/#", "a/+", "a/b")]
    assert bench.egress.subscribe("a/+", high, 1) is None
    ids.append(bench.egress.subscribe("#", high, 0))
    record = record_of("a/b", b"x")
    bench.deliver(record + record, matches_of((0, ids), (len(record), ids[:1])))  # type: ignore[list-item]
    assert received(low_out) == [("a/b", b"x", 0)] * 2
    assert received(high_out) == [("a/b", b"x", 1)]
    assert bench.counts == (3, 0, 0)


@pytest.mark.parametrize("granted", [0, 1])
@pytest.mark.parametrize(("published", "expected"), [(0, 0), (1, 1), (2, 1), (None, 1)])
def test_qos_is_the_lower_of_published_and_granted(
    bench: Bench, granted: int, published: int | None, expected: int
) -> None:
    """A native producer names no QoS: such a record is as reliable as the subscriber asked."""
    device, out = bench.front.connect()
    filter_id = bench.egress.subscribe("a", device, granted)
    bench.deliver(record_of("a", b"x", qos=published), matches_of((0, [filter_id or 0])))
    assert received(out) == [("a", b"x", min(expected, granted))]


def test_a_changed_qos_counts_from_the_next_record(bench: Bench) -> None:
    device, out = bench.front.connect()
    filter_id = bench.egress.subscribe("a", device, 0) or 0
    bench.egress.subscribe("a", device, 1)
    bench.deliver(record_of("a", b"x"), matches_of((0, [filter_id])))
    assert received(out) == [("a", b"x", 1)]


@pytest.mark.parametrize("value", ["3", "", "11", "x", "é"])
def test_a_qos_that_is_none_counts_as_none(bench: Bench, value: str) -> None:
    device, out = bench.front.connect()
    filter_id = bench.egress.subscribe("a", device, 1) or 0
    record = record_of("a", b"x", qos=value)  # type: ignore[arg-type]
    bench.deliver(record, matches_of((0, [filter_id])))
    assert received(out) == [("a", b"x", 1)]


def test_what_a_slow_device_cannot_take_is_dropped_and_counted_and_others_get_it() -> None:
    bench = Bench(queued_bytes_max=16 * 1024)
    slow, slow_out = bench.front.connect("slow", high_water_bytes=1_000)
    quick, quick_out = bench.front.connect("quick", high_water_bytes=1_000)
    filter_id = bench.egress.subscribe("a", slow, 0) or 0
    bench.egress.subscribe("a", quick, 0)
    for _ in range(100):
        bench.deliver(record_of("a", bytes(500)), matches_of((0, [filter_id])))
        assert len(received(quick_out)) == 1
    assert slow.is_write_paused
    assert slow.output_bytes <= 16 * 1024
    assert bench.egress.dropped > 0
    assert bench.egress.delivered + bench.egress.dropped == 200
    taken = len(received(slow_out)) + len(received(slow_out))
    assert taken == 100 - bench.egress.dropped


def test_a_window_that_is_full_queues_and_then_drops() -> None:
    bench = Bench(queued_bytes_max=16 * 1024, in_flight_max=2)
    device, out = bench.front.connect()
    filter_id = bench.egress.subscribe("a", device, 1) or 0
    for _ in range(100):
        bench.deliver(record_of("a", bytes(500)), matches_of((0, [filter_id])))
    delivered, dropped, _ = bench.counts
    assert delivered + dropped == 100
    assert 16 * 1024 // 520 <= delivered <= 16 * 1024 // 500 + 2
    read = 0
    while packets_ := split_output(out.take()):
        assert len(packets_) <= 2
        read += len(packets_)
        for _, body in packets_:
            receive(device, packets.encode_acknowledgement(packets.PUBACK, int.from_bytes(body[3:5], "big")))
        bench.front.loop.run()
    assert read == delivered


def test_a_device_on_its_way_out_is_no_slow_subscriber(bench: Bench) -> None:
    device, out = bench.front.connect()
    filter_id = bench.egress.subscribe("a", device, 1) or 0
    device.close(reason_codes.SESSION_TAKEN_OVER)
    bench.deliver(record_of("a", b"x"), matches_of((0, [filter_id])))
    assert not out.written
    assert bench.counts == (0, 0, 0)


@pytest.mark.parametrize("method", ["zlib", "lz4", "zstd"])
def test_compressed_bodies_reach_devices_as_they_were_sent(bench: Bench, method: Compression) -> None:
    device, out = bench.front.connect()
    filter_id = bench.egress.subscribe("a", device, 0) or 0
    body, flag = compress_body(bytes(10_000), method)
    assert flag & COMPRESSED
    bench.deliver(record_of("a", body, sys_flag=flag), matches_of((0, [filter_id])))
    assert received(out) == [("a", bytes(10_000), 0)]
    bench.deliver(record_of("a", b"not zlib", sys_flag=flag), matches_of((0, [filter_id])))
    bench.deliver(record_of("a", body[:-5], sys_flag=flag), matches_of((0, [filter_id])))
    bomb, flag = compress_body(bytes(4 * 1024 * 1024 + 1), method)
    bench.deliver(record_of("a", bomb, sys_flag=flag), matches_of((0, [filter_id])))
    assert received(out) == []
    assert bench.counts == (1, 0, 3)


def test_an_unknown_filter_is_nobody(bench: Bench) -> None:
    bench.deliver(record_of("a", b"x"), matches_of((0, [77]), (0, []), (0, [77, 78])))
    assert bench.counts == (0, 0, 0)


RECORD = record_of("a", b"x")


@pytest.mark.parametrize(
    ("records", "matches", "delivered"),
    [
        (RECORD, matches_of((1, [1])), 0),
        (RECORD, matches_of((len(RECORD), [1])), 0),
        (RECORD, matches_of((0xFFFFFFFF, [1])), 0),
        (RECORD[:-1], matches_of((0, [1])), 0),
        (b"", matches_of((0, [1])), 0),
        (b"garbage", matches_of((0, [1])), 0),
        (RECORD, matches_of((0, [1])) + b"\0" * 7, 1),
        (RECORD, b"\0\0\0", 0),
        (RECORD, matches_of((0, [1]))[:-1], 0),
        (RECORD, b"\0\0\0\0\xff\xff\xff\xff" + b"\0\0\0\1", 0),
        (RECORD, matches_of((0, [1])) + matches_of((5, [1])), 1),
        (record_of("", b"x"), matches_of((0, [1])), 0),
    ],
)
def test_malformed_pushes_are_counted_and_harmless(
    bench: Bench, records: bytes, matches: bytes, delivered: int
) -> None:
    device, out = bench.front.connect()
    assert bench.egress.subscribe("a", device, 0) == 1
    bench.deliver(records, matches)
    assert len(received(out)) == delivered
    assert bench.counts == (delivered, 0, 1)
    bench.deliver(RECORD, matches_of((0, [1])))
    assert received(out) == [("a", b"x", 0)]


def test_an_empty_push_is_nothing(bench: Bench) -> None:
    bench.deliver(b"", b"")
    bench.deliver(RECORD, b"")
    assert bench.counts == (0, 0, 0)


def test_topics_and_payloads_of_any_size(bench: Bench) -> None:
    device, out = bench.front.connect()
    filter_id = bench.egress.subscribe("#", device, 0) or 0
    for topic_size, payload_size in (
        (1, 0),
        (4_096, 0),
        (1, 122),
        (1, 123),
        (1, 124),
        (3, 20_000),
        (5, 600_000),
    ):
        topic, payload = "é" * (topic_size // 2) + "t" * (topic_size % 2), bytes(payload_size)
        bench.deliver(record_of(topic, payload), matches_of((0, [filter_id])))
        assert received(out) == [(topic, payload, 0)]


def overlapping(bench: Bench, subscribers: int) -> tuple[list[FakeTransport], bytes, bytes]:
    """Devices on one filter, and a push of 300 records for it."""
    devices = [bench.front.connect(f"d{number}") for number in range(subscribers)]
    (filter_id, *_) = [bench.egress.subscribe("a", device, 0) for device, _ in devices]
    assert filter_id is not None
    records = [record_of("a", b"%03d" % number) for number in range(300)]
    places = [(number * len(records[0]), [filter_id]) for number in range(300)]
    return [out for _, out in devices], b"".join(records), matches_of(*places)


def test_a_push_for_very_many_takes_several_turns_and_keeps_its_order() -> None:
    bench = Bench(queued_bytes_max=1 << 24)
    outs, records, matches = overlapping(bench, 5_000)
    longest_s, turns = 0.0, 0

    def timed(call: Callable[[], None]) -> None:
        nonlocal longest_s, turns
        began_s = time.thread_time()
        call()
        longest_s = max(longest_s, time.thread_time() - began_s)
        turns += 1

    timed(lambda: bench.egress.deliver(records, matches))
    assert not bench.egress.is_idle
    # What comes behind it waits behind it.
    timed(lambda: bench.egress.deliver(record_of("a", b"end"), matches[:12]))
    assert bench.egress.backlog_bytes > len(records)
    while bench.front.loop.ready:
        timed(bench.front.loop.turn)
    assert longest_s < turn_s_max()
    assert turns > 3
    assert bench.egress.is_idle
    assert bench.egress.backlog_bytes == 0
    expected = [("a", b"%03d" % number, 0) for number in range(300)] + [("a", b"end", 0)]
    for out in outs:
        assert received(out) == expected
    assert bench.counts == (5_000 * 301, 0, 0)


def test_nothing_is_read_from_devices_while_much_waits_for_subscribers() -> None:
    bench = Bench(queued_bytes_max=1 << 24)
    outs, records, matches = overlapping(bench, 1_000)
    records += bytes(3 * 1024 * 1024)  # what nobody here wants of the same push
    size = len(records) + len(matches)
    pushes = limits.EGRESS_BACKLOG_BYTES_MAX // size
    bench.egress.deliver(records, matches)
    assert not bench.front.group.is_congested
    for _ in range(pushes - 1):
        bench.egress.deliver(records, matches)
    waiting = bench.egress.backlog_bytes
    assert limits.EGRESS_BACKLOG_BYTES_MAX - size < waiting <= limits.EGRESS_BACKLOG_BYTES_MAX
    assert bench.front.group.is_congested
    delivered = bench.egress.delivered
    # One more is past the limit: as much is delivered as has to be, and nothing is lost.
    bench.egress.deliver(records, matches)
    assert bench.egress.delivered > delivered
    assert bench.egress.backlog_bytes <= limits.EGRESS_BACKLOG_BYTES_MAX
    assert bench.front.group.is_congested
    # One that is congested for another reason stays so.
    bench.front.group.congest(1)
    while bench.front.loop.ready:
        bench.front.loop.turn()
        for out in outs:
            out.take()
    assert bench.egress.is_idle
    assert bench.counts == (1_000 * 300 * (pushes + 1), 0, 0)
    assert bench.front.group.is_congested
    bench.front.group.relieve(1)
    assert not bench.front.group.is_congested


def test_closing_lets_go_of_what_was_not_written() -> None:
    bench = Bench(queued_bytes_max=1 << 24)
    _, records, matches = overlapping(bench, 1_000)
    bench.egress.deliver(records, matches)
    delivered = bench.egress.delivered
    bench.egress.close()
    assert bench.egress.is_idle
    bench.front.loop.run()
    assert bench.egress.delivered == delivered
    assert bench.egress.backlog_bytes == 0
