"""Messages that wait for any time: delivered then and not before, taken back, listed, over restarts."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from file_size_limit import files_end_at
from manual_clock import ManualClock
from timer_bench import TimerBench

from iotmq.broker.scheduled.delivery_time import DeliveryTime
from iotmq.broker.scheduled.timers import PAGE_BYTES_MAX
from iotmq.broker.tables.deleted_topics import DeletedTopic
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.errors import RequestError, StoreFullError
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import Record, encode_batch
from iotmq.store.kv.timer_index import Timer, TimerIndex
from iotmq.store.log.timer_record import mark_of
from iotmq.store.store import Store

Opener = Callable[..., TimerBench]


class SteppingClock(ManualClock):
    """A clock whose wall time can be set without time passing."""

    def set_ahead(self, seconds: float) -> None:
        self._now_ms += round(seconds * 1000)


@pytest.fixture
def clock() -> SteppingClock:
    return SteppingClock()


@pytest.fixture
async def opened(tmp_path: Path, clock: SteppingClock) -> Any:
    benches: list[TimerBench] = []

    def opener(**settings: Any) -> TimerBench:
        bench = TimerBench(tmp_path, clock, **settings)
        benches.append(bench)
        return bench

    yield opener
    for bench in benches:
        bench.close()


@pytest.fixture
async def bench(opened: Opener) -> TimerBench:
    return opened()


async def test_a_message_comes_at_its_time_and_not_before(bench: TimerBench) -> None:
    due_ms = bench.clock.now_ms() + 1_500
    stored = bench.put(b"later", in_ms=1_500, key="k1", queue_id=2)
    assert bench.timers.pending_count == 1
    bench.pass_time(1.499)
    assert bench.bodies(2) == []
    bench.pass_time(0.001)
    (record,) = bench.records(queue_id=2)
    assert decode_properties(record.properties) == {"UNIQ_KEY": "k1", "TIMER_OUT_MS": str(due_ms)}
    assert record.prepared_position == mark_of(stored.appended.start_position, 0)
    assert bench.timers.pending_count == 0
    assert bench.timers.lateness.last_ms == 0
    bench.pass_time(10)
    assert len(bench.bodies(2)) == 1


async def test_messages_come_in_the_order_of_their_times(bench: TimerBench) -> None:
    for number, in_ms in enumerate((5_000, 1_000, 3_000, 1_000)):
        bench.put(b"%d" % number, in_ms=in_ms)
    bench.put(b"level", level=1)
    bench.pass_time(60)
    assert bench.bodies() == [b"1", b"3", b"level", b"2", b"0"]


async def test_a_time_of_centuries_is_kept(bench: TimerBench) -> None:
    bench.put(b"far", in_ms=1_000 * 86_400 * 365 * 300)
    bench.pass_time(86_400 * 365 * 299)
    assert bench.bodies() == []
    bench.pass_time(86_400 * 365)
    assert bench.bodies() == [b"far"]


async def test_one_that_is_due_earlier_than_all_others_is_not_missed(bench: TimerBench) -> None:
    bench.put(b"late", in_ms=60_000)
    bench.pass_time(30)
    bench.put(b"soon", in_ms=10)
    bench.pass_time(0.01)
    assert bench.bodies() == [b"soon"]


async def test_what_waits_goes_on_waiting_after_a_restart(opened: Opener) -> None:
    bench = opened()
    bench.put(b"one", in_ms=1_000)
    bench.put(b"two", in_ms=2_000)
    bench.put(b"three", level=5)
    bench.pass_time(1)
    bench.close()
    bench = opened()
    assert bench.bodies() == [b"one"]
    assert bench.timers.pending_count == 2
    bench.pass_time(1)
    assert bench.bodies() == [b"one", b"two"]
    bench.close()
    bench.clock.advance(100)
    bench = opened()
    assert bench.bodies() == [b"one", b"two", b"three"]


async def test_the_index_is_made_again_from_the_log(opened: Opener, tmp_path: Path) -> None:
    bench = opened()
    for number in range(20):
        bench.put(b"%d" % number, in_ms=1_000 * (1 + number % 4), key=f"k{number}")
    bench.pass_time(2)
    delivered = bench.bodies()
    waiting = bench.index.waiting(timers_max=100)
    bench.close()
    shutil.rmtree(tmp_path / "kv")
    bench = opened()
    assert bench.index.waiting(timers_max=100) == waiting
    assert bench.index.count == 10
    bench.pass_time(10)
    assert sorted(bench.bodies()) == sorted(b"%d" % number for number in range(20))
    assert bench.bodies()[:10] == delivered


@pytest.mark.parametrize("way", ["reopen", "start_over"])
async def test_a_database_that_starts_again_catches_up_by_itself(bench: TimerBench, way: str) -> None:
    bench.put(b"one", in_ms=1_000)
    bench.put(b"far", in_ms=3_600_000)
    assert bench.index.count == 2
    getattr(bench.store.key_values(), way)()
    bench.pass_time(1)
    bench.pass_time(1)
    assert bench.bodies() == [b"one"]
    assert bench.index.count == 1


async def test_what_was_delivered_is_not_again_while_the_index_cannot_catch_up(
    bench: TimerBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.put(b"one", in_ms=1_000)
    bench.index.sync()
    bench.pass_time(1)
    assert bench.bodies() == [b"one"]
    bench.index.write_out()
    key_values = bench.store.key_values()
    # Of another kind, and more than gets to the disk.
    bench.index._space.write([b"\xff%d" % number for number in range(500)], [random.randbytes(20)] * 500)
    with files_end_at(4096), pytest.raises(StoreFullError):
        key_values.space(bench.index.name).flush(wait=True)

    def refuse(*args: object) -> None:
        raise StoreFullError("full")

    with monkeypatch.context() as patch:
        patch.setattr(TimerIndex, "apply", refuse)
        key_values.reopen()
        for _ in range(4):
            bench.pass_time(1)
        assert "have to wait" in caplog.text
        assert bench.bodies() == [b"one"]
    for _ in range(4):
        bench.pass_time(1)
    assert bench.bodies() == [b"one"]
    assert bench.index.count == 0


async def test_a_log_where_nothing_ever_waited_is_not_gone_through(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = opened()
    queue = bench.store.queue("other", 0)
    for _ in range(10):
        bench.store.append(queue, encode_batch([(b"x", b"", 0)]), born_timestamp_ms=0, born_host=bytes(8))
    end_position = bench.store.appended_position
    bench.close()
    shutil.rmtree(tmp_path / "kv")
    seen: list[int] = []
    real_apply = TimerIndex.apply

    def apply(self: TimerIndex, view: memoryview, start_position: int, end_position: int) -> None:
        seen.append(start_position)
        real_apply(self, view, start_position, end_position)

    monkeypatch.setattr(TimerIndex, "apply", apply)
    bench = opened()
    assert min(seen, default=end_position) >= end_position
    bench.put(b"one", in_ms=1_000)
    bench.close()
    shutil.rmtree(tmp_path / "kv")
    bench = opened()
    assert min(seen) == 0
    bench.pass_time(1)
    assert bench.bodies() == [b"one"]


async def test_a_message_is_taken_back_by_its_key(bench: TimerBench) -> None:
    bench.put(b"stays", in_ms=1_000, key="k1")
    bench.put(b"goes", in_ms=1_000, key="k2")
    bench.put(b"other topic", in_ms=1_000, key="k2", topic="U")
    assert isinstance(bench.cancel("k2"), StoredBatch)
    assert bench.timers.pending_count == 2
    refused = bench.cancel("k2")
    assert isinstance(refused, RefusedBatch)
    assert (refused.code, "k2" in refused.remark) == (22, True)
    bench.pass_time(1)
    assert bench.bodies() == [b"stays"]
    assert [record.body for record in bench.records("U")] == [b"other topic"]
    assert isinstance(bench.cancel("k1"), RefusedBatch)


async def test_a_message_of_a_level_can_be_taken_back_and_the_level_goes_on(bench: TimerBench) -> None:
    for number in range(3):
        bench.put(b"%d" % number, level=1, key=f"k{number}")
    assert isinstance(bench.cancel("k0"), StoredBatch)
    assert bench.delays.offsets.progress()[0] == (1, 3)
    bench.pass_time(1)
    assert bench.bodies() == [b"1", b"2"]
    assert bench.delays.offsets.progress()[0] == (3, 3)


async def test_all_messages_of_one_key_are_taken_back(bench: TimerBench) -> None:
    for number in range(5):
        bench.put(b"%d" % number, in_ms=1_000 + number, key="same")
    assert isinstance(bench.cancel("same"), StoredBatch)
    assert bench.timers.pending_count == 0
    bench.pass_time(10)
    assert bench.bodies() == []


async def test_lists_go_page_by_page_in_the_order_of_time(bench: TimerBench) -> None:
    for number in range(25):
        bench.put(b"%d" % number, in_ms=1_000 * (25 - number), topic="T" if number % 2 else "U")
    seen: list[Record] = []
    after: tuple[int, int] | None = (-1, -1)
    pages = 0

    def ready(found: Any, place: tuple[int, int] | None) -> None:
        nonlocal after
        seen.extend(record for _, record in found)
        after = place

    while after is not None:
        bench.timers.page(after=after, timers_max=10, ready=ready, failed=pytest.fail)
        pages += 1
    assert [record.body for record in seen] == [b"%d" % number for number in reversed(range(25))]
    assert pages == 3
    seen.clear()
    bench.timers.page(topic="U", timers_max=100, ready=ready, failed=pytest.fail)
    assert len(seen) == 13


async def test_one_too_many_is_refused_with_a_code_that_clients_try_again_on(opened: Opener) -> None:
    bench = opened(pending_max=3)
    for number in range(3):
        bench.put(b"%d" % number, in_ms=1_000)
    with pytest.raises(RequestError, match="timers_pending_max") as caught:
        bench.put(b"too many", in_ms=1_000)
    assert caught.value.code == 14
    # What consumers give back has been taken once already.
    bench.timers.divert("%RETRY%g", 0, b"", DeliveryTime(level=1), is_counted=False)
    bench.pass_time(1)
    bench.put(b"again", in_ms=1_000)


async def test_a_clock_set_forward_delivers_what_it_passed_over(bench: TimerBench) -> None:
    assert isinstance(bench.clock, SteppingClock)
    bench.put(b"1", in_ms=3_600_000)
    bench.put(b"2", in_ms=7_200_000)
    bench.clock.set_ahead(3_600)
    bench.deliver()
    assert bench.bodies() == [b"1"]


async def test_a_clock_set_back_delivers_nothing_early_and_levels_little_later_than_their_length(
    bench: TimerBench,
) -> None:
    assert isinstance(bench.clock, SteppingClock)
    for number in range(600):
        bench.put(b"level %d" % number, level=2)
    bench.put(b"own time", in_ms=5_000)
    bench.clock.set_ahead(-3_600)
    bench.pass_time(2)
    assert bench.bodies() == []
    bench.put(b"after", level=2)
    bench.pass_time(4.9)
    assert bench.bodies() == []
    bench.pass_time(0.1)
    assert bench.bodies() == [b"level %d" % number for number in range(600)]
    assert bench.bodies()[600:] == []
    # Stored while the clock was behind, at the time of the last record: store times never fall.
    bench.put(b"later", level=2)
    for _ in range(18):
        bench.pass_time(0.35)
    assert bench.bodies()[600:] == [b"after", b"later"]
    bench.pass_time(3_600)
    assert bench.bodies()[602:] == [b"own time"]


async def test_a_clock_set_back_while_stopped_is_noticed_at_the_start(opened: Opener) -> None:
    bench = opened()
    assert isinstance(bench.clock, SteppingClock)
    bench.put(b"level", level=2)
    bench.close()
    bench.clock.set_ahead(-86_400)
    bench = opened()
    bench.pass_time(4.9)
    assert bench.bodies() == []
    bench.pass_time(0.1)
    assert bench.bodies() == [b"level"]


async def test_under_group_commit_nothing_is_delivered_twice_while_it_waits_for_the_disk(
    opened: Opener,
) -> None:
    bench = opened(flush="sync")
    bench.put(b"one", in_ms=1_000, key="k")
    await bench.flushed()
    bench.clock.advance(1)
    for _ in range(3):
        bench.delays.deliver()
    refused = bench.cancel("k")
    assert isinstance(refused, RefusedBatch)
    await bench.flushed()
    bench.delays.deliver()
    assert bench.bodies() == [b"one"]
    assert bench.timers.pending_count == 0


async def test_a_full_disk_holds_deliveries_up_and_loses_none(
    bench: TimerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        bench.put(b"%d" % number, in_ms=1_000)

    def refuse(*args: object, **kwargs: object) -> None:
        raise StoreFullError("full")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "append", refuse)
        bench.pass_time(1)
        assert bench.bodies() == []
    bench.pass_time(1)
    assert bench.bodies() == [b"0", b"1", b"2"]


async def test_a_topic_that_was_deleted_costs_its_message_and_holds_nobody_up(bench: TimerBench) -> None:
    bench.topics.ensure("gone", queues=1)
    bench.put(b"lost", in_ms=1_000, topic="gone")
    bench.put(b"next", in_ms=1_000)
    bench.topics.delete("gone")
    bench.topics.deleted.add("gone", DeletedTopic(position=0, version=1))
    bench.pass_time(1)
    assert bench.bodies() == [b"next"]
    assert bench.timers.skipped_count == 1
    assert bench.timers.pending_count == 0


async def test_a_message_of_the_brokers_own_is_scheduled(bench: TimerBench) -> None:
    results: list[Any] = []
    due_ms = bench.clock.now_ms() + 500
    bench.timers.schedule("T", 1, b"will", b"UNIQ_KEY\x01w\x02", due_ms=due_ms, done=results.append)
    bench.timers.schedule("T", 1, b"at once", b"", due_ms=0, done=results.append)
    assert bench.bodies(1) == [b"at once"]
    bench.pass_time(0.5)
    assert bench.bodies(1) == [b"at once", b"will"]
    assert all(isinstance(result, StoredBatch) for result in results)


async def test_a_power_cut_may_repeat_a_delivery_and_loses_no_message(opened: Opener, tmp_path: Path) -> None:
    """The log loses what was not flushed; the index and delayOffset.json may have seen more of it."""
    bench = opened(flush_interval_ms=3_600_000, flush_thorough_interval_ms=3_600_000)
    bench.put(b"level", level=1)
    bench.put(b"own time", in_ms=1_000)
    bench.put(b"far", in_ms=3_600_000)
    await bench.flushed()
    flushed = tmp_path.with_name(tmp_path.name + "-flushed")
    shutil.copytree(tmp_path, flushed)
    end_position = bench.store.appended_position
    bench.pass_time(1)
    assert len(bench.bodies()) == 2
    # Not before the delivery is on the disk: the file must never be ahead of the log.
    assert bench.store.flushed_position == end_position
    assert bench.delays.offsets.progress()[0] == (1, 1)
    data = bench.delays.offsets.take_unsaved()
    assert data is not None
    assert json.loads(data)["offsetTable"]["1"] == 0
    bench.delays.offsets.write(data)
    bench.index.sync()
    bench.close()
    shutil.rmtree(flushed / "kv")
    for name in ("kv", "config"):
        (tmp_path / name).rename(flushed / name)
    shutil.rmtree(tmp_path)
    flushed.rename(tmp_path)
    bench = opened()
    assert bench.store.appended_position >= end_position
    bench.deliver()
    assert sorted(bench.bodies()) == [b"level", b"own time"]
    assert bench.timers.pending_count == 1


async def test_what_another_broker_has_delivered_is_not_delivered_again(
    opened: Opener, tmp_path: Path
) -> None:
    bench = opened()
    for number in range(4):
        bench.put(b"%d" % number, level=2)
    bench.close()
    path = tmp_path / "config" / "delayOffset.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text('{\n\t"offsetTable":{2:3,5:99}\n}')
    bench = opened()
    assert bench.timers.pending_count == 1
    assert bench.delays.offsets.progress()[1] == (3, 4)
    bench.put(b"new", level=5)
    bench.close()
    # For good: also when the index is made again, and the file says more by then.
    shutil.rmtree(tmp_path / "kv")
    bench = opened()
    bench.pass_time(5)
    bench.pass_time(100)
    assert bench.bodies() == [b"3", b"new"]


async def test_a_page_of_a_list_has_a_largest_size(bench: TimerBench) -> None:
    for number in range(300):
        bench.put(b"%03d" % number + bytes(60_000), in_ms=1_000 + number)
    sizes: list[int] = []
    places: list[tuple[int, int] | None] = [(-1, -1)]

    def ready(found: Any, place: tuple[int, int] | None) -> None:
        sizes.append(len(found))
        places.append(place)

    while (after := places[-1]) is not None:
        bench.timers.page(after=after, timers_max=1_000, ready=ready, failed=pytest.fail)
    assert sum(sizes) == 300
    assert max(sizes) <= PAGE_BYTES_MAX // 60_000


async def test_large_messages_are_delivered_few_at_a_time(bench: TimerBench) -> None:
    for number in range(40):
        bench.put(b"%02d" % number + bytes(60_000), in_ms=1_000)
    bench.clock.advance(1)
    bench.delays.deliver()
    assert 0 < len(bench.bodies()) <= 18
    bench.deliver()
    assert [body[:2] for body in bench.bodies()] == [b"%02d" % number for number in range(40)]


@pytest.fixture
def far_records(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    """What was asked to be in memory."""
    asked: list[list[tuple[int, int]]] = []
    real = Store.plan_records

    def plan(self: Store, places: Any) -> Any:
        wanted = list(places)
        asked.append(wanted)
        return real(self, wanted)

    monkeypatch.setattr(Store, "plan_records", plan)
    return asked


class SlowDisk:
    """Records that have to be fetched; the test says when they are there."""

    def __init__(self, bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ready: list[Callable[[OSError | None], None]] = []
        self.is_busy = False
        monkeypatch.setattr(bench.store, "plan_records", lambda places: list(places) or None)
        monkeypatch.setattr(bench.timers._cold_reads, "start", self.start)

    def start(self, plan: object, ready: Callable[[OSError | None], None]) -> None:
        if self.is_busy:
            raise RequestError(2, "busy")
        self.ready.append(ready)

    def answer(self, error: OSError | None = None) -> None:
        for ready in self.ready[:]:
            self.ready.remove(ready)
            ready(error)


async def test_what_must_be_fetched_is_delivered_when_it_is_there(
    bench: TimerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        bench.put(b"%d" % number, in_ms=1_000, key=f"k{number}")
    disk = SlowDisk(bench, monkeypatch)
    bench.pass_time(1)
    bench.pass_time(1)
    assert bench.bodies() == []
    assert len(disk.ready) == 1
    # Taken back while its record is on the way.
    results: list[Any] = []
    bench.timers.cancel("T", "k1", results.append)
    assert results == []
    disk.ready.reverse()
    disk.answer()
    assert isinstance(results[0], StoredBatch)
    assert bench.bodies() == [b"0", b"2"]
    assert bench.timers.pending_count == 0


async def test_a_disk_that_gives_nothing_is_asked_again(
    bench: TimerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put(b"one", in_ms=1_000, key="k")
    disk = SlowDisk(bench, monkeypatch)
    bench.pass_time(1)
    disk.answer(OSError("bad sector"))
    bench.deliver()
    assert disk.ready == []
    assert bench.bodies() == []
    bench.clock.advance(1)
    disk.is_busy = True
    bench.deliver()
    assert bench.bodies() == []
    results: list[Any] = []
    bench.timers.cancel("T", "k", results.append)
    assert results[0].code == 2
    disk.is_busy = False
    bench.clock.advance(1)
    bench.deliver()
    disk.answer()
    assert bench.bodies() == [b"one"]


async def test_what_is_far_back_in_the_log_is_fetched_before_it_is_due(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = opened(hot_bytes=0)
    bench.put(b"one", in_ms=10_000)
    disk = SlowDisk(bench, monkeypatch)
    bench.pass_time(1)
    assert disk.ready == []
    bench.pass_time(7.5)
    assert len(disk.ready) == 1
    disk.answer()
    assert bench.bodies() == []


async def test_queue_entries_of_levels_say_when_they_are_due(bench: TimerBench) -> None:
    for level, delay_ms in ((1, 1_000), (5, 60_000)):
        stored = bench.put(b"x", level=level)
        queue = bench.store.find_queue("SCHEDULE_TOPIC_XXXX", level - 1)
        assert queue is not None
        entry = queue.entry(0)
        assert entry is not None
        assert entry[2] == stored.appended.store_timestamp_ms + delay_ms


async def test_records_are_asked_for_before_they_are_read(
    bench: TimerBench, far_records: list[list[tuple[int, int]]]
) -> None:
    stored = bench.put(b"one", in_ms=1_000)
    bench.pass_time(1)
    timer = Timer(0, stored.appended.start_position, 0, 0, 0)
    assert timer.position in {position for places in far_records for position, _ in places}
    assert bench.bodies() == [b"one"]
