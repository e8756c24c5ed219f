"""The last record of each MQTT topic."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_model import BORN_HOST, open_small, put, wait_flushed

from iotmq.errors import StoreCorruptError, StoreError
from iotmq.message.records.record import decode_record, encode_batch, encode_record
from iotmq.store.kv.latest_collector import LatestCollector
from iotmq.store.store import Store
from iotmq.store.tools.rebuild import rebuild


def publish(store: Store, mqtt_topic: str, *bodies: bytes, topic: str = "T", **more: Any) -> Any:
    properties = b"MQTT_TOPIC\x01" + mqtt_topic.encode() + b"\x02"
    return put(store, topic, 0, *bodies, properties=properties, **more)


def body(store: Store, mqtt_topic: str) -> bytes | None:
    record = store.latest(mqtt_topic)
    return None if record is None else decode_record(record).body


def answer(store: Store, mqtt_topic: str) -> bytes | None:
    """The body, or `damaged` when the error says what to do."""
    try:
        return body(store, mqtt_topic)
    except StoreCorruptError as error:
        return b"damaged" if "`iotmq store rebuild`" in str(error) else None


def topics(store: Store, prefix: str = "", **more: Any) -> list[str]:
    return [place.mqtt_topic for place, _ in store.latest_records(prefix, **more)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_small(tmp_path, latest_enabled=True)
    yield store
    assert store.check() == []
    store.close()


def test_the_last_record_of_a_topic_is_found_collected_and_written(store: Store) -> None:
    publish(store, "dev/1/t", b"a", b"b")
    publish(store, "dev/2/t", b"c")
    assert body(store, "dev/1/t") == b"b"
    store._projections.latest.write_out()
    assert body(store, "dev/1/t") == b"b"
    publish(store, "dev/1/t", b"d")
    assert (body(store, "dev/1/t"), body(store, "dev/2/t")) == (b"d", b"c")
    assert store.latest("dev/1") is None
    assert store.latest("") is None


def test_a_place_says_position_offset_and_time(store: Store) -> None:
    publish(store, "a", b"x")
    appended = publish(store, "a", b"y")
    place = store._projections.latest.find("a")
    assert place == ("a", appended.start_position, 1, appended.store_timestamp_ms)
    store._projections.latest.write_out()
    assert store._projections.latest.find("a") == place


def test_prefixes_and_pages(store: Store) -> None:
    names = [f"dev/{number:02}/t" for number in range(30)]
    for name in reversed(names):
        publish(store, name, name.encode())
    publish(store, "e", b"e")
    publish(store, "dé/ü", "ü".encode())
    for place, record in store.latest_records("dev/"):
        assert decode_record(record).body.decode() == place.mqtt_topic
    assert topics(store, "dev/") == names
    assert topics(store, "dev/1") == names[10:20]
    assert topics(store, after="dev/28/t") == [names[29], "dé/ü", "e"]
    assert topics(store, "dev/", after="dev/28/t") == [names[29]]
    assert topics(store, "zzz") == []
    assert len(topics(store)) == 32


def test_only_what_devices_and_services_publish_counts(store: Store) -> None:
    publish(store, "a", b"first")
    publish(store, "a", b"retry", topic="%RETRY%group")
    publish(store, "a", b"dead", topic="%DLQ%group")
    publish(store, "a", b"later", topic="SCHEDULE_TOPIC_XXXX")
    publish(store, "a", b"half", topic="RMQ_SYS_TRANS_HALF_TOPIC")
    publish(store, "a", b"prepared", sys_flag=4)
    publish(store, "a", b"rolled back", sys_flag=12)
    put(store, "T", 0, b"no topic")
    put(store, "T", 0, b"empty topic", properties=b"MQTT_TOPIC\x01\x02")
    assert body(store, "a") == b"first"
    publish(store, "a", b"committed", sys_flag=8)
    assert body(store, "a") == b"committed"
    publish(store, "a", b"like a system topic", topic="SCHEDULE_TOPIC_XXXXX")
    assert body(store, "a") == b"like a system topic"
    assert len(topics(store)) == 1


def test_long_topics_and_bytes_that_are_no_utf8(store: Store) -> None:
    long = "x" * 1900
    publish(store, long, b"long")
    publish(store, long[:-1], b"shorter")
    assert (body(store, long), body(store, long[:-1])) == (b"long", b"shorter")
    put(store, "T", 0, b"odd", properties=b"MQTT_TOPIC\x01\xff\xfe\x02")
    assert body(store, b"\xff\xfe".decode("utf-8", "surrogateescape")) == b"odd"
    assert topics(store, "\udcff") == ["\udcff\udcfe"]


def test_off_it_says_so_and_costs_nothing(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    publish(store, "a", b"x")
    with pytest.raises(StoreError, match="latest_enabled"):
        store.latest("a")
    with pytest.raises(StoreError, match="latest_enabled"):
        list(store.latest_records())
    store.close()
    assert not (tmp_path / "kv").exists()
    store = open_small(tmp_path, latest_enabled=True)
    assert body(store, "a") == b"x"
    store.close()


def test_off_and_on_again_goes_through_what_it_missed(tmp_path: Path) -> None:
    for number, enabled in enumerate((True, False, True)):
        store = open_small(tmp_path, latest_enabled=enabled)
        publish(store, "a", b"%d" % number)
        publish(store, f"only/{number}", b"x")
        store.close()
    store = open_small(tmp_path, latest_enabled=True)
    assert body(store, "a") == b"2"
    assert len(topics(store, "only/")) == 3
    assert store.check() == []
    store.close()


def test_under_sync_flush_only_confirmed_records_are_last(tmp_path: Path) -> None:
    store = open_small(tmp_path, latest_enabled=True, flush="sync")
    publish(store, "a", b"x")
    wait_flushed(store)
    assert body(store, "a") == b"x"
    store.close()


def test_a_record_that_is_not_the_topics_is_not_given(store: Store) -> None:
    other = publish(store, "other", b"x")
    wrong = struct.pack(">qqq", other.start_position, 0, 0)
    nowhere = struct.pack(">qqq", other.start_position + 1, 0, 0)
    space = store._projections.latest._space
    space.write([b"\x01a", b"\x01b", b"\x01c"], [wrong, nowhere, b"short"])
    assert [store.latest(name) for name in "abc"] == [None, None, None]
    assert topics(store) == ["other"]


def test_topics_whose_record_is_gone_are_swept(store: Store) -> None:
    for number in range(40):
        publish(store, f"old/{number:02}", b"x")
    min_position = store.appended_position
    publish(store, "old/07", b"new")
    publish(store, "new", b"y")
    latest = store._projections.latest
    latest.trim(min_position)
    assert latest.durable_position == store.appended_position
    assert latest.find("old/08") is None
    assert [latest.find(name) is None for name in ("new", "old/07")] == [False, False]
    rounds = 0
    while latest._sweep_key is not None:
        latest.sweep(10)
        rounds += 1
    assert rounds == 5
    assert [key for key, _ in latest._space.scan(b"\x01")] == [b"\x01new", b"\x01old/07"]
    assert [place.mqtt_topic for place in latest.places()] == ["new", "old/07"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_damage_anywhere_in_the_database_never_gives_a_wrong_answer(tmp_path: Path, seed: int) -> None:
    """Flipped, cut or emptied: a start works, and what is read is right or an error that says what to do."""
    store = open_small(tmp_path, latest_enabled=True)
    names = [f"dev/{number:04}/telemetry" for number in range(900)]
    for first in range(0, 900, 300):
        elements = (
            (name.encode(), b"MQTT_TOPIC\x01" + name.encode(), 0) for name in names[first : first + 300]
        )
        store.append(store.queue("T", 0), encode_batch(elements), born_timestamp_ms=1, born_host=BORN_HOST)
        store._projections.latest.sync()
    store.close()
    source = random.Random(seed)
    files = [
        path for path in sorted((tmp_path / "kv").iterdir()) if path.stat().st_size and path.name != "LOG"
    ]
    path = source.choice(files)
    data = bytearray(path.read_bytes())
    at = source.randrange(len(data))
    if seed % 3 == 0:
        path.write_bytes(data[:at])
    else:
        data[at] ^= 1 << source.randrange(8)
        path.write_bytes(data)
    store = open_small(tmp_path, latest_enabled=True)
    answers = [answer(store, name) for name in names]
    assert all(found in (name.encode(), b"damaged") for name, found in zip(names, answers, strict=True))
    publish(store, names[0], b"new")
    assert body(store, names[0]) == b"new"
    assert store.check() == []
    store.close()
    if b"damaged" in answers:
        rebuild(tmp_path, store.settings, ["latest"])
        store = open_small(tmp_path, latest_enabled=True)
        assert [body(store, name) for name in names[1:]] == [name.encode() for name in names[1:]]
        store.close()


def test_collector_against_a_dict() -> None:
    collector = LatestCollector()
    assert collector.find(b"a") is None
    model: dict[bytes, bytes] = {}
    position = 0
    for round_number in range(3):
        pieces = []
        for number in range(3000):
            topic = b"t/%d" % (number * 7919 % 1801)
            record = encode_record(
                topic="T", body=b"", properties=b"MQTT_TOPIC\x01" + topic, queue_offset=number,
                position=position, store_timestamp_ms=round_number,
            )  # fmt: skip
            model[topic] = struct.pack(">qqq", position, number, round_number)
            pieces.append(record)
            position += len(record)
        collector.collect(b"".join(pieces))
        assert collector.count == len(model)
        assert all(collector.find(topic) == value for topic, value in model.items())
        keys, values = collector.items()
        assert {key[1:]: value for key, value in zip(keys, values, strict=True)} == model
        assert all(key[0] == 1 for key in keys)
    collector.clear()
    assert collector.count == 0
    assert collector.items() == ([], [])
    assert collector.find(b"t/1") is None


def test_a_large_collector_gives_its_memory_back() -> None:
    collector = LatestCollector()
    for start in range(0, 70_000, 10_000):
        collector.collect(
            b"".join(
                encode_record(topic="T", body=b"", properties=b"MQTT_TOPIC\x01%d" % number, position=number)
                for number in range(start, start + 10_000)
            )
        )
    assert collector.count == 70_000
    assert collector.find(b"69999") == struct.pack(">qqq", 69_999, 0, 0)
    collector.clear()
    assert collector.find(b"1") is None
    collector.collect(encode_record(topic="T", body=b"", properties=b"MQTT_TOPIC\x01a", position=5))
    assert collector.count == 1


def test_bytes_that_are_no_records_are_refused() -> None:
    collector = LatestCollector()
    with pytest.raises(StoreCorruptError):
        collector.collect(b"\0" * 200)
    record = encode_record(topic="T", body=b"", properties=b"MQTT_TOPIC\x01a")
    blank = struct.pack(">II", 64, 0xCBD43194) + bytes(56)
    collector.collect(record + blank)
    assert collector.count == 1
    with pytest.raises(StoreCorruptError):
        collector.collect(record[:-1])
