"""Delay levels over a real store: waiting, delivery in time and in order, restarts, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from eventually import soon
from manual_clock import ManualClock

from iotmq.broker.parts import make_parts
from iotmq.broker.scheduled.delay_offsets import DelayOffsets
from iotmq.broker.scheduled.scheduling import (
    DelayDelivery,
    DelayLevels,
    DelayOffsetTable,
    without_properties,
)
from iotmq.broker.scheduled.timers import TURN_TIMERS_MAX
from iotmq.broker.scheduled.unflushed_deliveries import UnflushedDeliveries
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.config_files import DataVersion
from iotmq.broker.tables.topics import SCHEDULE_TOPIC
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.errors import ConfigError, RequestError, StoreFullError
from iotmq.message.hosts import encode_host
from iotmq.message.records.record import Record, iter_records
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = encode_host("127.0.0.1", 10911)


class Bench:
    def __init__(self, store: Store, directory: Path, clock: ManualClock) -> None:
        self.clock = clock
        self.store = store
        self.path = directory / "config" / "delayOffset.json"
        settings = BrokerSettings(delay_levels="1s 5s 10m")
        self.parts = make_parts(settings, store, directory=directory, host=HOST, clock=clock)
        self.topics = self.parts.topics
        self.topics.ensure(SCHEDULE_TOPIC, queues=18)
        self.topics.ensure("T", queues=2)
        self.writer = self.parts.writer
        self.writer.open()
        self.delivery = self.restarted()

    def restarted(self) -> DelayDelivery:
        delivery = DelayDelivery(self.parts)
        self.levels = delivery.levels
        delivery.start()
        return delivery

    def put(self, body: bytes, level: int, properties: bytes = b"", queue_id: int = 0) -> None:
        results: list[StoredBatch | RefusedBatch] = []
        topic, waiting_queue_id, waiting = self.levels.divert("T", queue_id, properties, level)
        self.writer.append(
            topic,
            waiting_queue_id,
            encode_element(body, waiting, 3),
            born_timestamp_ms=77,
            born_host=HOST,
            reconsume_times=2,
            done=results.append,
        )
        assert isinstance(results[0], StoredBatch)

    async def flushed(self) -> None:
        self.store.request_flush()
        await soon(
            lambda: self.store.flushed_position == self.store.appended_position, "everything is flushed"
        )

    def records(self, topic: str = "T", queue_id: int = 0) -> list[Record]:
        queue = self.store.find_queue(topic, queue_id)
        if queue is None:
            return []
        read = self.store.read(queue, 0, records_max=10_000, bytes_max=1 << 26)
        return [record for view in read.views for record in iter_records(view)]

    def bodies(self, queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.records(queue_id=queue_id)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(
        tmp_path / "data", StoreSettings(segment_bytes=16 << 20), store_host=HOST, clock=ManualClock()
    )
    yield store
    assert store.check() == []
    store.close()


@pytest.fixture
async def bench(store: Store, tmp_path: Path) -> Bench:
    clock = store._clock
    assert isinstance(clock, ManualClock)
    return Bench(store, tmp_path, clock)


def test_levels_are_read_and_clamped() -> None:
    levels = DelayLevels("1s 2m 3h 4d")
    assert levels.delays_ms == [1_000, 120_000, 10_800_000, 345_600_000]
    assert [levels.clamp(level) for level in (-1, 0, 1, 4, 5)] == [0, 0, 1, 4, 4]
    assert levels.level_of(b"A\x01b\x02DELAY\x013\x02") == 3
    assert levels.level_of(b"DELAY\x0199999999999999999999") == 4
    assert levels.level_of(b"DELAY\x01-1\x02") == 0
    assert levels.level_of(b"DELAY\x01x\x02") == 0
    assert levels.level_of(b"KEYS\x01DELAY\x02") == 0


@pytest.mark.parametrize("text", ["1", "s", "1w", "1.5s", "-1s", "1s, 2s"])
def test_other_texts_are_no_levels(text: str) -> None:
    with pytest.raises(ConfigError, match="delay_levels"):
        DelayLevels(text)


def test_properties_are_taken_out_byte_for_byte() -> None:
    properties = b"A\x01\xff\xfe\x02DELAY\x013\x02DELAYED\x01x\x02REAL_TOPIC\x01T"
    assert without_properties(properties, b"DELAY", b"REAL_TOPIC") == b"A\x01\xff\xfe\x02DELAYED\x01x\x02"
    assert without_properties(b"", b"DELAY") == b""


async def test_a_message_is_delivered_when_its_time_has_come_and_not_before(bench: Bench) -> None:
    bench.put(b"late", 2, b"TAGS\x01TagA\x02", queue_id=1)
    bench.clock.advance(4.999)
    bench.delivery.deliver()
    assert bench.bodies(1) == []
    bench.clock.advance(0.001)
    bench.delivery.deliver()
    (record,) = bench.records(queue_id=1)
    # As in the original, how long it waited stays, and so does where it was going.
    assert record.properties == b"TAGS\x01TagA\x02DELAY\x012\x02REAL_TOPIC\x01T\x02REAL_QID\x011"
    assert (record.body, record.flag, record.reconsume_times) == (b"late", 3, 2)
    assert (record.born_timestamp_ms, record.born_host) == (77, HOST)
    bench.delivery.deliver()
    assert len(bench.bodies(1)) == 1


async def test_a_time_to_live_begins_when_the_message_is_due(bench: Bench) -> None:
    bench.put(b"short-lived", 2, b"MSG_TTL_MS\x011000\x02")
    bench.clock.advance(5)
    bench.delivery.deliver()
    assert bench.bodies() == [b"short-lived"]
    bench.clock.advance(1)
    assert bench.bodies() == []


async def test_each_level_waits_on_its_own_and_keeps_its_order(bench: Bench) -> None:
    for number in range(3):
        bench.put(b"slow %d" % number, 3)
        bench.put(b"fast %d" % number, 1)
        bench.clock.advance(0.1)
    bench.clock.advance(2)
    bench.delivery.deliver()
    assert bench.bodies() == [b"fast 0", b"fast 1", b"fast 2"]
    bench.clock.advance(600)
    bench.delivery.deliver()
    assert bench.bodies()[3:] == [b"slow 0", b"slow 1", b"slow 2"]


async def test_nothing_is_repeated_or_lost_over_a_clean_restart(bench: Bench) -> None:
    bench.put(b"one", 1)
    bench.put(b"two", 2)
    bench.clock.advance(1)
    bench.delivery.deliver()
    await bench.flushed()
    data = bench.delivery.offsets.take_unsaved()
    assert data is not None
    assert bench.delivery.offsets.take_unsaved() is None
    bench.delivery.offsets.write(data)
    assert json.loads(bench.path.read_text())["offsetTable"] == {"1": 1, "2": 0, "3": 0}
    bench.clock.advance(100)
    again = bench.restarted()
    assert bench.bodies() == [b"one", b"two"]
    assert again.offsets.progress() == [(1, 1), (1, 1), (0, 0)]


async def test_a_file_of_java_and_offsets_past_the_end_are_understood(bench: Bench) -> None:
    bench.put(b"one", 1)
    bench.path.parent.mkdir()
    bench.path.write_text('{\n\t"offsetTable":{1:99,3:2}\n}')
    assert bench.restarted().offsets.progress() == [(1, 1), (0, 0), (0, 0)]


async def test_a_follower_knows_what_another_broker_delivered_before_its_master(bench: Bench) -> None:
    bench.delivery.stop()
    for body in (b"of the other", b"waits"):
        bench.put(body, 1)
    followed = DelayDelivery(bench.parts).offsets
    # Before its start it writes what it was told, and nothing of its own.
    assert not followed.is_dirty
    assert followed.take_unsaved() is None
    followed.replace([DelayOffsetTable(offset_table={1: 2}, taken_over={1: 1})], DataVersion())
    assert followed.is_dirty
    data = followed.take_unsaved()
    assert data is not None
    assert followed.take_unsaved() is None
    followed.is_dirty = True
    assert followed.take_unsaved() == data
    followed.write(data)
    assert json.loads(bench.path.read_text()) == {"offsetTable": {"1": 2}, "takenOver": {"1": 1}}
    again = bench.restarted()
    bench.clock.advance(1)
    again.deliver()
    assert bench.bodies() == [b"waits"]
    again.stop()


async def test_a_follower_of_a_broker_of_the_java_kind_counts_by_its_offsets(bench: Bench) -> None:
    bench.delivery.stop()
    for body in (b"of the other", b"waits"):
        bench.put(body, 1)
    follower = DelayDelivery(bench.parts)
    follower.offsets.replace([DelayOffsetTable(offset_table={1: 1, 2: 99})], DataVersion())
    data = follower.offsets.take_unsaved()
    assert data is not None
    assert json.loads(data) == {"offsetTable": {"1": 1, "2": 99}}
    follower.start()
    bench.clock.advance(1)
    follower.deliver()
    assert bench.bodies() == [b"waits"]
    # From now on it counts itself.
    assert json.loads(bench.path.read_text())["takenOver"] == {"1": 1, "2": 0}
    follower.stop()


def test_delay_offsets_are_one_table(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "delayOffset.json"
    followed = DelayOffsets(store, DelayLevels("1s"), UnflushedDeliveries(store), path)
    for count in (0, 2):
        with pytest.raises(RequestError, match=f"{count} tables"):
            followed.replace([DelayOffsetTable()] * count, DataVersion())
    assert not followed.is_dirty


def test_what_was_followed_counts_as_stored_by_others() -> None:
    positions = SimpleNamespace(appended_position=5, flushed_position=5)
    ended = UnflushedDeliveries(positions)  # type: ignore[arg-type]
    positions.appended_position = 9
    assert ended.is_former_flushed
    ended.start()
    assert not ended.is_former_flushed
    positions.flushed_position = 9
    assert ended.is_former_flushed


async def test_many_due_at_once_are_delivered_in_portions(bench: Bench) -> None:
    for number in range(1_200):
        bench.put(b"%d" % number, 1)
    bench.clock.advance(1)
    bench.delivery.deliver()
    assert len(bench.bodies()) == TURN_TIMERS_MAX
    while len(bench.bodies()) < 1_200:
        before = len(bench.bodies())
        bench.delivery.deliver()
        assert before < len(bench.bodies()) <= before + TURN_TIMERS_MAX
    assert bench.bodies() == [b"%d" % number for number in range(1_200)]


async def test_a_refused_delivery_is_tried_again_in_order(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        bench.put(b"%d" % number, 1)
    bench.clock.advance(1)
    real_append = Store.append
    calls = 0

    def append(self: Store, *args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StoreFullError("full")
        return real_append(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "append", append)
    bench.delivery.deliver()
    assert bench.bodies() == [b"0"]
    bench.delivery.deliver()
    assert bench.bodies() == [b"0"]
    bench.clock.advance(1)
    bench.delivery.deliver()
    assert bench.bodies() == [b"0", b"1", b"2"]
    assert bench.delivery.offsets.progress()[0] == (3, 3)


async def test_a_topic_that_was_closed_meanwhile_still_gets_its_messages(bench: Bench) -> None:
    bench.put(b"one", 1)
    bench.topics.delete("T")
    bench.clock.advance(1)
    bench.delivery.deliver()
    assert bench.bodies() == [b"one"]


async def test_a_message_without_a_real_topic_is_skipped(bench: Bench) -> None:
    bench.writer.append(
        SCHEDULE_TOPIC,
        0,
        encode_element(b"stray", b"", 0),
        born_timestamp_ms=1,
        born_host=HOST,
        done=lambda result: None,
    )
    bench.put(b"next", 1)
    bench.clock.advance(1)
    bench.delivery.deliver()
    assert bench.bodies() == [b"next"]
    assert bench.delivery.offsets.progress()[0] == (2, 2)
